#include "pipeline/remote/observer_link.h"

#include <chrono>

#include "base/error.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/link_watch.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "observer";
constexpr double kHelloSeconds = 10.0;  // distributed.md 5.10, handshake
constexpr double kEndSeconds = 1.0;

double wall_clock() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

wire::Hello observer_hello(const ObserverOptions& options, const ClusterNode& to) {
  wire::Hello hello = observer_hello(local_hello(options.build), to.id);
  hello.set_cluster(options.cluster.name);
  hello.set_node(options.node.empty() ? options.cluster.coordinator().id : options.node);
  return hello;
}

ObserverLink::ObserverLink(const ObserverOptions& options, const ClusterNode& to)
    : link_(connect_grpc({to.address, to.id}, options.security, options.cluster.timeouts.connect), options.link) {
  const double asked = wall_clock();
  hello_ = exchange_hello(link_, observer_hello(options, to), kHelloSeconds);
  clock_skew_ = hello_.self().clock() - 0.5 * (asked + wall_clock());
}

ObserverLink::~ObserverLink() {
  static_cast<void>(guard([&] {
    const LinkDeadline deadline(link_, kEndSeconds, "it is over");
    link_.finish();
    while (link_.receive()) {
    }
  }));
}

wire::Control ObserverLink::ask(const wire::Control& question, double seconds) {
  const LinkDeadline deadline(link_, seconds, fmt::format("no answer within {:.0f} s", seconds));
  link_.send(message_frame(FrameType::control, question));
  const std::optional<Frame> frame = link_.receive();
  if (!frame) fail(ErrorKind::stage_lost, kPlace, "{}: wanted an answer, found the connection closed", link_.peer());
  return message_of<wire::Control>(*frame);
}

}  // namespace weft
