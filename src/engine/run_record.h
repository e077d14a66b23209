// One answer and what it took, stage by stage: `weft generate --record` and `--stats` (docs/distributed.md).
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "engine/turn.h"

namespace weft {

struct RunFacts {
  std::string commit;
  std::string command;
  std::filesystem::path model_dir;  // its name alone is written
  Json prompt;                      // a text, or messages
  std::string topology;             // "one process", "processes of one host", "nodes of a cluster file"
  Json stages = Json::array();      // RemoteExecutor::stage_report(), asked after the answer; empty: stages of this process
  std::string stages_missing;       // why they could not be asked; empty: they could
  double seconds = 0.0;             // of the answer, from request to last token
};

// {"record", "date", "commit", "command", "machine", "model", "prompt", "output", "reasoning", "tool_calls", "finish_reason",
// "usage", "sampling", "topology", "split", "stages": [{..., "planned", "measured", "seconds", "idle_share", "bubble_share"}],
// "process", "seconds", "tokens_per_second"}. Memory is what the processes held after the answer, as the system measured it;
// "planned" is what the plan reserved.
[[nodiscard]] Json run_record(const Model& model, const TurnResult& result, const RunFacts& facts);

// Rates, time to the first token, and a row a stage: memory, seconds, bytes, and the share of the answer's time in which it did
// not compute.
[[nodiscard]] std::string run_table(const Model& model, const TurnResult& result, const RunFacts& facts);

}  // namespace weft
