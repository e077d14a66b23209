// A client of HTTP/1.1 for tests: plain sockets, every byte under the test's control. Whatever takes longer than kPatience
// throws.
#pragma once

#include <arpa/inet.h>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "server/http/exchange.h"

namespace weft::http_test {

inline constexpr int kPatience = 60;  // seconds

struct Answer {
  int status = 0;
  std::vector<http::Header> headers;
  std::string body;
  std::vector<std::string> chunks;  // of a chunked body
  bool complete = false;            // the end of the body is as the headers promised

  [[nodiscard]] std::string header(std::string_view name) const {
    const std::string* const value = http::find_header(headers, name);
    return value == nullptr ? "" : *value;
  }
};

class Client {
 public:
  struct Options {
    std::string host = "127.0.0.1";
    int receive_bytes = 0;  // of the socket's buffer; 0: the system's
  };

  explicit Client(uint16_t port) : Client(port, Options()) {}
  Client(uint16_t port, const Options& options) {
    const bool v6 = options.host.find(':') != std::string::npos;
    socket_ = ::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket_ < 0) throw std::runtime_error(std::string("client: socket: ") + std::strerror(errno));
    const timeval patience{.tv_sec = kPatience, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    const int one = 1;
    ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (options.receive_bytes > 0) {
      ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &options.receive_bytes, sizeof options.receive_bytes);
    }
    sockaddr_in v4_address{};
    v4_address.sin_family = AF_INET;
    v4_address.sin_port = htons(port);
    ::inet_pton(AF_INET, options.host.c_str(), &v4_address.sin_addr);
    sockaddr_in6 v6_address{};
    v6_address.sin6_family = AF_INET6;
    v6_address.sin6_port = htons(port);
    ::inet_pton(AF_INET6, options.host.c_str(), &v6_address.sin6_addr);
    const auto* const address =
        v6 ? reinterpret_cast<const sockaddr*>(&v6_address) : reinterpret_cast<const sockaddr*>(&v4_address);
    if (::connect(socket_, address, v6 ? sizeof v6_address : sizeof v4_address) != 0) {
      const std::string why = std::strerror(errno);
      close();
      throw std::runtime_error("client: connect: " + why);
    }
  }
  virtual ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // False: the server closed the connection.
  bool try_send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = transmit(bytes);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void send(std::string_view bytes) {
    if (!try_send(bytes)) throw std::runtime_error("client: the server took no bytes");
  }

  // Up to and with `mark`; less at the end of the connection.
  std::string read_until(std::string_view mark) {
    for (;;) {
      const size_t found = in_.find(mark);
      if (found != std::string::npos) return take(found + mark.size());
      if (!more()) return take(in_.size());
    }
  }
  std::string read(size_t bytes) {
    while (in_.size() < bytes && more()) {
    }
    return take(std::min(bytes, in_.size()));
  }
  // All up to the end of the connection, however it ends.
  std::string read_all() {
    while (more()) {
    }
    return take(in_.size());
  }
  // Nothing came before the end of the connection.
  bool ended() { return in_.empty() && !more(); }

