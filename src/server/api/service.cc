#include "server/api/service.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "server/api/request_fields.h"

namespace weft::api {
namespace {

// The first characters of both say which they are. `build`: "0.1.0 d762566", with ", changed" behind it or not.
std::string fingerprint_of(const std::string& build, const std::string& model) {
  const size_t space = build.find(' ');
  const std::string commit = space == std::string::npos ? build : build.substr(space + 1);
  return fmt::format("fp_{}_{}", commit.substr(0, 8), model.substr(0, 12));
}

}  // namespace

std::string random_id(std::string_view prefix) {
  constexpr size_t kPrefix = 5;  // "call_"
  return std::string(prefix) + random_call_id().substr(kPrefix);
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Service::Service(const Model& model, EngineThread& engine, ServerMetrics& metrics, ServiceOptions options)
    : model_(model),
      engine_(engine),
      metrics_(metrics),
      options_(std::move(options)),
      fingerprint_(fingerprint_of(options_.build, model.executor().fingerprint())),
      created_(unix_time()) {}

bool Service::serves(std::string_view name) const {
  return name == "default" || std::ranges::find(options_.names, name) != options_.names.end();
}

std::string Service::asked_model(const JsonValue& root) const {
  const RequestFields fields(root);
  const std::optional<std::string> name = fields.string("model");
  if (!name) throw bad_request("model: wanted the name of a model, found nothing", "model");
  if (!serves(*name)) {
    ApiError error =
        not_found(fmt::format("model: wanted {}, found {}", fmt::join(options_.names, " or "), shown(fields.get("model"))),
                  "model_not_found");
    error.param = "model";
    throw ApiError(std::move(error));
  }
  return *name;
}

void Service::check_length(int64_t tokens, std::string_view param, bool at_least) const {
  if (tokens <= most_prompt()) return;
  throw bad_request(fmt::format("the prompt: wanted at most {} tokens (a context of {}), found {}{}", most_prompt(), context(),
                                at_least ? "at least " : "", tokens),
                    std::string(param), "context_length_exceeded");
}

void Service::check_open() const {
  if (draining_) throw unavailable("the server is shutting down", "draining");
}

}  // namespace weft::api
