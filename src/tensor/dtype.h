// Element types of stored and computed tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace weft {

enum class DType : uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

[[nodiscard]] int64_t size_of(DType dtype);             // bytes of one element
[[nodiscard]] std::string_view to_string(DType dtype);  // the spelling of safetensors: "BF16", "F8_E4M3", "BOOL"
[[nodiscard]] std::optional<DType> dtype_from_string(std::string_view name);  // that spelling only

}  // namespace weft

template <>
struct fmt::formatter<weft::DType> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(weft::DType dtype, Context& context) const {
    return fmt::formatter<std::string_view>::format(weft::to_string(dtype), context);
  }
};
