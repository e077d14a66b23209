#include "server/http/hub.h"

#include <algorithm>
#include <utility>

namespace weft::http {
namespace {

constexpr int64_t kMostRefused = 64;  // connections beyond the limit that hear of it at the same time

}  // namespace

Hub::Hub(const ServerOptions& options_in, Handler& handler_in, Work work_in)
    : options(options_in), handler(handler_in), work(std::move(work_in)) {}

Hub::Place Hub::enter(Member& member) {
  const std::lock_guard lock(mutex_);
  if (draining_) return Place::closed;
  const bool room = counted_ < options.max_connections || evict_locked();
  if (!room && static_cast<int64_t>(members_.size()) - counted_ >= kMostRefused) return Place::closed;
  members_.insert(&member);
  if (!room) return Place::none;
  member.counts_ = true;
  ++counted_;
  member.idle_at_ = idle_.insert(idle_.end(), &member);
  member.is_idle_ = true;
  return Place::taken;
}

void Hub::leave(Member& member) {
  const std::lock_guard lock(mutex_);
  if (members_.erase(&member) == 0) return;
  not_idle_locked(member);
  if (std::exchange(member.counts_, false)) --counted_;
  changed_.notify_all();
}

void Hub::idle(Member& member) {
  const std::lock_guard lock(mutex_);
  if (member.is_idle_ || !member.counts_) return;
  member.idle_at_ = idle_.insert(idle_.end(), &member);
  member.is_idle_ = true;
}

bool Hub::busy(Member& member) {
  const std::lock_guard lock(mutex_);
  not_idle_locked(member);
  return !member.evicted_;
}

bool Hub::evict() {
  const std::lock_guard lock(mutex_);
  return evict_locked();
}

bool Hub::evict_locked() {
  if (idle_.empty()) return false;
  Member& member = *idle_.front();
  not_idle_locked(member);
  member.evicted_ = true;
  member.counts_ = false;
  --counted_;
  member.abort();
  return true;
}

void Hub::not_idle_locked(Member& member) {
  if (std::exchange(member.is_idle_, false)) idle_.erase(member.idle_at_);
}

void Hub::open_exchange() {
  const std::lock_guard lock(mutex_);
  ++exchanges_;
}

void Hub::close_exchange() {
  const std::lock_guard lock(mutex_);
  --exchanges_;
  changed_.notify_all();
}

int64_t Hub::connections() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(members_.size());
}

int64_t Hub::open_exchanges() const {
  const std::lock_guard lock(mutex_);
  return exchanges_;
}

void Hub::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (Member* member : members_) member->drain();
}

void Hub::abort() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  for (Member* member : members_) member->abort();
}

bool Hub::wait_until_idle(std::chrono::duration<double> most) {
  std::unique_lock lock(mutex_);
  // The system's clock may have no room for very long times.
  const auto bounded = std::clamp(most, std::chrono::duration<double>(0.0), std::chrono::duration<double>(1e8));
  return changed_.wait_for(lock, bounded, [this] { return exchanges_ == 0; });
}

void Hub::wait_until_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return members_.empty(); });
}

}  // namespace weft::http
