#include "engine/bench/model_facts.h"

#include <algorithm>
#include <utility>

#include "engine/owned_sequence.h"
#include "model/checkpoint.h"

namespace weft::bench {
namespace {

constexpr int64_t kWarmTokens = 512;

}  // namespace

std::vector<int32_t> RandomIds::next(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.push_back(static_cast<int32_t>((state_ >> 33) % vocab_));
  }
  return ids;
}

void step(Executor& executor, SequenceId sequence, std::vector<int32_t> ids) {
  Rows rows;
  rows.sequence = sequence;
  rows.ids = std::move(ids);
  rows.sample = SampleRequest{};
  rows.sample->params.temperature = 0.0F;
  Step made;
  made.rows.push_back(std::move(rows));
  (void)executor.run(std::move(made));
}

void warm_up(Executor& executor, RandomIds& ids, int64_t chunk) {
  const OwnedSequence sequence(executor);
  for (int64_t done = 0; done < kWarmTokens; done += chunk)
    step(executor, sequence.id(), ids.next(std::min(chunk, kWarmTokens - done)));
}

Json facts_of(const LoadedExecutor& loaded, int64_t tokens) {
  return {{"layers", loaded.checkpoint->config().layer_count},
          {"weight_bytes", loaded.weight_bytes.value},
          {"bytes_per_token", loaded.executor->bytes_per_token().value},
          {"profile", to_string(loaded.profile)},
          {"threads", loaded.threads},
          {"tokens", tokens}};
}

}  // namespace weft::bench
