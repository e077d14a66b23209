#include "net/network.h"

#include <cstdio>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"

#include "net/links.h"
#include "net/netns.h"
#include "net/proxy.h"
#include "net/relay.h"

namespace weft::net_test {
namespace {

std::string host_address(int host) { return fmt::format("10.77.0.{}", host + 1); }

class NamespaceNetwork final : public Network {
 public:
  NamespaceNetwork(std::vector<Namespace> hosts, const LinkFaults& faults) : hosts_(std::move(hosts)), links_(faults) {
    std::vector<Relay::Host> devices;
    for (size_t i = 0; i < hosts_.size(); ++i) devices.push_back({hosts_[i].tun(), host_address(static_cast<int>(i))});
    relay_.emplace(devices, links_);
  }

  std::string address(int host, int port) override { return fmt::format("{}:{}", host_address(host), port); }
  std::string bind(int /*host*/, int /*port*/) override { return ""; }
  bool enter(int host) const override { return hosts_[static_cast<size_t>(host)].enter(); }
  void add_process(int /*host*/, pid_t /*process*/) override {}
  void set(int a, int b, const LinkFaults& faults) override { links_.set(a, b, faults); }
  NetworkCounters counters() const override { return links_.counters(); }

 private:
  std::vector<Namespace> hosts_;
  Links links_;
  std::optional<Relay> relay_;  // last
};

class ProxyNetwork final : public Network {
 public:
  explicit ProxyNetwork(const LinkFaults& faults) : links_(faults), proxy_(links_) {}

  std::string address(int host, int port) override { return fmt::format("127.0.0.1:{}", port_of(host, port).front); }
  std::string bind(int host, int port) override { return fmt::format("127.0.0.1:{}", port_of(host, port).back); }
  bool enter(int /*host*/) const override { return true; }
  void add_process(int host, pid_t process) override { proxy_.add_process(host, process); }
  void set(int a, int b, const LinkFaults& faults) override {
    links_.set(a, b, faults);
    proxy_.wake();
  }
  NetworkCounters counters() const override { return links_.counters(); }

 private:
  struct Ports {
    int front = 0;  // of the proxy
    int back = 0;   // of the host's process
  };

  const Ports& port_of(int host, int port) {
    const auto [at, is_new] = ports_.try_emplace({host, port});
    if (is_new) {
      auto [front, front_port] = listen_anywhere();
      at->second = {front_port, listen_anywhere().second};  // free until the process takes it
      proxy_.add_port(host, std::move(front), at->second.back);
    }
    return at->second;
  }

  Links links_;
  std::map<std::pair<int, int>, Ports> ports_;
  Proxy proxy_;  // last
};

}  // namespace

std::unique_ptr<Network> open_network(int hosts, const LinkFaults& faults, NetworkKind kind) {
  std::string why = "asked for";
  if (kind != NetworkKind::proxies) {
    std::vector<Namespace> made;
    for (int i = 0; i < hosts; ++i) {
      std::optional<Namespace> host = Namespace::open(host_address(i), why);
      if (!host) break;
      made.push_back(std::move(*host));
    }
    if (made.size() == static_cast<size_t>(hosts)) {
      std::printf("network: %d namespaces with TUN devices, packets through a relay\n", hosts);
      return std::make_unique<NamespaceNetwork>(std::move(made), faults);
    }
    if (kind == NetworkKind::namespaces) fail(ErrorKind::unavailable, "network", "wanted namespaces, found: {}", why);
  }
  std::printf("network: ports of 127.0.0.1, connections through proxies (no namespaces: %s)\n", why.c_str());
  return std::make_unique<ProxyNetwork>(faults);
}

}  // namespace weft::net_test
