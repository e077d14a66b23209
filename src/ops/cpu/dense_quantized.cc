// Dense products with FP8 blocks and with MLX's affine codes. Each value is decoded to the float32 that weight.h defines, so
// that a product has the bits of its float32 twin's.
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/cpu/affine_tables.h"
#include "ops/cpu/dense.h"
#include "ops/cpu/dense_kernels.h"
#include "ops/cpu/targets.h"
#include "ops/math.h"
#include "ops/weight_decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dense_quantized.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft::ops::cpu::HWY_NAMESPACE {
namespace {

#include "ops/cpu/dense_blocks-inl.h"
#include "ops/cpu/dense_f32-inl.h"

// How the codes of an affine weight are decoded, by the number of their bits.
enum class Codes : uint8_t {
  nibbles,  // 4 bits
  table,    // 2, 3 and 5 bits: a lookup among all values of a group
  linear,   // code * scale + bias
};

HWY_INLINE V affine(V codes, V scale, V bias) { return hn::Add(hn::Mul(codes, scale), bias); }

#if HWY_TARGET == HWY_AVX3

// A float16 with the bits of an E4M3 code at its exponent and upper mantissa is 2^-8 times the value, subnormals included. The
// sign, extended beyond the code, arrives at the sign and at the highest bit of the exponent, which is cleared; adding one to
// the seven bits of NaN, and to no others, sets that bit, with which the float16 is NaN too.
constexpr float kE4m3Factor = 256.0F;
HWY_INLINE void unit_e4m3(const std::byte* codes, V scale, V* w) {
  const __m512i bytes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i words = _mm512_permutexvar_epi16(_mm512_load_si512(kFp8Order512.data()), bytes);
  const __m512i finite = _mm512_and_si512(_mm512_slli_epi16(words, 7), _mm512_set1_epi16(static_cast<int16_t>(0xBFFF)));
  const __m512i carried = _mm512_add_epi16(finite, _mm512_set1_epi16(0x80));
  const __m512i halves = _mm512_ternarylogic_epi32(finite, carried, _mm512_set1_epi16(0x4000), 0xF8);  // a | (b & c)
  w[0] = hn::Mul(V{_mm512_cvtph_ps(_mm512_castsi512_si256(halves))}, scale);
  w[1] = hn::Mul(V{_mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1))}, scale);
}

template <Codes kCodes>
struct AffineCodes {
  static constexpr bool holds(int bits) {
    return kCodes == Codes::nibbles ? bits == 4 : kCodes == Codes::linear ? bits > 5 : bits == 2 || bits == 3 || bits == 5;
  }
  HWY_INLINE explicit AffineCodes(unsigned bits)
      : words(kAffineWords[bits]), load(static_cast<__mmask16>((1U << bits) - 1U)), mask(_mm512_set1_epi32((1 << bits) - 1)) {}
  const AffineWords& words;
  __mmask16 load;  // a unit is as many 32-bit words as a code has bits
  __m512i mask;
};

template <Codes kCodes>
struct AffineGroup {
  HWY_INLINE AffineGroup() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void set(const AffineCodes<kCodes>& codes, float scale, float bias) {
    const D d;
    if constexpr (kCodes == Codes::linear) {
      first = hn::Set(d, scale);
      second = hn::Set(d, bias);
    } else {
      first = affine(hn::Load(d, codes.words.codes.data()), hn::Set(d, scale), hn::Set(d, bias));
      if constexpr (kCodes == Codes::table) {
        second = affine(hn::Load(d, codes.words.codes.data() + 16), hn::Set(d, scale), hn::Set(d, bias));
      }
    }
  }
  HWY_INLINE void unit(const AffineCodes<kCodes>& codes, const std::byte* from, V* w) const {
    if constexpr (kCodes == Codes::nibbles) {
      const __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m512i even = _mm512_srlv_epi32(all, _mm512_load_si512(kNibbleShifts512.data()));
      w[0] = V{_mm512_permutexvar_ps(even, first.raw)};
      w[1] = V{_mm512_permutexvar_ps(_mm512_srli_epi32(even, 16), first.raw)};
    } else {
      const __m512i all = _mm512_maskz_loadu_epi32(codes.load, from);
      for (size_t v = 0; v < 2; ++v) {
        const __m512i pairs = _mm512_permutexvar_epi16(_mm512_load_si512(codes.words.words[v].data()), all);
        const __m512i indices = _mm512_srlv_epi32(pairs, _mm512_load_si512(codes.words.shifts[v].data()));
        if constexpr (kCodes == Codes::table) {
          w[v] = V{_mm512_permutex2var_ps(first.raw, indices, second.raw)};
        } else {
          w[v] = affine(V{_mm512_cvtepi32_ps(_mm512_and_si512(indices, codes.mask))}, first, second);
        }
      }
    }
  }
  V first;   // of linear: the scale; else the values of codes 0 to 15
  V second;  // the bias; the values of codes 16 to 31
};

