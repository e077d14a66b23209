// Certificates, keys and the cluster's token: read from files, and checked before gRPC sees them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "pipeline/remote/grpc_transport.h"

namespace weft {

template <auto free_function>
struct OpensslFree {
  template <class T>
  void operator()(T* object) const {
    free_function(object);
  }
};
using X509Pointer = std::unique_ptr<X509, OpensslFree<X509_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using SslContextPointer = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX_free>>;
using SslPointer = std::unique_ptr<SSL, OpensslFree<SSL_free>>;

// PEM text of the three files.
struct TlsFiles {
  std::string cert;
  std::string key;
  std::string ca;
};

// Throws security naming the file: unreadable, no PEM, a key with a passphrase, key and certificate that do not belong
// together, a certificate that is expired or not valid yet.
[[nodiscard]] TlsFiles read_tls_files(const TransportSecurity& security);

// Throws security naming the file: unreadable, readable by others, shorter than 32 bytes or longer than 4096. A line break at
// the end does not count.
[[nodiscard]] std::string read_token(const std::filesystem::path& file);

// The reason on top of OpenSSL's stack of errors of this thread, which is emptied.
[[nodiscard]] std::string openssl_reason();

}  // namespace weft
