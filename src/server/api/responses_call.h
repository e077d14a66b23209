// A request to /v1/responses, read as the chat request that it comes to (prompt_and_api.md 6.2, 6.10).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api/chat_call.h"
#include "server/api/responses_store.h"

namespace weft::api {

struct ResponsesCall {
  std::shared_ptr<const ChatCall> chat;
  bool store = true;
  ResponseHistory history;         // of the response that this one goes on from
  std::string input;               // the request's own items: an array as JSON text
  Json settings;                   // fields of the request that responses show
  std::vector<std::string> notes;  // what is not done exactly as asked
};

// Throws ApiError, which names fields of this API.
[[nodiscard]] std::shared_ptr<const ResponsesCall> read_responses_call(const JsonValue& root, const Service& service,
                                                                       ResponsesStore& store);

}  // namespace weft::api
