// Random events on the engine against a slow oracle: a model whose state spells out what it has consumed.
//
// Every slot and every row of a page holds a hash of all ids up to its position, and the next token is a function of that hash.
// The stage checks the whole chain of a sequence before it goes on from it, so a slot or page that was shared wrongly, used
// after its release or filed under another count shows at once.
#include <atomic>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine.h"
#include "pipeline/local_executor.h"

#include "support/models.h"
#include "token_sinks.h"

namespace weft::engine_test {
namespace {

using testing_support::TemporaryFolder;

constexpr int64_t kVocab = 64;
constexpr int64_t kLayers = 4;  // even: a slot, odd: pages

// Hashes fit float32 exactly.
int32_t next_hash(int32_t hash, int32_t id) {
  return static_cast<int32_t>((static_cast<uint32_t>(hash) * 2654435761U + static_cast<uint32_t>(id) + 1U) >> 8U);
}
int32_t token_of(int32_t hash) { return static_cast<int32_t>(hash % kVocab); }

// What the model answers, from the ids alone.
std::vector<int32_t> oracle(std::span<const int32_t> prompt, int64_t count) {
  int32_t hash = 0;
  for (const int32_t id : prompt) hash = next_hash(hash, id);
  std::vector<int32_t> made;
  for (int64_t i = 0; i < count; ++i) {
    made.push_back(token_of(hash));
    hash = next_hash(hash, made.back());
  }
  return made;
}

StateLayout spelling_layout(LayerRange layers) {
  StateLayout layout(layers);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    if (layer.value % 2 == 0) {
      layout.add_slot_layer(layer, {{"S", {2}}});  // hash, count
    } else {
      layout.add_page_layer(layer, {{"h", 2}});  // hash, id
    }
  }
  return layout;
}

class SpellingStage final : public Stage {
 public:
  SpellingStage(LayerRange layers, std::atomic<int64_t>& faults)
      : layers_(layers),
        pool_(spelling_layout(layers), [] { return std::string("spelling"); }, {.slots = 64, .pages = 256}),
        faults_(faults) {}

  LayerRange layers() const override { return layers_; }
  int64_t layer_count() const override { return kLayers; }
  int64_t vocab_size() const override { return kVocab; }
  int64_t hidden_size() const override { return 1; }
  StatePool& states() override { return pool_; }
  Device& device() override { return pool_.device(); }
  ByteCount bytes_per_token() const override { return ByteCount(0); }
  MemoryUse memory() const override { return {}; }

  Output forward(ops::Context&, const Batch& batch, std::optional<Boundary>) override {
    std::vector<int32_t> hashes(batch.ids.size());
    for (const RowGroup& group : batch.groups) run(group, batch, hashes);
    Output output;
    if (!last()) {
      output.boundary = Boundary{layers_.end, std::make_shared<const Tensor>(Tensor::zeros(DType::f32, {batch.rows(), 1})), {}};
      return output;
    }
    output.logits = Tensor::zeros(DType::f32, {std::ssize(batch.logits_rows), kVocab});
    for (size_t i = 0; i < batch.logits_rows.size(); ++i) {
      const int32_t token = token_of(hashes[static_cast<size_t>(batch.logits_rows[i])]);
      output.logits.as<float>()[i * kVocab + static_cast<size_t>(token)] = 1.0F;
    }
    return output;
  }

 private:
  float* row(const RowGroup& group, const LayerState& layer, int64_t position) {
    return pool_.data(group.pages[static_cast<size_t>(position / ops::kPageTokens)]) + layer.page_offset +
           (position % ops::kPageTokens) * layer.page_width;
  }
  void check(bool good) {
    if (!good) ++faults_;
  }

