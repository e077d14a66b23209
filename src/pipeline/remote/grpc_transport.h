// Message streams between processes and hosts: gRPC, with mutual TLS or without.
//
//     GrpcServer server("127.0.0.1:0", identity, [&](GrpcPeer peer, std::unique_ptr<MessageStream> stream) { serve(*stream);
//     }); std::unique_ptr<MessageStream> stream = connect_grpc({server.address(), "stage-1"}, identity, 5.0);
//
// One bidirectional call of opaque bytes for each stream, on a connection of its own. Addresses: "host:port", "[v6]:port",
// "unix:/path". Only the sources of this folder include gRPC.
//
// Sent bytes are not copied where their FrameTensor has an owner. A message that came lies in memory aligned to 64 bytes; it
// was copied once. A message has at most 64 MiB. A client that is destroyed after finish() waits for up
// to two seconds for the other end to take what was written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pipeline/wire/message_stream.h"

namespace weft {

// What an end shows and asks of the other (distributed.md 8). PEM files; all three or none.
struct TransportSecurity {
  std::filesystem::path cert;
  std::filesystem::path key;
  std::filesystem::path ca;
  // Shared secret of 32 to 4096 bytes that only the file's owner may read. Sent over TLS alone; over a plain connection both
  // ends prove that they have it, by a challenge.
  std::filesystem::path token_file;
  bool allow_insecure = false;  // plaintext on addresses that are not loopback

  [[nodiscard]] bool tls() const { return !cert.empty(); }
  // Throws security naming file or address: one of the three missing, a file that cannot be read or is no PEM, a key that
  // others than its owner may read, key and certificate that do not belong together, an expired certificate, a token file that
  // others may read or that is too short, and `address` not loopback (nor a Unix socket) without TLS and without
  // allow_insecure.
  void require_usable(const std::string& address) const;
};

[[nodiscard]] bool is_loopback(const std::string& address);  // 127.0.0.0/8, ::1, localhost, unix:

struct NodeAddress {
  std::string address;
  std::string node;  // id; with TLS the certificate of the other end must name it (SAN: DNS or URI), or the address's host
};

// Whether one of a certificate's names is the node's id ("id" or "weft:node/id") or the host of its address.
[[nodiscard]] bool names_node(const std::vector<std::string>& names, const NodeAddress& node);

// Who called, as far as its certificate says.
struct GrpcPeer {
  std::string address;
  std::vector<std::string> names;  // subject alternative names of its certificate; empty without TLS
};

class GrpcServer {
 public:
  using Handler = std::function<void(const GrpcPeer& peer, std::unique_ptr<MessageStream> stream)>;

  // Listens. The handler runs on a thread of the call, which ends when the handler returns; what it throws ends the call with
  // that message. At most `connections` calls at a time, others are refused with a reason. Throws unavailable naming the
  // address when it cannot be bound, security as require_usable().
  GrpcServer(const std::string& address, const TransportSecurity& security, Handler handler, int64_t connections = 64);
  ~GrpcServer();  // cancels open streams and waits for their handlers
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  [[nodiscard]] const std::string& address() const;  // with the port that was chosen

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

[[nodiscard]] std::string grpc_version();  // of the library: "1.51.1"

// Connects and waits until the other end has accepted the call. Throws unreachable naming address and reason when there is no
// connection within `timeout` seconds (refused, no route, silence), security when certificates or tokens do not agree, as
// require_usable(), unavailable soon after `give_up`, which is asked again and again, says true.
[[nodiscard]] std::unique_ptr<MessageStream> connect_grpc(const NodeAddress& to, const TransportSecurity& security,
                                                          double timeout, const std::function<bool()>& give_up = {});

}  // namespace weft
