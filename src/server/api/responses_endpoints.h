// Responses that are kept: asked for, deleted, cancelled (prompt_and_api.md 6.10). All throw ApiError.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/api/responses_store.h"
#include "server/http/exchange.h"

namespace weft::api {

// The response object.
[[nodiscard]] http::Response kept_response(ResponsesStore& store, const std::string& id, std::string_view query);
// {"id", "object": "response", "deleted": true}
[[nodiscard]] http::Response delete_response(ResponsesStore& store, const std::string& id);
// Answers with the response object once nothing goes on any more.
void cancel_response(ResponsesStore& store, const std::string& id, const std::shared_ptr<http::Exchange>& exchange);
// {"object": "list", "data": [...], "first_id", "last_id", "has_more"}: what the response was an answer to, that of the
// responses before it included. `query`: limit (1 to 100, else 20), order (desc, else asc), after (an item's id).
[[nodiscard]] http::Response input_items(ResponsesStore& store, const std::string& id, std::string_view query);

}  // namespace weft::api
