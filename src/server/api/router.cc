#include "server/api/router.h"

#include <algorithm>
#include <utility>

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/log.h"
#include "base/utf8.h"
#include "server/api/chat_run.h"
#include "server/api/completion_run.h"
#include "server/api/request_fields.h"
#include "server/api/responses_endpoints.h"
#include "server/api/responses_run.h"
#include "server/api/text_endpoints.h"
#include "server/http/text.h"
#include "server/page/page.h"

namespace weft::api {
namespace {

using ExchangePtr = std::shared_ptr<http::Exchange>;

std::array<unsigned char, 32> digest_of(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  unsigned int size = digest.size();
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    fail(ErrorKind::internal, "api key", "the SHA-256 library refused");
  return digest;
}

bool is_json(std::string_view type) {
  const std::string_view media = type.substr(0, type.find(';'));
  constexpr std::string_view kJson = "application/json";
  const size_t end = media.find_last_not_of(' ');
  return end != std::string_view::npos && std::ranges::equal(media.substr(0, end + 1), kJson, [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         });
}

// The first coding of the body that is not "identity", as it was sent (RFC 9110, 8.4); nothing: it is not coded.
std::optional<std::string> coding_of(const http::Request& head) {
  for (const http::Header& header : head.headers) {
    if (!http::same_word(header.name, "Content-Encoding")) continue;
    for (std::string_view rest = header.value; !rest.empty();) {
      std::string_view coding = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(rest.size(), coding.size() + 1));
      coding.remove_prefix(std::min(coding.find_first_not_of(" \t"), coding.size()));
      coding = coding.substr(0, coding.find_last_not_of(" \t") + 1);
      if (!coding.empty() && !http::same_word(coding, "identity")) return std::string(coding);
    }
  }
  return std::nullopt;
}

// Bytes of a body that says nothing: a GET may have one, which changes nothing about it (RFC 9110, 9.3.1).
constexpr int64_t kMostIgnored = 64 << 10;
constexpr const char* kRequestId = "X-Request-Id";

// The answer to a request that is not handled. It names the request as other answers do (WithHeaders).
http::Response refusal(const ApiError& error, const std::vector<http::Header>& more = {}) {
  const std::string id = random_id("req_");
  http::Response response = error_response(error);
  response.headers.insert(response.headers.end(), more.begin(), more.end());
  response.headers.push_back({kRequestId, id});
  response.note = fmt::format("{}, {}", error.message, id);
  return response;
}

// The exchange with further headers on its answer, one of which names the request; its log line has that name too.
class WithHeaders final : public http::Exchange {
 public:
  WithHeaders(ExchangePtr inner, std::vector<http::Header> headers)
      : inner_(std::move(inner)), headers_(std::move(headers)), id_(random_id("req_")) {
    headers_.push_back({kRequestId, id_});
    inner_->note(id_);
  }

  [[nodiscard]] const http::Request& request() const override { return inner_->request(); }
  void respond(http::Response response) override { inner_->respond(with_headers(std::move(response))); }
  void start(http::Response head, http::StreamOptions options) override {
    inner_->start(with_headers(std::move(head)), std::move(options));
  }
  void write(std::string_view bytes) override { inner_->write(bytes); }
  void finish() override { inner_->finish(); }
  void note(std::string text) override { inner_->note(fmt::format("{}, {}", text, id_)); }
  [[nodiscard]] bool full() const override { return inner_->full(); }
  [[nodiscard]] bool gone() const override { return inner_->gone(); }
  void on_gone(std::function<void()> call) override { inner_->on_gone(std::move(call)); }
  void on_room(std::function<void()> call) override { inner_->on_room(std::move(call)); }

 private:
  [[nodiscard]] http::Response with_headers(http::Response response) const {
    response.headers.insert(response.headers.end(), headers_.begin(), headers_.end());
    return response;
  }

  ExchangePtr inner_;
  std::vector<http::Header> headers_;
  std::string id_;
};

}  // namespace