HWY_INLINE void store_ascending(const V* w, float* out) {
  for (size_t half = 0; half < 2; ++half) {
    const __m512i places = _mm512_load_si512(kAscending512[half].data());
    hn::StoreU(V{_mm512_permutex2var_ps(w[0].raw, places, w[1].raw)}, D(), out + 16 * half);
  }
}

#elif HWY_TARGET == HWY_AVX2

constexpr float kE4m3Factor = 256.0F;  // as for AVX-512
HWY_INLINE void unit_e4m3(const std::byte* codes, V scale, V* w) {
  const __m128i order = _mm_load_si128(reinterpret_cast<const __m128i*>(kFp8Order256.data()));
  for (int half = 0; half < 2; ++half) {
    const __m128i bytes = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * half)), order);
    const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i finite = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
    const __m256i carried = _mm256_add_epi16(finite, _mm256_set1_epi16(0x80));
    const __m256i halves = _mm256_or_si256(finite, _mm256_and_si256(carried, _mm256_set1_epi16(0x4000)));
    w[2 * half] = hn::Mul(V{_mm256_cvtph_ps(_mm256_castsi256_si128(halves))}, scale);
    w[2 * half + 1] = hn::Mul(V{_mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))}, scale);
  }
}

template <Codes kCodes>
struct AffineCodes {
  static constexpr bool holds(int bits) { return kCodes == Codes::nibbles ? bits == 4 : kCodes == Codes::linear && bits != 4; }
  HWY_INLINE explicit AffineCodes(unsigned bits) : bytes(kAffineBytes[bits]), mask(_mm256_set1_epi32((1 << bits) - 1)) {}
  const AffineBytes& bytes;
  __m256i mask;
};

template <Codes kCodes>
struct AffineGroup {
  HWY_INLINE AffineGroup() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void set(const AffineCodes<kCodes>& /*codes*/, float of_scale, float of_bias) {
    scale = hn::Set(D(), of_scale);
    bias = hn::Set(D(), of_bias);
  }
  HWY_INLINE void unit(const AffineCodes<kCodes>& codes, const std::byte* from, V* w) const {
    const auto value = [&](__m256i of) { return affine(V{_mm256_cvtepi32_ps(_mm256_and_si256(of, codes.mask))}, scale, bias); };
    if constexpr (kCodes == Codes::nibbles) {
      const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m256i even = _mm256_setr_epi32(0, 16, 0, 16, 4, 20, 4, 20);
      const __m256i odd = _mm256_setr_epi32(8, 24, 8, 24, 12, 28, 12, 28);
      const __m256i low = _mm256_shuffle_epi32(all, 0x50);   // words 0 0 1 1
      const __m256i high = _mm256_shuffle_epi32(all, 0xFA);  // words 2 2 3 3
      w[0] = value(_mm256_srlv_epi32(low, even));
      w[1] = value(_mm256_srlv_epi32(low, odd));
      w[2] = value(_mm256_srlv_epi32(high, even));
      w[3] = value(_mm256_srlv_epi32(high, odd));
    } else {
      const auto load = [](const void* at) { return _mm256_load_si256(static_cast<const __m256i*>(at)); };
      const __m256i all = _mm256_maskload_epi32(reinterpret_cast<const int*>(from), load(codes.bytes.loads.data()));
      for (size_t half = 0; half < 2; ++half) {
        const __m256i window = _mm256_permutevar8x32_epi32(all, load(codes.bytes.windows[half].data()));
        for (size_t v = 2 * half; v < 2 * half + 2; ++v) {
          const __m256i pairs = _mm256_shuffle_epi8(window, load(codes.bytes.bytes[v].data()));
          w[v] = value(_mm256_srlv_epi32(pairs, load(codes.bytes.shifts[v].data())));
        }
      }
    }
  }
  V scale;
  V bias;
};

