#include "server/load_clients.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

namespace weft::load_test {
namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;
using std::chrono::milliseconds;

constexpr size_t kAll = static_cast<size_t>(-1);
constexpr size_t kFullRead = size_t{64} << 10;
constexpr int kSmallBuffer = 4096;  // of the socket of a slow reader, so that what it leaves waits at the server
constexpr milliseconds kTick{20};
constexpr double kServerLetsGo = 55.0;  // seconds without reading behind which a server may close the connection

double seconds_of(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

size_t below(Random& random, size_t most) { return std::uniform_int_distribution<size_t>(0, most - 1)(random); }

// One request, how its client behaves, and what has to come of it.
struct Plan {
  enum class Leave { close, reset, half_close };

  std::string outcome;
  std::string bytes;
  const Ask* ask = nullptr;  // whose answer is wanted; null: only `status` is
  int status = 200;
  size_t send_most = kAll;  // bytes after which the client leaves
  int64_t texts_most = -1;  // texts after which it does; 0: it sends all and waits for nothing
  Leave leave = Leave::close;
  size_t read_most = kFullRead;
  milliseconds read_pause{0};  // between reads
  int64_t stall_behind = -1;   // texts after which it reads nothing
  milliseconds stall{0};       // for so long

  [[nodiscard]] bool slow() const { return read_pause.count() > 0 || stall_behind >= 0; }
};

std::string head_of(std::string_view method, std::string_view path, std::string_view more) {
  return fmt::format("{} {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{}\r\n", method, path, more);
}
std::string post(std::string_view path, std::string_view body) {
  return head_of("POST", path, fmt::format("Content-Length: {}\r\n", body.size())) + std::string(body);
}

// Requests that are refused, or have nothing to do with the model.
std::vector<Plan> make_fixed_plans(const Ask& chat, int64_t body_limit) {
  std::vector<Plan> plans;
  const auto add = [&](int status, std::string bytes) {
    plans.push_back({.outcome = fmt::format("status {}", status), .bytes = std::move(bytes), .status = status});
  };
  const auto limit = static_cast<size_t>(body_limit);
  const std::string beyond(limit + (size_t{64} << 10), ' ');
  // What says its size is refused by that.
  add(413, head_of("POST", chat.path, fmt::format("Content-Length: {}\r\n", limit + 1)) + beyond.substr(0, 100000));
  add(413, head_of("POST", chat.path, "Transfer-Encoding: chunked\r\n") + fmt::format("{:x}\r\n", beyond.size()) + beyond);
  add(431, head_of("POST", chat.path, "X-Much: " + std::string(size_t{70} << 10, 'a') + "\r\n"));
  add(411, head_of("POST", chat.path, ""));
  add(400, "NONSENSE\r\n\r\n");
  add(400, "\x16\x03\x01\x02\x01\x01\xfc\x03\x03\r\n\r\n");
  add(400, "GET /health HTTP/1.1\r\n\r\n");
  add(400, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n");
  add(400, head_of("POST", chat.path, "Transfer-Encoding: chunked\r\n") + "zz\r\n{}\r\n0\r\n\r\n");
  add(415, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
  add(405, head_of("GET", chat.path, ""));
  add(404, head_of("GET", "/v1/nothing", ""));
  add(404, post("/v1/chat", chat.body));
  add(404, head_of("GET", "/v1/responses/resp_none", ""));
  add(400, post(chat.path, std::string(1000, '[')));
  add(400, post(chat.path, "{\"model\": \"\xff\xfe\"}"));
  add(400, post(chat.path, "[]"));

  const Json good = Json::parse(chat.body);
  const auto add_wrong = [&](const char* key, const Json& value, int status = 400) {
    Json body = good;
    body[key] = value;
    add(status, post(chat.path, body.dump()));
  };
  add_wrong("temperature", 5);
  add_wrong("top_p", "high");
  add_wrong("messages", Json::array());
  add_wrong("messages", Json::array({{{"role", "nobody"}, {"content", "Hi"}}}));
  add_wrong("max_completion_tokens", -1);
  add_wrong("n", 0);
  add_wrong("functions", Json::array({{{"name", "f"}}}));
  add_wrong("tool_choice", "required");
  add_wrong("response_format",
            {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"strict", true}, {"schema", {{"type", "nothing"}}}}}});
  add_wrong("model", "another", 404);
  add(400, post("/v1/responses", "{\"model\": \"default\"}"));
  add(400, post("/v1/completions", "{\"model\": \"default\", \"prompt\": \"x\", \"suffix\": \"y\"}"));

  add(200, head_of("GET", "/health", ""));
  add(200, head_of("GET", "/metrics", ""));
  add(200, head_of("GET", "/status", ""));
  add(200, head_of("GET", "/v1/models", ""));
  add(200, post("/tokenize", "{\"content\": \"What is 17 * 23?\"}"));
  add(200, post("/apply-template", chat.body));
  return plans;
}

class Planner {
 public:
  Planner(const std::vector<Ask>& asks, const LoadOptions& options) : long_stall_seconds_(options.long_stall_seconds) {
    for (const Ask& ask : asks) (ask.wide ? wide_ : asks_).push_back(&ask);
    if (asks_.empty()) throw std::runtime_error("load: wanted asks, found none");
    fixed_ = make_fixed_plans(*asks_.front(), options.body_limit);
  }

