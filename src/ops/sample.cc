#include "ops/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "ops/check.h"
#include "ops/cpu/sample.h"
#include "ops/cuda/cuda.h"
#include "ops/guarded_rows.h"
#include "ops/reference/sample.h"

namespace weft::ops {
namespace {

void check_range(std::string_view field, float value, bool inside, std::string_view wanted) {
  if (!std::isfinite(value) || !inside) fail(ErrorKind::bad_input, "sampling", "{}: wanted {}, found {}", field, wanted, value);
}

void check_ids(size_t row, std::string_view name, std::span<const int32_t> ids, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary) {
      fail(ErrorKind::internal, "sample", "row {}, {}: wanted ids in [0, {}), found {}", row, name, vocabulary, id);
    }
  }
}

}  // namespace

void SamplingParams::validate() const {
  check_range("temperature", temperature, temperature >= 0.0F && temperature <= 2.0F, "a number in [0, 2]");
  if (top_k < 0) fail(ErrorKind::bad_input, "sampling", "top_k: wanted a whole number of at least 0, found {}", top_k);
  check_range("top_p", top_p, top_p >= 0.0F && top_p <= 1.0F, "a number in [0, 1]");
  check_range("min_p", min_p, min_p >= 0.0F && min_p <= 1.0F, "a number in [0, 1]");
  check_range("repetition_penalty", repetition_penalty, repetition_penalty > 0.0F, "a number above 0");
  check_range("frequency_penalty", frequency_penalty, std::fabs(frequency_penalty) <= 2.0F, "a number in [-2, 2]");
  check_range("presence_penalty", presence_penalty, std::fabs(presence_penalty) <= 2.0F, "a number in [-2, 2]");
}

void sample(Context& context, TensorView logits, std::span<const SampleRow> rows, std::span<Sampled> out) {
  check_context(context, "sample");
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t vocabulary = extent_of("sample", "logits", logits, 2, 1);
  check_tensor("sample", "logits", logits, {count, vocabulary});
  if (out.size() != rows.size()) {
    fail(ErrorKind::internal, "sample", "out: wanted {} entries, found {}", rows.size(), out.size());
  }
  const auto words = static_cast<size_t>((vocabulary + 31) / 32);
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r].params.validate();
    if (!rows[r].allowed.empty() && rows[r].allowed.size() != words) {
      fail(ErrorKind::internal, "sample", "row {}, allowed: wanted {} words, found {}", r, words, rows[r].allowed.size());
    }
    if (!std::ranges::is_sorted(rows[r].never_penalised)) {
      fail(ErrorKind::internal, "sample", "row {}, never_penalised: wanted ascending ids, found another order", r);
    }
    check_ids(r, "history", rows[r].history, vocabulary);
    check_ids(r, "prompt", rows[r].prompt, vocabulary);
    for (size_t i = 0; i < rows[r].bias.size(); ++i) {
      const LogitBias& bias = rows[r].bias[i];
      check_ids(r, "bias", {&bias.id, 1}, vocabulary);
      if (i > 0 && rows[r].bias[i - 1].id >= bias.id)
        fail(ErrorKind::internal, "sample", "row {}, bias: wanted each id once, ascending, found another order", r);
      if (!std::isfinite(bias.bias))
        fail(ErrorKind::internal, "sample", "row {}, bias: wanted numbers, found {}", r, bias.bias);
    }
  }

  if (context.on_gpu()) return cuda::sample(context, logits, rows, out);
  const float* data = logits.as<float>().data();
  const auto weigh = context.reference() ? reference::weigh : cpu::weigh;
  for_each_row(context, count, 1, [&](int64_t r) {
    const auto i = static_cast<size_t>(r);
    out[i] = reference::sample_row(r, {data + r * vocabulary, static_cast<size_t>(vocabulary)}, rows[i], weigh);
  });
}

std::vector<Sampled> most_likely(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = static_cast<int64_t>(std::min(static_cast<size_t>(count), ids.size()));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](int32_t a, int32_t b) {
    const float of_a = logits[static_cast<size_t>(a)];
    const float of_b = logits[static_cast<size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  const double sum = reference::log_sum_exp(logits, cpu::weigh);
  std::vector<Sampled> made;
  for (int64_t i = 0; i < kept; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    made.push_back({id, static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - sum)});
  }
  return made;
}

float log_probability(std::span<const float> logits, int32_t id) {
  return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - reference::log_sum_exp(logits, cpu::weigh));
}

void check_sampled(const Sampled& sampled, const SampleRow& row) {
  switch (sampled.id) {
    case kNotFinite: fail(ErrorKind::bad_checkpoint, "sample", "wanted finite logits, found others");
    case kPenaltyOverflow:
      fail(ErrorKind::bad_input, "sample", "wanted finite logits after the penalties, found overflow by repetition_penalty {}",
           row.params.repetition_penalty);
    case kNoneAllowed: fail(ErrorKind::internal, "sample", "wanted at least one allowed id, found none");
    default: return;
  }
}

}  // namespace weft::ops
