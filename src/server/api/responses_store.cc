#include "server/api/responses_store.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::api {
namespace {

int64_t size_of(const ResponseItems& items) { return static_cast<int64_t>(items.input.size() + items.output.size()); }

}  // namespace

void ResponsesStore::add(std::shared_ptr<const StoredResponse> response) {
  const std::lock_guard lock(mutex_);
  insert(std::move(response));
  shrink();
}

void ResponsesStore::replace(std::shared_ptr<const StoredResponse> response) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(response->id);
  if (found == by_id_.end()) return;
  const List::iterator old = found->second;
  insert(std::move(response));
  erase(old);
  shrink();
}

std::shared_ptr<const StoredResponse> ResponsesStore::find(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return nullptr;
  list_.splice(list_.begin(), list_, found->second);
  return *found->second;
}

bool ResponsesStore::remove(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  erase(found->second);
  return true;
}

int64_t ResponsesStore::responses() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(list_.size());
}

int64_t ResponsesStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void ResponsesStore::insert(std::shared_ptr<const StoredResponse> response) {
  bytes_ += static_cast<int64_t>(response->body.size());
  for (const auto& items : response->history) count(items);
  count(response->items);
  list_.push_front(std::move(response));
  by_id_.insert_or_assign(list_.front()->id, list_.begin());
}

void ResponsesStore::erase(List::iterator at) {
  const StoredResponse& response = **at;
  bytes_ -= static_cast<int64_t>(response.body.size());
  for (const auto& items : response.history) uncount(items);
  uncount(response.items);
  const auto found = by_id_.find(response.id);
  if (found != by_id_.end() && found->second == at) by_id_.erase(found);
  list_.erase(at);
}

void ResponsesStore::count(const std::shared_ptr<const ResponseItems>& items) {
  if (holders_[items.get()]++ == 0) bytes_ += size_of(*items);
}

void ResponsesStore::uncount(const std::shared_ptr<const ResponseItems>& items) {
  const auto found = holders_.find(items.get());
  if (--found->second > 0) return;
  bytes_ -= size_of(*items);
  holders_.erase(found);
}

void ResponsesStore::shrink() {
  const auto too_much = [&] {
    return static_cast<int64_t>(list_.size()) > options_.most_responses || bytes_ > options_.most_bytes;
  };
  for (auto at = list_.end(); too_much() && at != list_.begin();) {
    --at;
    if ((*at)->running) continue;
    const auto next = std::next(at);
    erase(at);
    at = next;
  }
}

}  // namespace weft::api
