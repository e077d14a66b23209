// What a client sends is bytes from outside: a connection answers or refuses them, ends when they end, and forgets nothing that
// it has opened. Requests that are good as a whole are answered alike however they are cut.
//
// Byte 0: bits 0 and 1 choose what the handler does, bit 2 writes of few bytes, bits 3 and 4 small limits of bodies and heads,
// bit 5 an end from the server's side. Byte 1: the size of the pieces, 0 for all at once. Then what the client sends.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>

#include "base/log.h"
#include "server/http/connection.h"

namespace {

namespace asio = boost::asio;
namespace http = weft::http;

void require(bool holds) {
  if (!holds) std::abort();
}

// Both directions of a connection, in memory.
struct Wire {
  std::string to_server;
  bool ended = false;  // nothing more comes
  bool closed = false;
  std::string from_server;
  std::span<char> space;  // of a read that waits
  http::ByteStream::Done read;
};

class MemoryStream final : public http::ByteStream {
 public:
  MemoryStream(http::Strand strand, std::shared_ptr<Wire> wire, size_t most_written)
      : strand_(std::move(strand)), wire_(std::move(wire)), most_written_(most_written) {}

  // Gives what there is to a read that waits.
  static void serve_read(const http::Strand& strand, Wire& wire) {
    if (!wire.read || (wire.to_server.empty() && !wire.ended && !wire.closed)) return;
    const size_t bytes = wire.closed ? 0 : std::min(wire.space.size(), wire.to_server.size());
    std::copy_n(wire.to_server.begin(), bytes, wire.space.begin());
    wire.to_server.erase(0, bytes);
    asio::post(strand, [done = std::exchange(wire.read, nullptr), bytes] { done(bytes > 0, bytes); });
  }

  void open(Done done) override {
    asio::post(strand_, [done = std::move(done)] { done(true, 0); });
  }
  void read_some(std::span<char> space, Done done) override {
    require(!wire_->read && !space.empty());
    wire_->space = space;
    wire_->read = std::move(done);
    serve_read(strand_, *wire_);
  }
  void write_some(std::span<const char> bytes, Done done) override {
    require(!bytes.empty() && !writing_);
    writing_ = true;
    const size_t count = std::min(bytes.size(), most_written_);
    asio::post(strand_, [this, part = bytes.first(count), done = std::move(done)] {
      writing_ = false;
      const bool good = !wire_->closed;
      if (good) wire_->from_server.append(part.begin(), part.end());
      done(good, good ? part.size() : 0);
    });
  }
  void end_writing() override {}
  [[nodiscard]] bool end_spoils_reading() const override { return false; }
  void close() override {
    wire_->closed = true;
    serve_read(strand_, *wire_);
  }

 private:
  const http::Strand strand_;
  const std::shared_ptr<Wire> wire_;
  const size_t most_written_;
  bool writing_ = false;
};

enum class Way { respond, stream, let_go, fail };

class FuzzHandler final : public http::Handler {
 public:
  FuzzHandler(Way way, int64_t limit) : way_(way), limit_(limit) {}

  int refused = 0;
  int finished_requests = 0;

  [[nodiscard]] std::optional<http::Response> admit(const http::Request& head) override {
    require(head.body.empty() && (head.path == "*" || head.path.starts_with('/')));
    require(head.path.find('\0') == std::string::npos);
    if (head.path == "/refused") return http::Response{.status = 401};
    return std::nullopt;
  }
  [[nodiscard]] int64_t body_limit(const http::Request&) override { return limit_; }
  void handle(std::shared_ptr<http::Exchange> exchange) override {
    const std::string& body = exchange->request().body;
    require(static_cast<int64_t>(body.size()) <= limit_);
    if (way_ == Way::respond) {
      exchange->respond({.headers = {{"X-Echo", exchange->request().path}, {exchange->request().query, "x"}}, .body = body});
    }
    if (way_ == Way::stream || way_ == Way::fail) {
      exchange->start({.headers = {{"X-Echo", exchange->request().target}}}, {.most_waiting = 10});
      exchange->write(body);
      exchange->write(exchange->request().path);
    }
    if (way_ == Way::stream) exchange->finish();
    if (way_ == Way::fail) throw std::runtime_error("as it should");
  }
  [[nodiscard]] http::Response refuse(int status, std::string_view reason) override {
    require(status >= 400 && status < 600);
    ++refused;
    return {.status = status, .body = std::string(reason)};
  }
  void finished(const http::Finished& request) override {
    require(request.status >= 200 && request.received >= 0 && request.received <= limit_ + (int64_t{1} << 20));
    ++finished_requests;
  }

 private:
  const Way way_;
  const int64_t limit_;
};

struct Outcome {
  std::string text;
  int refused = 0;
  int finished = 0;
};

Outcome run(std::string_view input, uint8_t choice, size_t piece) {
  FuzzHandler handler(static_cast<Way>(choice & 3U), (choice & 8U) != 0 ? 16 : 1 << 20);
  http::ServerOptions options;
  if ((choice & 16U) != 0) options.max_head = 100;
  static asio::io_context io;  // each has descriptors, which take longer than a run
  io.restart();
  http::Hub hub(options, handler, [](std::function<void()> task, int64_t) { asio::post(io, std::move(task)); });
  const http::Strand strand = asio::make_strand(io);
  const auto wire = std::make_shared<Wire>();
  http::serve(strand, std::make_unique<MemoryStream>(strand, wire, (choice & 4U) != 0 ? 7 : 1 << 20), "fuzz", hub);
  while (!input.empty()) {
    const std::string_view now = input.substr(0, piece == 0 ? input.size() : piece);
    input.remove_prefix(now.size());
    wire->to_server += now;
    MemoryStream::serve_read(strand, *wire);
    (void)io.poll();
    io.restart();
    if ((choice & 32U) != 0 && input.size() < 40) hub.drain();
  }
  wire->ended = true;
  MemoryStream::serve_read(strand, *wire);
  (void)io.poll();
  require(hub.connections() == 0 && hub.open_exchanges() == 0 && *hub.body_bytes == 0);
  return {.text = wire->from_server, .refused = handler.refused, .finished = handler.finished_requests};
}

// What differs with the time, or with the moment at which a body came, is left out.
std::string comparable(std::string text) {
  for (const std::string_view invitation : {"HTTP/1.1 100 Continue\r\n\r\n"}) {
    for (size_t at = text.find(invitation); at != std::string::npos; at = text.find(invitation, at))
      text.erase(at, invitation.size());
  }
  for (size_t at = text.find("\r\nDate: "); at != std::string::npos; at = text.find("\r\nDate: ", at)) text.erase(at, 37);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  weft::log::set_level(weft::log::Level::error);
  const std::string_view input(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Outcome cut = run(input, data[0], data[1]);
  require(cut.text.empty() || cut.text.starts_with("HTTP/1.1 "));
  if (data[1] == 0 || (data[0] & 32U) != 0 || input.size() > 2000) return 0;
  // A fault behind the last whole request is seen at once, or when more comes.
  const Outcome whole = run(input, data[0], 0);
  if (whole.refused > 0) return 0;
  require(cut.refused == 0 && cut.finished == whole.finished && comparable(cut.text) == comparable(whole.text));
  return 0;
}
