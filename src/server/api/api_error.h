// Errors as clients of the OpenAI API know them (prompt_and_api.md 6.7, distributed.md 7.5).
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/guard.h"
#include "base/json.h"
#include "server/http/exchange.h"

namespace weft::api {

struct ApiError : std::exception {
  int status = 500;
  std::string type = "server_error";
  std::string message;
  std::optional<std::string> param;  // the field that is at fault
  std::optional<std::string> code;
  std::vector<http::Header> headers;
  std::shared_ptr<const StagePlace> stage;  // where in a pipeline it arose (distributed.md 7.5); empty: of no stage
  bool retryable = false;                   // the same request may succeed later

  [[nodiscard]] const char* what() const noexcept override { return message.c_str(); }
};

// A request that is wrong: status 400.
[[nodiscard]] ApiError bad_request(std::string message, std::optional<std::string> param = std::nullopt,
                                   std::optional<std::string> code = std::nullopt);
[[nodiscard]] ApiError not_found(std::string message, std::optional<std::string> code = std::nullopt);
[[nodiscard]] ApiError unavailable(std::string message, std::string_view code);
// The usual type and code of a status.
[[nodiscard]] ApiError error_of_status(int status, std::string message);

// What went wrong inside. A fault of the request keeps its message without the place, and names the field that the message
// begins with; lost stages are named (503 or 504); everything else is told in general words, since it may name files.
[[nodiscard]] ApiError error_of(const Failure& failure);
// What the exception that is being handled says. Call it inside a catch block only.
[[nodiscard]] ApiError current_error() noexcept;

// {"error": {"message", "type", "param", "code"}}; of a stage also "stage", "node", "step", and "retryable" where that is so
[[nodiscard]] Json error_json(const ApiError& error);
[[nodiscard]] http::Response error_response(const ApiError& error);
// What of it says where in a pipeline the error arose, and whether to try again.
void add_stage(Json& object, const ApiError& error);

// A JSON answer. Text that is not well-formed UTF-8 comes with U+FFFD.
[[nodiscard]] std::string json_text(const Json& json);
[[nodiscard]] http::Response json_response(const Json& json, int status = 200);

}  // namespace weft::api
