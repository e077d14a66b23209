// The stored forms of weights that the suite and the tests go through.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ops/suite/random.h"
#include "ops/weight.h"

namespace weft::ops::suite {

// What a WeightView says beside its sizes and memory.
struct WeightForm {
  WeightForm(WeightFormat of) : format(of) {}  // NOLINT(google-explicit-constructor): a format without parameters is a form
  [[nodiscard]] static WeightForm fp8(ScaleType scale_type, uint8_t block_row = 0);
  [[nodiscard]] static WeightForm affine(uint8_t bits, uint8_t group, ScaleType scale_type = ScaleType::bf16);

  [[nodiscard]] WeightView shape(int64_t out, int64_t in) const;  // without memory
  [[nodiscard]] bool holds(int64_t in) const;                     // rows of `in` columns are whole groups
  [[nodiscard]] bool quantized() const { return format == WeightFormat::fp8_block || format == WeightFormat::affine; }

  WeightFormat format;
  ScaleType scale_type = ScaleType::bf16;
  uint8_t bits = 0;
  uint8_t group = 0;
  uint8_t block_row = 0;
};
[[nodiscard]] std::string to_string(
    const WeightForm& form);  // "mxfp4", "fp8 scales f32 from row 100", "affine4 g64 scales f16"

// Every format, every number of bits, every group and every type of scales.
[[nodiscard]] std::span<const WeightForm> all_forms();

// Random values of a quantized weight of about the size of those of the other formats, 0.08. `shape` gives the sizes; the
// pointers its memory.
void fill_quantized(Random& random, const WeightView& shape, std::byte* data, std::byte* scales, std::byte* biases);

}  // namespace weft::ops::suite
