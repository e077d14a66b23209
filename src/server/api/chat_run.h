// An answer in the shapes of /v1/chat/completions, whole or as a stream of events (prompt_and_api.md 6.5).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/api/chat_call.h"

namespace weft::api {

class ChatRun final : public Run {
 public:
  ChatRun(const Service& service, std::shared_ptr<http::Exchange> exchange, std::shared_ptr<const ChatCall> call);

  void start();

 private:
  void began() override;
  void moved(int64_t choice) override;
  void ended(int64_t choice, const RequestReport& report) override;
  void completed() override;
  void failed(const ApiError& error) override;

  // "data: {...}\n\n" with one choice; `delta` and `logprobs` are JSON. `more` inside of the choice and `beside` the choices
  // begin with a comma or are empty.
  void write_chunk(int64_t choice, std::string_view delta, std::string_view logprobs, std::string_view finish,
                   std::string_view more = "", std::string_view beside = "");
  void write_events(int64_t choice);
  void write_finish(int64_t choice);

  std::shared_ptr<const ChatCall> call_;
  std::vector<std::shared_ptr<Turn>> turns_;
  std::string head_;  // of each chunk, up to the choices
  std::string id_;
  int64_t created_;
  // By choice:
  std::vector<std::vector<TokenLogprob>> logprobs_;  // of a whole answer, or of tokens without a chunk yet
  std::vector<TurnResult> results_;                  // once it has ended
  int64_t ended_ = 0;
  bool streaming_ = false;  // the head of the stream is out
};

}  // namespace weft::api