  Answer read_head() {
    Answer answer;
    std::string head = read_until("\r\n\r\n");
    if (!head.starts_with("HTTP/1.1 ")) return answer;
    answer.status = std::stoi(head.substr(9, 3));
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      const size_t end = head.find("\r\n", at);
      const std::string line = head.substr(at, end - at);
      const size_t colon = line.find(": ");
      answer.headers.push_back({line.substr(0, colon), line.substr(colon + 2)});
      at = end + 2;
    }
    return answer;
  }

  // Nothing at the end of the body, or of the connection.
  std::string read_chunk() {
    const std::string size = read_until("\r\n");
    if (!size.ends_with("\r\n")) return {};
    const size_t bytes = std::stoul(size, nullptr, 16);
    std::string chunk = read(bytes + 2);
    last_chunk_ = bytes == 0 && chunk == "\r\n";
    if (chunk.size() < bytes + 2) return {};
    return chunk.substr(0, bytes);
  }
  [[nodiscard]] bool last_chunk() const { return last_chunk_; }

  // `without_body`: of a HEAD request.
  Answer read_answer(bool without_body = false) {
    Answer answer = read_head();
    const std::string length = answer.header("Content-Length");
    if (without_body || answer.status == 204) {
      answer.complete = answer.status != 0;
    } else if (!length.empty()) {
      answer.body = read(std::stoul(length));
      answer.complete = answer.body.size() == std::stoul(length);
    } else if (answer.header("Transfer-Encoding") == "chunked") {
      last_chunk_ = false;
      for (std::string chunk = read_chunk(); !chunk.empty(); chunk = read_chunk()) {
        answer.body += chunk;
        answer.chunks.push_back(std::move(chunk));
      }
      answer.complete = last_chunk_;
    } else {
      answer.body = read_all();
      answer.complete = answer.status != 0;
    }
    return answer;
  }

  void end_writing() { ::shutdown(socket_, SHUT_WR); }
  // The server sees a reset.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  [[nodiscard]] int number() const { return socket_; }

 protected:
  virtual ssize_t transmit(std::string_view bytes) { return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  virtual ssize_t receive(char* space, size_t bytes) { return ::recv(socket_, space, bytes, 0); }

 private:
  bool more() {
    char space[16384];
    const auto received = receive(space, sizeof space);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      throw std::runtime_error("client: nothing came for too long");
    if (received <= 0) return false;
    in_.append(space, static_cast<size_t>(received));
    return true;
  }
  std::string take(size_t bytes) {
    std::string taken = in_.substr(0, bytes);
    in_.erase(0, bytes);
    return taken;
  }

  int socket_ = -1;
  std::string in_;
  bool last_chunk_ = false;
};

// Over TLS, without a look at the server's certificate.
class TlsClient : public Client {
 public:
  struct TlsOptions {
    std::string protocols = "\x08http/1.1";  // ALPN; empty: not offered
    int most_version = TLS1_3_VERSION;
    std::string host;  // for SNI; empty: none
  };

  explicit TlsClient(uint16_t port) : TlsClient(port, TlsOptions()) {}
  TlsClient(uint16_t port, const TlsOptions& options) : Client(port), context_(SSL_CTX_new(TLS_client_method())) {
    (void)std::signal(SIGPIPE, SIG_IGN);            // OpenSSL writes without MSG_NOSIGNAL
    SSL_CTX_set_security_level(context_.get(), 0);  // old versions are refused by the server, not by this side
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_.get(), options.most_version);
    tls_.reset(SSL_new(context_.get()));
    if (!options.protocols.empty()) {
      SSL_set_alpn_protos(tls_.get(), reinterpret_cast<const unsigned char*>(options.protocols.data()),
                          static_cast<unsigned int>(options.protocols.size()));
    }
    SSL_set_fd(tls_.get(), number());
    if (SSL_connect(tls_.get()) != 1) throw std::runtime_error("client: no TLS");
  }

  [[nodiscard]] std::string version() const { return SSL_get_version(tls_.get()); }
  [[nodiscard]] std::string protocol() const {
    const unsigned char* chosen = nullptr;
    unsigned int bytes = 0;
    SSL_get0_alpn_selected(tls_.get(), &chosen, &bytes);
    return {reinterpret_cast<const char*>(chosen), bytes};
  }
  [[nodiscard]] int certificates() const { return sk_X509_num(SSL_get_peer_cert_chain(tls_.get())); }
  // The end of TLS as it should be; false: the connection was cut.
  [[nodiscard]] bool ended_by_server() const { return (SSL_get_shutdown(tls_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void end_tls() { SSL_shutdown(tls_.get()); }

 protected:
  ssize_t transmit(std::string_view bytes) override {
    return SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()));
  }
  ssize_t receive(char* space, size_t bytes) override {
    errno = 0;
    return SSL_read(tls_.get(), space, static_cast<int>(bytes));
  }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* tls) const { SSL_free(tls); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> tls_;
};

}  // namespace weft::http_test
