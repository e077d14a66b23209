// What all connections of a server share: its options and handler, the places that connections take, the counts that end waits.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "server/http/exchange.h"
#include "server/http/server.h"

namespace weft::http {

class Hub;

// A connection as the hub knows it. Members of Hub that take one are called on its strand, or before it runs.
class Member {
 public:
  Member() = default;
  virtual ~Member() = default;
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // From any thread; neither waits nor calls the hub. drain(): ends behind the request that is under way. abort(): ends now.
  virtual void drain() = 0;
  virtual void abort() = 0;

 private:
  friend class Hub;
  bool counts_ = false;  // takes one of max_connections; the rest guarded by Hub::mutex_ too
  bool evicted_ = false;
  bool is_idle_ = false;
  std::list<Member*>::iterator idle_at_;
};

class Hub {
 public:
  // Runs what answers a request with a body of so many bytes in a thread for work.
  using Work = std::function<void(std::function<void()> task, int64_t bytes)>;

  Hub(const ServerOptions& options, Handler& handler, Work work);

  const ServerOptions options;
  Handler& handler;
  const Work work;
  const std::shared_ptr<std::atomic<int64_t>> body_bytes = std::make_shared<std::atomic<int64_t>>(0);

  enum class Place { taken, none, closed };
  // A new connection, idle. none: it may stay as long as it takes to be refused. closed: it may not even do that.
  [[nodiscard]] Place enter(Member& member);
  void leave(Member& member);
  // It waits for a request: another may take its place.
  void idle(Member& member);
  // False: another has taken its place.
  [[nodiscard]] bool busy(Member& member);
  // Ends the connection that has been idle longest. False when none is.
  bool evict();

  void open_exchange();
  void close_exchange();

  [[nodiscard]] int64_t connections() const;
  [[nodiscard]] int64_t open_exchanges() const;
  void drain();
  void abort();
  [[nodiscard]] bool wait_until_idle(std::chrono::duration<double> most);
  void wait_until_empty();

 private:
  bool evict_locked();
  void not_idle_locked(Member& member);

  mutable std::mutex mutex_;  // guards all that follows
  std::condition_variable changed_;
  std::unordered_set<Member*> members_;
  std::list<Member*> idle_;  // longest first
  int64_t counted_ = 0;      // members that take a place
  int64_t exchanges_ = 0;
  bool draining_ = false;
};

}  // namespace weft::http
