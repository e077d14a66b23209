// Which request goes where: paths, methods, keys, CORS (prompt_and_api.md 6.1, 6.7, 6.8). The http::Handler of `weft serve`.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/responses_store.h"
#include "server/api/service.h"
#include "server/http/exchange.h"
#include "server/status.h"

namespace weft::api {

struct RouterOptions {
  std::vector<std::string> keys;          // empty: everybody may ask
  std::vector<std::string> cors_origins;  // "https://example.org", or "*"; empty: no CORS headers
  std::string build;
  int64_t most_body = 8 << 20;                     // bytes
  ResponsesStoreOptions responses;                 // kept for /v1/responses
  std::function<void(const http::Finished&)> log;  // of each request; any thread
};

class Router final : public http::Handler {
 public:
  // Until open(), everything that needs the model is answered with 503 (loading).
  Router(RouterOptions options, ServerMetrics& metrics);

  // The model is ready. Both outlive the router's use.
  void open(const Service& service, const StatusReport& status);

  [[nodiscard]] std::optional<http::Response> admit(const http::Request& head) override;
  [[nodiscard]] int64_t body_limit(const http::Request& head) override;
  void handle(std::shared_ptr<http::Exchange> exchange) override;
  [[nodiscard]] http::Response refuse(int status, std::string_view reason) override;
  void finished(const http::Finished& request) override;

 private:
  using Answer = void (Router::*)(const std::shared_ptr<http::Exchange>& exchange);
  struct Route {
    std::string_view method;
    std::string_view path;  // "{id}" stands for one segment, "{name}" at the end for all that is left
    Answer answer;
    bool open = false;  // without a key
    bool model = true;  // needs the model
    bool body = true;   // of a POST
  };
  using Digest = std::array<unsigned char, 32>;

  [[nodiscard]] static const std::vector<Route>& routes();
  // What of `path` stands for the {id} or {name} of the pattern; empty for a pattern without one. Nothing: another path.
  [[nodiscard]] static std::optional<std::string_view> match(std::string_view pattern, std::string_view path);
  [[nodiscard]] const Route* find(const http::Request& request, std::string* allow) const;
  [[nodiscard]] std::string part_of_path(const http::Request& request) const;  // what match() gives for its route
  [[nodiscard]] bool knows_key(const http::Request& request) const;
  [[nodiscard]] std::vector<http::Header> cors_headers(const http::Request& request) const;
  [[nodiscard]] const Service& service() const;  // throws 503

  void chat(const std::shared_ptr<http::Exchange>& exchange);
  void completions(const std::shared_ptr<http::Exchange>& exchange);
  void responses(const std::shared_ptr<http::Exchange>& exchange);
  void response(const std::shared_ptr<http::Exchange>& exchange);
  void delete_response(const std::shared_ptr<http::Exchange>& exchange);
  void cancel_response(const std::shared_ptr<http::Exchange>& exchange);
  void response_items(const std::shared_ptr<http::Exchange>& exchange);
  void models(const std::shared_ptr<http::Exchange>& exchange);
  void model(const std::shared_ptr<http::Exchange>& exchange);
  void health(const std::shared_ptr<http::Exchange>& exchange);
  void metrics(const std::shared_ptr<http::Exchange>& exchange);
  void version(const std::shared_ptr<http::Exchange>& exchange);
  void status(const std::shared_ptr<http::Exchange>& exchange);
  void tokenize(const std::shared_ptr<http::Exchange>& exchange);
  void detokenize(const std::shared_ptr<http::Exchange>& exchange);
  void apply_template(const std::shared_ptr<http::Exchange>& exchange);
  void embeddings(const std::shared_ptr<http::Exchange>& exchange);
  void page(const std::shared_ptr<http::Exchange>& exchange);

  RouterOptions options_;
  ServerMetrics& metrics_;
  ResponsesStore responses_;
  std::vector<Digest> keys_;  // SHA-256
  std::atomic<const Service*> service_ = nullptr;
  std::atomic<const StatusReport*> status_ = nullptr;
};

}  // namespace weft::api
