// A network of a few hosts whose links delay, lose and cut what passes.
//
//     const std::unique_ptr<Network> network = open_network(3, {.delay = 0.020, .loss = 0.01});
//     fork, in the child: network->enter(1); exec     // a process of host 1
//     network->set(0, 2, {.is_cut = true});           // nothing passes between hosts 0 and 2, in either direction
//
// Each host is a network namespace with a TUN device; a thread of the test carries IP packets between the devices (relay.h).
// Where the system grants no namespaces or no TUN device, hosts are ports of 127.0.0.1, and a thread carries the bytes of TCP
// connections (proxy.h); what a lost packet costs TCP is then a longer delay. open_network() prints which of the two it is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <sys/types.h>

namespace weft::net_test {

// Of the link between two hosts, both directions.
struct LinkFaults {
  double delay = 0.020;  // seconds, one way
  double loss = 0.01;    // share of the packets
  bool is_cut = false;
};

// Packets, or pieces of a byte stream.
struct NetworkCounters {
  int64_t carried = 0;
  int64_t lost = 0;  // by chance
  int64_t cut = 0;   // came to a link that was cut
};

class Network {
 public:
  Network() = default;
  virtual ~Network() = default;
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // "host:port" under which other processes reach a port of a host: for the cluster file.
  [[nodiscard]] virtual std::string address(int host, int port) = 0;
  // Where the process itself listens when that is another place; empty: at address().
  [[nodiscard]] virtual std::string bind(int host, int port) = 0;
  // In a child between fork() and exec: makes it a process of the host. False: not possible.
  [[nodiscard]] virtual bool enter(int host) const = 0;
  // After the fork: whose connections these are.
  virtual void add_process(int host, pid_t process) = 0;

  virtual void set(int a, int b, const LinkFaults& faults) = 0;
  [[nodiscard]] virtual NetworkCounters counters() const = 0;
};

enum class NetworkKind : uint8_t { best, namespaces, proxies };

// Throws unavailable when `kind` asks for namespaces and there are none.
[[nodiscard]] std::unique_ptr<Network> open_network(int hosts, const LinkFaults& faults, NetworkKind kind = NetworkKind::best);

}  // namespace weft::net_test