  [[nodiscard]] Plan make(Random& random) const {
    const size_t dice = below(random, 1000);
    if (dice >= 900) return fixed_[below(random, fixed_.size())];
    const bool slow = dice < 60;
    const bool wide = slow && !wide_.empty() && below(random, 6) == 0;
    const Ask& ask = wide ? *wide_[below(random, wide_.size())] : *asks_[below(random, asks_.size())];
    Plan plan{.outcome = "answered", .bytes = post(ask.path, ask.body), .ask = &ask};
    const size_t head = plan.bytes.size() - ask.body.size();
    if (dice < 40) {
      plan.outcome = "answered, read slowly";
      plan.read_most = wide ? size_t{32} << 10 : 512 + below(random, 1024);
      plan.read_pause = milliseconds(100);
    } else if (slow) {
      plan.outcome = "answered, with a pause in reading";
      plan.stall_behind = static_cast<int64_t>(below(random, 20));
      plan.stall = milliseconds(500 + below(random, 3500));
      if (long_stall_seconds_ > 0 && below(random, 5) == 0) {
        plan.outcome = "read no more";
        plan.stall = milliseconds(static_cast<int64_t>(1000 * long_stall_seconds_));
      }
    } else if (dice < 200) {
      plan.outcome = "cancelled";
      plan.texts_most = static_cast<int64_t>(below(random, 4) == 0 ? 0 : 1 + below(random, 40));
      plan.leave = static_cast<Plan::Leave>(below(random, 3));
    } else if (dice < 240) {
      plan.outcome = "left within the request";
      plan.send_most = dice < 220 ? 1 + below(random, head - 1) : head + below(random, ask.body.size());
      plan.leave = static_cast<Plan::Leave>(below(random, 3));
    } else if (dice < 270) {
      plan.outcome = "status 400";
      plan.bytes = post(ask.path, ask.body.substr(0, below(random, ask.body.size())));
      plan.ask = nullptr;
      plan.status = 400;
    }
    return plan;
  }

