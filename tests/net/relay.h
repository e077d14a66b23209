// Carries IP packets between the TUN devices of hosts, late, and not all of them.
//
//     Relay relay({{tun_a, "10.77.0.1"}, {tun_b, "10.77.0.2"}}, links);
//
// One thread. A packet for an address that no host has is dropped.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "net/descriptor.h"
#include "net/links.h"

namespace weft::net_test {

class Relay {
 public:
  struct Host {
    int device = -1;      // outlives the relay; does not wait
    std::string address;  // IPv4
  };

  // `links` outlives it; hosts are numbered as in `hosts`.
  Relay(const std::vector<Host>& hosts, Links& links);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  struct Packet {
    Links::Clock::time_point due;
    uint64_t number = 0;  // of two that are due at once, the one that came first goes first
    int from = 0;
    int to = 0;
    std::vector<char> bytes;
  };
  struct Later {
    bool operator()(const Packet& a, const Packet& b) const { return a.due != b.due ? a.due > b.due : a.number > b.number; }
  };

  void work();
  void take(int host);
  void deliver(const Packet& packet);
  [[nodiscard]] int host_of(uint32_t address) const;  // -1: none

  std::vector<int> devices_;
  std::vector<uint32_t> addresses_;
  Links& links_;
  std::vector<Packet> waiting_;  // a heap by Later
  uint64_t next_number_ = 0;
  Descriptor stop_;
  std::thread thread_;
};

}  // namespace weft::net_test
