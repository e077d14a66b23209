#pragma once

namespace weft {

// Whether this program can use a GPU at all (CMake option WEFT_CUDA).
[[nodiscard]] bool built_with_cuda();

}  // namespace weft
