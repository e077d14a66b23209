#include "pipeline/remote/identity.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <vector>

#include <openssl/evp.h>
#include <openssl/rand.h>

#include "base/error.h"
#include "pipeline/remote/link_watch.h"
#include "pipeline/remote/messages.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "handshake";
constexpr double kHelloSeconds = 10.0;    // distributed.md 5.10, handshake
constexpr double kMeasureSeconds = 30.0;  // of a whole measurement
constexpr int64_t kFirstBytes = 64 << 10;
constexpr double kTransferSeconds = 0.25;  // long enough for a figure

template <class Clock>
double seconds_of() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

uint64_t all_dtypes() {
  uint64_t bits = 0;
  for (uint8_t code = 0; code < 64; ++code) {
    if (!guard([&] { static_cast<void>(dtype_of_wire_code(code)); })) bits |= uint64_t{1} << code;
  }
  return bits;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0.0 : values[values.size() / 2];
}

}  // namespace

std::string random_boot_id() {
  unsigned char bytes[16];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) fail(ErrorKind::unavailable, kPlace, "the system gives no random bytes");
  return hex(bytes, sizeof(bytes));
}

std::string sha256_text(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    fail(ErrorKind::internal, kPlace, "the SHA-256 library refused");
  return hex(digest, size);
}

wire::Hello local_hello(const std::string& build) {
  wire::Hello hello;
  hello.set_major(kWireMajor);
  hello.set_minor(kWireMinor);
  hello.set_build(build);
  hello.set_dtypes(all_dtypes());
  hello.set_encodings(uint64_t{1} << static_cast<unsigned>(Compression::lz4));
  hello.set_little_endian(std::endian::native == std::endian::little);
  hello.set_clock(seconds_of<std::chrono::system_clock>());
  hello.set_steady(seconds_of<std::chrono::steady_clock>());
  return hello;
}

bool reads(const wire::Hello& hello, Compression compression) {
  return compression == Compression::none || (hello.encodings() >> static_cast<unsigned>(compression) & 1U) != 0;
}

wire::Hello observer_hello(const wire::Hello& self, const std::string& to_node) {
  wire::Hello hello = self;
  hello.set_role(wire::Hello::OBSERVER);
  hello.set_to_node(to_node);
  return hello;
}

void add_difference(wire::HelloReply& reply, std::string_view what, std::string_view wanted, std::string_view found) {
  wire::Difference& difference = *reply.add_differences();
  difference.set_what(std::string(what));
  difference.set_wanted(std::string(wanted));
  difference.set_found(std::string(found));
}

void add_differences(wire::HelloReply& reply, const wire::Hello& mine, const wire::Hello& theirs) {
  const auto same = [&](std::string_view what, const std::string& wanted, const std::string& found) {
    if (wanted != found) add_difference(reply, what, wanted, found);
  };
  if (mine.major() != theirs.major()) {
    add_difference(reply, "protocol", fmt::format("{}.{} (build {})", mine.major(), mine.minor(), mine.build()),
                   fmt::format("{}.{} (build {})", theirs.major(), theirs.minor(), theirs.build()));
  }
  same("cluster", mine.cluster(), theirs.cluster());
  same("node", mine.node(), theirs.to_node());
  if (theirs.role() == wire::Hello::OBSERVER) return;
  same("family", mine.family(), theirs.family());
  same("config.json (SHA-256)", mine.config_sha256(), theirs.config_sha256());
  const auto order = [](const wire::Hello& hello) { return hello.little_endian() ? "little-endian" : "big-endian"; };
  same("byte order", order(mine), order(theirs));
  // Boundaries, logits, ids and messages travel in these.
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8}) {
    if ((theirs.dtypes() >> wire_code(dtype) & 1U) == 0) add_difference(reply, "dtype", fmt::format("{}", dtype), "none");
  }
  if (mine.max_chunk() != theirs.max_chunk()) {
    same("chunk size", fmt::format("{}", mine.max_chunk()), fmt::format("{}", theirs.max_chunk()));
  }
}

