#include "server/api/responses_endpoints.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "server/api/run.h"

namespace weft::api {
namespace {

using Kept = std::shared_ptr<const StoredResponse>;

Kept find(ResponsesStore& store, const std::string& id) {
  Kept found = store.find(id);
  if (!found) throw not_found(fmt::format("there is no response '{}' (any more)", shortened(id)));
  return found;
}

http::Response as_answer(const StoredResponse& response) {
  return {.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = response.body};
}

// Of "limit=20&order=asc", as it was sent: ids, numbers and words need no escapes.
std::optional<std::string> parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), one.size() + 1));
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return std::string(one.substr(name.size() + 1));
  }
  return std::nullopt;
}

size_t limit_of(std::string_view query) {
  constexpr size_t kUsual = 20;
  constexpr size_t kMost = 100;
  const std::optional<std::string> text = parameter(query, "limit");
  if (!text) return kUsual;
  size_t limit = 0;
  const auto [at, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
  if (error != std::errc() || at != text->data() + text->size() || limit < 1 || limit > kMost)
    throw bad_request(fmt::format("limit: wanted an integer from 1 to {}, found '{}'", kMost, shortened(*text)), "limit");
  return limit;
}

}  // namespace

http::Response kept_response(ResponsesStore& store, const std::string& id, std::string_view query) {
  if (parameter(query, "stream") == "true")
    throw bad_request("stream: the events of a response that is kept are gone", "stream", "unsupported_value");
  return as_answer(*find(store, id));
}

http::Response delete_response(ResponsesStore& store, const std::string& id) {
  if (!store.remove(id)) throw not_found(fmt::format("there is no response '{}' (any more)", shortened(id)));
  return json_response({{"id", id}, {"object", "response"}, {"deleted", true}});
}

void cancel_response(ResponsesStore& store, const std::string& id, const std::shared_ptr<http::Exchange>& exchange) {
  const Kept kept = find(store, id);
  const std::shared_ptr<Run> run = kept->run.lock();
  if (!run) return exchange->respond(as_answer(*kept));
  run->cancel([&store, id, exchange] {
    const Kept ended = store.find(id);
    exchange->respond(ended ? as_answer(*ended)
                            : error_response(not_found(fmt::format("there is no response '{}'", shortened(id)))));
  });
}

http::Response input_items(ResponsesStore& store, const std::string& id, std::string_view query) {
  const Kept kept = find(store, id);
  const size_t limit = limit_of(query);
  const std::string order = parameter(query, "order").value_or("desc");
  if (order != "asc" && order != "desc")
    throw bad_request(fmt::format("order: wanted asc or desc, found '{}'", shortened(order)), "order");
  std::vector<Json> items;
  const auto add = [&](const std::string& list) {
    for (Json& item : parse_json(list, "stored response")) items.push_back(std::move(item));
  };
  for (const auto& before : kept->history) {
    add(before->input);
    add(before->output);
  }
  add(kept->items->input);
  if (order == "desc") std::ranges::reverse(items);
  auto first = items.begin();
  if (const std::optional<std::string> after = parameter(query, "after")) {
    first = std::ranges::find_if(items, [&](const Json& item) { return item["id"] == *after; });
    if (first == items.end()) throw bad_request(fmt::format("after: there is no item '{}'", shortened(*after)), "after");
    ++first;
  }
  const auto left = static_cast<size_t>(items.end() - first);
  Json data = Json::array();
  for (size_t i = 0; i < std::min(left, limit); ++i) data.push_back(std::move(*first++));
  Json list;
  list["object"] = "list";
  list["first_id"] = data.empty() ? Json(nullptr) : data.front()["id"];
  list["last_id"] = data.empty() ? Json(nullptr) : data.back()["id"];
  list["has_more"] = left > limit;
  list["data"] = std::move(data);
  return json_response(list);
}

}  // namespace weft::api
