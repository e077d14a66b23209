#include "engine/bench/model_speed.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <spawn.h>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/worker_pool.h"
#include "engine/bench/gpu.h"
#include "engine/bench/mem.h"
#include "engine/bench/model_facts.h"
#include "engine/bench/timing.h"
#include "engine/owned_sequence.h"
#include "engine/process_memory.h"
#include "model/checkpoint.h"
#include "model/decode_cost.h"

namespace weft::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr double kSweepSeconds = 0.2;

bool on_gpu(const ModelOptions& options) { return options.backend == ops::Backend::cuda; }

}  // namespace

Record bench_decode(const ModelOptions& options, int64_t tokens, int repeats) {
  std::optional<GpuLimit> gpu;
  if (on_gpu(options)) gpu = measure_gpu(repeats);  // before the model takes the memory
  const Timer loading;
  const LoadedExecutor loaded = load_executor(options);
  Executor& executor = *loaded.executor;
  Record record{"decode", {}, facts_of(loaded, tokens), loaded.notes};
  if (gpu) {
    record.facts["gpu"] = gpu->gpu;
    record.facts["load_seconds"] = loading.seconds();
    if (options.dummy_weights) record.notes.emplace_back("the weights are made on the GPU; the answers mean nothing");
  }
  RandomIds ids(executor.vocab_size());
  warm_up(executor, ids, options.prefill_chunk);
  const auto bytes = static_cast<double>(executor.bytes_per_token().value);

  const OwnedSequence sequence(executor);
  // Not counted; the process's peak is read before there is a buffer to sweep.
  for (const int32_t id : ids.next(tokens)) step(executor, sequence.id(), {id});
  record.facts["memory"] = memory_json(executor.memory());
  Figure figure{"decode", "tokens/s", {}, {}};
  // Reads are timed in turn with the tokens: the bandwidth of a shared machine changes.
  WorkerPool pool(loaded.threads);
  std::optional<ReadSweep> sweep;
  if (!gpu) sweep.emplace(pool, memory_sweep_bytes());
  Figure bandwidth = gpu ? gpu->copies : Figure{sweep->name(), "GB/s", {}, {}};
  for (int repeat = 0; repeat < repeats; ++repeat) {
    if (sweep) bandwidth.samples.push_back(sweep->rates(1, kSweepSeconds).front());
    const std::vector<int32_t> all = ids.next(tokens);
    const Timer timer;
    for (const int32_t id : all) step(executor, sequence.id(), {id});
    figure.samples.push_back(static_cast<double>(tokens) / timer.seconds());
  }

  figure.limit = Figure::Limit{bandwidth.name + ", over the bytes of a token", bandwidth.value() * kGiga / bytes};
  figure.more = {{"bytes", bytes}, {"us", 1e6 / figure.value()}, {"GB_per_s", figure.value() * bytes / kGiga}};
  record.figures = {bandwidth, figure};
  return record;
}

Record bench_prefill(const ModelOptions& options, int64_t tokens, int repeats) {
  if (on_gpu(options))  // whose arithmetic has no measured limit yet
    fail(ErrorKind::unsupported, "bench", "prefill: wanted a model on the CPU, found --device cuda");
  ModelOptions whole = options;
  whole.prefill_chunk = tokens;  // the step that the memory has to hold
  const LoadedExecutor loaded = load_executor(whole);
  Executor& executor = *loaded.executor;
  Record record{"prefill", {}, facts_of(loaded, tokens), loaded.notes};
  RandomIds ids(executor.vocab_size());
  warm_up(executor, ids, tokens);
  const double operations = prefill_operations(*loaded.checkpoint, TokenCount(tokens));
  record.facts["operations"] = operations;

  Figure figure{fmt::format("prefill of {} tokens", tokens), "GFLOP/s", {}, {}};
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const OwnedSequence sequence(executor);
    std::vector<int32_t> prompt = ids.next(tokens);
    const Timer timer;
    step(executor, sequence.id(), std::move(prompt));
    figure.samples.push_back(operations / kGiga / timer.seconds());
  }
  record.facts["memory"] = memory_json(executor.memory());

  WorkerPool pool(loaded.threads);
  const Figure peak = peak_arithmetic(pool, repeats);
  figure.limit = peak.as_limit();
  figure.more = {{"tokens_per_s", figure.value() * kGiga / operations * static_cast<double>(tokens)}};
  record.figures = {peak, figure};
  return record;
}

Figure first_token(const std::vector<std::string>& command, int repeats) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    ::posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  Figure figure{"first token, start to end of the process", "s", {}, {}};
  int fault = 0;
  int status = 0;
  for (int repeat = 0; repeat <= repeats && fault == 0 && status == 0; ++repeat) {
    const Timer timer;
    pid_t child = 0;
    fault = ::posix_spawn(&child, words.front(), &actions, nullptr, words.data(), environ);
    if (fault != 0) break;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (repeat > 0) figure.samples.push_back(timer.seconds());  // the first run warms the page cache
  }
  ::posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) fail(ErrorKind::unavailable, "bench", "starting '{}': {}", command.front(), std::strerror(fault));
  if (status != 0)
    fail(ErrorKind::unavailable, "bench", "wanted '{}' to succeed, found status {}", fmt::join(command, " "), status);
  return figure;
}

}  // namespace weft::bench
