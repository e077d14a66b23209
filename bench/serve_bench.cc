// What the HTTP layer adds to an answer: the same requests on the engine alone and over HTTP, to a model that takes no time to
// draw. Clients run beside the server, so that their share is in the figures too. The first token may cost 1 ms more, each
// streamed token 50 microseconds at 32 streams. `build/release/bench/weft_serve_bench --benchmark_repetitions=7`
#include <arpa/inet.h>
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <poll.h>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <benchmark/benchmark.h>

#include "engine/turn.h"
#include "server/api/router.h"
#include "server/http/server.h"

namespace weft {
namespace {

constexpr int64_t kTokens = 400;  // of each stream

// Draws one id for ever.
class ReadyExecutor final : public Executor {
 public:
  ReadyExecutor(int64_t vocab, int32_t id) : vocab_(vocab), id_(id) {}

  int64_t layer_count() const override { return 1; }
  int64_t vocab_size() const override { return vocab_; }
  int64_t stage_count() const override { return 1; }
  const std::string& fingerprint() const override { return fingerprint_; }
  ByteCount bytes_per_token() const override { return ByteCount(0); }
  StateMemory state_memory() const override { return {{1 << 20, 1 << 20}, ByteCount(1), ByteCount(1)}; }
  const StateLedger& states() const override { return states_; }
  MemoryUse memory() override { return {}; }
  SequenceId create() override {
    states_.create(SequenceId(++created_));
    return SequenceId(created_);
  }
  SequenceId fork(SequenceId sequence) override {
    states_.fork(sequence, SequenceId(++created_));
    return SequenceId(created_);
  }
  void release(SequenceId sequence) override { states_.release(sequence); }
  TokenCount consumed(SequenceId sequence) const override { return states_.consumed(sequence); }
  Ticket submit(Step step) override {
    Completion& done = open_.emplace_back();
    done.ticket = Ticket(++submitted_);
    for (const Rows& rows : step.rows) {
      RowsResult& result = done.results.emplace_back();
      for (size_t i = 0; i < rows.checkpoints.size(); ++i) result.checkpoints.emplace_back(++created_);
      states_.extend(rows.sequence, static_cast<int64_t>(rows.ids.size()), rows.checkpoints, result.checkpoints);
      if (rows.sample) result.sampled = ops::Sampled{id_, -0.1F};
    }
    return done.ticket;
  }
  Completion next() override {
    Completion done = std::move(open_.front());
    open_.pop_front();
    return done;
  }
  SavedState snapshot(SequenceId, std::span<const int32_t>) override { return {}; }
  SequenceId restore(const StateFile&) override { return create(); }

 private:
  int64_t vocab_;
  int32_t id_;
  std::string fingerprint_ = "none";
  StateLedger states_{true};
  std::deque<Completion> open_;
  int64_t created_ = 0;
  int64_t submitted_ = 0;
};

struct Served {
  Served()
      : model(make_model()),
        engine(model->executor(), options()),
        service(*model, engine, metrics, {.names = {"m"}, .build = "bench 0", .defaults = {}, .default_max_tokens = {}}),
        status(*model, engine, metrics, {}),
        router({}, metrics),
        server(any_port(), router) {
    router.open(service, status);
  }
  ~Served() {
    engine.stop();
    server.stop();
  }

  static std::unique_ptr<Model> make_model() {
    ChatFormat format = ChatFormat::load(std::string(WEFT_BENCH_SOURCE) + "/models/k3-mini");
    const auto vocab = format.tokenizer().vocab_size();
    const auto id = format.tokenizer().encode("a").front();
    return std::make_unique<Model>(std::move(format), std::make_unique<ReadyExecutor>(vocab, id), 1 << 16, SamplingChoice{});
  }
  static http::ServerOptions any_port() {
    http::ServerOptions made;
    made.port = 0;
    return made;
  }
  static EngineOptions options() {
    EngineOptions made;
    made.max_context = 1 << 16;
    made.state_memory = ByteCount(int64_t{1} << 30);
    made.keep_states = false;
    return made;
  }

  std::unique_ptr<Model> model;
  EngineThread engine;
  ServerMetrics metrics;
  api::Service service;
  StatusReport status;
  api::Router router;
  http::Server server;
};

std::string body_of(int64_t tokens) {
  return fmt::format(
      R"({{"model":"m","messages":[{{"role":"user","content":"What is 17 * 23? Answer with the number only."}}],)"
      R"("stream":true,"ignore_eos":true,"temperature":0,"max_tokens":{}}})",
      tokens);
}

// The same request without HTTP: rendered, encoded, submitted; its events taken and dropped.
class Drain final : public TokenSink {
 public:
  explicit Drain(std::shared_ptr<Turn> turn) : turn_(std::move(turn)) {}
  void on_submit(int64_t budget) override { turn_->on_submit(budget); }
  void constrain(SampleRequest& draw, int64_t left) override { turn_->constrain(draw, left); }
  bool on_token(const ops::Sampled& token) override {
    const bool ends = turn_->on_token(token);
    benchmark::DoNotOptimize(turn_->take_events());
    return ends;
  }
  void on_end(const RequestReport& report) override {
    turn_->on_end(report);
    over_.set_value();
  }
  void wait() { over_.get_future().wait(); }

