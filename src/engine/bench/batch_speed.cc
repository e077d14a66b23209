#include "engine/bench/batch_speed.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/worker_pool.h"
#include "engine/bench/mem.h"
#include "engine/bench/model_facts.h"
#include "engine/bench/timing.h"
#include "engine/engine.h"
#include "engine/process_memory.h"
#include "model/checkpoint.h"
#include "model/decode_cost.h"
#include "model/trace.h"

namespace weft::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kPrompt = 4;  // tokens

// The experts that the rows of a step were sent to.
class ExpertCounter final : public TraceSink {
 public:
  void record(TracePoint point, LayerIndex layer, TensorView rows) override {
    if (point != TracePoint::experts) return;
    const std::span<const int32_t> experts = rows.as<int32_t>();
    touched_[layer].insert(experts.begin(), experts.end());
  }
  [[nodiscard]] std::map<LayerIndex, std::set<int32_t>> take() { return std::exchange(touched_, {}); }

 private:
  std::map<LayerIndex, std::set<int32_t>> touched_;
};

// Counts the tokens of all requests.
class Tally final : public TokenSink {
 public:
  bool on_token(const ops::Sampled&) override {
    ++tokens;
    return false;
  }
  void on_end(const RequestReport& report) override {
    if (report.failure) failure = report.failure;
  }

  int64_t tokens = 0;
  std::optional<Failure> failure;
};

struct Batch {
  int64_t requests = 0;
  int64_t tokens = 0;  // of each request, behind its first
};

// The same draws in every call. Calls before() with the first tokens drawn, then after_step() behind each further step.
template <class Before, class AfterStep>
void run(Executor& executor, const Batch& batch, TraceSink* trace, const Before& before, const AfterStep& after_step) {
  EngineOptions options;
  options.max_context = kPrompt + batch.tokens + 1;
  options.prefill_chunk = batch.requests * kPrompt;
  options.max_running = batch.requests;
  options.max_queue = batch.requests;
  options.keep_states = false;
  options.trace = trace;
  Engine engine(executor, options);
  RandomIds ids(executor.vocab_size());
  const auto sink = std::make_shared<Tally>();
  const auto& tokens = sink->tokens;
  for (int64_t i = 0; i < batch.requests; ++i) {
    GenerateRequest request;
    request.ids = ids.next(kPrompt);
    request.max_tokens = batch.tokens + 1;
    request.sampling.temperature = 1.0F;
    request.sampling.seed = static_cast<uint64_t>(i);
    (void)engine.submit(std::move(request), sink);
  }
  while (tokens < batch.requests && engine.step()) {
  }
  if (sink->failure) sink->failure->raise();
  if (tokens != batch.requests || engine.running() != batch.requests) {
    fail(ErrorKind::unavailable, "bench", "wanted room for the states of {} requests at once, found {} running", batch.requests,
         engine.running());
  }
  before();
  while (engine.step()) after_step();
  if (sink->failure) sink->failure->raise();
  if (tokens != batch.requests * (batch.tokens + 1)) {
    fail(ErrorKind::internal, "bench", "wanted {} tokens, found {}", batch.requests * (batch.tokens + 1), tokens);
  }
}

// What a step has to do, on average over the steps of a batch.
struct StepCost {
  double weight_bytes = 0.0;
  double operations = 0.0;
  double experts = 0.0;  // of one layer
};

StepCost cost_of(const LoadedExecutor& loaded, const Batch& batch) {
  const Checkpoint& checkpoint = *loaded.checkpoint;
  const int64_t per_token = checkpoint.config().router.experts_per_token;
  std::map<LayerIndex, double> expert_bytes;
  double trunk = static_cast<double>(loaded.executor->bytes_per_token().value);
  double operations = 0.0;
  ExpertCounter counter;
  double bytes = 0.0;
  double experts = 0.0;
  double layers = 0.0;
  int64_t steps = 0;
  const auto after_step = [&] {
    ++steps;
    operations += static_cast<double>(batch.requests) * decode_operations(checkpoint, TokenCount(kPrompt + steps));
    for (const auto& [layer, touched] : counter.take()) {
      const auto one = static_cast<double>(routed_expert_bytes(checkpoint, layer).value);
      bytes += static_cast<double>(std::ssize(touched) - per_token) * one;
      experts += static_cast<double>(touched.size());
      layers += 1.0;
    }
  };
  run(*loaded.executor, batch, &counter, [&] { (void)counter.take(); }, after_step);
  const auto count = static_cast<double>(steps);
  return {trunk + bytes / count, operations / count, layers > 0.0 ? experts / layers : 0.0};
}