Router::Router(RouterOptions options, ServerMetrics& metrics)
    : options_(std::move(options)), metrics_(metrics), responses_(options_.responses) {
  for (const std::string& key : options_.keys) keys_.push_back(digest_of(key));
}

void Router::open(const Service& service, const StatusReport& status) {
  status_ = &status;
  service_ = &service;
}

const std::vector<Router::Route>& Router::routes() {
  static const std::vector<Route> all{
      {"POST", "/v1/chat/completions", &Router::chat},
      {"POST", "/chat/completions", &Router::chat},
      {"POST", "/v1/completions", &Router::completions},
      {"POST", "/v1/responses", &Router::responses},
      {"GET", "/v1/responses/{id}", &Router::response},
      {"DELETE", "/v1/responses/{id}", &Router::delete_response},
      {"POST", "/v1/responses/{id}/cancel", &Router::cancel_response, false, true, false},
      {"GET", "/v1/responses/{id}/input_items", &Router::response_items},
      {"GET", "/v1/models", &Router::models},
      {"GET", "/v1/models/{name}", &Router::model},
      {"GET", "/health", &Router::health, true, false},
      {"GET", "/v1/health", &Router::health, true, false},
      {"GET", "/metrics", &Router::metrics, false, false},
      {"GET", "/version", &Router::version, false, false},
      {"GET", "/status", &Router::status},
      {"POST", "/tokenize", &Router::tokenize},
      {"POST", "/detokenize", &Router::detokenize},
      {"POST", "/apply-template", &Router::apply_template},
      {"POST", "/v1/embeddings", &Router::embeddings, false, false},
      {"GET", "/", &Router::page, true, false},
      {"GET", "/icon.svg", &Router::page, true, false},
      {"GET", "/page.css", &Router::page, true, false},
      {"GET", "/page.js", &Router::page, true, false},
      {"GET", "/chat.js", &Router::page, true, false},
      {"GET", "/live.js", &Router::page, true, false},
      {"GET", "/stream.js", &Router::page, true, false},
  };
  return all;
}

std::optional<std::string_view> Router::match(std::string_view pattern, std::string_view path) {
  const size_t begin = pattern.find('{');
  if (begin == std::string_view::npos) return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  const std::string_view before = pattern.substr(0, begin);
  const std::string_view behind = pattern.substr(pattern.find('}') + 1);
  if (path.size() <= before.size() + behind.size() || !path.starts_with(before) || !path.ends_with(behind)) return std::nullopt;
  const std::string_view found = path.substr(before.size(), path.size() - before.size() - behind.size());
  // Names of models may hold slashes.
  if (!pattern.ends_with("{name}") && found.find('/') != std::string_view::npos) return std::nullopt;
  return found;
}

const Router::Route* Router::find(const http::Request& request, std::string* allow) const {
  const std::string_view method = request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
  for (const Route& route : routes()) {
    if (!match(route.path, request.path)) continue;
    if (route.method == method) return &route;
    if (allow != nullptr && allow->find(route.method) == std::string::npos)
      *allow += fmt::format("{}{}", allow->empty() ? "" : ", ", route.method);
  }
  return nullptr;
}

std::string Router::part_of_path(const http::Request& request) const {
  const Route* route = find(request, nullptr);
  return route == nullptr ? std::string() : std::string(match(route->path, request.path).value_or(""));
}

bool Router::knows_key(const http::Request& request) const {
  if (keys_.empty()) return true;
  std::string_view given;
  if (const std::string* key = request.header("x-api-key")) given = *key;
  constexpr std::string_view kBearer = "bearer ";
  const std::string* authorization = request.header("authorization");
  if (authorization != nullptr && authorization->size() > kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), authorization->begin(),
                 [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); })) {
    given = std::string_view(*authorization).substr(kBearer.size());
  }
  const Digest digest = digest_of(given);
  bool known = false;
  // All of them, so that the time says nothing.
  for (const Digest& key : keys_) known = (CRYPTO_memcmp(key.data(), digest.data(), digest.size()) == 0) || known;
  return known;
}

