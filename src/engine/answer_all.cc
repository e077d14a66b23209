#include "engine/answer_all.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/guard.h"

namespace weft {

std::vector<TurnResult> answer_all(const Model& model, Engine& engine, std::span<const ChatPrompt> prompts,
                                   const AnswerAllOptions& options) {
  std::vector<std::pair<RequestId, std::shared_ptr<Turn>>> turns;
  const auto stop = [&] {
    for (const auto& [id, turn] : turns) engine.cancel(id);
  };
  const auto work = [&] {
    int64_t done = 0;
    while (done < static_cast<int64_t>(prompts.size())) {
      if (options.cancelled != nullptr && options.cancelled->load()) return;
      while (turns.size() < prompts.size() && !engine.queue_full()) {
        TurnOptions turn_options = options.turn;
        if (!options.rules.empty()) turn_options.rules = options.rules[turns.size()];
        auto turn = std::make_shared<Turn>(model, prompts[turns.size()], turn_options);
        turns.emplace_back(engine.submit(turn->request(prompts[turns.size()].ids), turn), turn);
      }
      engine.step();
      const int64_t over = std::ranges::count_if(turns, [](const auto& entry) { return entry.second->over(); });
      if (options.on_progress && over > done) options.on_progress(over);
      done = over;
    }
  };
  const std::optional<Failure> failure = guard(work);
  stop();
  if (failure) failure->raise();
  std::vector<TurnResult> results(prompts.size());
  for (size_t i = 0; i < turns.size(); ++i) results[i] = turns[i].second->result();
  return results;
}

}  // namespace weft
