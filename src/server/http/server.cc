#include "server/http/server.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/error.h"
#include "base/guard.h"
#include "base/log.h"
#include "server/http/connection.h"
#include "server/http/hub.h"
#include "server/http/work_pool.h"

namespace weft::http {
namespace {

namespace asio = boost::asio;
namespace ssl = boost::asio::ssl;
using tcp = asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<tcp, Strand>;
using Socket = asio::basic_stream_socket<tcp, Strand>;

constexpr int64_t kQuickBytes = int64_t{64} << 10;     // bodies of requests that are read quickly
constexpr std::chrono::milliseconds kAcceptPause{50};  // when the system has no room for another connection

class TcpStream final : public ByteStream {
 public:
  explicit TcpStream(Socket socket) : socket_(std::move(socket)) {}

  void open(Done done) override {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done(true, 0); });
  }
  void read_some(std::span<char> space, Done done) override {
    socket_.async_read_some(asio::buffer(space.data(), space.size()),
                            [done = std::move(done)](const ErrorCode& error, size_t bytes) { done(!error, bytes); });
  }
  void write_some(std::span<const char> bytes, Done done) override {
    socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                             [done = std::move(done)](const ErrorCode& error, size_t count) { done(!error, count); });
  }
  void end_writing() override {
    ErrorCode ignored;
    (void)socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  [[nodiscard]] bool end_spoils_reading() const override { return false; }
  void close() override {
    ErrorCode ignored;
    (void)socket_.close(ignored);
  }

 private:
  Socket socket_;
};

class TlsStream final : public ByteStream {
 public:
  TlsStream(Socket socket, ssl::context& context)
      : stream_(std::make_shared<ssl::stream<Socket>>(std::move(socket), context)) {}

  void open(Done done) override {
    stream_->async_handshake(ssl::stream_base::server,
                             [stream = stream_, done = std::move(done)](const ErrorCode& error) { done(!error, 0); });
  }
  void read_some(std::span<char> space, Done done) override {
    stream_->async_read_some(
        asio::buffer(space.data(), space.size()),
        [stream = stream_, done = std::move(done)](const ErrorCode& error, size_t bytes) { done(!error, bytes); });
  }
  void write_some(std::span<const char> bytes, Done done) override {
    stream_->async_write_some(
        asio::buffer(bytes.data(), bytes.size()),
        [stream = stream_, done = std::move(done)](const ErrorCode& error, size_t count) { done(!error, count); });
  }
  void end_writing() override {
    stream_->async_shutdown([stream = stream_](const ErrorCode&) {});
  }
  [[nodiscard]] bool end_spoils_reading() const override { return true; }
  void close() override {
    ErrorCode ignored;
    (void)stream_->next_layer().close(ignored);
  }

 private:
  const std::shared_ptr<ssl::stream<Socket>> stream_;  // shared with what is under way
};

// Of what the client offers, HTTP/1.1; a client that offers only others is refused.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_bytes, const unsigned char* in, unsigned int in_bytes,
                    void*) {
  static constexpr std::string_view kOurs = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const auto* const ours = reinterpret_cast<const unsigned char*>(kOurs.data());
  const int found = SSL_select_next_proto(&chosen, out_bytes, ours, static_cast<unsigned int>(kOurs.size()), in, in_bytes);
  if (found != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

std::unique_ptr<ssl::context> tls_context(const ServerOptions& options) {
  if (options.tls_certificate.empty() && options.tls_key.empty()) return nullptr;
  if (options.tls_certificate.empty() || options.tls_key.empty()) {
    fail(ErrorKind::bad_input, "http", "TLS: wanted a certificate and its key, found only the {}",
         options.tls_key.empty() ? "certificate" : "key");
  }
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  SSL_CTX* const native = context->native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(native, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(native, choose_protocol, nullptr);
  ErrorCode error;
  (void)context->use_certificate_chain_file(options.tls_certificate, error);
  if (error) {
    fail(ErrorKind::bad_input, "http", "TLS: wanted certificates (PEM) in {}, found: {}", options.tls_certificate,
         error.message());
  }
  // Without a question for a password on the terminal.
  context->set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); }, error);
  (void)context->use_private_key_file(options.tls_key, ssl::context::pem, error);
  if (error) {
    fail(ErrorKind::bad_input, "http", "TLS: wanted the key of {} (PEM, not encrypted) in {}, found: {}",
         options.tls_certificate, options.tls_key, error.message());
  }
  return context;
}

