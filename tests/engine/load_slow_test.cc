// Load on one EngineThread: client threads that submit, stream, cancel, hold answers to a schema and go on from stored states,
// while states leave for files and come back. Its purpose is the thread sanitizer; what each client gets is checked as well.
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine_thread.h"

#include "engine_fixture.h"
#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;
using testing_support::TemporaryFolder;

constexpr size_t kClients = 6;
constexpr size_t kTurns = 3;
constexpr int64_t kLimit = 24;  // tokens of an answer

// A turn whose tokens are read in another thread.
class StreamedTurn final : public TokenSink {
 public:
  StreamedTurn(const ChatPrompt& prompt, const TurnOptions& options, size_t capacity, std::function<void()> on_room)
      : turn_(mini(), prompt, options), stream_(capacity, std::move(on_room)) {}

  [[nodiscard]] GenerateRequest request(const ChatPrompt& prompt) const { return turn_.request(prompt.ids); }
  TokenStream& stream() { return stream_; }
  // Once the stream has ended.
  TurnResult result() { return turn_.result(); }

  void on_submit(int64_t budget) override { turn_.on_submit(budget); }
  bool ready() override { return stream_.ready(); }
  void constrain(SampleRequest& draw, int64_t tokens_left) override { turn_.constrain(draw, tokens_left); }
  void on_prompt(int64_t done, int64_t total) override { turn_.on_prompt(done, total); }
  bool on_token(const ops::Sampled& token) override {
    static_cast<void>(stream_.on_token(token));
    return turn_.on_token(token);
  }
  void on_end(const RequestReport& report) override {
    turn_.on_end(report);
    stream_.on_end(report);  // wakes the reader: nothing of this object is touched behind it
  }

 private:
  Turn turn_;
  TokenStream stream_;
};

struct Ask {
  ChatPrompt prompt;
  std::optional<grammar::AnswerRules> rules;
  TurnOptions options;
};

// What a client asks in a turn. The turns of a client, and clients two by two, share the beginning of their prompts.
Ask ask_of(size_t client, size_t turn) {
  std::string text = fmt::format("Client {} says: add these numbers.", client / 2);
  for (size_t i = 0; i <= turn; ++i) text += fmt::format(" Number {} is {}.", i, (i + 1) * 17 + client);
  ChatRequest request = ask(text);
  request.thinking = false;
  if ((client + turn) % 2 == 0) {
    request.response_format = parse_chat_request(R"({"messages": [{"role": "user", "content": ""}], "response_format":
        {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object", "properties": {"sum":
        {"type": "integer"}, "terms": {"type": "array", "items": {"type": "integer"}}}, "required": ["sum"],
        "additionalProperties": {"type": "string"}}}}})")
                                  .response_format;
  }
  Ask made;
  made.prompt = format().render(request);
  std::vector<std::string> notes;
  made.rules = grammar::AnswerRules::of(request, mini().vocabulary(), notes);
  made.options.max_tokens = kLimit;
  made.options.sampling.temperature = 0.9F;
  made.options.sampling.seed = 31 * client + turn;
  return made;
}

// The options point into the request.
std::shared_ptr<StreamedTurn> turn_of(Ask& asked, size_t capacity, std::function<void()> on_room) {
  if (asked.rules) asked.options.rules = &*asked.rules;
  return std::make_shared<StreamedTurn>(asked.prompt, asked.options, capacity, std::move(on_room));
}

std::vector<int32_t> read_all(TokenStream& stream) {
  std::vector<int32_t> ids;
  while (const std::optional<ops::Sampled> token = stream.next()) ids.push_back(token->id);
  return ids;
}

bool leaves(size_t client, size_t turn) { return (client + 2 * turn) % 5 == 0; }

// Memory for three of the twelve or so sequences that want to run, and hardly a stored state beside them.
EngineOptions tight(Executor& executor, const std::filesystem::path& folder) {
  EngineOptions options;
  options.max_context = 256;
  options.prefill_chunk = 24;
  options.keep_every = 16;
  options.folder = folder;
  options.request_seconds = 600.0;
  const StateMemory memory = executor.state_memory();
  options.state_memory = ByteCount(4 * memory.bytes(executor.states().whole(TokenCount(256))).value);
  return options;
}

