// Keeps an eye on the other end of a link: pings it, and cancels the link when nothing has been heard for too long.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "base/task_thread.h"
#include "pipeline/wire/link.h"

namespace weft {

class LinkWatch {
 public:
  // Pings every `interval` seconds; silence of `limit` seconds ends the link with "no sign of life for ... s". The link
  // outlives the watch.
  LinkWatch(Link& link, double interval, double limit);
  ~LinkWatch();
  LinkWatch(const LinkWatch&) = delete;
  LinkWatch& operator=(const LinkWatch&) = delete;

 private:
  void watch();

  Link& link_;
  double interval_;
  double limit_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  TaskThread pinger_;      // a write can wait for an end that does not read: not the watch's business
  std::thread thread_;     // last
};

// Ends a link that has not done something in time, unless it is destroyed before.
class LinkDeadline {
 public:
  LinkDeadline(Link& link, double seconds, std::string reason);
  ~LinkDeadline();
  LinkDeadline(const LinkDeadline&) = delete;
  LinkDeadline& operator=(const LinkDeadline&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace weft
