// An answer in the shapes of /v1/responses, whole or as a stream of events (prompt_and_api.md 6.10).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api/responses_call.h"
#include "server/api/responses_output.h"

namespace weft::api {

class ResponsesRun final : public Run {
 public:
  // The store outlives it.
  ResponsesRun(const Service& service, ResponsesStore& store, std::shared_ptr<http::Exchange> exchange,
               std::shared_ptr<const ResponsesCall> call);

  void start();

 private:
  void began() override;
  void moved(int64_t choice) override;
  void ended(int64_t choice, const RequestReport& report) override;
  void completed() override;
  void failed(const ApiError& error) override;
  void cancelled() override;
  void left() override;

  [[nodiscard]] bool stream() const { return call_->chat->generation.stream; }
  void write(std::string_view type, const Json& fields);
  // The response object. With `error` it has failed.
  [[nodiscard]] Json body(std::string_view status, const ApiError* error = nullptr) const;
  void take_result();
  void keep(const Json& body, bool running);
  // The end of a stream: its last event, whose response is kept.
  void finish(std::string_view event, const Json& body);

  ResponsesStore& store_;
  std::shared_ptr<const ResponsesCall> call_;
  std::shared_ptr<Turn> turn_;
  std::string id_;
  int64_t created_;
  ResponseOutput output_;
  std::optional<TurnResult> result_;  // once it has ended
  int64_t events_ = 0;                // that were written
  bool streaming_ = false;            // the head of the stream is out
};

}  // namespace weft::api
