// Sockets for tests: connections that carry rubbish, that are cut, that go silent.
#pragma once

#include <atomic>
#include <chrono>
#include <poll.h>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace weft::remote_test {

struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

inline sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

inline int port_of(const std::string& address) { return std::stoi(address.substr(address.rfind(':') + 1)); }

inline int dial(const std::string& address) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = loopback(port_of(address));
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0) return socket;
  ::close(socket);
  fail(ErrorKind::unavailable, "test", "no connection to {}", address);
}

// A socket that listens, and its port.
inline std::pair<int, int> listening() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  const bool good = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0 && ::listen(socket, 8) == 0 &&
                    ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!good) fail(ErrorKind::unavailable, "test", "no socket");
  return {socket, ntohs(address.sin_port)};
}

// Carries the bytes of one connection to a server until it is cut (both ends see the end of the connection), or goes silent
// (they see nothing at all).
class Cable {
 public:
  explicit Cable(const std::string& server) {
    std::tie(listener_.number, port_) = listening();
    thread_ = std::thread([this, server] {
      const Descriptor client{::accept(listener_.number, nullptr, nullptr)};
      const Descriptor target{dial(server)};
      std::vector<char> bytes(1U << 16U);
      while (!cut_) {
        if (silent_) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          continue;
        }
        pollfd ends[2] = {{client.number, POLLIN, 0}, {target.number, POLLIN, 0}};
        ::poll(ends, 2, 10);
        for (int i = 0; i < 2; ++i) {
          if ((ends[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
          const ssize_t count = ::recv(ends[i].fd, bytes.data(), bytes.size(), 0);
          if (count <= 0) return;
          for (ssize_t sent = 0; sent < count;) {
            const ssize_t now = ::send(ends[1 - i].fd, bytes.data() + sent, static_cast<size_t>(count - sent), MSG_NOSIGNAL);
            if (now <= 0) return;
            sent += now;
          }
        }
      }
    });
  }
  ~Cable() { cut(); }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void go_silent() { silent_ = true; }
  void cut() {
    cut_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  Descriptor listener_;
  int port_ = 0;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> silent_ = false;
  std::thread thread_;
};

}  // namespace weft::remote_test
