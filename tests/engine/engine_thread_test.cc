// Many client threads on one engine: streams, back pressure, readers that leave (docs/engine.md, T).
#include "engine/engine_thread.h"

#include <thread>

#include <gmock/gmock.h>

#include "base/error.h"

#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {
namespace {

using ::testing::HasSubstr;
using testing_support::fixture;
using testing_support::open_executor;

EngineOptions options() {
  EngineOptions made;
  made.max_context = 256;
  made.state_memory = ByteCount(64 << 20);
  made.keep_every = 16;
  return made;
}

std::vector<int32_t> read_all(TokenStream& stream) {
  std::vector<int32_t> ids;
  while (const std::optional<ops::Sampled> token = stream.next()) ids.push_back(token->id);
  return ids;
}

TEST(EngineThread, ClientsInThreadsGetWhatTheyGetAlone) {
  constexpr uint32_t kClients = 8;
  const auto executor = open_executor(fixture("tiny-k3-8l"), {.cuts = {4}});
  const auto request = [](uint32_t client, uint32_t turn) {
    return request_of(random_ids(5 + (client * 7 + turn * 5) % 30, client + turn * 3), 9, 0.8F, client);
  };
  std::vector<std::vector<int32_t>> alone;
  {
    Engine engine(*executor, options());
    for (uint32_t i = 0; i < kClients * 3; ++i) alone.push_back(answer(engine, request(i / 3, i % 3))->ids);
  }
  std::vector<std::vector<int32_t>> found(kClients * 3);
  {
    EngineThread engine(*executor, options());
    std::vector<std::thread> clients;
    for (uint32_t client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] {
        for (uint32_t turn = 0; turn < 3; ++turn) {
          const auto stream = std::make_shared<TokenStream>(2, [&] { engine.wake(); });
          const RequestId id = engine.submit(request(client, turn), stream);
          if ((client + turn) % 4 == 0) {
            static_cast<void>(stream->next());
            engine.cancel(id);  // this reader leaves, and reads on only to see the end
          }
          found[client * 3 + turn] = read_all(*stream);
        }
      });
    }
    for (std::thread& client : clients) client.join();
  }
  for (uint32_t i = 0; i < kClients * 3; ++i) {
    if ((i / 3 + i % 3) % 4 == 0) continue;
    EXPECT_EQ(found[i], alone[i]) << i;
  }
  EXPECT_EQ(executor->states().held(), StateUse{});
}

TEST(EngineThread, AFullStreamMakesItsRequestRest) {
  const auto executor = open_executor(fixture("tiny-k3-8l"));
  EngineThread engine(*executor, options());
  const auto slow = std::make_shared<TokenStream>(1, [&] { engine.wake(); });
  static_cast<void>(engine.submit(request_of(random_ids(10, 1), 20), slow));
  const auto quick = std::make_shared<TokenStream>(64, [&] { engine.wake(); });
  static_cast<void>(engine.submit(request_of(random_ids(10, 2), 20), quick));
  EXPECT_EQ(read_all(*quick).size(), 20U);
  EXPECT_FALSE(slow->ready());
  EXPECT_EQ(read_all(*slow).size(), 20U);
  EXPECT_EQ(slow->report().end, RequestEnd::length);
}

TEST(EngineThread, RefusalsReachTheCallerAndTheEndReachesEveryReader) {
  const auto executor = open_executor(fixture("tiny-k3-8l"));
  const auto stream = std::make_shared<TokenStream>(1, [] {});
  {
    EngineThread engine(*executor, options());
    const std::optional<Failure> failure = guard([&] { static_cast<void>(engine.submit(request_of({512}, 1), stream)); });
    EXPECT_THAT(failure.value().message, HasSubstr("found 512"));
    static_cast<void>(engine.submit(request_of({1, 2, 3}, 200), stream));
  }
  static_cast<void>(read_all(*stream));
  EXPECT_EQ(stream->report().end, RequestEnd::cancelled);
}

}  // namespace
}  // namespace weft::engine_test