 private:
  std::shared_ptr<Turn> turn_;
  std::promise<void> over_;
};

std::shared_ptr<Drain> submit(Served& served, int64_t tokens) {
  const ChatPrompt prompt = served.model->format().render(body_of(tokens));
  TurnOptions options;
  options.sampling.temperature = 0.0F;
  options.max_tokens = tokens;
  options.end.ignore = true;
  auto turn = std::make_shared<Turn>(*served.model, prompt, options);
  auto sink = std::make_shared<Drain>(turn);
  served.engine.submit(turn->request(prompt.ids), sink);
  return sink;
}

class Socket {
 public:
  explicit Socket(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
      fail(ErrorKind::unavailable, "client", "wanted a connection, found none");
  }
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void ask(const std::string& body) const {
    const std::string request = fmt::format(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body);
    if (::send(fd_, request.data(), request.size(), 0) != static_cast<ssize_t>(request.size()))
      fail(ErrorKind::unavailable, "client", "wanted to send a request, found a socket that took less");
  }
  [[nodiscard]] int fd() const { return fd_; }
  // Reads what is there. True once the last chunk has been read.
  [[nodiscard]] bool read(std::string& seen, int64_t* bytes = nullptr) const {
    char buffer[16384];
    const ssize_t count = ::recv(fd_, buffer, sizeof buffer, 0);
    if (count <= 0) fail(ErrorKind::unavailable, "client", "wanted an answer, found its end");
    seen.append(buffer, static_cast<size_t>(count));
    if (bytes != nullptr) *bytes += count;
    // What was looked at is kept only as far as a mark may begin in it.
    const bool over = seen.find("\r\n0\r\n\r\n") != std::string::npos;
    return over;
  }

 private:
  int fd_;
};

void first_token_engine(benchmark::State& state) {
  Served served;
  for (auto step : state) submit(served, 1)->wait();
}
BENCHMARK(first_token_engine)->Unit(benchmark::kMicrosecond)->UseRealTime();

void first_token_http(benchmark::State& state) {
  Served served;
  const Socket socket(served.server.port());
  const std::string body = body_of(1);
  for (auto step : state) {
    socket.ask(body);
    std::string seen;
    while (!socket.read(seen)) {
    }
    if (seen.find("reasoning_content") == std::string::npos) state.SkipWithError("no token");
  }
}
BENCHMARK(first_token_http)->Unit(benchmark::kMicrosecond)->UseRealTime();

void streams_engine(benchmark::State& state) {
  Served served;
  for (auto step : state) {
    std::vector<std::shared_ptr<Drain>> all;
    for (int64_t i = 0; i < state.range(0); ++i) all.push_back(submit(served, kTokens));
    for (const auto& one : all) one->wait();
  }
  state.counters["us_per_token"] = benchmark::Counter(static_cast<double>(state.iterations() * state.range(0) * kTokens) * 1e-6,
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(streams_engine)->Arg(1)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

void streams_http(benchmark::State& state) {
  Served served;
  std::vector<std::unique_ptr<Socket>> sockets;
  for (int64_t i = 0; i < state.range(0); ++i) sockets.push_back(std::make_unique<Socket>(served.server.port()));
  const std::string body = body_of(kTokens);
  int64_t bytes = 0;
  for (auto step : state) {
    std::vector<pollfd> waiting;
    std::vector<std::string> seen(sockets.size());
    std::vector<size_t> of;
    for (size_t i = 0; i < sockets.size(); ++i) {
      sockets[i]->ask(body);
      waiting.push_back({sockets[i]->fd(), POLLIN, 0});
      of.push_back(i);
    }
    while (!waiting.empty()) {
      ::poll(waiting.data(), waiting.size(), -1);
      for (size_t w = waiting.size(); w-- > 0;) {
        if (waiting[w].revents == 0) continue;
        std::string& text = seen[of[w]];
        if (sockets[of[w]]->read(text, &bytes)) {
          waiting.erase(waiting.begin() + static_cast<int64_t>(w));
          of.erase(of.begin() + static_cast<int64_t>(w));
        } else if (text.size() > 64) {
          text.erase(0, text.size() - 64);
        }
      }
    }
  }
  const auto tokens = static_cast<double>(state.iterations() * state.range(0) * kTokens);
  state.counters["bytes_per_token"] = static_cast<double>(bytes) / tokens;  // an event each
  state.counters["us_per_token"] = benchmark::Counter(static_cast<double>(state.iterations() * state.range(0) * kTokens) * 1e-6,
                                                      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(streams_http)->Arg(1)->Arg(32)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
