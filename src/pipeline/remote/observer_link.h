// A connection to a stage that only asks: for its state, or for a measurement. For observe.cc and diagnosis.cc.
//
//     ObserverLink link(options, cluster.stage(1));
//     wire::Control question;
//     question.set_status(true);
//     const wire::Control answer = link.ask(question, 10.0);
#pragma once

#include "pipeline/remote/messages.h"
#include "pipeline/remote/observe.h"

namespace weft {

class ObserverLink {
 public:
  // Connects and greets. Throws unreachable, security, handshake naming every difference, stage_lost.
  ObserverLink(const ObserverOptions& options, const ClusterNode& to);
  ~ObserverLink();  // in good order, within a second
  ObserverLink(const ObserverLink&) = delete;
  ObserverLink& operator=(const ObserverLink&) = delete;

  [[nodiscard]] const wire::HelloReply& hello() const { return hello_; }
  [[nodiscard]] double clock_skew() const { return clock_skew_; }  // seconds that the stage's clock is ahead
  // Throws stage_lost when there is no answer within `seconds`.
  [[nodiscard]] wire::Control ask(const wire::Control& question, double seconds);

 private:
  Link link_;
  wire::HelloReply hello_;
  double clock_skew_ = 0.0;
};

// What an observer says of itself to the node `to`.
[[nodiscard]] wire::Hello observer_hello(const ObserverOptions& options, const ClusterNode& to);

}  // namespace weft
