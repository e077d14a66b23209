// OCP microscaling (MX) number formats: element and scale codecs, block quantisers, and the packings in use.
//
// A block is kMxBlock consecutive values of the last axis that share one E8M0 scale byte s: value = element * 2^(s - 127).
// Everything here is exact integer arithmetic on bit patterns or float operations without rounding, so results do not depend on
// flags as long as subnormals are kept. Source of all rules: the MX specification chapter of docs/formats.md, which names the
// OCP document. The scale mode is always explicit; there is no default.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weft {

inline constexpr int kMxBlock = 32;
inline constexpr int kMxfp4BlockBytes = kMxBlock / 2;
inline constexpr uint8_t kE8m0Nan = 255;

enum class MxElement : uint8_t { e2m1, e4m3, e5m2 };

// How the scale of a block follows from its largest magnitude, amax.
enum class MxScaleMode : uint8_t {
  floor,               // 2^(floor(log2 amax) - emax); OCP 6.3
  ceil,                // 2^(ceil(log2 amax) - emax); changes values when re-quantising
  even,                // amax rounded to the element's mantissa first, then floor
  rceil,               // the smallest power of two that does not saturate
  nearest,             // 2^round(log2(amax / max)); a reader's aid for foreign files, not idempotent
  compressed_tensors,  // `even` with the E2M1 rounding constant for every element type
};

struct MxQuantizer {
  MxScaleMode mode;
  bool compat_ao = false;  // leave out the clamp at the top that keeps every decoded value finite
};

[[nodiscard]] std::string_view to_string(MxElement element);  // "e2m1"
[[nodiscard]] std::string_view to_string(MxScaleMode mode);   // "floor"

// Elements. Codes of E2M1 are 0..15; higher bits are ignored.
[[nodiscard]] float e2m1_to_f32(uint8_t code);
[[nodiscard]] float e4m3_to_f32(uint8_t code);   // 0x7f, 0xff: NaN
[[nodiscard]] float e5m2_to_f32(uint8_t code);   // 0x7c: infinity, 0x7d..0x7f: NaN
[[nodiscard]] float e8m0_to_f32(uint8_t scale);  // 0: 2^-127 (subnormal), 255: NaN

// Round to nearest, ties to the even code, saturating, sign kept (also of zero). NaN gives the largest magnitude.
[[nodiscard]] uint8_t f32_to_e2m1(float value);
[[nodiscard]] uint8_t f32_to_e4m3(float value);
[[nodiscard]] uint8_t f32_to_e5m2(float value);

// The scale byte of a block whose largest magnitude is `amax` (>= 0). NaN or infinity give kE8m0Nan.
[[nodiscard]] uint8_t mx_scale(float amax, MxElement element, const MxQuantizer& quantizer);

// MXFP4 in the compressed-tensors packing: byte j holds value 2j in its low nibble and value 2j+1 in its high nibble.
//
// Decoding. Both outputs are exact, subnormals included, except that magnitudes of 2^128 and above become infinite (only for
// scale bytes 253 and 254). Scale 255 gives 32 NaN (0x7fc0).
void mxfp4_decode_block(std::span<const uint8_t, kMxfp4BlockBytes> packed, uint8_t scale, std::span<float, kMxBlock> out);
void mxfp4_decode_block_bf16(std::span<const uint8_t, kMxfp4BlockBytes> packed, uint8_t scale,
                             std::span<uint16_t, kMxBlock> out);
// Rows of n values, n a multiple of 32: packed [n / 2], scales [n / 32], out [n].
void mxfp4_decode(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<float> out);
void mxfp4_decode_bf16(std::span<const uint8_t> packed, std::span<const uint8_t> scales, std::span<uint16_t> out);

// Quantising. A block that holds a NaN or an infinity gets scale 255 and signed-zero codes, and is counted: the result is the
// number of such blocks. An all-zero block gets scale 0 with the signs of its zeros.
int64_t mxfp4_quantize(std::span<const float> values, const MxQuantizer& quantizer, std::span<uint8_t> packed,
                       std::span<uint8_t> scales);
int64_t mxfp4_quantize_bf16(std::span<const uint16_t> values, const MxQuantizer& quantizer, std::span<uint8_t> packed,
                            std::span<uint8_t> scales);

// MXFP8: one code a byte, codes [n], scales [n / 32]. `element` is e4m3 or e5m2 (another is an internal error).
// f32 outputs are exact except for overflow to infinity. bf16 outputs round to nearest even where bf16 lacks the subnormal bits
// (scale bytes below 3).
void mxfp8_decode(MxElement element, std::span<const uint8_t> codes, std::span<const uint8_t> scales, std::span<float> out);
void mxfp8_decode_bf16(MxElement element, std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                       std::span<uint16_t> out);
int64_t mxfp8_quantize(MxElement element, std::span<const float> values, const MxQuantizer& quantizer, std::span<uint8_t> codes,
                       std::span<uint8_t> scales);

// Packings of one block of 32 E2M1 codes.
[[nodiscard]] std::array<uint8_t, kMxfp4BlockBytes> mxfp4_pack(std::span<const uint8_t, kMxBlock> codes);
[[nodiscard]] std::array<uint8_t, kMxBlock> mxfp4_unpack(std::span<const uint8_t, kMxfp4BlockBytes> packed);

// MLX keeps uint32 words, word i = sum over j of code[8i + j] << 4j.
[[nodiscard]] std::array<uint32_t, 4> mxfp4_to_mlx(std::span<const uint8_t, kMxfp4BlockBytes> packed);
[[nodiscard]] std::array<uint8_t, kMxfp4BlockBytes> mxfp4_from_mlx(std::span<const uint32_t, 4> words);

// GGUF type 39 keeps the scale byte first, then byte j = code[j] + 16 * code[j + 16]. Converted by moving nibbles, never by
// decoding: its own quantiser rounds differently.
inline constexpr int kGgufMxfp4BlockBytes = 1 + kMxfp4BlockBytes;
struct Mxfp4Block {
  std::array<uint8_t, kMxfp4BlockBytes> packed;
  uint8_t scale;
};
[[nodiscard]] std::array<uint8_t, kGgufMxfp4BlockBytes> mxfp4_to_gguf(std::span<const uint8_t, kMxfp4BlockBytes> packed,
                                                                      uint8_t scale);
[[nodiscard]] Mxfp4Block mxfp4_from_gguf(std::span<const uint8_t, kGgufMxfp4BlockBytes> block);

}  // namespace weft
