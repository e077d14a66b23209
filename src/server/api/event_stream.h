// Server-sent events as the API uses them (prompt_and_api.md 6.5).
#pragma once

#include <string>
#include <vector>

#include "server/api/api_error.h"
#include "server/http/exchange.h"

namespace weft::api {

// Sends the head of a stream of events. `notes`: what is not done exactly as asked.
void start_events(http::Exchange& exchange, const std::vector<std::string>& notes);
// "data: [DONE]", and the end of the stream.
void finish_events(http::Exchange& exchange);
// The same behind an error, in place of what was to come.
void fail_events(http::Exchange& exchange, const ApiError& error);

// What is not done exactly as asked, as headers: the first few, since clients bound their number.
void add_warnings(http::Response& response, const std::vector<std::string>& notes);

}  // namespace weft::api
