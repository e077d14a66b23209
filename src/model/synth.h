// Random checkpoints in the published layout: the same names, types, file split and byte counts as a release, with random
// weights or, sparse, with holes instead of data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace weft {

struct SynthOptions {
  std::string preset = "k3";  // or "qwen3-next"
  std::optional<int64_t>
      layers;  // num_hidden_layers; the layer lists follow the published rule (every fourth and the last: MLA)
  std::vector<std::string> set;  // "hidden_size=256", "linear_attn_config.head_dim=32": keys of the text configuration
  bool sparse = false;           // headers are real, data is a hole of the final size
  bool vision = true;            // false: the text model alone, without vision_config
  uint64_t seed = 0;
  std::filesystem::path out;  // absent or empty folder
};

struct SynthReport {
  int64_t shards = 0;
  int64_t tensors = 0;
  int64_t data_bytes = 0;  // of tensors
  int64_t file_bytes = 0;  // sizes of the safetensors files, headers included

  [[nodiscard]] Json to_json() const;
  [[nodiscard]] std::string to_text() const;
};

// The config.json that `options` describe; valid by parse_model_config. Throws bad_input for an unknown preset or key, or a
// value that makes the configuration invalid. With another vocab_size the special ids keep their distance from its end.
[[nodiscard]] Json synth_config(const SynthOptions& options);

// Writes shards (file l+1 holds layer l, then embedding, norm, output mix and head, then vision tower and projector), index,
// config.json and generation_config.json. Vision files are written when hidden_size is the published one and `vision` holds.
// Streams: memory stays at one shard's header plus the index. Linear weights are uniform-sum normal with deviation 1/sqrt(in),
// norms 1, A_log log U(1, 16) with a zero tail up to head_dim, dt_bias small, experts random MXFP4 codes, so that logits are
// finite. The same options give the same bytes. `progress`, if set, receives bytes done and in total; what it throws ends the
// work. The free space is looked at first (bad_input); after a failure nothing of what was written is left.
SynthReport synthesize(const SynthOptions& options, const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace weft
