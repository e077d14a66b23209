// A copy of a checkpoint with its first layers only: small enough to test with, in the published layout.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"

namespace weft {

struct TruncateOptions {
  std::filesystem::path model;
  std::filesystem::path out;  // absent or empty folder
  int64_t layers = 0;         // 1 to the model's number
  bool filter_lists = true;   // also shorten the layer lists; false changes num_hidden_layers alone (ruling R3)
};

struct TruncateReport {
  int64_t layers = 0;
  int64_t tensors = 0;
  int64_t linked_files = 0;   // hard links: the whole shard is kept
  int64_t written_files = 0;  // shards with some tensors left out, or copied because a link was not possible
  int64_t written_bytes = 0;
  std::vector<std::string> copied;  // tokenizer and generation files
  std::vector<std::string> notes;   // of loading the copy

  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// Keeps the tensors of layers < N and those of no layer. Shards keep their names; those left without a tensor are not there.
// config.json, the index and the tokenizer's files are written; the copy is opened and checked before this returns. `progress`,
// if set, receives bytes done and in total; what it throws ends the work. After a failure nothing of what was written is left.
// Throws bad_input for a wrong number of layers or an occupied folder.
TruncateReport truncate_checkpoint(const TruncateOptions& options,
                                   const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace weft
