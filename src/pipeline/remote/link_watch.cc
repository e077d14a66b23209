#include "pipeline/remote/link_watch.h"

#include <chrono>
#include <future>
#include <utility>

#include <fmt/format.h>

#include "base/guard.h"

namespace weft {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

LinkWatch::LinkWatch(Link& link, double interval, double limit) : link_(link), interval_(interval), limit_(limit) {
  thread_ = std::thread([this] { watch(); });
}

LinkWatch::~LinkWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LinkWatch::watch() {
  std::future<void> ping;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (Seconds(Link::Clock::now() - link_.last_heard()).count() > limit_) {
      link_.cancel(fmt::format("no sign of life for {:.1f} s", limit_));
      return;
    }
    if (!ping.valid() || ping.wait_for(Seconds(0)) == std::future_status::ready) {
      // A link that is lost says so to those who use it.
      const std::optional<Failure> failure = guard([&] { ping = pinger_.post([this] { link_.ping(); }); });
      if (failure) return;
    }
    wake_.wait_for(lock, Seconds(interval_), [&] { return stopping_; });
  }
}

LinkDeadline::LinkDeadline(Link& link, double seconds, std::string reason) {
  thread_ = std::thread([this, &link, seconds, reason = std::move(reason)] {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, Seconds(seconds), [&] { return done_; })) link.cancel(reason);
  });
}

LinkDeadline::~LinkDeadline() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

}  // namespace weft