std::string differences_text(const wire::HelloReply& reply) {
  std::string text;
  for (const wire::Difference& difference : reply.differences()) {
    text += fmt::format("{}{}: wanted {}, found {}", text.empty() ? "" : "; ", difference.what(), difference.wanted(),
                        difference.found());
  }
  return text;
}

wire::HelloReply exchange_hello(Link& link, const wire::Hello& hello, double seconds) {
  const LinkDeadline deadline(link, seconds, fmt::format("no handshake within {:.0f} s", seconds));
  wire::Control message;
  *message.mutable_hello() = hello;
  link.send(message_frame(FrameType::control, message));
  const std::optional<Frame> frame = link.receive();
  if (!frame) fail(ErrorKind::stage_lost, kPlace, "{}: the connection was closed", link.peer());
  const auto answer = message_of<wire::Control>(*frame);
  if (!answer.has_hello_reply())
    fail(ErrorKind::bad_input, kPlace, "{}: wanted a handshake, found another message", link.peer());
  if (answer.hello_reply().has_refused()) from_wire(answer.hello_reply().refused()).raise();
  if (answer.hello_reply().differences_size() > 0) {
    fail(ErrorKind::handshake, kPlace, "{}: {}", link.peer(), differences_text(answer.hello_reply()));
  }
  return answer.hello_reply();
}

LayerRange stage_layers(const wire::Plan& plan, int64_t stage) {
  if (stage < 0 || stage >= plan.stages_size()) {
    fail(ErrorKind::bad_input, "plan", "wanted a stage in [0, {}), found {}", plan.stages_size(), stage);
  }
  const wire::PlannedStage& planned = plan.stages(static_cast<int>(stage));
  if (planned.begin() < 0 || planned.begin() >= planned.end() || planned.end() > plan.layer_count()) {
    fail(ErrorKind::bad_input, "plan", "stage {}: wanted layers in [0, {}), found [{}, {})", stage, plan.layer_count(),
         planned.begin(), planned.end());
  }
  return {LayerIndex(planned.begin()), LayerIndex(planned.end())};
}

LinkMeasure measure_link(std::unique_ptr<MessageStream> stream, const LinkOptions& options, const wire::Hello& hello,
                         int64_t bytes, int repeats) {
  Link link(std::move(stream), options);
  exchange_hello(link, hello, kHelloSeconds);
  const LinkDeadline deadline(link, kMeasureSeconds, fmt::format("no measurement within {:.0f} s", kMeasureSeconds));
  const auto once = [&](int64_t size) {
    wire::Control message;
    message.set_echo_bytes(size);
    Frame frame = message_frame(FrameType::control, message);
    frame.tensors.push_back(
        FrameTensor::of(TensorKind::cache, std::make_shared<const Tensor>(Tensor::zeros(DType::u8, {size}))));
    const double begin = seconds_of<std::chrono::steady_clock>();
    link.send(frame);
    if (!link.receive()) fail(ErrorKind::stage_lost, kPlace, "{}: the connection was closed", link.peer());
    return seconds_of<std::chrono::steady_clock>() - begin;
  };
  static_cast<void>(once(1));
  std::vector<double> trips;
  std::vector<double> speeds;
  for (int i = 0; i < std::clamp(repeats, 1, 100); ++i) trips.push_back(once(1));
  int64_t size = std::min(kFirstBytes, bytes);
  double took = once(size);
  while (size < bytes && took < kTransferSeconds) {
    size = std::min(4 * size, bytes);
    took = once(size);
  }
  for (int i = 0; i < std::clamp(repeats, 1, 100); ++i) speeds.push_back(2.0 * static_cast<double>(size) / once(size));
  link.finish();
  return {median(trips), median(speeds)};
}

}  // namespace weft
