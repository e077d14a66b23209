// A model that is ready to answer: its checkpoint, its text side, and an executor over its stages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/sampling_choice.h"
#include "ops/context.h"
#include "pipeline/executor.h"
#include "text/chat.h"

namespace weft {

class Checkpoint;

struct ModelOptions {
  std::filesystem::path dir;
  std::optional<ops::Profile> profile;  // absent: exact below 1 GiB of weights, else bf16 (design.md 4)
  ops::Backend backend = ops::Backend::cpu;
  int threads = 0;                 // worker threads of each stage; 0: the cores this process may use
  std::string pp_layers;           // "0-3,4-7" or "4+4+4" (distributed.md 3.5); empty: by pp_size
  std::optional<int64_t> pp_size;  // stages as threads of this process; absent: as pp_layers says, else 1
};

class Model {
 public:
  // Opens the checkpoint and builds its stages. Throws bad_checkpoint and unsupported for the checkpoint, bad_input and
  // plan_impossible for the options.
  static std::unique_ptr<Model> load(const ModelOptions& options);
  // The text side around any executor.
  Model(ChatFormat format, std::unique_ptr<Executor> executor, int64_t max_context, SamplingChoice defaults);
  ~Model();

  [[nodiscard]] const ChatFormat& format() const { return format_; }
  [[nodiscard]] Executor& executor() const { return *executor_; }
  [[nodiscard]] int64_t max_context() const { return max_context_; }          // tokens
  [[nodiscard]] const SamplingChoice& defaults() const { return defaults_; }  // of generation_config.json
  [[nodiscard]] ops::Profile profile() const { return profile_; }
  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] const std::vector<LayerRange>& stages() const { return stages_; }
  [[nodiscard]] ByteCount weight_bytes() const { return weight_bytes_; }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }  // of loading
  // Bit mask, ceil(V/32) words: all ids that the tokenizer knows, without its unused reserved ones (prompt_and_api.md 7.2).
  [[nodiscard]] const std::vector<uint32_t>& valid_ids() const { return valid_ids_; }
  // Ascending; exempt from penalties (7.2).
  [[nodiscard]] const std::vector<int32_t>& control_ids() const { return control_ids_; }

 private:
  ChatFormat format_;
  std::shared_ptr<const Checkpoint> checkpoint_;  // outlives the stages
  std::unique_ptr<Executor> executor_;
  int64_t max_context_ = 0;
  SamplingChoice defaults_;
  ops::Profile profile_ = ops::Profile::exact;
  int threads_ = 1;
  std::vector<LayerRange> stages_;
  ByteCount weight_bytes_;
  std::vector<std::string> notes_;
  std::vector<uint32_t> valid_ids_;
  std::vector<int32_t> control_ids_;
};

}  // namespace weft
