// Network namespaces with a TUN device each, made by short-lived children: as root, else inside a user namespace.
//
//     std::string why;
//     std::optional<Namespace> host = Namespace::open("10.77.0.1", why);   // nothing: the system does not grant it
//     read(host->tun()) ...                                                // IP packets that leave the namespace
//     fork, in the child: host->enter(); exec
//
// A namespace is there as long as this object or a process inside.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "net/descriptor.h"

namespace weft::net_test {

class Namespace {
 public:
  // `address` of the namespace's end of the device, in a network of 256.
  [[nodiscard]] static std::optional<Namespace> open(const std::string& address, std::string& why);

  [[nodiscard]] int tun() const { return tun_.number(); }
  // Makes the calling process, which must have one thread, one of the namespace.
  [[nodiscard]] bool enter() const;
  // A datagram socket of the namespace, bound to address:port.
  [[nodiscard]] Descriptor datagram_socket(const std::string& address, int port) const;

 private:
  Namespace(Descriptor tun, Descriptor net, Descriptor user)
      : tun_(std::move(tun)), net_(std::move(net)), user_(std::move(user)) {}

  Descriptor tun_;  // does not wait
  Descriptor net_;
  Descriptor user_;  // closed: made as root
};

}  // namespace weft::net_test
