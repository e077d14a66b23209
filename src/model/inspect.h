// What a checkpoint is and whether it is sound: the library behind `weft inspect`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "formats/inventory.h"
#include "model/model_config.h"

namespace weft {

struct InspectOptions {
  std::filesystem::path model;
  bool deep = false;    // reads the small tensors: norms, biases, convolutions, A_log
  bool verify = false;  // reads every byte: floats finite, MXFP4 blocks finite, scale bytes below 255
  bool allow_unknown_tensors = false;
  bool rebuild_index = false;
  int threads = 2;
  std::function<void(int64_t done, int64_t total)> progress = {};  // of --verify, in bytes; never called by two threads at once
};

struct Inspection {
  struct Class {
    std::string name;  // rows of K3 spec 4.2
    int64_t tensors = 0;
    int64_t parameters = 0;  // a packed byte counts as two, scale bytes as none
    int64_t bytes = 0;
  };
  struct Layer {
    std::string kind;  // "KDA dense"
    int64_t tensors = 0;
    int64_t parameters = 0;
    int64_t bytes = 0;
    std::vector<std::string> files;
  };

  std::shared_ptr<const ModelConfig> config;
  std::string folder;
  int64_t files = 0;
  int64_t file_bytes = 0;  // headers included
  int64_t data_bytes = 0;
  int64_t tensors = 0;  // all, with those that are not loaded
  std::vector<DTypeTotal> dtypes;
  std::vector<Class> classes;  // text classes with tensors in them, then "not loaded"
  Class text;                  // sum of the text classes
  std::vector<Layer> layers;
  std::vector<std::string> notes;

  int64_t small_tensors_read = 0;     // --deep
  int64_t bytes_read = 0;             // --verify
  int64_t problem_count = 0;          // all that were found
  std::vector<std::string> problems;  // the first kMaxProblems of them

  static constexpr size_t kMaxProblems = 100;

  [[nodiscard]] bool ok() const { return problem_count == 0; }
  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// Headers alone unless `deep` or `verify` ask for more. Throws what Checkpoint and require() throw; what is wrong with values
// is collected in `problems`, each naming file, tensor and place.
[[nodiscard]] Inspection inspect(const InspectOptions& options);

}  // namespace weft
