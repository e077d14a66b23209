// The choices of one request on the engine, and their way to one client. What a kind of request makes of the tokens is in its
// subclass (chat_run.h, completion_run.h); what a choice's tokens become is in its turn (engine/turn.h, engine/text_turn.h).
//
//     auto run = std::make_shared<ChatRun>(service, exchange, ...);
//     run->start(std::move(choices));
//
// All members of subclasses are called in the engine's thread, one at a time; they write to the exchange, which never waits.
// Each client gets exactly one end: completed(), failed() for whatever went wrong, or cancelled().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/service.h"
#include "server/http/exchange.h"

namespace weft::api {

class Run : public std::enable_shared_from_this<Run> {
 public:
  Run(const Service& service, std::shared_ptr<http::Exchange> exchange);
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  struct Choice {
    GenerateRequest request;
    std::shared_ptr<TokenSink> turn;
  };
  // Submits all choices, or none; does not wait.
  void start(std::vector<Choice> choices);
  // Ends what goes on (cancelled()), then calls `then` in the engine's thread. Does not wait.
  void cancel(std::function<void()> then);

 protected:
  // All choices are queued.
  virtual void began() = 0;
  // A choice has a further token, or has ended.
  virtual void moved(int64_t choice) = 0;
  // A choice has ended well.
  virtual void ended(int64_t choice, const RequestReport& report) = 0;
  // All have.
  virtual void completed() = 0;
  virtual void failed(const ApiError& error) = 0;
  // Instead of these two: somebody called cancel().
  virtual void cancelled();
  // Likewise: the client is gone. Nothing can be told to it.
  virtual void left() {}

  [[nodiscard]] const Service& service() const { return service_; }
  [[nodiscard]] http::Exchange& exchange() const { return *exchange_; }
  [[nodiscard]] int64_t choices() const { return static_cast<int64_t>(reports_.size()); }

 private:
  class Sink;

  void submit(Engine& engine, std::vector<Choice> choices);
  void take_end(int64_t choice, const RequestReport& report);
  void pass_end(int64_t choice, const RequestReport& report);
  void fail_with(const ApiError& error);
  void cancel_others(Engine& engine);
  // "prompt 100 tokens (64 reused), generated 82 at 40.1/s"
  [[nodiscard]] std::string summary() const;

  const Service& service_;
  std::shared_ptr<http::Exchange> exchange_;
  std::vector<RequestId> ids_;                         // of queued choices
  std::vector<std::optional<RequestReport>> reports_;  // of each choice, once it has ended
  bool over_ = false;                                  // nothing is told to the client any more
  bool cancelled_ = false;
};

}  // namespace weft::api
