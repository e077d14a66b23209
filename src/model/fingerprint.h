// What makes two processes agree that they hold the same model in the same numbers (ruling R19).
//
// It is put together from one digest for each shard, so that a stage adds those of the shards that it opened and no process
// needs to read them all:
//
//     std::vector<ShardDigest> all = shard_digests(first_part);   // on one machine
//     all.append(shard_digests(second_part));                     // from another; shards of both count once
//     combine_fingerprint(config_text, all, profile) == model_fingerprint(whole, profile)
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint.h"
#include "ops/context.h"

namespace weft {

struct ShardDigest {
  std::string file;    // inside the folder
  std::string sha256;  // 64 hexadecimal digits
  friend bool operator==(const ShardDigest&, const ShardDigest&) = default;
};

// Of each shard that holds a tensor of the checkpoint's layers, in the order of names: SHA-256 over the size, the header and 16
// fixed samples of 64 KiB of the data (all of it below 1 MiB). Reads about 1 MiB a shard beside the header, whatever its size.
// Shards that hold nothing of the model (a vision tower, layers above the last) do not count.
[[nodiscard]] std::vector<ShardDigest> shard_digests(const Checkpoint& checkpoint);

// A shard that two holders have, and have different.
struct ShardConflict {
  std::string file;
  size_t first = 0;  // holders, by their place
  size_t second = 0;
  std::string wanted;  // digest of the first
  std::string found;   // of the second
};
// Each shard of a holder that differs from that of the first who has it.
[[nodiscard]] std::vector<ShardConflict> shard_conflicts(std::span<const std::vector<ShardDigest>> holders);

// SHA-256, as 64 hexadecimal digits, over: the bytes of config.json; of every shard in the order of names its name and digest;
// the numeric profile; the state's dtypes. `shards` may be in any order and name a shard more than once. Throws bad_checkpoint
// naming file and both digests when two of them differ, and for a digest that is none.
[[nodiscard]] std::string combine_fingerprint(std::string_view config_text, std::span<const ShardDigest> shards,
                                              ops::Profile profile, std::string_view state_dtypes = "f32");

// The bytes of config.json.
[[nodiscard]] std::string config_text(const Checkpoint& checkpoint);

// Both for a checkpoint of which all layers are open; an internal error for a partial one.
[[nodiscard]] std::string model_fingerprint(const Checkpoint& checkpoint, ops::Profile profile,
                                            std::string_view state_dtypes = "f32");

}  // namespace weft