std::vector<http::Header> Router::cors_headers(const http::Request& request) const {
  const std::string* origin = request.header("origin");
  if (origin == nullptr || options_.cors_origins.empty()) return {};
  const auto& allowed = options_.cors_origins;
  const bool any = std::ranges::find(allowed, "*") != allowed.end();
  if (!any && std::ranges::find(allowed, *origin) == allowed.end()) return {};
  std::vector<http::Header> headers{{"Access-Control-Allow-Origin", any ? "*" : *origin},
                                    {"Access-Control-Expose-Headers", "X-Request-Id, X-Weft-Warning, Retry-After"}};
  if (!any) headers.push_back({"Vary", "Origin"});
  return headers;
}

std::optional<http::Response> Router::admit(const http::Request& head) {
  const std::vector<http::Header> cors = cors_headers(head);
  // A preflight has no key.
  if (head.method == "OPTIONS" && head.header("access-control-request-method") != nullptr && !cors.empty()) {
    const std::string id = random_id("req_");
    http::Response response{.status = 204, .headers = {}, .body = {}, .note = id};
    // Clients send headers of their own, which say nothing here.
    const std::string* asked = head.header("access-control-request-headers");
    response.headers = {{"Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS"},
                        {"Access-Control-Allow-Headers", asked == nullptr ? "Authorization, Content-Type, x-api-key" : *asked},
                        {"Access-Control-Max-Age", "600"},
                        {kRequestId, id}};
    response.headers.insert(response.headers.end(), cors.begin(), cors.end());
    return response;
  }
  std::string allow;
  const Route* route = find(head, &allow);
  // Whoever has no key learns nothing of the paths.
  if ((route == nullptr || !route->open) && !knows_key(head)) {
    ApiError error = error_of_status(401, "the API key is missing or wrong");
    error.headers.push_back({"WWW-Authenticate", "Bearer"});
    return refusal(error, cors);
  }
  if (route == nullptr && !allow.empty()) {
    ApiError error =
        error_of_status(405, fmt::format("{}: wanted {}, found {}", shortened(head.path), allow, shortened(head.method)));
    error.headers.push_back({"Allow", allow});
    return refusal(error, cors);
  }
  if (route == nullptr) return refusal(not_found(fmt::format("there is no {}", shortened(head.path))), cors);
  const std::string* type = head.header("content-type");
  if (route->method == "POST" && route->body && (type == nullptr || !is_json(*type))) {
    const std::string found = type == nullptr ? "nothing" : shortened(*type);
    return refusal(error_of_status(415, fmt::format("Content-Type: wanted application/json, found {}", found)), cors);
  }
  const std::optional<std::string> coding = route->method == "POST" ? coding_of(head) : std::nullopt;
  if (coding) {
    ApiError error = error_of_status(415, fmt::format("Content-Encoding: wanted none, found {}", shortened(*coding)));
    error.headers.push_back({"Accept-Encoding", "identity"});
    return refusal(error, cors);
  }
  if (route->model && service_.load() == nullptr) return refusal(unavailable("the model is being loaded", "loading"), cors);
  return std::nullopt;
}

int64_t Router::body_limit(const http::Request& head) {
  const Route* route = find(head, nullptr);
  if (route != nullptr && route->method == "POST") return options_.most_body;
  return std::min(kMostIgnored, options_.most_body);
}

http::Response Router::refuse(int status, std::string_view reason) {
  return refusal(error_of_status(status, std::string(reason)));
}

void Router::finished(const http::Finished& request) {
  http::Request named;
  named.method = request.method;
  named.path = request.path;
  const Route* route = find(named, nullptr);
  metrics_.count_request(route == nullptr ? "other" : route->path, request.status, request.seconds);
  if (options_.log) options_.log(request);
}

const Service& Router::service() const {
  const Service* service = service_.load();
  if (service == nullptr) throw unavailable("the model is being loaded", "loading");
  service->check_open();
  return *service;
}

void Router::handle(ExchangePtr exchange) {
  exchange = std::make_shared<WithHeaders>(exchange, cors_headers(exchange->request()));
  try {
    const Route* route = find(exchange->request(), nullptr);
    if (route == nullptr) throw not_found(fmt::format("there is no {}", shortened(exchange->request().path)));
    (this->*route->answer)(exchange);
  } catch (...) {
    const ApiError error = current_error();
    exchange->note(error.message);
    exchange->respond(error_response(error));
  }
}