  void run(const RowGroup& group, const Batch& batch, std::vector<int32_t>& hashes) {
    const int64_t start = group.start.value;
    int32_t hash = 0;
    for (const LayerState& layer : pool_.layout().states()) {
      int32_t chain = 0;
      if (!layer.slot.empty() && group.slot_in) {
        const float* slot = pool_.data(*group.slot_in) + layer.slot[0].offset;
        chain = static_cast<int32_t>(slot[0]);
        check(static_cast<int64_t>(slot[1]) == start);
      }
      for (int64_t p = 0; p < start && !layer.page.empty(); ++p) {
        chain = next_hash(chain, static_cast<int32_t>(row(group, layer, p)[1]));
        check(static_cast<int32_t>(row(group, layer, p)[0]) == chain);
      }
      check(&layer == &pool_.layout().states().front() || chain == hash);
      hash = chain;
    }
    auto checkpoint = group.checkpoints.begin();
    for (int64_t i = 0; i < group.row_count; ++i) {
      const auto at = static_cast<size_t>(group.first_row + i);
      hash = next_hash(hash, batch.ids[at]);
      hashes[at] = hash;
      for (const LayerState& layer : pool_.layout().states()) {
        if (layer.page.empty()) continue;
        row(group, layer, start + i)[0] = static_cast<float>(hash);
        row(group, layer, start + i)[1] = static_cast<float>(batch.ids[at]);
      }
      if (checkpoint != group.checkpoints.end() && checkpoint->offset == i + 1) {
        write(checkpoint->slot, hash, start + i + 1);
        ++checkpoint;
      }
    }
    write(group.slot_out, hash, start + group.row_count);
  }
  void write(SlotId slot, int32_t hash, int64_t count) {
    for (const LayerState& layer : pool_.layout().states()) {
      if (layer.slot.empty()) continue;
      float* out = pool_.data(slot) + layer.slot[0].offset;
      out[0] = static_cast<float>(hash);
      out[1] = static_cast<float>(count);
    }
  }

  LayerRange layers_;
  StatePool pool_;
  std::atomic<int64_t>& faults_;
};

class World {
 public:
  World() { open(); }

  void submit(std::vector<int32_t> prompt) {
    Live live;
    live.prompt = std::move(prompt);
    // More than admission leaves room for, at times.
    live.wanted = std::min(1 + below(below(3) == 0 ? 200 : 16), engine_->context_limit() - std::ssize(live.prompt));
    live.sink = std::make_shared<Collector>();
    live.id = engine_->submit(request_of(live.prompt, live.wanted), live.sink);
    live_.push_back(std::move(live));
  }
  void submit_new() { submit(random_ids(1 + below(100), static_cast<uint32_t>(random()), 0, kVocab)); }
  void extend() {
    if (texts_.empty()) return;
    std::vector<int32_t> ids = recent_text();
    for (int64_t i = 1 + below(20); i > 0; --i) ids.push_back(static_cast<int32_t>(below(kVocab)));
    if (std::ssize(ids) < engine_->context_limit() - 50) submit(std::move(ids));
  }
  void fork() {
    if (texts_.empty()) return;
    std::vector<int32_t> ids = recent_text();
    ids.resize(static_cast<size_t>(1 + below(std::ssize(ids))));
    ids.push_back(static_cast<int32_t>(below(kVocab)));
    submit(std::move(ids));
  }
  void cancel() {
    if (!live_.empty()) engine_->cancel(live_[static_cast<size_t>(below(std::ssize(live_)))].id);
  }
  void evict() { evictions += engine_->evict() ? 1 : 0; }
  // Another process, with another split into stages, on the same folder.
  void restart() {
    engine_.reset();
    collect();
    EXPECT_TRUE(live_.empty());
    check_memory();
    EXPECT_EQ(executor_->states().held(), StateUse{});
    open();
    reloaded += engine_->store().on_disk();
  }
  void step() {
    engine_->wait_for_files();  // events follow from the seed, not from the disk
    engine_->step();
    collect();
    EXPECT_LE(executor_->state_memory().bytes(executor_->states().held()), engine_->state_memory());
  }
  void finish() {
    while (engine_->step()) {
    }
    collect();
    restart();
  }

  // The pools hold what the ledger says, and the ledger what its sequences say.
  void check_memory() {
    const SequenceId empty = executor_->create();
    executor_->release(executor_->fork(empty));  // forks wait for all that was asked of the stages
    executor_->release(empty);
    const StateUse held = executor_->states().held();
    for (Stage* stage : stages_) {
      EXPECT_EQ(stage->states().slots_held(), held.slots);
      if (stage->states().layout().page_floats() > 0) {
        EXPECT_EQ(stage->states().pages_held(), held.pages);
      }
    }
  }

  int64_t below(int64_t limit) { return static_cast<int64_t>(random() % static_cast<uint64_t>(limit)); }

  std::atomic<int64_t> faults = 0;
  int64_t evictions = 0;
  int64_t reloaded = 0;
  int64_t from_memory = 0;
  int64_t from_disk = 0;
  int64_t answered = 0;
  int64_t cancelled = 0;
  int64_t preemptions = 0;

 private:
  struct Live {
    RequestId id;
    std::vector<int32_t> prompt;
    int64_t wanted = 0;
    std::shared_ptr<Collector> sink;
  };

  uint64_t random() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return state_ >> 33U;
  }
  std::vector<int32_t> recent_text() {
    return texts_[texts_.size() - 1 - static_cast<size_t>(below(std::min<int64_t>(12, std::ssize(texts_))))];
  }

