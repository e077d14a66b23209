// What makes two processes agree that they hold the same model in the same numbers (ruling R19).
#pragma once

#include <string>
#include <string_view>

#include "model/checkpoint.h"
#include "ops/context.h"

namespace weft {

// SHA-256, as 64 hexadecimal digits, over: the bytes of config.json; for every shard in the order of names its name, size,
// header and 16 fixed samples of 64 KiB of its data (all of it below 1 MiB); the numeric profile; the state's dtypes. Reads
// about 1 MiB a shard beside the headers, whatever the shard's size.
[[nodiscard]] std::string model_fingerprint(const Checkpoint& checkpoint, ops::Profile profile,
                                            std::string_view state_dtypes = "f32");

}  // namespace weft
