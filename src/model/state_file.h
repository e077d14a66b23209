// The saved form of a sequence: one safetensors file with the state of every layer, keyed by the global layer, in one canonical
// layout (model/sequence_state.h). Any stage split, device or rank count loads from it.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/sequence_state.h"
#include "tensor/tensor.h"

namespace weft {

// Metadata of the file, all of it checked on loading.
struct StateFileHeader {
  std::string fingerprint;  // of model, profile and state dtypes
  TokenCount consumed;
  int64_t layer_count = 0;        // L of the whole model
  std::vector<int32_t> ids = {};  // the consumed tokens, all of them, or empty when they were not kept

  // Throws bad_input naming `path` and both values when the file is of another model (fingerprint or layer count).
  void require(const std::string& model_fingerprint, int64_t model_layers, const std::filesystem::path& path) const;
};

// A sequence's state in its saved form, in memory: the layers of all stages.
struct SavedState {
  StateFileHeader header;
  SequenceState::Tensors tensors;
};

// The header of a state file; reads nothing else of it. Errors: as StateFile.
[[nodiscard]] StateFileHeader read_state_header(const std::filesystem::path& path);

// Writes atomically: `ids` as an I32 tensor of that name, and `tensors`, which hold the layers of all stages.
void write_state_file(const std::filesystem::path& path, const StateFileHeader& header, const SequenceState::Tensors& tensors);

// A state file read into memory.
class StateFile {
 public:
  // Throws bad_input naming the file: not a state file, another format version, values that are not finite.
  explicit StateFile(const std::filesystem::path& path);

  [[nodiscard]] const StateFileHeader& header() const { return header_; }
  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const { return views_; }

  void require(const std::string& fingerprint, int64_t layer_count) const { header_.require(fingerprint, layer_count, path_); }

 private:
  std::filesystem::path path_;
  StateFileHeader header_;
  SequenceState::Tensors tensors_;
  std::map<std::string, TensorView> views_;
};

}  // namespace weft