void Router::chat(const ExchangePtr& exchange) {
  const Service& service = this->service();
  const JsonValue root = parse_body(exchange->request().body);
  std::make_shared<ChatRun>(service, exchange, read_chat_call(root, service))->start();
}

void Router::completions(const ExchangePtr& exchange) {
  const Service& service = this->service();
  const JsonValue root = parse_body(exchange->request().body);
  std::make_shared<CompletionRun>(service, exchange, read_completion_call(root, service))->start();
}

void Router::responses(const ExchangePtr& exchange) {
  const Service& service = this->service();
  const JsonValue root = parse_body(exchange->request().body);
  std::make_shared<ResponsesRun>(service, responses_, exchange, read_responses_call(root, service, responses_))->start();
}

void Router::response(const ExchangePtr& exchange) {
  exchange->respond(kept_response(responses_, part_of_path(exchange->request()), exchange->request().query));
}

void Router::delete_response(const ExchangePtr& exchange) {
  exchange->respond(api::delete_response(responses_, part_of_path(exchange->request())));
}

void Router::cancel_response(const ExchangePtr& exchange) {
  api::cancel_response(responses_, part_of_path(exchange->request()), exchange);
}

void Router::response_items(const ExchangePtr& exchange) {
  exchange->respond(input_items(responses_, part_of_path(exchange->request()), exchange->request().query));
}

namespace {

Json model_json(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", service.created()},
          {"owned_by", "weft"},
          {"max_model_len", service.context()}};
}

}  // namespace

void Router::models(const ExchangePtr& exchange) {
  const Service& service = this->service();
  Json list = Json::array();
  for (const std::string& name : service.options().names) list.push_back(model_json(service, name));
  exchange->respond(json_response({{"object", "list"}, {"data", std::move(list)}}));
}

void Router::model(const ExchangePtr& exchange) {
  const Service& service = this->service();
  const std::string name = part_of_path(exchange->request());
  if (!service.serves(name)) throw not_found(fmt::format("there is no model '{}'", shortened(name)), "model_not_found");
  exchange->respond(json_response(model_json(service, name)));
}

void Router::health(const ExchangePtr& exchange) {
  const Service* service = service_.load();
  if (service == nullptr) throw unavailable("the model is being loaded", "loading");
  service->check_open();
  if (const std::optional<Failure> trouble = service->engine().trouble()) {
    ApiError error = error_of(*trouble);
    error.status = 503;
    return exchange->respond(error_response(error));
  }
  exchange->respond(json_response({{"status", "ok"}}));
}

void Router::metrics(const ExchangePtr& exchange) {
  const StatusReport* status = status_.load();
  const LoadFigures load = status == nullptr ? LoadFigures{} : status->load();
  exchange->respond(
      {.status = 200, .headers = {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}}, .body = metrics_.text(load)});
}

void Router::version(const ExchangePtr& exchange) { exchange->respond(json_response({{"version", options_.build}})); }

void Router::status(const ExchangePtr& exchange) { exchange->respond(json_response(status_.load()->json())); }

void Router::tokenize(const ExchangePtr& exchange) {
  exchange->respond(json_response(tokenize_json(parse_body(exchange->request().body), service())));
}

void Router::detokenize(const ExchangePtr& exchange) {
  exchange->respond(json_response(detokenize_json(parse_body(exchange->request().body), service())));
}

void Router::apply_template(const ExchangePtr& exchange) {
  exchange->respond(json_response(apply_template_json(parse_body(exchange->request().body), service())));
}

void Router::embeddings(const ExchangePtr& exchange) {
  static_cast<void>(exchange);
  throw error_of_status(501, "this server has no embeddings");
}

void Router::page(const ExchangePtr& exchange) {
  const http::Request& request = exchange->request();
  exchange->respond(page_response(*find_page_file(request.path), request));
}

}  // namespace weft::api
