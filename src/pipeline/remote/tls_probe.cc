#include "pipeline/remote/tls_probe.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <netdb.h>
#include <poll.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/error.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/tls_files.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// False when `deadline` passed first.
bool wait_for(int socket, short events, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0 || left <= 0) return false;
  }
}

class Socket {
 public:
  explicit Socket(int family) : number_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int number() const { return number_; }

  [[nodiscard]] bool connect(const sockaddr* address, socklen_t length, Clock::time_point deadline) const {
    if (number_ < 0) return false;
    if (::connect(number_, address, length) == 0) return true;
    if (errno != EINPROGRESS || !wait_for(number_, POLLOUT, deadline)) return false;
    int error = 0;
    socklen_t size = sizeof(error);
    return ::getsockopt(number_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }

 private:
  int number_;
};

// A connection, or nothing.
std::unique_ptr<Socket> connect_to(const ParsedAddress& address, Clock::time_point deadline) {
  if (address.unix_socket) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.host.data(), std::min(address.host.size(), sizeof(name.sun_path) - 1));
    auto socket = std::make_unique<Socket>(AF_UNIX);
    if (socket->connect(reinterpret_cast<const sockaddr*>(&name), sizeof(name), deadline)) return socket;
    return nullptr;
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0) return nullptr;
  const std::unique_ptr<addrinfo, OpensslFree<::freeaddrinfo>> owner(found);
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    auto socket = std::make_unique<Socket>(entry->ai_family);
    if (socket->connect(entry->ai_addr, entry->ai_addrlen, deadline)) return socket;
  }
  return nullptr;
}

SslContextPointer context_of(const TransportSecurity& security) {
  SslContextPointer context(SSL_CTX_new(TLS_client_method()));
  if (!context) fail(ErrorKind::internal, "security", "{}", openssl_reason());
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  static constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
  SSL_CTX_set_alpn_protos(context.get(), kHttp2.data(), kHttp2.size());
  if (!security.tls()) return context;
  const bool good = SSL_CTX_use_certificate_chain_file(context.get(), security.cert.c_str()) == 1 &&
                    SSL_CTX_use_PrivateKey_file(context.get(), security.key.c_str(), SSL_FILETYPE_PEM) == 1 &&
                    SSL_CTX_load_verify_file(context.get(), security.ca.c_str()) == 1;
  if (!good) fail(ErrorKind::security, "security", "{}", openssl_reason());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

enum class Outcome { done, failed, closed, late };

// A TLS connection over memory: what is sent goes through send(), which unlike OpenSSL's write() raises no SIGPIPE.
class Connection {
 public:
  Connection(SSL_CTX* context, const Socket& socket) : ssl_(SSL_new(context)), socket_(socket.number()) {
    BIO* in = BIO_new(BIO_s_mem());
    BIO* out = BIO_new(BIO_s_mem());
    if (!ssl_ || !in || !out) {
      BIO_free(in);
      BIO_free(out);
      fail(ErrorKind::internal, "security", "{}", openssl_reason());
    }
    SSL_set_bio(ssl_.get(), in, out);
  }

  [[nodiscard]] SSL* ssl() const { return ssl_.get(); }

  // Repeats `step` (SSL_connect, SSL_peek) until it succeeds, fails, or time is up.
  template <class Step>
  Outcome drive(Clock::time_point deadline, Step&& step) const {
    for (;;) {
      ERR_clear_error();
      const int result = step();
      const int wanted = SSL_get_error(ssl_.get(), result);
      if (!flush(deadline)) return Outcome::late;
      if (result > 0) return Outcome::done;
      if (wanted != SSL_ERROR_WANT_READ) return Outcome::failed;
      if (!wait_for(socket_, POLLIN, deadline)) return Outcome::late;
      std::array<char, 4096> bytes{};
      const ssize_t got = ::recv(socket_, bytes.data(), bytes.size(), 0);
      if (got > 0) {
        BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(got));
      } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        return Outcome::closed;
      }
    }
  }

 private:
  // False when time is up. A connection that takes nothing more may still have something to say.
  [[nodiscard]] bool flush(Clock::time_point deadline) const {
    char* bytes = nullptr;
    const auto length = static_cast<size_t>(std::max(0L, BIO_get_mem_data(SSL_get_wbio(ssl_.get()), &bytes)));
    for (size_t sent = 0; sent < length;) {
      const ssize_t now = ::send(socket_, bytes + sent, length - sent, MSG_NOSIGNAL);
      if (now > 0) {
        sent += static_cast<size_t>(now);
      } else if (errno != EAGAIN && errno != EINTR) {
        break;
      } else if (!wait_for(socket_, POLLOUT, deadline)) {
        return false;
      }
    }
    (void)BIO_reset(SSL_get_wbio(ssl_.get()));
    return true;
  }

  SslPointer ssl_;
  int socket_;
};

// Why SSL_connect or SSL_peek failed; "tlsv1 alert unknown ca" is what the other end sent.
std::string what_failed(const SSL* ssl, bool mutual) {
  const long verified = SSL_get_verify_result(ssl);
  const std::string reason = openssl_reason();
  if (mutual && verified != X509_V_OK)
    return std::string("its certificate is refused: ") + X509_verify_cert_error_string(verified);
  const bool alert = reason.find("alert") != std::string::npos;
  return (alert ? "it refused this end: " : "the handshake failed: ") + reason;
}

}  // namespace

TlsVerdict probe_tls(const std::string& address, const TransportSecurity& security, Clock::time_point deadline) {
  TlsVerdict verdict;
  const SslContextPointer context = context_of(security);
  const auto socket = connect_to(parse_address(address, false), deadline);
  if (!socket) return verdict;
  verdict.connected = true;
  const Connection connection(context.get(), *socket);
  SSL* const ssl = connection.ssl();
  const Outcome shaken = connection.drive(deadline, [&] { return SSL_connect(ssl); });
  // Without an answer that is TLS, the handshake stays where this end began it.
  const OSSL_HANDSHAKE_STATE state = SSL_get_state(ssl);
  verdict.speaks_tls = state != TLS_ST_BEFORE && state != TLS_ST_CW_CLNT_HELLO;
  if (shaken == Outcome::closed) {
    verdict.refused = "it closed the connection during the handshake";
  } else if (shaken == Outcome::failed) {
    verdict.refused = verdict.speaks_tls ? what_failed(ssl, security.tls()) : "it does not speak TLS";
  }
  if (shaken != Outcome::done) return verdict;
  char first = 0;
  const Outcome heard = connection.drive(deadline, [&] { return SSL_peek(ssl, &first, 1); });
  if (heard == Outcome::closed) verdict.refused = "it closed the connection after the handshake";
  if (heard == Outcome::failed) verdict.refused = what_failed(ssl, security.tls());
  return verdict;
}

}  // namespace weft
