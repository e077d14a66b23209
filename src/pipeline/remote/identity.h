// Handshakes: what an end says of itself, and what two ends must agree about (distributed.md 5.3).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/units.h"
#include "pipeline/wire/link.h"

namespace weft::wire {
class Hello;
class HelloReply;
class Plan;
}  // namespace weft::wire

namespace weft {

[[nodiscard]] std::string random_boot_id();
[[nodiscard]] std::string sha256_text(std::string_view text);  // 64 hexadecimal digits

// Versions, byte order, dtypes and clocks of this process. `build`: version and commit of the program.
[[nodiscard]] wire::Hello local_hello(const std::string& build);
// Whether an end reads frames that are compressed so.
[[nodiscard]] bool reads(const wire::Hello& hello, Compression compression);
// For questions that need no model: status and measurements.
[[nodiscard]] wire::Hello observer_hello(const wire::Hello& self, const std::string& to_node);

void add_difference(wire::HelloReply& reply, std::string_view what, std::string_view wanted, std::string_view found);
// All in which `theirs` differs from what `mine` needs; an observer needs the protocol's version and the cluster alone.
void add_differences(wire::HelloReply& reply, const wire::Hello& mine, const wire::Hello& theirs);
// "protocol: wanted 1, found 2; cluster: wanted 'a', found 'b'"
[[nodiscard]] std::string differences_text(const wire::HelloReply& reply);

// Sends `hello` and takes the answer. Throws handshake naming every difference, security when this end's certificate is
// another node's, stage_lost after `seconds` of silence. The
// link's reader must not run yet.
wire::HelloReply exchange_hello(Link& link, const wire::Hello& hello, double seconds);

// Layers of a stage of a plan that came from elsewhere. Throws bad_input for a stage that it lacks and for an empty range.
[[nodiscard]] LayerRange stage_layers(const wire::Plan& plan, int64_t stage);

struct LinkMeasure {
  double round_trip = 0.0;  // seconds, median
  double bandwidth = 0.0;   // bytes/s there and back, median
};
// Sends up to `bytes` there and back, `repeats` times: so many that it takes a quarter of a second, if there are so many.
// Throws as exchange_hello(), stage_lost when the whole takes longer than 30 s.
[[nodiscard]] LinkMeasure measure_link(std::unique_ptr<MessageStream> stream, const LinkOptions& options,
                                       const wire::Hello& hello, int64_t bytes, int repeats);

}  // namespace weft
