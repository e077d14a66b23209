#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/owned_sequence.h"

namespace weft {
namespace {

double negative_log_probability(std::span<const float> logits, int32_t id) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - max);
  return max + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]);
}

}  // namespace

PerplexityReport measure_perplexity(Executor& executor, std::span<const int32_t> ids, const PerplexityOptions& options) {
  if (ids.size() < 2) fail(ErrorKind::bad_input, "perplexity", "wanted at least 2 tokens, found {}", ids.size());
  if (options.window < 2)
    fail(ErrorKind::bad_input, "perplexity", "window: wanted at least 2 tokens, found {}", options.window);
  if (options.chunk < 1) fail(ErrorKind::bad_input, "perplexity", "chunk: wanted at least 1 token, found {}", options.chunk);
  const int64_t vocab = executor.vocab_size();
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) fail(ErrorKind::bad_input, "perplexity", "wanted ids below {}, found {}", vocab, id);
  }
  const auto cancelled = [&] { return options.cancelled != nullptr && options.cancelled->load(); };
  PerplexityReport report;
  double sum = 0.0;
  const auto total = static_cast<int64_t>(ids.size());
  for (int64_t begin = 0; begin < total && !cancelled(); begin += options.window) {
    const OwnedSequence sequence(executor);
    const int64_t end = std::min(begin + options.window, total);
    for (int64_t at = begin; at < end && !cancelled();) {
      const int64_t count = std::min(options.chunk, end - at);
      Step step;
      Rows& rows = step.rows.emplace_back();
      rows.sequence = sequence.id();
      rows.ids.assign(ids.begin() + at, ids.begin() + at + count);
      rows.logits = Rows::Logits::all;
      const std::vector<RowsResult> results = executor.run(std::move(step));
      if (at == begin) ++report.windows;
      const std::span<const float> logits = results.front().logits.view().as<float>();
      for (int64_t row = 0; row < count; ++row) {
        const int64_t next = at + row + 1;
        if (next >= end) break;
        sum += negative_log_probability(logits.subspan(static_cast<size_t>(row * vocab), static_cast<size_t>(vocab)),
                                        ids[static_cast<size_t>(next)]);
        ++report.scored;
      }
      at += count;
      report.tokens += count;
      if (options.on_progress) options.on_progress(report.tokens, total);
    }
  }
  report.interrupted = report.tokens < total;
  if (report.scored > 0) {
    report.nats = sum / static_cast<double>(report.scored);
    report.perplexity = std::exp(*report.nats);
  }
  return report;
}

}  // namespace weft
