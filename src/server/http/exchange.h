// A request over HTTP and the way back to its client, without a word about sockets (prompt_and_api.md 6.5, 6.8, 6.9).
//
//     void handle(std::shared_ptr<http::Exchange> exchange) {
//       exchange->on_gone([=] { engine.cancel(id); });
//       exchange->start({.headers = {{"Content-Type", "text/event-stream"}}}, {.keep_alive = ": keep-alive\n\n"});
//       ...                                    // from any thread: exchange->write("data: ..."), exchange->finish()
//     }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::http {

struct Header {
  std::string name;
  std::string value;
};

// The first header of that name, in whatever case it is written; nullptr when there is none.
[[nodiscard]] const std::string* find_header(const std::vector<Header>& headers, std::string_view name);

struct Request {
  std::string method;  // "POST", as it was sent
  std::string target;  // "/v1/models?limit=3", as it was sent
  std::string path;    // of the target, with percent escapes decoded
  std::string query;   // of the target, behind '?', as it was sent
  std::vector<Header> headers;
  std::string body;
  std::string peer;  // "127.0.0.1:51234"

  [[nodiscard]] const std::string* header(std::string_view name) const { return find_header(headers, name); }
};

struct Response {
  int status = 200;
  std::vector<Header> headers = {};  // Content-Length, Transfer-Encoding, Connection and Date are the server's own
  std::string body = {};
  std::string note = {};  // of what Handler::admit and refuse() give: words for the log line (Finished::note), not sent
};

// Of an answer that is written piece by piece.
struct StreamOptions {
  std::string keep_alive = {};  // written after so long without a byte; empty: nothing is
  double keep_alive_seconds = 15.0;
  int64_t most_waiting = 1 << 20;  // bytes that the client has not taken: beyond them the exchange is full
  double stalled_seconds = 60.0;   // a client that takes nothing from a full exchange for so long counts as gone
};

// One request on its way. All members may be called from any thread, none waits. An exchange that is let go without an answer
// answers 500; one that is let go in the middle of a stream closes the connection without the last chunk.
class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] virtual const Request& request() const = 0;

  // The whole answer. Either this or start(), once; what comes later is dropped.
  virtual void respond(Response response) = 0;
  // The head of an answer whose body is written piece by piece (chunked); head.body is its first piece.
  virtual void start(Response head, StreamOptions options) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void finish() = 0;
  // Words for the log line of this request (Finished::note).
  virtual void note(std::string text) = 0;

  // More waits than the client should be ahead: write no more until on_room().
  [[nodiscard]] virtual bool full() const = 0;
  // The client left, or the server ended.
  [[nodiscard]] virtual bool gone() const = 0;
  // `call` is called once, in any thread, when the client is gone before its answer was complete; at once if it is already. The
  // exchange lets go of it when the answer is complete.
  virtual void on_gone(std::function<void()> call) = 0;
  // `call` is called, in any thread, each time a full exchange has room again.
  virtual void on_room(std::function<void()> call) = 0;
};

// How a request went, for the log and the metrics.
struct Finished {
  std::string method;  // empty, like the path, where what came is no head of a request
  std::string path;
  std::string peer;
  int status = 0;        // 499: the client left before it had an answer, or before the end of it
  int64_t received = 0;  // bytes of the body
  int64_t sent = 0;      // likewise of the answer
  std::string note;      // of the exchange, or of the refusal
  double seconds = 0.0;  // from the first byte of the head to the last byte of the answer
};

// What a server asks of the program.
class Handler {
 public:
  Handler() = default;
  virtual ~Handler() = default;
  Handler(const Handler&) = delete;
  Handler& operator=(const Handler&) = delete;

  // The head of a request, before its body is read: nothing, or the answer that refuses it. Called in a thread that serves
  // other connections too: it must not wait.
  [[nodiscard]] virtual std::optional<Response> admit(const Request& head) = 0;
  // Most bytes that the body of this request may have.
  [[nodiscard]] virtual int64_t body_limit(const Request& head) = 0;
  // A whole request, in a thread for work. What this throws is answered with refuse(500).
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // The answer to what is no HTTP request, or beyond a limit: 400, 408, 411, 413, 417, 431, 500, 503. Any thread.
  [[nodiscard]] virtual Response refuse(int status, std::string_view reason) = 0;
  // Each request that had a head, when its answer is complete or its client gone. Any thread.
  virtual void finished(const Finished& request) = 0;
};

}  // namespace weft::http
