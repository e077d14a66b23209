#include "tensor/dtype.h"

#include <array>

namespace weft {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  int64_t size;
};

constexpr std::array kEntries = {
    Entry{DType::f64, "F64", 8},   Entry{DType::f32, "F32", 4},         Entry{DType::f16, "F16", 2},
    Entry{DType::bf16, "BF16", 2}, Entry{DType::f8_e4m3, "F8_E4M3", 1}, Entry{DType::f8_e5m2, "F8_E5M2", 1},
    Entry{DType::i64, "I64", 8},   Entry{DType::i32, "I32", 4},         Entry{DType::i16, "I16", 2},
    Entry{DType::i8, "I8", 1},     Entry{DType::u64, "U64", 8},         Entry{DType::u32, "U32", 4},
    Entry{DType::u16, "U16", 2},   Entry{DType::u8, "U8", 1},           Entry{DType::boolean, "BOOL", 1},
};

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i) return false;
  }
  return true;
}
static_assert(in_enum_order());

const Entry& entry(DType dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return entry(dtype).size; }
std::string_view to_string(DType dtype) { return entry(dtype).name; }

std::optional<DType> dtype_from_string(std::string_view name) {
  for (const Entry& candidate : kEntries) {
    if (candidate.name == name) return candidate.dtype;
  }
  return std::nullopt;
}

}  // namespace weft
