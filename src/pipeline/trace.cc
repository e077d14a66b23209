#include "pipeline/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include <fmt/ranges.h>

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

std::string routing_name(LayerIndex layer, std::string_view part) { return fmt::format("layers.{}.{}", layer, part); }

}  // namespace

void TraceCollector::record(TracePoint point, LayerIndex layer, TensorView rows) {
  if (cancelled_ != nullptr && cancelled_->load()) fail(ErrorKind::unavailable, "trace", "stopped before the end");
  const std::lock_guard lock(mutex_);
  Recorded& recorded = recorded_[{point, layer}];
  recorded.dtype = rows.dtype;
  recorded.width = rows.shape.rank() == 2 ? rows.shape[1] : 1;
  recorded.bytes.insert(recorded.bytes.end(), rows.data, rows.data + rows.bytes());
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
  const int64_t row_bytes = recorded.width * size_of(recorded.dtype);
  return Tensor::copy_of(
      {recorded.dtype, {static_cast<int64_t>(recorded.bytes.size()) / row_bytes, recorded.width}, recorded.bytes.data()});
}

Trace run_trace(Executor& executor, std::span<const int32_t> ids, const TraceOptions& options, TraceCollector& collector) {
  if (ids.empty()) fail(ErrorKind::bad_input, "trace", "wanted at least one token id, found none");
  if (options.chunk <= 0) fail(ErrorKind::bad_input, "trace", "wanted a chunk of at least one token, found {}", options.chunk);
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t vocab = executor.vocab_size();
  Tensor logits = Tensor::uninitialized(DType::f32, {count, vocab});
  const SequenceId sequence = executor.create();
  for (int64_t begin = 0; begin < count; begin += options.chunk) {
    const int64_t end = std::min(begin + options.chunk, count);
    Rows rows;
    rows.sequence = sequence;
    rows.ids.assign(ids.begin() + begin, ids.begin() + end);
    rows.logits = Rows::Logits::all;
    Step step;
    step.rows.push_back(std::move(rows));
    step.trace = &collector;
    step.routing = options.routing;
    const std::vector<RowsResult> results = executor.run(std::move(step));
    std::ranges::copy(results.front().logits.as<float>(), logits.as<float>().begin() + begin * vocab);
  }
  executor.release(sequence);
  return make_trace(ids, executor.layer_count(), std::move(logits), collector);
}

Trace make_trace(std::span<const int32_t> ids, int64_t layers, Tensor logits, const TraceCollector& collector) {
  const Tensor embed = collector.rows(TracePoint::embed, LayerIndex(0));
  Trace trace;
  trace.ids.assign(ids.begin(), ids.end());
  trace.logits = std::move(logits);
  trace.hidden = Tensor::uninitialized(DType::f32, {layers + 1, embed.shape()[0], embed.shape()[1]});
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
    if (!collector.has(TracePoint::experts, layer)) continue;
    trace.routing.emplace(
        layer, LayerRouting{collector.rows(TracePoint::experts, layer), collector.rows(TracePoint::expert_weights, layer),
                            collector.rows(TracePoint::router_margin, layer)});
  }
  const LayerIndex last(layers - 1);
  const std::span<float> final_values = trace.final_mean_abs.as<float>();
  final_values[0] = mean_abs(embed.as<float>());
  final_values[1] = mean_abs(collector.rows(TracePoint::mixed, last).as<float>());
  final_values[2] = mean_abs(collector.rows(TracePoint::final_norm, last).as<float>());
  return trace;
}

void write_trace(const std::filesystem::path& path, const Trace& trace, bool residual_blocks) {
  const TensorView ids{
      DType::i32, {static_cast<int64_t>(trace.ids.size())}, reinterpret_cast<const std::byte*>(trace.ids.data())};
  std::map<std::string, TensorView> tensors = {
      {"ids", ids}, {"logits", trace.logits.view()}, {"hidden", trace.hidden.view()}, {"mean_abs", trace.mean_abs.view()}};
  if (residual_blocks) {
    tensors.emplace("trace.mean_abs", trace.layer_mean_abs.view());
    tensors.emplace("trace.final_mean_abs", trace.final_mean_abs.view());
  }
  for (const auto& [layer, routing] : trace.routing) {
    tensors.emplace(routing_name(layer, "experts"), routing.experts.view());
    tensors.emplace(routing_name(layer, "expert_weights"), routing.weights.view());
    tensors.emplace(routing_name(layer, "router_margin"), routing.margins.view());
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(path, std::move(specs));
  for (const auto& [name, tensor] : tensors) writer.append(name, {tensor.data, static_cast<size_t>(tensor.bytes())});
  writer.finish();
}

Trace read_trace(const std::filesystem::path& path) {
  const SafetensorsFile file(path, ErrorKind::bad_input);
  // `wanted`: extents, -1 for any.
  const auto read = [&](const std::string& name, DType dtype, std::initializer_list<int64_t> wanted) {
    const TensorEntry* entry = file.find(name);
    if (entry == nullptr) fail(ErrorKind::bad_input, path.string(), "tensor '{}': wanted one, found none", name);
    bool same = entry->dtype == dtype && entry->shape.rank() == static_cast<int>(wanted.size());
    for (int axis = 0; same && axis < entry->shape.rank(); ++axis) {
      const int64_t extent = wanted.begin()[axis];
      same = entry->shape[axis] > 0 && (extent < 0 || entry->shape[axis] == extent);
    }
    if (!same) {
      fail(ErrorKind::bad_input, path.string(), "tensor '{}': wanted {} [{}] (-1: any), found {} {}", name, dtype,
           fmt::join(wanted, ", "), entry->dtype, entry->shape);
    }
    return file.read(*entry);
  };
  Trace trace;
  const Tensor ids = read("ids", DType::i32, {-1});
  trace.ids.assign(ids.as<int32_t>().begin(), ids.as<int32_t>().end());
  const auto tokens = static_cast<int64_t>(trace.ids.size());
  trace.logits = read("logits", DType::f32, {tokens, -1});
  trace.hidden = read("hidden", DType::f32, {-1, tokens, -1});
  for (LayerIndex layer(0); layer.value + 1 < trace.hidden.shape()[0]; ++layer) {
    if (file.find(routing_name(layer, "experts")) == nullptr) continue;
    LayerRouting routing;
    routing.experts = read(routing_name(layer, "experts"), DType::i32, {tokens, -1});
    routing.weights = read(routing_name(layer, "expert_weights"), DType::f32, {tokens, routing.experts.shape()[1]});
    routing.margins = read(routing_name(layer, "router_margin"), DType::f32, {tokens, 1});
    trace.routing.emplace(layer, std::move(routing));
  }
  return trace;
}

}  // namespace weft
