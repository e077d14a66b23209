// A model that is ready to answer: its checkpoint, its text side, and an executor over its stages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/task_thread.h"
#include "base/units.h"
#include "engine/executor_loader.h"
#include "engine/grammar/matcher.h"
#include "engine/sampling_choice.h"
#include "text/chat.h"

namespace weft {

class Model {
 public:
  // Errors: load_executor, ChatFormat::load, read_generation_config; bad_checkpoint when the tokenizer has ids that the model
  // lacks.
  static std::unique_ptr<Model> load(const ModelOptions& options);
  // The same of stages that are loaded, wherever they run.
  static std::unique_ptr<Model> of(LoadedExecutor loaded, const std::filesystem::path& dir);
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
  // What grammars need of the tokenizer; made at the first call.
  [[nodiscard]] const std::shared_ptr<const grammar::Vocabulary>& vocabulary() const;
  // Computes the masks of all answers, one after the other, beside the steps.
  [[nodiscard]] TaskThread& mask_thread() const { return mask_thread_; }
  // Ascending; exempt from penalties (7.2).
  [[nodiscard]] const std::vector<int32_t>& control_ids() const { return control_ids_; }

 private:
  ChatFormat format_;
  std::shared_ptr<const Checkpoint> checkpoint_;  // outlives the stages
  std::shared_ptr<void> processes_;               // likewise: worker processes of this host
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
  mutable std::once_flag vocabulary_made_;
  mutable std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  mutable TaskThread mask_thread_;
};

}  // namespace weft
