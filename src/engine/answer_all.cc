#include "engine/answer_all.h"

#include <algorithm>
#include <list>

#include "base/error.h"
#include "engine/owned_sequence.h"

namespace weft {
namespace {

class Running {
 public:
  Running(Model& model, const ChatPrompt& prompt, size_t index, const TurnOptions& options)
      : index_(index), sequence_(model.executor()), turn_(model, sequence_.id(), TokenCount(0), prompt.ids, prompt, options) {}

  [[nodiscard]] size_t index() const { return index_; }
  [[nodiscard]] Turn& turn() { return turn_; }
  void accept(const RowsResult& result) {
    turn_.accept(result);
    take();
  }
  TurnResult finish(const ChatPrompt& prompt, const TurnOptions& options) {
    turn_.cancel();
    take();
    return {.answer = builder_.answer(),
            .end = turn_.end(),
            .statistics = turn_.statistics(),
            .counters = turn_.counters(),
            .sampling = options.sampling,
            .ids = {turn_.generated().begin(), turn_.generated().end()},
            .notes = prompt.notes};
  }

 private:
  void take() {
    for (const ChatEvent& event : turn_.take_events()) builder_.add(event);
  }

  size_t index_;
  OwnedSequence sequence_;
  Turn turn_;
  AnswerBuilder builder_;
};

}  // namespace

std::vector<TurnResult> answer_all(Model& model, std::span<const ChatPrompt> prompts, const AnswerAllOptions& options) {
  if (options.prefill_chunk < 1 || options.concurrent < 1) {
    fail(ErrorKind::bad_input, "answers", "wanted a prefill chunk and a number of sequences of at least 1, found {} and {}",
         options.prefill_chunk, options.concurrent);
  }
  std::vector<TurnResult> results(prompts.size());
  std::list<Running> running;
  size_t begun = 0;
  int64_t done = 0;
  const auto cancelled = [&] { return options.cancelled != nullptr && options.cancelled->load(); };
  while (done < static_cast<int64_t>(prompts.size())) {
    while (begun < prompts.size() && static_cast<int64_t>(running.size()) < options.concurrent) {
      running.emplace_back(model, prompts[begun], begun, options.turn);
      ++begun;
    }
    Step step;
    std::vector<Running*> asked;
    int64_t room = options.prefill_chunk;
    for (Running& one : running) {
      if (cancelled()) break;
      const bool prefill = one.turn().prompt_tokens_submitted() < one.turn().prompt_tokens_to_submit();
      if (prefill && room == 0) continue;
      std::optional<Rows> rows = one.turn().next_rows(std::max<int64_t>(room, 1));
      if (!rows) continue;
      if (prefill) room -= static_cast<int64_t>(rows->ids.size());
      step.rows.push_back(std::move(*rows));
      asked.push_back(&one);
    }
    if (!asked.empty()) {
      const std::vector<RowsResult> found = model.executor().run(std::move(step));
      for (size_t i = 0; i < asked.size(); ++i) asked[i]->accept(found[i]);
    }
    for (auto one = running.begin(); one != running.end();) {
      if (!one->turn().over() && !cancelled()) {
        ++one;
        continue;
      }
      results[one->index()] = one->finish(prompts[one->index()], options.turn);
      one = running.erase(one);
      ++done;
      if (options.on_progress) options.on_progress(done);
    }
  }
  return results;
}

}  // namespace weft