HWY_INLINE void store_ascending(const V* w, float* out) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int half = 0; half < 2; ++half) {
    const __m256 low = _mm256_unpacklo_ps(w[2 * half].raw, w[2 * half + 1].raw);
    const __m256 high = _mm256_unpackhi_ps(w[2 * half].raw, w[2 * half + 1].raw);
    hn::StoreU(V{_mm256_permutevar8x32_ps(low, order)}, D(), out + 16 * half);
    hn::StoreU(V{_mm256_permutevar8x32_ps(high, order)}, D(), out + 16 * half + 8);
  }
}

#else  // ascending columns, one value at a time

constexpr float kE4m3Factor = 1.0F;
constexpr std::array<float, 256> make_e4m3() {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) values[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  return values;
}
constexpr std::array<float, 256> kE4m3 = make_e4m3();
HWY_INLINE void unit_e4m3(const std::byte* codes, V scale, V* w) {
  alignas(64) float values[kUnit];
  for (int64_t c = 0; c < kUnit; ++c) values[c] = kE4m3[static_cast<uint8_t>(codes[c])];
  for (int64_t v = 0; v < kUnit / kLanes; ++v) w[v] = hn::Mul(hn::Load(D(), values + v * kLanes), scale);
}

template <Codes kCodes>
struct AffineCodes {
  static constexpr bool holds(int /*bits*/) { return kCodes == Codes::linear; }
  HWY_INLINE explicit AffineCodes(unsigned of) : bits(of) {}
  unsigned bits;
};

template <Codes kCodes>
struct AffineGroup {
  HWY_INLINE AffineGroup() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void set(const AffineCodes<kCodes>& /*codes*/, float of_scale, float of_bias) {
    scale = hn::Set(D(), of_scale);
    bias = hn::Set(D(), of_bias);
  }
  HWY_INLINE void unit(const AffineCodes<kCodes>& codes, const std::byte* from, V* w) const {
    alignas(64) float values[kUnit];
    for (int64_t c = 0; c < kUnit; ++c) values[c] = static_cast<float>(affine_code(from, c, codes.bits));
    for (int64_t v = 0; v < kUnit / kLanes; ++v) w[v] = affine(hn::Load(D(), values + v * kLanes), scale, bias);
  }
  V scale;
  V bias;
};

HWY_INLINE void store_ascending(const V* w, float* out) {
  for (int64_t v = 0; v < kUnit / kLanes; ++v) hn::StoreU(w[v], D(), out + v * kLanes);
}

#endif

struct Fp8Reader {
  static constexpr WeightFormat kFormat = WeightFormat::fp8_block;
  static constexpr bool kTails = true;
  struct Shared {
    HWY_INLINE explicit Shared(const WeightView& weight) : type(weight.scale_type) {}
    ScaleType type;
  };
  HWY_INLINE Fp8Reader() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void open(const Shared& /*shared*/, const WeightView& weight, int64_t o) {
    row = weight.data + o * weight.in;
    scales = weight.row_scales(o);
    scale = hn::Zero(D());
  }
  HWY_INLINE void unit(const Shared& shared, int64_t unit, V* w) {
    set_scale(shared, unit);
    unit_e4m3(row + unit * kUnit, scale, w);
  }
  HWY_INLINE void tail(const Shared& shared, const WeightView& weight, int64_t unit, V* w) {
    set_scale(shared, unit);
    const TailUnit last(weight, row);
    unit_e4m3(last.bytes, scale, w);
  }
  HWY_INLINE void set_scale(const Shared& shared, int64_t unit) {
    constexpr int64_t kUnits = kScaleBlock / kUnit;
    if (unit % kUnits == 0) scale = hn::Set(D(), scale_at(shared.type, scales, unit / kUnits) * kE4m3Factor);
  }
  const std::byte* row;
  const std::byte* scales;
  V scale;
};

