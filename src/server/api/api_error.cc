#include "server/api/api_error.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "engine/answer_json.h"

namespace weft::api {
namespace {

constexpr std::string_view kInvalid = "invalid_request_error";

// "[place] message" without the place, unless that is a field of requests: "max_tokens: message".
std::string without_place(std::string_view text) {
  if (!text.starts_with('[')) return std::string(text);
  const size_t end = text.find("] ");
  if (end == std::string_view::npos) return std::string(text);
  const std::string_view place = text.substr(1, end - 1);
  constexpr std::string_view kFields[] = {"max_tokens", "prompt", "logit_bias", "top_logprobs", "stop"};
  if (std::ranges::find(kFields, place) != std::end(kFields)) return fmt::format("{}: {}", place, text.substr(end + 2));
  return std::string(text.substr(end + 2));
}

// Stages of this host are reached by sockets in a folder, which is nobody's business.
std::string without_sockets(std::string text) {
  constexpr std::string_view kSocket = "unix:";
  for (size_t at = 0; (at = text.find(kSocket, at)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(" ,;)]'\"", at), text.size());
    const bool colon = text[end - 1] == ':';
    text.replace(at, end - at - (colon ? 1 : 0), "this host");
  }
  return text;
}

// "messages[0].role: wanted ..." names its field.
std::optional<std::string> field_of(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const std::string_view name = message.substr(0, colon);
  constexpr std::string_view kOf = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.[]$/#~-";
  if (name.find_first_not_of(kOf) != std::string_view::npos) return std::nullopt;
  return std::string(name);
}

ApiError made(int status, std::string_view type, std::string message, std::optional<std::string> code = std::nullopt) {
  ApiError error;
  error.status = status;
  error.type = type;
  error.message = std::move(message);
  error.code = std::move(code);
  return error;
}

ApiError of_stage(ApiError error, const Failure& failure) {
  error.stage = failure.stage;
  error.retryable = true;
  return error;
}

}  // namespace

ApiError bad_request(std::string message, std::optional<std::string> param, std::optional<std::string> code) {
  ApiError error = made(400, kInvalid, std::move(message), std::move(code));
  error.param = std::move(param);
  return error;
}

ApiError not_found(std::string message, std::optional<std::string> code) {
  return made(404, code ? kInvalid : std::string_view("not_found_error"), std::move(message), std::move(code));
}

ApiError unavailable(std::string message, std::string_view code) {
  ApiError error = made(503, "unavailable_error", std::move(message), std::string(code));
  error.headers.push_back({"Retry-After", "1"});
  error.retryable = true;
  return error;
}

ApiError error_of_status(int status, std::string message) {
  switch (status) {
    case 401: return made(status, "authentication_error", std::move(message), "invalid_api_key");
    case 404: return made(status, "not_found_error", std::move(message));
    case 429: {
      ApiError error = made(status, "rate_limit_error", std::move(message), "queue_full");
      error.headers.push_back({"Retry-After", "1"});
      return error;
    }
    case 500: return made(status, "server_error", std::move(message));
    case 501: return made(status, "not_implemented_error", std::move(message));
    case 503: return made(status, "unavailable_error", std::move(message));
    case 504: return made(status, "unavailable_error", std::move(message));
    default: return made(status, kInvalid, std::move(message));
  }
}

ApiError error_of(const Failure& failure) {
  const std::string message = without_place(failure.message);
  switch (failure.kind) {
    case ErrorKind::bad_input:
    case ErrorKind::unsupported: return bad_request(message, field_of(message));
    // Messages of stages name nodes, which the operator gave names to be told.
    case ErrorKind::stage_lost:
    case ErrorKind::unreachable: return of_stage(unavailable(without_sockets(message), "stage_unavailable"), failure);
    case ErrorKind::stage_timeout:
      return of_stage(made(504, "unavailable_error", without_sockets(message), "stage_timeout"), failure);
    case ErrorKind::unavailable:
      log::warning("unavailable: {}", failure.message);
      return unavailable("the server cannot do this now", "unavailable");
    default:
      log::write(log::Level::error, failure.message);
      return made(500, "server_error", "an internal error, which is in the server's log");
  }
}

ApiError current_error() noexcept {
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (...) {
    return error_of(current_failure());
  }
}

void add_stage(Json& object, const ApiError& error) {
  if (error.stage) add_place(object, *error.stage);
  if (error.retryable) object["retryable"] = true;
}

Json error_json(const ApiError& error) {
  Json inner;
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = error.param ? Json(*error.param) : Json(nullptr);
  inner["code"] = error.code ? Json(*error.code) : Json(nullptr);
  add_stage(inner, error);
  Json body;
  body["error"] = std::move(inner);
  return body;
}

std::string json_text(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

http::Response json_response(const Json& json, int status) {
  return {.status = status, .headers = {{"Content-Type", "application/json"}}, .body = json_text(json)};
}

http::Response error_response(const ApiError& error) {
  http::Response response = json_response(error_json(error), error.status);
  response.headers.insert(response.headers.end(), error.headers.begin(), error.headers.end());
  return response;
}

}  // namespace weft::api
