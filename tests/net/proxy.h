// Carries the bytes of TCP connections of 127.0.0.1 between ports that stand for hosts, late. A cut link holds them back, as
// the retransmission of a real one does; connections over it are accepted and hear nothing.
//
//     Proxy proxy(links);
//     proxy.add_port(1, front, 40001);          // host 1 listens on 127.0.0.1:40001, others reach it at `front`
//     proxy.add_process(0, pid);                // connections of this process come from host 0
//
// One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "net/descriptor.h"
#include "net/links.h"

namespace weft::net_test {

// A listening socket of 127.0.0.1 and its port, which the system chooses.
[[nodiscard]] std::pair<Descriptor, int> listen_anywhere();

class Proxy {
 public:
  explicit Proxy(Links& links);  // outlives it
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  void add_port(int host, Descriptor front, int port);
  void add_process(int host, pid_t process);
  // After a change of the links.
  void wake();

 private:
  struct Port {
    int host = 0;
    Descriptor front;
    int front_port = 0;
    int port = 0;
  };
  struct Piece {
    Links::Clock::time_point due;
    std::vector<char> bytes;  // none: the end
    size_t sent = 0;
  };
  // One direction of a connection.
  struct Way {
    int from = -1;
    int to = -1;
    int from_host = 0;
    int to_host = 0;
    std::deque<Piece> pieces = {};
    size_t held = 0;         // bytes
    bool ended = false;      // nothing more comes
    bool delivered = false;  // nor goes
    bool is_full = false;    // the other end takes nothing now
  };
  struct Connection {
    Descriptor client;
    Descriptor server;
    Way there;
    Way back;
    bool is_broken = false;
  };

  void work();
  void accept(const Port& port);
  void take(Way& way);
  void deliver(Connection& connection, Way& way);
  [[nodiscard]] int host_of_client(int port, int front_port);

  Links& links_;
  std::mutex mutex_;
  std::list<Port> ports_;                         // guarded by mutex_; never removed
  std::vector<std::pair<pid_t, int>> processes_;  // guarded by mutex_: process, host
  bool stopping_ = false;                         // guarded by mutex_
  std::list<Connection> connections_;             // of the thread
  Descriptor wake_;
  std::thread thread_;
};

}  // namespace weft::net_test
