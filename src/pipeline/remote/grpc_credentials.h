// Mutual TLS and the cluster's token, as gRPC wants them.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "pipeline/remote/grpc_transport.h"
#include "pipeline/wire/message_stream.h"

namespace weft {

// Why this end refused the other's certificate, if it did.
class NameCheck {
 public:
  void refuse(const std::string& reason);
  [[nodiscard]] std::string refused() const;

 private:
  mutable std::mutex mutex_;
  std::string reason_;
};

// Both verify the other end's certificate against `security.ca`; the client also that it names `to` (names_node()). A server
// reads its files again when they change, so that certificates can be renewed without a restart.
[[nodiscard]] std::shared_ptr<grpc::ServerCredentials> server_credentials(const TransportSecurity& security);
[[nodiscard]] std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TransportSecurity& security,
                                                                            const NodeAddress& to,
                                                                            const std::shared_ptr<NameCheck>& check);

// The token over a plain connection: neither end sends it, each proves that it has it (HMAC-SHA-256 over both nonces).
//
//     client -> server: nonce of the client;  server -> client: its nonce, its proof;  client -> server: its proof
class TokenChallenge {
 public:
  static constexpr size_t kBytes = 32;  // of a nonce, of a proof

  TokenChallenge(std::string token, std::string client_nonce, std::string server_nonce);

  [[nodiscard]] std::string server_proof() const { return proof("weft server"); }
  [[nodiscard]] std::string client_proof() const { return proof("weft client"); }

 private:
  [[nodiscard]] std::string proof(std::string_view role) const;

  std::string token_;
  std::string nonces_;
};

[[nodiscard]] std::string random_nonce();
// In a time that depends on neither content nor the place of the first difference.
[[nodiscard]] bool same_secret(std::string_view a, std::string_view b);

}  // namespace weft