template <Codes kCodes>
struct AffineReader {
  static constexpr WeightFormat kFormat = WeightFormat::affine;
  static constexpr bool kTails = false;
  struct Shared {
    HWY_INLINE explicit Shared(const WeightView& weight)
        : codes(weight.bits),
          type(weight.scale_type),
          shift(weight.group == 32   ? 0U
                : weight.group == 64 ? 1U
                                     : 2U),
          unit_bytes(kCodes == Codes::nibbles ? kUnit / 2 : kUnit * weight.bits / 8) {}
    AffineCodes<kCodes> codes;
    ScaleType type;
    unsigned shift;  // units of a group, as a power of two
    int64_t unit_bytes;
  };
  HWY_INLINE AffineReader() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void open(const Shared& shared, const WeightView& weight, int64_t o) {
    row = weight.data + o * weight.row_bytes();
    scales = weight.row_scales(o);
    biases = weight.row_biases(o);
    group.set(shared.codes, 0.0F, 0.0F);
  }
  HWY_INLINE void unit(const Shared& shared, int64_t unit, V* w) {
    const int64_t index = unit >> shared.shift;
    if (index << shared.shift == unit) {
      group.set(shared.codes, scale_at(shared.type, scales, index), scale_at(shared.type, biases, index));
    }
    group.unit(shared.codes, row + unit * shared.unit_bytes, w);
  }
  const std::byte* row;
  const std::byte* scales;
  const std::byte* biases;
  AffineGroup<kCodes> group;
};

// Calls body with a reader of the weight.
template <class Body>
HWY_INLINE void with_reader(const WeightView& weight, const Body& body) {
  if (weight.format == WeightFormat::fp8_block) return body(Fp8Reader());
  if constexpr (AffineCodes<Codes::nibbles>::holds(4)) {
    if (weight.bits == 4) return body(AffineReader<Codes::nibbles>());
  }
  if constexpr (AffineCodes<Codes::table>::holds(2)) {
    if (AffineCodes<Codes::table>::holds(weight.bits)) return body(AffineReader<Codes::table>());
  }
  body(AffineReader<Codes::linear>());
}

void products(const DenseProduct& product, int64_t begin, int64_t end) {
  with_reader(product.weight, [&](auto reader) { dense_of<F32Arithmetic, decltype(reader)>(product, begin, end); });
}

void widen(const WeightView& weight, float* out) {
  with_reader(weight, [&](auto reader) {
    const typename decltype(reader)::Shared shared(weight);
    V w[F32Arithmetic::kUnitVecs];
    const int64_t units = weight.in / kUnit;
    for (int64_t o = 0; o < weight.out; ++o, out += weight.in) {
      reader.open(shared, weight, o);
      for (int64_t unit = 0; unit < units; ++unit) {
        reader.unit(shared, unit, w);
        store_ascending(w, out + unit * kUnit);
      }
      if constexpr (decltype(reader)::kTails) {
        if (units * kUnit == weight.in) continue;
        float last[kUnit];
        reader.tail(shared, weight, units, w);
        store_ascending(w, last);
        std::copy_n(last, weight.in - units * kUnit, out + units * kUnit);
      }
    }
  });
}

}  // namespace
}  // namespace weft::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::ops::cpu {

HWY_EXPORT(products);
HWY_EXPORT(widen);

void dense_quantized(const DenseProduct& product, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(products)(product, begin, end);
}

void widen_rows(const WeightView& weight, float* out) { HWY_DYNAMIC_DISPATCH(widen)(weight, out); }

}  // namespace weft::ops::cpu
#endif  // HWY_ONCE
