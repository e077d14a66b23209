// An HTTP/1.1 server, with TLS or without: connections are coroutines on a few threads, requests are answered by threads for
// work (design.md 5, "Serving"; prompt_and_api.md 6.8, 6.9).
//
//     http::Server server({.host = "127.0.0.1", .port = 8080}, handler);
//     ...                                                        // server.port(); until a signal comes
//     server.stop_accepting();
//     server.wait_until_idle(grace);                             // answers that are under way
//
// Limits: a head of more than max_head bytes is refused (431), a body beyond Handler::body_limit too (413). A head has to
// arrive within head_seconds, a body within body_seconds and what its bytes take at body_rate; a connection that waits for its
// next request is closed after idle_seconds. A connection beyond max_connections takes the place of the one that has been idle
// longest, or is refused (503) when none is. A client that closes its side for writing counts as gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/http/exchange.h"

namespace weft::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address or a name; "[::1]" or "::1"
  uint16_t port = 8080;            // 0: any
  std::string tls_certificate;     // PEM file: a chain; with it and the key the server speaks TLS only
  std::string tls_key;
  int io_threads = 1;    // that move bytes, >= 1
  int work_threads = 2;  // that handle requests, >= 1
  int64_t max_connections = 16384;
  int64_t max_head = 64 << 10;            // bytes
  int64_t max_bodies = int64_t{1} << 30;  // bytes of all bodies that are being read or answered; beyond: 503
  double head_seconds = 15.0;
  double body_seconds = 30.0;
  double body_rate = 65536.0;  // bytes a second
  double idle_seconds = 75.0;
};

class Server {
 public:
  // Listens at once. The handler outlives the server. Throws bad_input for options (a name without an address, certificate
  // files that are none), unavailable for an address that is taken or may not be used, naming it.
  Server(const ServerOptions& options, Handler& handler);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] uint16_t port() const;
  [[nodiscard]] std::string url() const;  // "http://127.0.0.1:8080"
  [[nodiscard]] int64_t connections() const;
  [[nodiscard]] int64_t open_exchanges() const;  // requests without a complete answer

  // New connections are refused by the system, idle ones are closed; requests that are under way go on, and their connections
  // close behind them.
  void stop_accepting();
  // Until no exchange is open, at most so long. False: some still are.
  bool wait_until_idle(std::chrono::duration<double> most);
  // Closes every connection; clients that wait count as gone. No handler is called any more once it returns.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::http
