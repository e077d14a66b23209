#include "engine/model.h"

#include "base/error.h"
#include "model/checkpoint.h"

namespace weft {

Model::Model(ChatFormat format, std::unique_ptr<Executor> executor, int64_t max_context, SamplingChoice defaults)
    : format_(std::move(format)), executor_(std::move(executor)), max_context_(max_context), defaults_(defaults) {
  const Tokenizer& tokenizer = format_.tokenizer();
  const int64_t vocab = executor_->vocab_size();
  if (tokenizer.vocab_size() > vocab) {
    fail(ErrorKind::bad_checkpoint, "tokenizer", "wanted at most the {} ids of the model, found {}", vocab,
         tokenizer.vocab_size());
  }
  valid_ids_.assign(static_cast<size_t>((vocab + 31) / 32), 0);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_control(id)) {
      control_ids_.push_back(id);
      if (tokenizer.is_reserved(id)) continue;
    }
    valid_ids_[static_cast<size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
  }
}

Model::~Model() = default;

const std::shared_ptr<const grammar::Vocabulary>& Model::vocabulary() const {
  std::call_once(vocabulary_made_,
                 [&] { vocabulary_ = std::make_shared<const grammar::Vocabulary>(format_.tokenizer(), format_.style()); });
  return vocabulary_;
}

std::unique_ptr<Model> Model::load(const ModelOptions& options) { return of(load_executor(options), options.dir); }

std::unique_ptr<Model> Model::of(LoadedExecutor loaded, const std::filesystem::path& dir) {
  auto model = std::make_unique<Model>(ChatFormat::load(dir), std::move(loaded.executor), loaded.max_context,
                                       read_generation_config(dir));
  model->checkpoint_ = loaded.checkpoint;
  model->processes_ = std::move(loaded.processes);
  model->profile_ = loaded.profile;
  model->threads_ = loaded.threads;
  model->stages_ = loaded.stages;
  model->weight_bytes_ = loaded.weight_bytes;
  model->notes_ = loaded.notes;
  for (std::string& note : model->format_.notes()) model->notes_.push_back(std::move(note));
  return model;
}

}  // namespace weft