struct Answers {
  std::vector<std::vector<int32_t>> ids;
  std::vector<RequestReport> reports;
  std::vector<std::string> contents;  // of answers under a schema that were not cut off by their reader
};

Answers run_clients(EngineThread& engine) {
  Answers run{std::vector<std::vector<int32_t>>(kClients * kTurns), std::vector<RequestReport>(kClients * kTurns),
              std::vector<std::string>(kClients * kTurns)};
  // One that is always refused, and one that leaves before its first token.
  std::thread nuisance([&] {
    for (int i = 0; i < 20; ++i) {
      const auto refused = std::make_shared<TokenStream>(1, [] {});
      const std::optional<Failure> failure =
          guard([&] { static_cast<void>(engine.submit(request_of({int32_t{1} << 30}, 1), refused)); });
      EXPECT_THAT(failure.value().message, HasSubstr("wanted ids in"));
      const auto gone = std::make_shared<TokenStream>(1, [&] { engine.wake(); });
      engine.cancel(engine.submit(request_of(random_ids(40, 5), 8), gone));
      static_cast<void>(read_all(*gone));
      EXPECT_EQ(gone->report().end, RequestEnd::cancelled);
    }
  });
  std::vector<std::thread> clients;
  for (size_t client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      for (size_t turn = 0; turn < kTurns; ++turn) {
        const size_t at = client * kTurns + turn;
        Ask asked = ask_of(client, turn);
        const auto streamed = turn_of(asked, 1 + client, [&] { engine.wake(); });
        const RequestId id = engine.submit(streamed->request(asked.prompt), streamed);
        if (leaves(client, turn)) {
          for (size_t i = 0; i <= turn; ++i) static_cast<void>(streamed->stream().next());
          engine.cancel(id);
        }
        run.ids[at] = read_all(streamed->stream());
        run.reports[at] = streamed->stream().report();
        if (asked.rules && !leaves(client, turn)) run.contents[at] = streamed->result().answer.content;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  nuisance.join();
  return run;
}

void check(const Answers& run, const std::vector<std::vector<int32_t>>& alone) {
  for (size_t at = 0; at < kClients * kTurns; ++at) {
    const size_t client = at / kTurns;
    const size_t turn = at % kTurns;
    if (leaves(client, turn)) continue;
    EXPECT_EQ(run.ids[at], alone[at]) << client << ", " << turn;
    EXPECT_TRUE(run.reports[at].end == RequestEnd::stop || run.reports[at].end == RequestEnd::length) << client << ", " << turn;
    if ((client + turn) % 2 != 0) continue;
    const Json answer = parse_json(run.contents[at], "answer");
    EXPECT_TRUE(answer.at("sum").is_number_integer()) << run.contents[at];
  }
}

TEST(EngineLoad, ClientsGetWhatTheyGetAloneWhileStatesLeaveAndComeBack) {
  ModelOptions two_stages;
  two_stages.dir = mini_dir();
  two_stages.threads = 2;
  two_stages.pp_size = 2;
  const LoadedExecutor loaded = load_executor(two_stages);
  Executor& executor = *loaded.executor;
  std::vector<std::vector<int32_t>> alone;
  {
    EngineOptions options = tight(executor, {});
    options.keep_states = false;
    Engine engine(executor, options);
    for (size_t at = 0; at < kClients * kTurns; ++at) {
      Ask asked = ask_of(at / kTurns, at % kTurns);
      const auto streamed = turn_of(asked, 1000, [] {});
      static_cast<void>(engine.submit(streamed->request(asked.prompt), streamed));
      run_until_idle(engine);
      alone.push_back(read_all(streamed->stream()));
    }
  }
  const TemporaryFolder folder;
  {
    EngineThread engine(executor, tight(executor, folder.path()));
    check(run_clients(engine), alone);
  }
  EXPECT_EQ(executor.states().held(), StateUse{});
  // The next start finds in files what the last one had.
  EngineThread engine(executor, tight(executor, folder.path()));
  const Answers again = run_clients(engine);
  check(again, alone);
  EXPECT_GE(std::ranges::count(again.reports, ReusedFrom::disk, &RequestReport::reused_from), 1);
}

}  // namespace
}  // namespace weft::engine_test
