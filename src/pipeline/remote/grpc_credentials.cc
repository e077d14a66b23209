#include "pipeline/remote/grpc_credentials.h"

#include <array>
#include <functional>
#include <utility>
#include <vector>

#include <fmt/ranges.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/guard.h"
#include "base/utf8.h"
#include "pipeline/remote/tls_files.h"

namespace weft {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kReadAgainSeconds = 2;

void add_names(std::vector<std::string>& names, const std::vector<grpc::string_ref>& more) {
  for (const grpc::string_ref& name : more) names.emplace_back(name.data(), name.size());
}

// gRPC has verified the chain of the certificate when it asks for its names.
class NodeVerifier final : public tls::ExternalCertificateVerifier {
 public:
  NodeVerifier(NodeAddress to, std::shared_ptr<NameCheck> check) : to_(std::move(to)), check_(std::move(check)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)> /*callback*/,
              grpc::Status* status) override {
    const auto failure = guard([&] {
      std::vector<std::string> names;
      add_names(names, request->dns_names());
      add_names(names, request->uri_names());
      add_names(names, request->ip_names());
      if (names_node(names, to_)) return;
      const std::string reason =
          fmt::format("its certificate names neither node '{}' nor the host of {}: it names {}", to_.node, to_.address,
                      names.empty() ? "nothing" : printable(fmt::format("{}", fmt::join(names, ", "))));
      check_->refuse(reason);
      *status = grpc::Status(grpc::StatusCode::UNAUTHENTICATED, reason);
    });
    if (failure) *status = grpc::Status(grpc::StatusCode::INTERNAL, failure->message);
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest* /*request*/) override {}

 private:
  NodeAddress to_;
  std::shared_ptr<NameCheck> check_;
};

}  // namespace

void NameCheck::refuse(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  reason_ = reason;
}

std::string NameCheck::refused() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TransportSecurity& security) {
  if (!security.tls()) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      security.key.string(), security.cert.string(), security.ca.string(), kReadAgainSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TransportSecurity& security, const NodeAddress& to,
                                                              const std::shared_ptr<NameCheck>& check) {
  if (!security.tls()) return grpc::InsecureChannelCredentials();
  const TlsFiles files = read_tls_files(security);
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      files.ca, std::vector<tls::IdentityKeyCertPair>{{files.key, files.cert}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);  // the verifier's task
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<NodeVerifier>(to, check));
  return tls::TlsCredentials(options);
}

TokenChallenge::TokenChallenge(std::string token, std::string client_nonce, std::string server_nonce)
    : token_(std::move(token)), nonces_(std::move(client_nonce) + std::move(server_nonce)) {}

std::string TokenChallenge::proof(std::string_view role) const {
  const std::string text = std::string(role) + nonces_;
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  const bool good = HMAC(EVP_sha256(), token_.data(), static_cast<int>(token_.size()),
                         reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(), &length) != nullptr;
  if (!good || length != kBytes) fail(ErrorKind::internal, "security", "HMAC-SHA-256: {}", openssl_reason());
  return {reinterpret_cast<const char*>(digest.data()), length};
}

std::string random_nonce() {
  std::string nonce(TokenChallenge::kBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1)
    fail(ErrorKind::internal, "security", "no random bytes: {}", openssl_reason());
  return nonce;
}

bool same_secret(std::string_view a, std::string_view b) {
  // Of equal length for the comparison, whatever their own.
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest_a{};
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest_b{};
  unsigned length_a = 0;
  unsigned length_b = 0;
  const bool good = EVP_Digest(a.data(), a.size(), digest_a.data(), &length_a, EVP_sha256(), nullptr) == 1 &&
                    EVP_Digest(b.data(), b.size(), digest_b.data(), &length_b, EVP_sha256(), nullptr) == 1;
  if (!good) fail(ErrorKind::internal, "security", "SHA-256: {}", openssl_reason());
  return CRYPTO_memcmp(digest_a.data(), digest_b.data(), length_a) == 0;
}

}  // namespace weft
