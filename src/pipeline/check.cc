#include "pipeline/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/guard.h"
#include "base/plural.h"
#include "pipeline/trace.h"

namespace weft {
namespace {

constexpr int64_t kOtherChunk = 7;

// The first value that is not finite, as "row r, column c: value".
std::optional<std::string> not_finite(const Tensor& rows) {
  const std::span<const float> values = rows.as<float>();
  const auto at = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (at == values.end()) return std::nullopt;
  const int64_t index = at - values.begin();
  return fmt::format("position {}, element {}: {}", index / rows.shape().last(), index % rows.shape().last(), *at);
}

// A chunk that cuts the probe at other places than `chunk` (at most `tokens`, which are at least 2) does.
int64_t other_chunk(int64_t chunk, int64_t tokens) {
  if (chunk == 1) return tokens;
  return chunk > kOtherChunk ? kOtherChunk : chunk - 1;
}

std::string chunk_text(int64_t chunk, int64_t tokens) {
  return chunk == tokens ? "the whole probe" : fmt::format("chunks of {}", counted(chunk, "token"));
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

CheckLine check_layers(const Executor& executor, const TraceCollector& collector) {
  CheckLine line{"finite layer outputs", true, counted(executor.layer_count(), "layer")};
  for (LayerIndex layer(0); layer < LayerIndex(executor.layer_count()); ++layer) {
    if (!collector.has(TracePoint::out, layer)) return {line.what, false, fmt::format("no output of layer {}", layer)};
    if (const auto fault = not_finite(collector.rows(TracePoint::out, layer))) {
      return {line.what, false, fmt::format("layer {}, {}", layer, *fault)};
    }
  }
  return line;
}

CheckLine check_logits(const Tensor& logits) {
  if (const auto fault = not_finite(logits)) return {"finite logits", false, *fault};
  const auto [least, most] = std::ranges::minmax(logits.as<float>());
  return {"finite logits", least < most, fmt::format("from {:.4g} to {:.4g}", least, most)};
}

}  // namespace

std::vector<CheckLine> check_model(Executor& executor, const CheckOptions& options) {
  if (options.tokens < 2) fail(ErrorKind::bad_input, "check", "wanted a probe of at least 2 tokens, found {}", options.tokens);
  std::vector<int32_t> ids;
  uint64_t mixed = options.seed;
  for (int64_t i = 0; i < options.tokens; ++i) {
    mixed = mixed * 6364136223846793005ULL + 1442695040888963407ULL;
    ids.push_back(static_cast<int32_t>((mixed >> 33) % static_cast<uint64_t>(executor.vocab_size())));
  }
  std::vector<CheckLine> lines;
  // One run; a failure becomes lines that name the first bad layer, and no trace.
  const auto run = [&](const std::vector<int32_t>& probe, int64_t chunk, TraceCollector& collector) -> std::optional<Trace> {
    Trace trace;
    const auto failure = guard([&] { trace = run_trace(executor, probe, {.chunk = chunk}, collector); });
    if (!failure) return trace;
    if (options.cancelled != nullptr && options.cancelled->load()) failure->raise();
    lines.push_back(check_layers(executor, collector));
    lines.push_back({"forward pass", false, failure->message});
    return std::nullopt;
  };
  TraceCollector collector(options.cancelled);
  const std::optional<Trace> first = run(ids, options.chunk, collector);
  if (!first) return lines;
  const Trace& trace = *first;
  lines.push_back({"forward pass", true, counted(options.tokens, "token")});
  const Shape wanted{options.tokens, executor.vocab_size()};
  lines.push_back({"logits shape", trace.logits.shape() == wanted, to_string(trace.logits.shape())});
  lines.push_back(check_layers(executor, collector));
  lines.push_back(check_logits(trace.logits));

  std::vector<int32_t> changed = ids;
  changed.back() = static_cast<int32_t>((changed.back() + 1) % executor.vocab_size());
  TraceCollector changed_collector(options.cancelled);
  const std::optional<Trace> changed_trace = run(changed, options.chunk, changed_collector);
  if (!changed_trace) return lines;
  const auto earlier = static_cast<size_t>((options.tokens - 1) * executor.vocab_size());
  lines.push_back({"causality",
                   same_bits(trace.logits.as<float>().first(earlier), changed_trace->logits.as<float>().first(earlier)),
                   fmt::format("another last token, {} compared bit for bit", counted(options.tokens - 1, "earlier row"))});

  TraceCollector chunked_collector(options.cancelled);
  const int64_t chunk = std::min(options.chunk, options.tokens);
  const int64_t other = other_chunk(chunk, options.tokens);
  const std::optional<Trace> chunked = run(ids, other, chunked_collector);
  if (!chunked) return lines;
  lines.push_back(
      {"chunks", same_bits(trace.logits.as<float>(), chunked->logits.as<float>()),
       fmt::format("{} against {}, bit for bit", chunk_text(other, options.tokens), chunk_text(chunk, options.tokens))});
  return lines;
}

}  // namespace weft
