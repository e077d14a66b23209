#include "pipeline/remote/coordinator_sampler.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "pipeline/remote/messages.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "coordinator";

}  // namespace

StageStep without_draws(const StageStep& step) {
  StageStep asked;
  asked.checkpoint_ids = step.checkpoint_ids;
  for (const Rows& rows : step.step.rows) {
    Rows& to = asked.step.rows.emplace_back();
    to.sequence = rows.sequence;
    to.ids = rows.ids;
    to.logits = rows.sample && rows.logits == Rows::Logits::none ? Rows::Logits::last : rows.logits;
    to.checkpoints = rows.checkpoints;
  }
  return asked;
}

CoordinatorSampler::CoordinatorSampler(ops::Backend backend, int threads, int64_t vocab) : pool_(threads), vocab_(vocab) {
  if (backend == ops::Backend::cuda)
    fail(ErrorKind::internal, kPlace, "wanted a back end of the processor to draw with, found cuda");
  context_.backend = backend;
  context_.pool = &pool_;
  context_.comm = &ranks_;
}

void CoordinatorSampler::draw(const StageStep& step, std::span<const int64_t> starts, std::vector<RowsResult>& results) {
  std::vector<size_t> drawn;  // entries
  for (size_t i = 0; i < step.step.rows.size(); ++i)
    if (step.step.rows[i].sample) drawn.push_back(i);
  if (drawn.empty()) return;
  Tensor logits = Tensor::uninitialized(DType::f32, {static_cast<int64_t>(drawn.size()), vocab_});
  const auto row_of = [&](size_t d) {
    return logits.as<float>().subspan(d * static_cast<size_t>(vocab_), static_cast<size_t>(vocab_));
  };
  std::vector<ops::SampleRow> draws;
  for (size_t d = 0; d < drawn.size(); ++d) {
    const Rows& rows = step.step.rows[drawn[d]];
    const SampleRequest& request = *rows.sample;
    const auto count = static_cast<int64_t>(rows.ids.size());
    const Shape wanted{rows.logits == Rows::Logits::all ? count : 1, vocab_};
    const TensorView found = results[drawn[d]].logits.view();
    if (found.dtype != DType::f32 || found.shape != wanted) {
      fail(ErrorKind::bad_input, kPlace, "sequence {}: wanted logits F32 {} to draw from, found {} {}", rows.sequence, wanted,
           found.dtype, found.shape);
    }
    check_sample(request, vocab_);
    std::ranges::copy(found.as<float>().last(static_cast<size_t>(vocab_)), row_of(d).begin());
    draws.push_back({request.params, starts[drawn[d]] + count, request.history, request.never_penalised,
                     request.mask.valid() ? request.mask.get() : request.allowed, request.prompt, request.bias});
  }
  std::vector<ops::Sampled> tokens(draws.size());
  ops::sample(context_, logits.view(), draws, tokens);
  for (size_t d = 0; d < drawn.size(); ++d) {
    const Rows& rows = step.step.rows[drawn[d]];
    RowsResult& result = results[drawn[d]];
    ops::check_sampled(tokens[d], draws[d]);
    result.sampled = tokens[d];
    if (rows.sample->top > 0) result.top = ops::most_likely(row_of(d), rows.sample->top);
    if (rows.logits == Rows::Logits::none) result.logits = Tensor();
  }
}

}  // namespace weft
