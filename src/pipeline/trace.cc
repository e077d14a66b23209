#include "pipeline/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "formats/safetensors.h"

namespace weft {
namespace {

constexpr std::array kLayerPoints = {TracePoint::attn_in, TracePoint::attn_out, TracePoint::after_attn,
                                     TracePoint::mlp_in,  TracePoint::mlp_out,  TracePoint::out};

float mean_abs(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += std::fabs(static_cast<double>(value));
  return static_cast<float>(sum / static_cast<double>(values.size()));
}

}  // namespace

void TraceCollector::record(TracePoint point, LayerIndex layer, TensorView rows) {
  if (cancelled_ != nullptr && cancelled_->load()) fail(ErrorKind::unavailable, "trace", "stopped before the end");
  const std::lock_guard lock(mutex_);
  Recorded& recorded = recorded_[{point, layer}];
  recorded.width = rows.shape.rank() == 2 ? rows.shape[1] : 1;
  const std::span<const float> values = rows.as<float>();
  recorded.values.insert(recorded.values.end(), values.begin(), values.end());
}

bool TraceCollector::has(TracePoint point, LayerIndex layer) const {
  const std::lock_guard lock(mutex_);
  return recorded_.contains({point, layer});
}

Tensor TraceCollector::rows(TracePoint point, LayerIndex layer) const {
  const std::lock_guard lock(mutex_);
  const auto at = recorded_.find({point, layer});
  if (at == recorded_.end()) fail(ErrorKind::internal, "trace", "layer {}: wanted recorded rows, found none", layer);
  const Recorded& recorded = at->second;
  Tensor made =
      Tensor::uninitialized(DType::f32, {static_cast<int64_t>(recorded.values.size()) / recorded.width, recorded.width});
  std::ranges::copy(recorded.values, made.as<float>().begin());
  return made;
}

Trace run_trace(Executor& executor, std::span<const int32_t> ids, int64_t chunk, TraceCollector& collector) {
  if (ids.empty()) fail(ErrorKind::bad_input, "trace", "wanted at least one token id, found none");
  if (chunk <= 0) fail(ErrorKind::bad_input, "trace", "wanted a chunk of at least one token, found {}", chunk);
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t layers = executor.layer_count();
  const int64_t vocab = executor.vocab_size();
  Trace trace;
  trace.logits = Tensor::uninitialized(DType::f32, {count, vocab});
  const SequenceId sequence = executor.create();
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t end = std::min(begin + chunk, count);
    Rows rows;
    rows.sequence = sequence;
    rows.ids.assign(ids.begin() + begin, ids.begin() + end);
    rows.logits = Rows::Logits::all;
    Step step;
    step.rows.push_back(std::move(rows));
    step.trace = &collector;
    const std::vector<RowsResult> results = executor.run(std::move(step));
    std::ranges::copy(results.front().logits.as<float>(), trace.logits.as<float>().begin() + begin * vocab);
  }
  executor.release(sequence);

  const Tensor embed = collector.rows(TracePoint::embed, LayerIndex(0));
  trace.hidden = Tensor::uninitialized(DType::f32, {layers + 1, count, embed.shape()[1]});
  trace.mean_abs = Tensor::uninitialized(DType::f32, {layers + 1});
  trace.layer_mean_abs = Tensor::uninitialized(DType::f32, {layers, static_cast<int64_t>(kLayerPoints.size())});
  trace.final_mean_abs = Tensor::uninitialized(DType::f32, {3});
  const auto put = [&](int64_t entry, const Tensor& rows) {
    std::ranges::copy(rows.as<float>(), trace.hidden.as<float>().begin() + entry * embed.elements());
    trace.mean_abs.as<float>()[static_cast<size_t>(entry)] = mean_abs(rows.as<float>());
  };
  put(0, embed);
  for (LayerIndex layer(0); layer < LayerIndex(layers); ++layer) {
    put(layer.value + 1, collector.rows(TracePoint::out, layer));
    for (size_t i = 0; i < kLayerPoints.size(); ++i) {
      trace.layer_mean_abs.as<float>()[static_cast<size_t>(layer.value) * kLayerPoints.size() + i] =
          mean_abs(collector.rows(kLayerPoints[i], layer).as<float>());
    }
  }
  const LayerIndex last(layers - 1);
  const std::span<float> final_values = trace.final_mean_abs.as<float>();
  final_values[0] = mean_abs(embed.as<float>());
  final_values[1] = mean_abs(collector.rows(TracePoint::mixed, last).as<float>());
  final_values[2] = mean_abs(collector.rows(TracePoint::final_norm, last).as<float>());
  return trace;
}

void write_trace(const std::filesystem::path& path, const Trace& trace, bool residual_blocks) {
  std::map<std::string, const Tensor*> tensors = {
      {"logits", &trace.logits}, {"hidden", &trace.hidden}, {"mean_abs", &trace.mean_abs}};
  if (residual_blocks) {
    tensors.emplace("trace.mean_abs", &trace.layer_mean_abs);
    tensors.emplace("trace.final_mean_abs", &trace.final_mean_abs);
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor->dtype(), tensor->shape()});
  SafetensorsWriter writer(path, std::move(specs));
  for (const auto& [name, tensor] : tensors) {
    writer.append(name, {tensor->view().data, static_cast<size_t>(tensor->bytes())});
  }
  writer.finish();
}

}  // namespace weft
