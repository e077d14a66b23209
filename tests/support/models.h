// What tests of models share: fixtures, executors over any split, runs that give logits, and the comparison with goldens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/safetensors.h"
#include "model/checkpoint.h"
#include "model/routing.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "pipeline/local_executor.h"

namespace weft::testing_support {

inline std::filesystem::path fixture(const std::string& name) { return std::filesystem::path(WEFT_FIXTURES) / name; }
inline std::filesystem::path k3_mini() { return std::filesystem::path(WEFT_SOURCE_DIR) / "models/k3-mini"; }

struct ModelSetup {
  std::vector<int64_t> cuts = {};  // first layers of the second and later stages
  int threads = 1;
  ops::Backend backend = ops::Backend::cpu;
  ops::Profile profile = ops::Profile::exact;
};

inline std::unique_ptr<LocalExecutor> open_executor(const std::shared_ptr<const Checkpoint>& checkpoint,
                                                    const ModelSetup& setup = {}) {
  std::vector<int64_t> bounds = {0};
  bounds.insert(bounds.end(), setup.cuts.begin(), setup.cuts.end());
  bounds.push_back(checkpoint->config().layer_count);
  std::vector<std::unique_ptr<Stage>> stages;
  for (size_t i = 0; i + 1 < bounds.size(); ++i) {
    StageOptions options;
    options.layers = {LayerIndex(bounds[i]), LayerIndex(bounds[i + 1])};
    options.profile = setup.profile;
    if (setup.backend == ops::Backend::cuda) options.device = open_cuda_device();
    stages.push_back(make_stage(checkpoint, options));
  }
  return std::make_unique<LocalExecutor>(std::move(stages), LocalExecutorOptions{setup.threads, setup.backend, setup.profile});
}

inline std::unique_ptr<LocalExecutor> open_executor(const std::filesystem::path& dir, const ModelSetup& setup = {}) {
  return open_executor(std::make_shared<const Checkpoint>(dir), setup);
}

// Feeds `ids` to a sequence in chunks; returns the logits of all rows, [ids, V] row-major.
inline std::vector<float> feed(Executor& executor, SequenceId sequence, std::span<const int32_t> ids, int64_t chunk) {
  std::vector<float> logits;
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const std::span<const int32_t> part = ids.subspan(begin, std::min(static_cast<size_t>(chunk), ids.size() - begin));
    Rows rows;
    rows.sequence = sequence;
    rows.ids.assign(part.begin(), part.end());
    rows.logits = Rows::Logits::all;
    Step step;
    step.rows.push_back(std::move(rows));
    const std::vector<RowsResult> results = executor.run(std::move(step));
    const std::span<const float> values = std::as_const(results.front().logits).as<float>();
    logits.insert(logits.end(), values.begin(), values.end());
  }
  return logits;
}

inline std::vector<float> logits_of(Executor& executor, std::span<const int32_t> ids, int64_t chunk) {
  const SequenceId sequence = executor.create();
  std::vector<float> logits = feed(executor, sequence, ids, chunk);
  executor.release(sequence);
  return logits;
}

// Prompt in chunks, then `count` tokens one by one. Returns the drawn ids; `logits`, if given, receives the rows drawn from.
inline std::vector<int32_t> generate(Executor& executor, std::span<const int32_t> prompt, int64_t count, int64_t chunk,
                                     const ops::SamplingParams& params, std::vector<float>* logits = nullptr,
                                     SequenceId* keep = nullptr) {
  const SequenceId sequence = executor.create();
  std::vector<int32_t> drawn;
  std::vector<int32_t> next(prompt.begin(), prompt.end());
  while (static_cast<int64_t>(drawn.size()) < count) {
    for (size_t begin = 0; begin < next.size(); begin += static_cast<size_t>(chunk)) {
      const size_t end = std::min(begin + static_cast<size_t>(chunk), next.size());
      Rows rows;
      rows.sequence = sequence;
      rows.ids.assign(next.begin() + static_cast<int64_t>(begin), next.begin() + static_cast<int64_t>(end));
      if (end == next.size()) {
        rows.logits = Rows::Logits::last;
        rows.sample = SampleRequest{};
        rows.sample->params = params;
        rows.sample->history = drawn;
      }
      Step step;
      step.rows.push_back(std::move(rows));
      const std::vector<RowsResult> results = executor.run(std::move(step));
      if (end != next.size()) continue;
      if (logits != nullptr) {
        const std::span<const float> values = std::as_const(results.front().logits).as<float>();
        logits->insert(logits->end(), values.begin(), values.end());
      }
      drawn.push_back(results.front().sampled.value().id);
    }
    next = {drawn.back()};
  }
  if (keep != nullptr) {
    *keep = sequence;
  } else {
    executor.release(sequence);
  }
  return drawn;
}

inline ops::SamplingParams greedy() {
  ops::SamplingParams params;
  params.temperature = 0.0F;
  return params;
}

// [T, experts]: the combining weights, zero where an expert was not chosen.
inline std::vector<float> dense_weights(const LayerRouting& routing, int64_t experts) {
  const auto tokens = static_cast<size_t>(routing.experts.shape()[0]);
  const auto chosen = static_cast<size_t>(routing.experts.shape()[1]);
  std::vector<float> dense(tokens * static_cast<size_t>(experts));
  for (size_t i = 0; i < tokens * chosen; ++i) {
    const auto expert = static_cast<size_t>(routing.experts.as<int32_t>()[i]);
    dense[i / chosen * static_cast<size_t>(experts) + expert] = routing.weights.as<float>()[i];
  }
  return dense;
}

// max|a - b| / max|b| over the tensor.
inline double relative_error(std::span<const float> found, std::span<const float> wanted) {
  if (found.size() != wanted.size()) return INFINITY;
  double difference = 0.0;
  double largest = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double d = std::fabs(static_cast<double>(found[i]) - static_cast<double>(wanted[i]));
    if (!(d <= difference)) difference = d;  // NaN stays
    largest = std::max(largest, std::fabs(static_cast<double>(wanted[i])));
  }
  return difference / largest;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A goldens file, read whole.
class Goldens {
 public:
  explicit Goldens(const std::filesystem::path& path) : file_(path) {}
  [[nodiscard]] bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  [[nodiscard]] Shape shape(const std::string& name) const { return file_.at(name).shape; }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    const Tensor tensor = file_.read(name);
    const std::span<const float> values = tensor.as<float>();
    return {values.begin(), values.end()};
  }
  [[nodiscard]] std::vector<int32_t> ids(const std::string& name) const {
    const Tensor tensor = file_.read(name);
    std::vector<int32_t> made;
    if (tensor.dtype() == DType::i64) {
      for (const int64_t id : tensor.as<int64_t>()) made.push_back(static_cast<int32_t>(id));
    } else {
      for (const int32_t id : tensor.as<int32_t>()) made.push_back(id);
    }
    return made;
  }

 private:
  SafetensorsFile file_;
};

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail(ErrorKind::unavailable, "test", "wanted a temporary folder");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace weft::testing_support
