// Stages of one model driven by hand, as on hosts of their own: each opens its part of the checkpoint alone, and what it leaves
// is packed, as it crosses, unpacked, and given to the next.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/boundary.h"
#include "model/checkpoint.h"
#include "model/fingerprint.h"
#include "model/sequence_state.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "ops/context.h"
#include "parallel/communicator.h"

namespace weft::testing_support {

// What crossed between two stages.
struct Crossing {
  Boundary sent;
  Tensor packed;
  Boundary received;
};

class StageChain {
 public:
  using Sequence = std::vector<SequenceState>;  // one for each stage

  // `cuts`: first layers of the second and later stages.
  StageChain(const std::filesystem::path& dir, std::vector<int64_t> cuts, ops::Profile profile) : profile_(profile) {
    const std::shared_ptr<const ModelConfig> config = load_model_config(dir);
    cuts.push_back(config->layer_count);
    std::vector<std::shared_ptr<const Checkpoint>> parts;
    std::vector<ShardDigest> digests;
    LayerIndex begin(0);
    for (const int64_t end : cuts) {
      const LayerRange range{begin, LayerIndex(end)};
      parts.push_back(std::make_shared<const Checkpoint>(dir, CheckpointOptions{.layers = range}));
      const std::vector<ShardDigest> some = shard_digests(*parts.back());
      digests.insert(digests.end(), some.begin(), some.end());
      begin = range.end;
    }
    for (const auto& part : parts) {
      StageOptions options;
      options.layers = part->layers();
      options.profile = profile;
      options.fingerprint = combine_fingerprint(config_text(*part), digests, profile);
      stages_.push_back(make_stage(part, options));
    }
    checkpoints_ = std::move(parts);
  }

  [[nodiscard]] size_t size() const { return stages_.size(); }
  [[nodiscard]] Stage& stage(size_t i) { return *stages_[i]; }
  [[nodiscard]] const Checkpoint& checkpoint(size_t i) const { return *checkpoints_[i]; }
  [[nodiscard]] ops::Context& context() { return context_; }
  [[nodiscard]] const ModelConfig& config() const { return checkpoints_.front()->config(); }
  // Of the last step, one for each cut.
  [[nodiscard]] const std::vector<Crossing>& crossings() const { return crossings_; }

  [[nodiscard]] Sequence create() {
    Sequence sequence;
    for (const auto& stage : stages_) sequence.emplace_back(stage->states());
    return sequence;
  }

  struct Rows {
    Sequence* sequence;
    std::vector<int32_t> ids;
  };

  // One step of rows of each sequence. The logits of all rows, [rows, V].
  std::vector<float> run(std::span<const Rows> rows) {
    crossings_.clear();
    std::optional<Boundary> boundary;
    try {
      for (size_t i = 0; i < size(); ++i) {
        const Batch batch = batch_of(i, rows);
        Stage::Output out = stage(i).forward(context_, batch, std::move(boundary));
        if (stage(i).last()) {
          const std::span<const float> logits = std::as_const(out.logits).as<float>();
          for (const Rows& some : rows)
            for (SequenceState& state : *some.sequence) (void)state.commit();
          return {logits.begin(), logits.end()};
        }
        const LayerIndex cut = stage(i).layers().end;
        const BoundaryForm form = boundary_form(config(), cut, activation_dtype(profile_));
        Tensor packed = pack_boundary(*out.boundary, form.activation);
        boundary = unpack_boundary(packed.view(), out.boundary->sealed, form, batch.rows());
        crossings_.push_back({std::move(*out.boundary), std::move(packed), *boundary});
      }
    } catch (...) {
      for (const Rows& some : rows)
        for (SequenceState& state : *some.sequence) state.fail_step();
      throw;
    }
    return {};
  }
  std::vector<float> feed(Sequence& sequence, std::vector<int32_t> ids) {
    const Rows rows{&sequence, std::move(ids)};
    return run({&rows, 1});
  }

  // The prompt in one step, then `count` tokens one by one, each the likeliest.
  std::vector<int32_t> greedy(std::span<const int32_t> prompt, int64_t count) {
    Sequence sequence = create();
    std::vector<int32_t> drawn;
    std::vector<int32_t> next(prompt.begin(), prompt.end());
    while (std::ssize(drawn) < count) {
      const std::vector<float> logits = feed(sequence, next);
      const auto row = logits.end() - config().vocab_size;
      drawn.push_back(static_cast<int32_t>(std::max_element(row, logits.end()) - row));
      next = {drawn.back()};
    }
    return drawn;
  }

 private:
  [[nodiscard]] Batch batch_of(size_t stage, std::span<const Rows> rows) {
    Batch batch;
    for (const Rows& some : rows) {
      const auto count = static_cast<int64_t>(some.ids.size());
      batch.groups.push_back((*some.sequence)[stage].extend(batch.rows(), count));
      batch.ids.insert(batch.ids.end(), some.ids.begin(), some.ids.end());
    }
    for (int64_t row = 0; row < batch.rows(); ++row) batch.logits_rows.push_back(row);
    return batch;
  }

  ops::Profile profile_;
  std::vector<std::shared_ptr<const Checkpoint>> checkpoints_;
  std::vector<std::unique_ptr<Stage>> stages_;
  WorkerPool pool_{1};
  SingleRank ranks_;
  ops::Context context_{.backend = ops::Backend::cpu, .profile = profile_, .pool = &pool_, .comm = &ranks_};
  std::vector<Crossing> crossings_;
};

// Ids below `vocabulary` that look like no pattern.
inline std::vector<int32_t> some_ids(int64_t count, int64_t vocabulary, int64_t salt = 0) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 31 + i * 97 + salt * 53 + 11) % vocabulary));
  return ids;
}

}  // namespace weft::testing_support