 private:
  const double long_stall_seconds_;
  std::vector<const Ask*> asks_;
  std::vector<const Ask*> wide_;
  std::vector<Plan> fixed_;
};

struct Session {
  explicit Session(uint64_t seed) : random(seed) {}
  ~Session() {
    if (socket >= 0) ::close(socket);
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Random random;
  int socket = -1;
  bool used = false;         // it has brought an answer
  uint32_t watched = 0;      // events
  std::optional<Plan> plan;  // under way
  AnswerReader reader;
  size_t sent = 0;
  bool received = false;  // a byte of the answer
  bool left = false;      // closed for writing: the server's end is awaited
  bool stalled = false;
  Clock::time_point began;
  Clock::time_point resume_at{};  // reads nothing before, or begins nothing
  double stalled_seconds = 0;
  std::vector<Clock::time_point> last_text;  // of each choice
};

class Load {
 public:
  Load(uint16_t port, const std::vector<Ask>& asks, const LoadOptions& options)
      : options_(options), planner_(asks, options), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) throw std::runtime_error(std::string("epoll: ") + std::strerror(errno));
    address_.sin_family = AF_INET;
    address_.sin_port = htons(port);
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < options.clients; ++i)
      sessions_.push_back(std::make_unique<Session>(options.seed * 1000003 + static_cast<uint64_t>(i)));
  }
  ~Load() { ::close(epoll_); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  LoadResult run() {
    const Clock::time_point begin = Clock::now();
    int64_t second = 0;
    Clock::time_point tick = begin;
    for (;;) {
      now_ = Clock::now();
      result_.seconds = seconds_of(now_ - begin);
      ending_ = ending_ || result_.seconds >= options_.seconds;
      if (now_ >= tick) {
        tick = now_ + kTick;
        bool open = false;
        for (const auto& session : sessions_) {
          look_after(*session);
          open = open || session->plan.has_value();
        }
        if (ending_ && !open) break;
        if (options_.each_second && static_cast<int64_t>(result_.seconds) > second) {
          second = static_cast<int64_t>(result_.seconds);
          if (!options_.each_second(result_)) ending_ = true;
        }
      }
      std::array<epoll_event, 64> events{};
      const int found = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), static_cast<int>(kTick.count()));
      now_ = Clock::now();
      for (int i = 0; i < found; ++i) go_on(*static_cast<Session*>(events[static_cast<size_t>(i)].data.ptr));
    }
    return std::move(result_);
  }

 private:
  // ---- sockets

  void watch(Session& session, uint32_t events) {
    if (session.socket < 0 || session.watched == events) return;
    epoll_event event{};
    event.events = events;
    event.data.ptr = &session;
    // A socket without events would still tell of its end, again and again.
    const int what = events == 0 ? EPOLL_CTL_DEL : (session.watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD);
    if (::epoll_ctl(epoll_, what, session.socket, &event) != 0)
      throw std::runtime_error(std::string("epoll: ") + std::strerror(errno));
    session.watched = events;
  }

  bool connect(Session& session) {
    session.socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    session.used = false;
    session.watched = 0;
    if (session.socket < 0) return false;
    const int one = 1;
    ::setsockopt(session.socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (session.plan->slow()) ::setsockopt(session.socket, SOL_SOCKET, SO_RCVBUF, &kSmallBuffer, sizeof kSmallBuffer);
    return ::connect(session.socket, reinterpret_cast<const sockaddr*>(&address_), sizeof address_) == 0 ||
           errno == EINPROGRESS;
  }

  void close(Session& session) {
    if (session.socket >= 0) ::close(std::exchange(session.socket, -1));
    session.watched = 0;
  }

  // ---- the life of a request

  void begin(Session& session, Plan plan) {
    session.plan = std::move(plan);
    session.left = session.stalled = false;
    session.resume_at = {};
    session.stalled_seconds = 0;
    session.began = now_;
    if (session.plan->slow()) close(session);
    send_anew(session);
  }

  // From its first byte, on the connection that is there or on a new one.
  void send_anew(Session& session) {
    session.reader = AnswerReader();
    session.sent = 0;
    session.received = false;
    session.last_text.clear();
    if (session.socket < 0 && !connect(session)) {
      fault(session, std::string("no connection: ") + std::strerror(errno));
      return;
    }
    watch(session, EPOLLIN | EPOLLOUT);
  }

  void finish(Session& session, const std::string& outcome) {
    ++result_.outcomes[outcome];
    session.plan.reset();
  }

  void fault(Session& session, const std::string& what) {
    const Plan& plan = *session.plan;
    result_.faults.add(fmt::format("{} ({}, {:.1f} s, status {}): {}", what, plan.outcome, seconds_of(now_ - session.began),
                                   session.reader.status(), plan.bytes.substr(0, 400)));
    close(session);
    finish(session, "wrong");
  }

  void look_after(Session& session) {
    if (!session.plan) {
      if (!ending_ && now_ >= session.resume_at) begin(session, planner_.make(session.random));
      if (ending_) close(session);
      return;
    }
    const Plan& plan = *session.plan;
    if (session.resume_at != Clock::time_point{} && (now_ >= session.resume_at || ending_)) {
      if (session.stalled) session.stalled_seconds = seconds_of(now_ - session.resume_at + plan.stall);
      session.resume_at = {};
      watch(session, EPOLLIN);
      return;
    }
    const double most = options_.patience_seconds + std::chrono::duration<double>(plan.stall).count();
    if (seconds_of(now_ - session.began) > most) fault(session, "the request is stuck");
  }

  void go_on(Session& session) {
    if (!session.plan) {  // the server may close a connection that waits
      close(session);
      return;
    }
    try {
      if (session.sent < session.plan->bytes.size() && !session.left && !send_more(session)) return;
      read_more(session);
    } catch (const std::exception& error) {
      fault(session, error.what());
    }
  }

  // False: the request has come to its end.
  bool send_more(Session& session) {
    const Plan& plan = *session.plan;
    const size_t most = std::min(plan.bytes.size(), plan.send_most);
    while (session.sent < most) {
      const auto sent = ::send(session.socket, plan.bytes.data() + session.sent, most - session.sent, MSG_NOSIGNAL);
      if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
      if (sent < 0) {
        if (again(session)) return false;
        if (plan.status < 400) throw std::runtime_error(std::string("the request was not taken: ") + std::strerror(errno));
        session.sent = plan.bytes.size();  // refused before its end: the answer is there
        break;
      }
      session.sent += static_cast<size_t>(sent);
    }
    if (plan.send_most < plan.bytes.size() || plan.texts_most == 0) return !leave(session);
    watch(session, EPOLLIN);
    return true;
  }

  // The server closed a connection that it had waited on: as clients do, once more on a new one.
  bool again(Session& session) {
    if (!session.used || session.received || session.left) return false;
    close(session);
    send_anew(session);
    return true;
  }

  void read_more(Session& session) {
    const Plan& plan = *session.plan;
    std::array<char, kFullRead> space;  // NOLINT: filled by recv
    const auto got = ::recv(session.socket, space.data(), std::min(plan.read_most, space.size()), 0);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (got <= 0) {
      if (!again(session)) server_left(session);
      return;
    }
    session.received = true;
    told_.clear();
    session.reader.take({space.data(), static_cast<size_t>(got)}, &told_);
    result_.texts += static_cast<int64_t>(told_.size());
    if (!plan.slow() && session.reader.streams()) time_texts(session);
    if (session.reader.complete()) {
      answered(session);
    } else if (!session.left && plan.texts_most > 0 && session.reader.texts() >= plan.texts_most) {
      leave(session);
    } else if (plan.stall_behind >= 0 && !session.stalled && session.reader.texts() >= plan.stall_behind) {
      session.stalled = true;
      pause(session, plan.stall);
    } else if (plan.read_pause.count() > 0) {
      pause(session, plan.read_pause);
    }
  }

  void pause(Session& session, milliseconds time) {
    if (ending_) return;
    session.resume_at = now_ + time;
    watch(session, 0);
  }

  void time_texts(Session& session) {
    for (const size_t choice : told_) {
      if (session.last_text.size() <= choice) session.last_text.resize(choice + 1);
      Clock::time_point& last = session.last_text[choice];
      const bool first = std::ranges::all_of(session.last_text, [](const auto& time) { return time == Clock::time_point{}; });
      if (first) result_.first_text_ms.push_back(1e3 * seconds_of(now_ - session.began));
      if (last != Clock::time_point{}) result_.between_texts_ms.push_back(1e3 * seconds_of(now_ - last));
      last = now_;
    }
  }

  // The client has had enough. True: it is gone; it may also wait for the server to see that.
  bool leave(Session& session) {
    const Plan& plan = *session.plan;
    check_beginning(session);
    if (plan.leave == Plan::Leave::half_close) {
      ::shutdown(session.socket, SHUT_WR);
      session.left = true;
      watch(session, EPOLLIN);
      return false;
    }
    if (plan.leave == Plan::Leave::reset) {
      const linger hard{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(session.socket, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    }
    close(session);
    finish(session, plan.outcome);
    return true;
  }

  void check_beginning(const Session& session) {
    const std::vector<Said>& said = session.reader.said();
    const Plan& plan = *session.plan;
    if (said.empty() || plan.ask == nullptr) return;
    if (said.size() > plan.ask->wanted.size()) throw std::runtime_error("more choices than asked for");
    for (size_t i = 0; i < said.size(); ++i) {
      if (!said[i].begins(plan.ask->wanted[i]))
        throw std::runtime_error(fmt::format("a wrong beginning: wanted {}, found {}", plan.ask->wanted[i].text, said[i].text));
    }
  }

  void server_left(Session& session) {
    const Plan& plan = *session.plan;
    if (!session.left && session.stalled_seconds < kServerLetsGo) {
      throw std::runtime_error(fmt::format("the server left behind {} texts", session.reader.texts()));
    }
    check_beginning(session);
    close(session);
    finish(session, session.left ? plan.outcome : "let go by the server");
  }

  void answered(Session& session) {
    const Plan& plan = *session.plan;
    const AnswerReader& reader = session.reader;
    const int status = reader.status();
    std::string outcome = plan.outcome;
    if (plan.ask != nullptr && status == 429) {
      if (!reader.has_header("\r\nRetry-After: 1\r\n")) throw std::runtime_error("429 without Retry-After");
      outcome = "status 429";
      session.resume_at = now_ + milliseconds(200 + below(session.random, 800));
    } else if (status != plan.status) {
      // What was left before it was whole may be refused, or not seen at all.
      if (!session.left || status >= 500)
        throw std::runtime_error(fmt::format("wanted status {}: {}", plan.status, reader.body()));
    } else if (status >= 400) {
      const Json error = parse_json(reader.body(), "refusal").at("error");
      if (!error.at("message").is_string() || !error.at("type").is_string()) throw std::runtime_error("no error of the API");
    } else if (plan.ask != nullptr && reader.said() != plan.ask->wanted) {
      check_beginning(session);
      throw std::runtime_error("a wrong answer: " + (reader.said().empty() ? std::string("none") : reader.said()[0].text));
    }
    const bool keeps = reader.keeps_alive() && session.sent == plan.bytes.size() && !session.left && !plan.slow() &&
                       below(session.random, 4) != 0;
    session.used = true;
    if (!keeps) close(session);
    watch(session, EPOLLIN);
    if (outcome != "status 429") session.resume_at = {};
    finish(session, outcome);
  }

  const LoadOptions& options_;
  const Planner planner_;
  const int epoll_;
  sockaddr_in address_{};
  std::vector<std::unique_ptr<Session>> sessions_;
  LoadResult result_;
  Clock::time_point now_;
  bool ending_ = false;
  std::vector<size_t> told_;
};

}  // namespace

LoadResult run_load(uint16_t port, const std::vector<Ask>& asks, const LoadOptions& options) {
  return Load(port, asks, options).run();
}

}  // namespace weft::load_test