std::string found(const ErrorCode& error) {
  if (error == asio::error::address_in_use) return "address in use";
  return error.message();
}

std::string without_brackets(const std::string& host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') return host.substr(1, host.size() - 2);
  return host;
}

std::string address_text(std::string_view host, uint16_t port) {
  const bool is_v6 = host.find(':') != std::string_view::npos;
  return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::string peer_text(const tcp::endpoint& peer) { return address_text(peer.address().to_string(), peer.port()); }

}  // namespace

struct Server::Impl {
  Impl(const ServerOptions& options, Handler& handler)
      : host(without_brackets(options.host)),
        tls(tls_context(options)),
        pool(options.work_threads),
        quick(options.work_threads),
        hub(options, handler,
            [this](std::function<void()> task, int64_t bytes) { (bytes > kQuickBytes ? pool : quick).post(std::move(task)); }) {
    listen(options.port);
    for (const auto& acceptor : acceptors) {
      asio::co_spawn(acceptor->get_executor(), accept(*acceptor), asio::detached);
    }
    try {
      for (int i = 0; i < options.io_threads; ++i) io_threads.emplace_back([this] { move_bytes(); });
    } catch (const std::system_error& error) {
      stop();
      fail(ErrorKind::unavailable, "http", "wanted {} threads for connections, found: {}", options.io_threads, error.what());
    }
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void move_bytes() {
    while (const auto failure = guard([&] { io.run(); })) {
      (void)guard([&] { log::warning("http: {}", failure->message); });
    }
  }

  // Every address of the host that this system has; all get the same port.
  void listen(uint16_t wanted) {
    tcp::resolver resolver(io);
    ErrorCode error;
    const auto addresses = resolver.resolve(host, std::to_string(wanted), tcp::resolver::passive, error);
    if (error || addresses.empty()) {
      fail(ErrorKind::bad_input, "http", "host '{}': wanted an address or the name of one, found: {}", host,
           error ? error.message() : "none");
    }
    port = wanted;
    ErrorCode absent;
    for (const auto& entry : addresses) {
      const tcp::endpoint at(entry.endpoint().address(), port);
      error = listen_at(at);
      // A name may stand for an address of a protocol that this system does not speak.
      if (error == asio::error::address_family_not_supported || error == boost::system::errc::address_not_available) {
        absent = error;
        continue;
      }
      if (error) fail(ErrorKind::unavailable, "http", "wanted to listen at {}, found: {}", peer_text(at), found(error));
    }
    if (acceptors.empty()) {
      fail(ErrorKind::unavailable, "http", "wanted to listen at {}, found: {}", address_text(host, wanted), found(absent));
    }
  }

  ErrorCode listen_at(const tcp::endpoint& at) {
    auto acceptor = std::make_unique<Acceptor>(asio::make_strand(io));
    ErrorCode error;
    if (acceptor->open(at.protocol(), error)) return error;
    if (acceptor->set_option(tcp::acceptor::reuse_address(true), error)) return error;
    if (acceptor->bind(at, error)) return error;
    if (acceptor->listen(asio::socket_base::max_listen_connections, error)) return error;
    const tcp::endpoint bound = acceptor->local_endpoint(error);
    if (error) return error;
    const bool seen = std::any_of(acceptors.begin(), acceptors.end(), [&](const auto& other) {
      ErrorCode ignored;
      return other->local_endpoint(ignored) == bound;
    });
    if (seen) return {};
    port = bound.port();
    acceptors.push_back(std::move(acceptor));
    return {};
  }

  // Without a free descriptor an accept fails even when nobody asks to connect: hence the wait before it.
  asio::awaitable<ErrorCode> accept_one(Acceptor& acceptor) {
    ErrorCode error;
    co_await acceptor.async_wait(Acceptor::wait_read, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return error;
    const Strand strand = asio::make_strand(io);
    Socket socket = co_await acceptor.async_accept(strand, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return error;
    if (const auto failure = guard([&] { begin(strand, socket); })) {
      (void)guard([&] { log::warning("http: a connection was dropped: {}", failure->message); });
    }
    co_return ErrorCode();
  }

  asio::awaitable<void> accept(Acceptor& acceptor) {
    asio::steady_timer pause(acceptor.get_executor());
    bool said = false;  // since a connection came
    while (acceptor.is_open()) {
      ErrorCode error = co_await accept_one(acceptor);
      if (!error) {
        said = false;
        continue;
      }
      if (error == asio::error::operation_aborted) co_return;
      if (error == asio::error::connection_aborted || error == asio::error::interrupted) continue;
      // No descriptors or no memory: an idle connection gives what it has.
      const bool evicted = hub.evict();
      if (!std::exchange(said, true)) {
        (void)guard([&] {
          log::warning("http: wanted another connection, found: {}{}", error.message(), evicted ? "; closed an idle one" : "");
        });
      }
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }

  void begin(const Strand& strand, Socket& socket) {
    ErrorCode error;
    (void)socket.set_option(tcp::no_delay(true), error);
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // it has left already
    std::unique_ptr<ByteStream> stream;
    if (tls != nullptr) {
      stream = std::make_unique<TlsStream>(std::move(socket), *tls);
    } else {
      stream = std::make_unique<TcpStream>(std::move(socket));
    }
    serve(strand, std::move(stream), peer_text(peer), hub);
  }

  void stop_accepting() {
    const std::lock_guard lock(stop_mutex);
    if (std::exchange(accepting, false) && !io_threads.empty()) {
      for (const auto& acceptor : acceptors) {
        std::promise<void> closed;
        asio::post(acceptor->get_executor(), [&] {
          ErrorCode ignored;
          (void)acceptor->close(ignored);
          closed.set_value();
        });
        closed.get_future().wait();
      }
    }
    hub.drain();
  }

  void stop() {
    stop_accepting();
    const std::lock_guard lock(stop_mutex);
    hub.abort();
    if (!io_threads.empty()) hub.wait_until_empty();
    pool.stop();
    quick.stop();
    work.reset();
    for (std::thread& thread : io_threads) thread.join();
    io_threads.clear();
  }

  const std::string host;
  uint16_t port = 0;
  const std::unique_ptr<ssl::context> tls;  // nullptr: none
  WorkPool pool;                            // of requests with large bodies
  WorkPool quick;                           // of all others, which do not wait behind those
  Hub hub;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  std::vector<std::thread> io_threads;
  std::mutex stop_mutex;  // one call of stop_accepting() or stop() at a time
  bool accepting = true;  // guarded by stop_mutex
};

Server::Server(const ServerOptions& options, Handler& handler) {
  if (options.io_threads < 1 || options.work_threads < 1 || options.max_connections < 1 || options.max_head < 1) {
    fail(ErrorKind::bad_input, "http",
         "wanted at least 1 thread for connections, 1 for requests, 1 connection and 1 byte of a head, found {}, {}, {}, {}",
         options.io_threads, options.work_threads, options.max_connections, options.max_head);
  }
  impl_ = std::make_unique<Impl>(options, handler);
}

Server::~Server() = default;

uint16_t Server::port() const { return impl_->port; }

std::string Server::url() const {
  return fmt::format("{}://{}", impl_->tls != nullptr ? "https" : "http", address_text(impl_->host, impl_->port));
}

int64_t Server::connections() const { return impl_->hub.connections(); }
int64_t Server::open_exchanges() const { return impl_->hub.open_exchanges(); }
void Server::stop_accepting() { impl_->stop_accepting(); }
bool Server::wait_until_idle(std::chrono::duration<double> most) { return impl_->hub.wait_until_idle(most); }
void Server::stop() { impl_->stop(); }

}  // namespace weft::http
