#include "server/http/connection.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/guard.h"
#include "base/log.h"
#include "server/http/answer.h"
#include "server/http/text.h"

namespace weft::http {
namespace {

namespace asio = boost::asio;
namespace beast_http = boost::beast::http;
using Parser = beast_http::parser<true, beast_http::string_body>;
using Time = Clock::time_point;

// Bytes of one read: while nothing is expected (every idle connection has such a space), of heads, of bodies.
constexpr size_t kIdleRead = 2048;
constexpr size_t kHeadRead = size_t{16} << 10;
constexpr size_t kBodyRead = size_t{64} << 10;
constexpr size_t kPiece = size_t{64} << 10;  // most bytes of a stream in one chunk
// A connection that ends first reads what its client still sends, so that the answer is not lost: a system that closes a
// connection with unread bytes resets it.
constexpr std::chrono::seconds kLingerQuiet{5};
constexpr std::chrono::seconds kLingerMost{30};
constexpr std::chrono::seconds kRefusalStall{10};  // to take a refusal
// The end of an answer that is on its way when its client leaves: the system says soon whether it took it.
constexpr std::chrono::milliseconds kLastWrite{20};

Clock::duration seconds(double value) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(value, 0.0, 1e8)));
}

// A string that is assigned an empty one keeps its memory.
void free_memory(std::string& text) { std::string().swap(text); }

// A request from its head to its end, as the handler and the hub hear of it.
class OpenRequest {
 public:
  OpenRequest(Hub& hub, Time began) : hub_(hub), began_(began) { hub_.open_exchange(); }
  ~OpenRequest() { finish(499); }
  OpenRequest(const OpenRequest&) = delete;
  OpenRequest& operator=(const OpenRequest&) = delete;

  Finished record;

  void finish(int status) {
    if (std::exchange(finished_, true)) return;
    record.status = status;
    record.seconds = std::chrono::duration<double>(Clock::now() - began_).count();
    call_out("finished", [&] { hub_.handler.finished(record); });
    hub_.close_exchange();
  }

 private:
  Hub& hub_;
  const Time began_;
  bool finished_ = false;
};

// The answer ends with whoever waits for it: nothing wakes a connection that is no more.
struct LeaveAtEnd {
  const std::shared_ptr<Answer> answer;
  explicit LeaveAtEnd(std::shared_ptr<Answer> one) : answer(std::move(one)) {}
  ~LeaveAtEnd() { answer->leave(); }
  LeaveAtEnd(const LeaveAtEnd&) = delete;
  LeaveAtEnd& operator=(const LeaveAtEnd&) = delete;
};

struct Refusal {
  int status;
  std::string reason;
};

// What matters of a request for the form of its answer.
struct Style {
  bool keep_alive = false;
  bool http_1_0 = false;
  bool head = false;  // no body is sent
};

// A request's head, or why it is none.
std::optional<Refusal> read_head(const Parser& parser, Request& request) {
  const auto& message = parser.get();
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.path = request.target;
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  const bool http_1_0 = message.version() == 10;
  const auto hosts = message.count(beast_http::field::host);
  if (hosts > 1 || (hosts == 0 && !http_1_0)) return Refusal{400, "wanted one Host header"};
  const auto encodings = message.equal_range(beast_http::field::transfer_encoding);
  for (auto field = encodings.first; field != encodings.second; ++field) {
    if (http_1_0) return Refusal{400, "HTTP/1.0 has no Transfer-Encoding"};
    const auto value = field->value();
    if (!same_word({value.data(), value.size()}, "chunked")) return Refusal{501, "wanted no Transfer-Encoding but chunked"};
  }
  if (request.method == "CONNECT") return Refusal{501, "this server is no proxy"};
  std::optional<Target> target = parse_target(request.target);
  if (!target) return Refusal{400, "wanted a target like /path?query, with valid percent escapes"};
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  return std::nullopt;
}