  void open() {
    const std::vector<std::vector<int64_t>> splits = {{0, 4}, {0, 2, 4}, {0, 1, 3, 4}};
    const std::vector<int64_t>& bounds = splits[static_cast<size_t>(opened_++) % splits.size()];
    std::vector<std::unique_ptr<Stage>> stages;
    stages_.clear();
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      stages.push_back(std::make_unique<SpellingStage>(LayerRange{LayerIndex(bounds[i]), LayerIndex(bounds[i + 1])}, faults));
      stages_.push_back(stages.back().get());
    }
    executor_ = std::make_unique<LocalExecutor>(std::move(stages), LocalExecutorOptions{});
    EngineOptions options;
    options.max_context = 400;
    options.prefill_chunk = 30;
    options.max_running = 6;
    options.keep_every = 16;
    options.state_memory = executor_->state_memory().bytes({16, 12});
    options.folder = folder_.path();
    options.disk = ByteCount(40 * 5000);
    engine_ = std::make_unique<Engine>(*executor_, options);
    EXPECT_TRUE(engine_->store().notes().empty());
  }

  // Compares what has ended with the oracle.
  void collect() {
    for (auto live = live_.begin(); live != live_.end();) {
      if (!live->sink->over()) {
        ++live;
        continue;
      }
      const RequestReport& report = *live->sink->report;
      const std::vector<int32_t>& ids = live->sink->ids;
      EXPECT_EQ(ids, oracle(live->prompt, std::ssize(ids)));
      EXPECT_TRUE(report.end == RequestEnd::cancelled || (report.end == RequestEnd::length && std::ssize(ids) == live->wanted))
          << static_cast<int>(report.end) << (report.failure ? report.failure->message : "");
      EXPECT_LE(report.reused_tokens, longest_shared(live->prompt));
      (report.end == RequestEnd::cancelled ? cancelled : answered) += 1;
      from_memory += report.reused_from == ReusedFrom::memory ? 1 : 0;
      from_disk += report.reused_from == ReusedFrom::disk ? 1 : 0;
      preemptions += report.preemptions;
      texts_.push_back(live->prompt);
      texts_.back().insert(texts_.back().end(), ids.begin(), ids.end());
      live = live_.erase(live);
    }
  }
  // The longest prefix, short of the last id, that another request has or had.
  [[nodiscard]] int64_t longest_shared(const std::vector<int32_t>& prompt) const {
    int64_t longest = 0;
    const auto with = [&](const std::vector<int32_t>& text) {
      longest = std::max<int64_t>(longest, std::ranges::mismatch(text, prompt).in2 - prompt.begin());
    };
    for (const std::vector<int32_t>& text : texts_) with(text);
    for (const Live& other : live_) {
      if (&other.prompt == &prompt) continue;
      std::vector<int32_t> text = other.prompt;
      text.insert(text.end(), other.sink->ids.begin(), other.sink->ids.end());
      with(text);
    }
    return std::min(longest, std::ssize(prompt) - 1);
  }

  TemporaryFolder folder_;
  uint64_t state_ = 20261129;
  int64_t opened_ = 0;
  std::vector<Stage*> stages_;  // the executor's
  std::unique_ptr<LocalExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  std::vector<Live> live_;
  std::vector<std::vector<int32_t>> texts_;
};

TEST(EngineProperties, TenThousandRandomEvents) {
  World world;
  for (int64_t event = 0; event < 10000; ++event) {
    const int64_t kind = world.below(100);
    if (kind < 3) {
      world.submit_new();
    } else if (kind < 7) {
      world.extend();
    } else if (kind < 12) {
      world.fork();
    } else if (kind < 14) {
      world.cancel();
    } else if (kind < 17) {
      world.evict();
    } else if (kind < 18 && event % 10 == 0) {
      world.restart();
    } else {
      world.step();
    }
    if (event % 20 == 0) world.check_memory();
    ASSERT_EQ(world.faults, 0) << "after event " << event;
    ASSERT_FALSE(HasFailure()) << "after event " << event;
  }
  world.finish();
  EXPECT_GT(world.answered, 500);
  EXPECT_GT(world.cancelled, 100);
  EXPECT_GT(world.evictions, 100);
  EXPECT_GT(world.reloaded, 10);
  EXPECT_GT(world.from_memory, 100);
  EXPECT_GT(world.from_disk, 30);
  EXPECT_GT(world.preemptions, 0);
}

}  // namespace
}  // namespace weft::engine_test