Figure::Limit limit_of(const StepCost& cost, const Batch& batch, const Figure& bandwidth, const Figure& peak) {
  const double reading = cost.weight_bytes / (bandwidth.value() * kGiga);
  const double computing = cost.operations / (peak.value() * kGiga);
  const auto rate = [&](double seconds) { return static_cast<double>(batch.requests) / seconds; };
  if (reading >= computing) return {bandwidth.name + ", over the weight bytes of a step", rate(reading)};
  return {peak.name + ", over the operations of a step", rate(computing)};
}

}  // namespace

Samples decode_rates(Executor& executor, int64_t requests, int64_t tokens, int repeats) {
  Samples samples;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    std::optional<Timer> timer;
    run(executor, {requests, tokens}, nullptr, [&] { timer.emplace(); }, [] {});
    samples.push_back(static_cast<double>(requests * tokens) / timer->seconds());
  }
  return samples;
}

Record bench_batch(const BatchOptions& options) {
  if (options.model.backend == ops::Backend::cuda) {  // whose arithmetic has no measured limit yet
    fail(ErrorKind::unsupported, "bench", "batch: wanted a model on the CPU, found --device cuda");
  }
  const LoadedExecutor loaded = load_executor(options.model);
  if (loaded.stages.size() != 1) {
    fail(ErrorKind::unsupported, "bench", "wanted one stage, found {}: the experts of a step are counted",
         loaded.stages.size());
  }
  Record record{"batch", {}, facts_of(loaded, options.tokens), loaded.notes};
  RandomIds ids(loaded.executor->vocab_size());
  warm_up(*loaded.executor, ids, options.model.prefill_chunk);
  const StateMemory states = loaded.executor->state_memory();
  record.facts["slot_bytes"] = states.slot_bytes.value;
  double alone = 0.0;
  for (const int64_t requests : options.batches) {
    const Batch batch{requests, options.tokens};
    const StepCost cost = cost_of(loaded, batch);
    Figure figure{fmt::format("decode, batch {}", requests), "tokens/s", {}, {}};
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      std::optional<Timer> timer;
      run(*loaded.executor, batch, nullptr, [&] { timer.emplace(); }, [] {});
      figure.samples.push_back(static_cast<double>(requests * options.tokens) / timer->seconds());
    }
    WorkerPool pool(loaded.threads);
    const Figure bandwidth = read_bandwidth(pool, memory_sweep_bytes(), options.repeats);
    const Figure peak = peak_arithmetic(pool, options.repeats);
    figure.limit = limit_of(cost, batch, bandwidth, peak);
    if (alone == 0.0) alone = figure.value() / static_cast<double>(requests);
    figure.more = {{"step_ms", 1e3 * static_cast<double>(requests) / figure.value()},
                   {"weight_bytes_of_a_step", cost.weight_bytes},
                   {"weight_GB_per_s", cost.weight_bytes / kGiga * figure.value() / static_cast<double>(requests)},
                   {"operations_of_a_step", cost.operations},
                   {"GFLOP_per_s", cost.operations / kGiga * figure.value() / static_cast<double>(requests)},
                   {"experts_of_a_layer_and_step", cost.experts},
                   {"state_bytes_of_a_step", 2.0 * static_cast<double>(requests * states.slot_bytes.value)},
                   {"times_one_request_of_the_first_batch", figure.value() / alone}};
    record.figures.insert(record.figures.end(), {bandwidth, peak, figure});
  }
  record.facts["memory"] = memory_json(loaded.executor->memory());
  return record;
}

}  // namespace weft::bench
