// Stored states under load and over many prompts: case C5 of the project's list, and warm against cold.
#include <cstring>
#include <fstream>
#include <map>

#include "cold_and_warm.h"

namespace weft::engine_test {
namespace {

// A tiny model whose head is its embedding, which outweighs what the layers add to it: it repeats what it was fed.
void add_to_exponent(std::byte* bf16, int amount) {
  uint16_t bits = 0;
  std::memcpy(&bits, bf16, sizeof(bits));
  if ((bits & 0x7fffU) != 0) bits = static_cast<uint16_t>(bits + (amount << 7));
  std::memcpy(bf16, &bits, sizeof(bits));
}

std::filesystem::path repeating_model(const TemporaryFolder& folder) {
  const auto to = folder.path() / "model";
  std::filesystem::copy(fixture("tiny-k3-8l"), to, std::filesystem::copy_options::recursive);
  const std::vector<std::string> names = {"embed_tokens.weight", "lm_head.weight"};
  std::vector<std::byte> embedding;
  for (const std::string& name : names) {
    for (const auto& file : std::filesystem::directory_iterator(to)) {
      if (file.path().extension() != ".safetensors") continue;
      const SafetensorsFile tensors(file.path());
      for (const TensorEntry& entry : tensors.entries()) {
        if (!entry.name.ends_with(name)) continue;
        std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes()));
        tensors.read_into(entry, 0, bytes);
        if (name == names[0]) {
          embedding = bytes;
          for (size_t i = 0; i < bytes.size(); i += 2) add_to_exponent(bytes.data() + i, 7);
        } else {
          EXPECT_EQ(bytes.size(), embedding.size());
          bytes = embedding;
        }
        std::fstream out(file.path(), std::ios::in | std::ios::out | std::ios::binary);
        out.seekp(entry.begin);
        out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
      }
    }
  }
  return to;
}

TEST(Cases, C5NoForeignTokenUnderLoadAndCancels) {
  const TemporaryFolder folder;
  const auto executor = open_executor(repeating_model(folder));
  constexpr int64_t kClients = 8;
  const auto prompt_of = [](int64_t client, uint32_t turn) {
    const auto low = static_cast<int32_t>(client * 32);
    return random_ids(20 + turn * 13 % 40, static_cast<uint32_t>(client) * 100 + turn, low, low + 32);
  };
  Engine lonely(*executor, without_store());
  EngineOptions little = grid_options();
  little.state_memory = ByteCount(executor->state_memory().bytes({24, 40}));
  Engine engine(*executor, little);
  uint32_t random = 12345;
  int64_t foreign = 0;
  int64_t cancelled = 0;
  int64_t answered = 0;
  struct Client {
    RequestId id;
    std::shared_ptr<Collector> sink;
    uint32_t turn = 0;
  };
  std::vector<Client> clients(kClients);
  std::map<std::pair<int64_t, uint32_t>, std::vector<int32_t>> alone;
  for (int64_t i = 0; i < kClients; ++i) {
    for (uint32_t turn = 0; turn < 5; ++turn) alone[{i, turn}] = answer(lonely, request_of(prompt_of(i, turn), 10))->ids;
  }
  for (int round = 0; round < 400; ++round) {
    for (int64_t i = 0; i < kClients; ++i) {
      Client& client = clients[static_cast<size_t>(i)];
      random = random * 1664525U + 1013904223U;
      if (client.sink && !client.sink->over()) {
        if (random >> 28U == 0) engine.cancel(client.id);
        continue;
      }
      if (client.sink) {
        const std::vector<int32_t>& ids = client.sink->ids;
        (client.sink->report->end == RequestEnd::cancelled ? cancelled : answered) += 1;
        EXPECT_TRUE(std::ranges::equal(ids, std::span(alone[{i, client.turn}]).first(ids.size())));
        foreign += std::ranges::count_if(ids, [&](int32_t id) { return id / 32 != i; });
      }
      client.turn = (client.turn + 1) % 5;
      client.sink = std::make_shared<Collector>();
      client.id = engine.submit(request_of(prompt_of(i, client.turn), 10), client.sink);
    }
    engine.step();
  }
  EXPECT_EQ(foreign, 0);
  EXPECT_GT(cancelled, 20);
  EXPECT_GT(answered, 100);
}

// Twice, edited, extended, at every chunk size, after eviction and after a restart: the bits of a cold run.
TEST(WarmIsCold, TwentyPrompts) {
  const StateMemory memory = open_executor(fixture("tiny-k3-8l"))->state_memory();
  int64_t reused = 0;
  int64_t computed = 0;
  for (const int64_t chunk : {5, 7, 16, 23}) {
    const TemporaryFolder folder;
    EngineOptions chunked = in_folder(folder);
    chunked.prefill_chunk = chunk;
    const auto round = [&](Served& served, const std::string& name,
                           const std::function<std::vector<int32_t>(uint32_t)>& prompt_of, int64_t least_reused) {
      for (uint32_t i = 0; i < 20; ++i) {
        const std::vector<int32_t> prompt = prompt_of(i);
        const Answer warm = ask_ids(served, prompt, 4);
        const std::string where = fmt::format("chunk {}, {}, prompt {}", chunk, name, i);
        EXPECT_GE(warm.report.reused_tokens, least_reused) << where;
        expect_cold(warm, prompt, where);
        reused += warm.report.reused_tokens;
        computed += warm.report.computed_tokens;
      }
    };
    const auto plain = [](uint32_t i) { return random_ids(40 + 3 * i, 500 + i); };
    const auto edited = [&](uint32_t i) {
      std::vector<int32_t> ids = plain(i);
      ids[ids.size() / 2] = (ids[ids.size() / 2] + 1) % 512;
      return ids;
    };
    const auto longer = [&](uint32_t i) { return extended(plain(i), 9, i); };
    {
      Served served(chunked);
      round(served, "first", plain, 0);
      round(served, "again", plain, 32);
      round(served, "edited", edited, 16);
      round(served, "extended", longer, 32);
    }
    {
      Served restarted(chunked, {5});
      round(restarted, "restarted", plain, 32);
    }
    EngineOptions little = chunked;
    little.state_memory = memory.bytes({6, 12});
    little.folder.clear();
    Served evicting(little);
    round(evicting, "little memory", plain, 0);
    round(evicting, "little memory again", plain, 0);
    EXPECT_LE(memory.bytes(evicting.stages->states().held()), little.state_memory);
  }
  RecordProperty("reused", static_cast<int>(reused));
  RecordProperty("computed", static_cast<int>(computed));
}

}  // namespace
}  // namespace weft::engine_test
