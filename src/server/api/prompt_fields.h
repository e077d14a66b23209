// The fields of a chat request that its prompt is made of, in the forms that the API wants (prompt_and_api.md 6.2, 6.4, 8.1).
#pragma once

#include "server/api/request_fields.h"
#include "text/chat_request.h"

namespace weft::api {

// parse_chat_request() with what a prompt has no need of: names and types of tools and schemas, whose content must be there.
// Throws ApiError naming the field, and the errors of parse_chat_request().
[[nodiscard]] ChatRequest read_chat_request(const JsonValue& root);

// `name` (which is wanted), `description` and `strict` of a schema for the answer. Throws ApiError naming the field.
void check_schema_fields(const RequestFields& schema);

}  // namespace weft::api