class Connection final : public Member, public std::enable_shared_from_this<Connection> {
 public:
  Connection(const Strand& strand, std::unique_ptr<ByteStream> stream, std::string peer, Hub& hub)
      : strand_(strand),
        stream_(std::move(stream)),
        peer_(std::move(peer)),
        hub_(hub),
        most_ahead_(static_cast<size_t>(std::max<int64_t>(hub.options.max_head, 1024)) + kHeadRead),
        timer_(strand) {}
  ~Connection() override { hub_.leave(*this); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start() {
    const Hub::Place place = hub_.enter(*this);
    if (place == Hub::Place::closed) return;
    asio::co_spawn(strand_, run(place == Hub::Place::taken), [self = shared_from_this()](const std::exception_ptr& thrown) {
      if (thrown != nullptr) call_out("connection", [&] { std::rethrow_exception(thrown); });
      self->end_now();
    });
  }

  void drain() override {
    post([](Connection& self) {
      self.draining_ = true;
      self.notify();
    });
  }
  void abort() override {
    post([](Connection& self) { self.end_now(); });
  }

 private:
  template <class Call>
  void post(Call call) {
    asio::post(strand_, [weak = weak_from_this(), call] {
      if (const auto self = weak.lock()) call(*self);
    });
  }

  void end_now() {
    read_ended_ = true;
    write_failed_ = true;
    stream_->close();
    notify();
  }

  // ---- bytes

  void notify() { timer_.cancel(); }

  // Until notify(), at most until then. Whoever waits looks at everything again: a notification is not kept.
  asio::awaitable<void> wait(Time deadline) {
    read_more();
    timer_.expires_at(deadline);
    boost::system::error_code cancelled;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
  }

  void read_more() {
    if (reading_ || read_ended_ || !opened_ || in_.size() >= most_ahead_) return;
    if (space_.size() != read_size_) space_ = std::string(read_size_, '\0');
    reading_ = true;
    stream_->read_some(space_, [self = shared_from_this()](bool good, size_t bytes) {
      self->reading_ = false;
      if (guard([&] { self->in_.append(self->space_, 0, bytes); }) || !good) self->read_ended_ = true;
      self->notify();
    });
  }

  [[nodiscard]] bool drained() const { return !writing_ && out_.empty() && next_.empty(); }

  void send(std::string_view bytes) {
    if (drained()) progress_at_ = Clock::now();
    next_ += bytes;
    write_more();
  }

  void write_more() {
    if (writing_ || write_failed_) return;
    if (out_at_ == out_.size()) {
      out_ = std::exchange(next_, {});
      out_at_ = 0;
    }
    if (out_.empty()) return;
    writing_ = true;
    stream_->write_some(std::string_view(out_).substr(out_at_), [self = shared_from_this()](bool good, size_t bytes) {
      self->writing_ = false;
      self->out_at_ += bytes;
      self->progress_at_ = Clock::now();
      if (!good) {
        self->write_failed_ = true;
        self->read_ended_ = true;
      }
      if (guard([&] { self->write_more(); })) self->end_now();
      self->notify();
    });
  }

  // ---- the life of a connection

  asio::awaitable<void> run(bool admitted) {
    const std::shared_ptr<Connection> self = shared_from_this();
    if (!co_await open(admitted)) co_return;
    if (!admitted) {
      Response full = refusal({503, "too many connections"});
      (void)co_await send_whole(std::move(full), {});
      co_await linger(true);
      co_return;
    }
    while (co_await one_request()) {
      if (draining_) {
        co_await linger(false);
        co_return;
      }
    }
  }

  asio::awaitable<bool> open(bool admitted) {
    if (!admitted && stream_->end_spoils_reading()) co_return false;  // a handshake is too much work for a refusal
    stream_->open([self = shared_from_this()](bool good, size_t) {
      self->opened_ = good;
      self->read_ended_ = self->read_ended_ || !good;
      self->notify();
    });
    const Time deadline = Clock::now() + seconds(hub_.options.head_seconds);
    while (!opened_ && !read_ended_) {
      if (Clock::now() >= deadline) end_now();
      co_await wait(deadline);
    }
    co_return opened_ && !read_ended_;
  }

  // From the wait for its first byte to the end of its answer. False: the connection has ended.
  asio::awaitable<bool> one_request() {
    if (!co_await first_byte()) {
      stream_->end_writing();
      co_return false;
    }
    const Time began = Clock::now();
    auto parser = std::make_unique<Parser>();
    if (std::optional<Refusal> bad = co_await parse_head(*parser, began)) {
      if (bad->status == 0) co_return false;
      OpenRequest unread(hub_, began);
      unread.record.peer = peer_;
      Response answer = refusal(*bad);
      unread.record.note = std::move(answer.note);
      const bool sent = co_await send_whole(std::move(answer), {});
      unread.finish(sent ? bad->status : 499);
      co_await linger(true);
      co_return false;
    }
    OpenRequest open(hub_, began);
    Request request;
    request.peer = peer_;
    std::optional<Refusal> bad = read_head(*parser, request);
    open.record.method = request.method;
    open.record.path = request.path;
    open.record.peer = request.peer;
    Style style;
    style.keep_alive = parser->get().keep_alive();
    style.http_1_0 = parser->get().version() == 10;
    style.head = request.method == "HEAD";
    BodyBytes body_bytes(hub_.body_bytes);

    std::optional<Response> refused;
    if (!bad) refused = admit(request, bad);
    if (!bad && !refused) bad = co_await read_body(*parser, request, body_bytes, style, open);
    if (bad && bad->status == 0) co_return false;
    if (bad) refused = refusal(*bad);
    if (refused) {
      const bool unread = bad.has_value() || !parser->is_done();
      if (unread) style.keep_alive = false;
      const int status = refused->status;
      const auto bytes = static_cast<int64_t>(style.head ? 0 : refused->body.size());
      open.record.note = std::move(refused->note);
      const bool sent = co_await send_whole(std::move(*refused), style);
      if (sent) open.record.sent = bytes;
      open.finish(sent ? status : 499);
      if (sent && style.keep_alive && !draining_) co_return true;
      co_await linger(unread);
      co_return false;
    }
    request.body = std::move(parser->get().body());
    parser.reset();
    co_return co_await answer(std::move(request), std::move(body_bytes), style, open);
  }

  // False: the connection ends before the next request.
  asio::awaitable<bool> first_byte() {
    read_size_ = kIdleRead;
    if (in_.empty()) {
      free_memory(in_);
      if (drained()) free_memory(out_);
      hub_.idle(*this);
      const Time deadline = Clock::now() + seconds(hub_.options.idle_seconds);
      while (in_.empty() && !read_ended_ && !draining_ && Clock::now() < deadline) co_await wait(deadline);
    }
    co_return !in_.empty() && hub_.busy(*this);
  }

  // Nothing: the head is there. Status 0: the client left.
  asio::awaitable<std::optional<Refusal>> parse_head(Parser& parser, Time began) {
    read_size_ = kHeadRead;
    // Beast's limit is one of what it has not parsed yet, so it would depend on how the head is cut: the bytes are counted
    // here.
    parser.header_limit(std::numeric_limits<uint32_t>::max());
    parser.body_limit(boost::none);
    const auto most = static_cast<size_t>(std::max<int64_t>(hub_.options.max_head, 1));
    size_t parsed = 0;
    const Time deadline = began + seconds(hub_.options.head_seconds);
    for (;;) {
      // Empty lines before a request are allowed.
      if (!parser.got_some()) in_.erase(0, std::min(in_.find_first_not_of("\r\n"), in_.size()));
      boost::system::error_code error;
      size_t used = 0;
      if (!in_.empty()) used = parser.put(asio::buffer(in_), error);
      in_.erase(0, used);
      parsed += used;
      const bool done = !error && parser.is_header_done();
      const bool partial = !done && (!error || error == beast_http::error::need_more);
      if (parsed + (partial ? in_.size() : 0) > most) co_return Refusal{431, "the head of the request is too large"};
      if (done) co_return std::nullopt;
      if (error && error != beast_http::error::need_more) co_return Refusal{400, "not a valid HTTP/1.1 request"};
      if (read_ended_) co_return Refusal{0, {}};
      if (Clock::now() >= deadline) co_return Refusal{408, "the head of the request took too long"};
      co_await wait(deadline);
    }
  }

  std::optional<Response> admit(const Request& head, std::optional<Refusal>& bad) {
    std::optional<Response> answer;
    if (const auto failure = guard([&] { answer = hub_.handler.admit(head); })) {
      log::warning("http: {} {}: {}", head.method, head.path, failure->message);
      bad = Refusal{500, "internal error"};
      return std::nullopt;
    }
    return answer;
  }

  // Nothing: the body is there. Status 0: the client left.
  asio::awaitable<std::optional<Refusal>> read_body(Parser& parser, const Request& head, BodyBytes& counted, Style style,
                                                    OpenRequest& open) {
    const std::string* const expect = head.header("expect");
    const bool waits = expect != nullptr && !style.http_1_0;
    if (waits && !same_word(*expect, "100-continue")) co_return Refusal{417, "wanted no Expect but 100-continue"};
    const std::string& method = head.method;
    if ((method == "POST" || method == "PUT" || method == "PATCH") && !parser.chunked() && !parser.content_length()) {
      co_return Refusal{411, "wanted a Content-Length"};
    }
    if (parser.is_done()) co_return std::nullopt;
    int64_t limit = 0;
    if (guard([&] { limit = std::max<int64_t>(hub_.handler.body_limit(head), 0); })) co_return Refusal{500, "internal error"};
    const Refusal too_large{413, "the body is too large: at most " + std::to_string(limit) + " bytes"};
    const auto length = parser.content_length();
    if (length && *length > static_cast<uint64_t>(limit)) co_return too_large;
    if (waits && in_.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
    read_size_ = kBodyRead;
    parser.eager(true);
    const Time began = Clock::now();
    for (;;) {
      const size_t before = parser.get().body().size();
      size_t used = 0;
      boost::system::error_code error;
      if (!in_.empty()) used = parser.put(asio::buffer(in_), error);
      in_.erase(0, used);
      const auto received = static_cast<int64_t>(parser.get().body().size());
      if (!counted.add(received - static_cast<int64_t>(before), hub_.options.max_bodies)) {
        co_return Refusal{503, "too many requests are under way"};
      }
      open.record.received = received;
      if (error && error != beast_http::error::need_more) co_return Refusal{400, "the body is not valid"};
      if (received > limit) co_return too_large;
      if (parser.is_done()) co_return std::nullopt;
      if (used == 0 && in_.size() >= most_ahead_) co_return Refusal{400, "the head of a chunk is too large"};
      if (read_ended_) co_return Refusal{0, {}};
      const double most = hub_.options.body_seconds + static_cast<double>(received) / std::max(hub_.options.body_rate, 1.0);
      const Time deadline = began + seconds(most);
      if (Clock::now() >= deadline) co_return Refusal{408, "the body took too long"};
      co_await wait(deadline);
    }
  }

  // ---- answers

  Response refusal(const Refusal& why) {
    Response response;
    if (guard([&] { response = hub_.handler.refuse(why.status, why.reason); })) {
      response = {.status = why.status, .headers = {{"Content-Type", "text/plain"}}, .body = why.reason + "\n"};
    }
    return response;
  }

  std::string head_text(Response& response, const Style& style, Framing framing, int64_t length) {
    if (response.status < 200 || response.status > 599) response.status = 500;
    AnswerHead head;
    head.framing = has_body(response.status) ? framing : Framing::none;
    head.length = length;
    head.keep_alive = style.keep_alive;
    head.http_1_0 = style.http_1_0;
    head.now = std::time(nullptr);
    return answer_head(response, head);
  }

  // Head and body, as far as there is one. The style's keep_alive ends with the server's.
  std::string whole_text(Response response, Style& style) {
    if (draining_) style.keep_alive = false;
    std::string text = head_text(response, style, Framing::length, static_cast<int64_t>(response.body.size()));
    if (has_body(response.status) && !style.head) text += response.body;
    return text;
  }

  // An answer without an exchange. True: the client has it. One that closed its side for writing gets it too.
  asio::awaitable<bool> send_whole(Response response, Style style) {
    send(whole_text(std::move(response), style));
    while (!drained() && !write_failed_) {
      const Time deadline = progress_at_ + kRefusalStall;
      if (Clock::now() >= deadline) end_now();
      co_await wait(deadline);
    }
    co_return !write_failed_;
  }

  // `unread`: the client may still be sending the request that has been answered.
  asio::awaitable<void> linger(bool unread) {
    if (!unread || !stream_->end_spoils_reading()) stream_->end_writing();
    hub_.idle(*this);
    read_size_ = kBodyRead;
    const Time end = Clock::now() + kLingerMost;
    Time quiet = Clock::now() + kLingerQuiet;
    for (;;) {
      if (!in_.empty()) quiet = Clock::now() + kLingerQuiet;
      in_.clear();
      const Time deadline = std::min(quiet, end);
      if (read_ended_ || Clock::now() >= deadline) break;
      co_await wait(deadline);
    }
    stream_->close();
  }

  void hand_over(const std::shared_ptr<Answer>& answer) {
    const auto handle = [answer, &handler = hub_.handler] {
      if (answer->gone()) return;
      const auto failure = guard([&] { handler.handle(open_exchange(answer)); });
      if (!failure) return;
      answer->abandon();
      const Request& request = answer->request();
      (void)guard([&] { log::warning("http: {} {}: {}", request.method, request.path, failure->message); });
    };
    hub_.work(handle, static_cast<int64_t>(answer->request().body.size()));
  }

  asio::awaitable<bool> answer(Request request, BodyBytes body_bytes, Style style, OpenRequest& open) {
    read_size_ = kIdleRead;
    const LeaveAtEnd held(
        std::make_shared<Answer>(std::move(request), std::move(body_bytes), [strand = strand_, weak = weak_from_this()] {
          asio::post(strand, [weak] {
            if (const auto self = weak.lock()) self->notify();
          });
        }));
    Answer& answer = *held.answer;
    hand_over(held.answer);

    int status = 499;
    Framing framing = Framing::none;
    bool with_body = false;
    bool last = false;      // the end of the answer is written or being written
    bool broken = false;    // and it is not the proper one
    int64_t under_way = 0;  // bytes of the handler that are being written
    int64_t body_sent = 0;  // likewise of the body as the client sees it
    Time gone_at = Time::max();
    for (;;) {
      if (drained()) {
        answer.sent(std::exchange(under_way, 0));
        open.record.sent += std::exchange(body_sent, 0);
        if (last) break;
        Answer::Piece piece = answer.take(kPiece);
        if (piece.missing) {
          piece.head = refusal({500, "internal error"});
          piece.bytes = std::exchange(piece.head->body, {});
          piece.whole = true;
          if (!piece.head->note.empty()) answer.note(std::move(piece.head->note));
        }
        std::string text;
        if (piece.head) {
          if (piece.whole) framing = Framing::length;
          if (!piece.whole) framing = style.http_1_0 ? Framing::close : Framing::chunked;
          if (draining_ || framing == Framing::close) style.keep_alive = false;
          text = head_text(*piece.head, style, framing, static_cast<int64_t>(piece.bytes.size()));
          status = piece.head->status;
          with_body = has_body(status) && !style.head;
        }
        under_way = static_cast<int64_t>(piece.bytes.size());
        last = piece.last;
        broken = piece.broken;
        append_body(text, piece.bytes, framing, with_body, body_sent);
        if (last && !broken && with_body && framing == Framing::chunked) text += kLastChunk;
        if (!text.empty()) send(text);
        if (piece.head || last || under_way > 0) continue;
      }
      const Time now = Clock::now();
      if (read_ended_ && !last) gone_at = now;
      if (read_ended_ && gone_at == Time::max()) gone_at = now + kLastWrite;
      Time deadline = gone_at;
      if (!drained()) {
        if (const auto pressed = answer.pressed_since()) {
          deadline = std::min(deadline, std::max(*pressed, progress_at_) + seconds(answer.options().stalled_seconds));
        }
      }
      if (write_failed_ || now >= deadline) {
        answer.leave();
        open.record.note = answer.noted();
        open.finish(499);
        end_now();
        co_return false;
      }
      const bool may_speak = drained() && with_body && framing != Framing::length && !answer.options().keep_alive.empty();
      if (may_speak && answer.options().keep_alive_seconds > 0) {
        const Time speak_at = progress_at_ + seconds(answer.options().keep_alive_seconds);
        if (now >= speak_at) {
          std::string text;
          append_body(text, answer.options().keep_alive, framing, with_body, body_sent);
          send(text);
          continue;
        }
        deadline = std::min(deadline, speak_at);
      }
      co_await wait(deadline);
    }
    answer.complete();
    open.record.note = answer.noted();
    open.finish(broken ? 500 : status);
    if (broken) {
      end_now();  // without the last chunk, and without the end of TLS: the client sees that something is missing
      co_return false;
    }
    if (style.keep_alive) co_return true;
    co_await linger(false);
    co_return false;
  }

  static void append_body(std::string& text, std::string_view bytes, Framing framing, bool with_body, int64_t& body_sent) {
    if (!with_body || bytes.empty()) return;
    if (framing == Framing::chunked) append_chunk(text, bytes);
    if (framing != Framing::chunked) text += bytes;
    body_sent += static_cast<int64_t>(bytes.size());
  }

  const Strand strand_;
  const std::unique_ptr<ByteStream> stream_;
  const std::string peer_;
  Hub& hub_;
  const size_t most_ahead_;  // bytes that are read before they are wanted
  asio::steady_timer timer_;

  // All on the strand.
  std::string space_;  // for the read that is under way
  std::string in_;     // read, and not used yet
  std::string out_;    // being written
  size_t out_at_ = 0;  // bytes of it that are
  std::string next_;   // written behind it
  size_t read_size_ = kIdleRead;
  Time progress_at_ = Clock::now();  // when the client last took something, or writing began
  bool opened_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool read_ended_ = false;    // the client sends no more, or the connection is lost
  bool write_failed_ = false;  // the connection is lost
  bool draining_ = false;
};

}  // namespace

void serve(const Strand& strand, std::unique_ptr<ByteStream> stream, std::string peer, Hub& hub) {
  std::make_shared<Connection>(strand, std::move(stream), std::move(peer), hub)->start();
}

}  // namespace weft::http
