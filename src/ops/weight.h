// A weight matrix in the form in which it was published.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::ops {

enum class WeightFormat : uint8_t {
  f32,    // data: [out, in] float32
  bf16,   // data: [out, in] bfloat16
  mxfp4,  // data: [out, in/2] packed E2M1 (even column in the low nibble); scales: [out, in/32] E8M0 (K3 spec 2.4)
};

// [out, in], row-major, little-endian; y = W x. A look at memory of another owner (a mapped file or a buffer).
struct WeightView {
  WeightFormat format = WeightFormat::bf16;
  int64_t out = 0;
  int64_t in = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;  // mxfp4 only

  // Bytes that one product must read: 4.25 bits per weight for mxfp4.
  [[nodiscard]] int64_t bytes() const {
    switch (format) {
      case WeightFormat::f32: return out * in * 4;
      case WeightFormat::bf16: return out * in * 2;
      case WeightFormat::mxfp4: return out * (in / 2 + in / 32);
    }
    return 0;
  }
  // Bytes of `data`: all but an mxfp4 pair's scales.
  [[nodiscard]] int64_t data_bytes() const { return format == WeightFormat::mxfp4 ? out * (in / 2) : bytes(); }
  // Rows [begin, end) of the same matrix.
  [[nodiscard]] WeightView rows(int64_t begin, int64_t end) const {
    WeightView part = *this;
    part.out = end - begin;
    const int64_t row_bytes = format == WeightFormat::f32 ? in * 4 : format == WeightFormat::bf16 ? in * 2 : in / 2;
    part.data = data + begin * row_bytes;
    if (format == WeightFormat::mxfp4) part.scales = scales + begin * (in / 32);
    return part;
  }
};

// One routed expert: w1 = gate, w3 = up [M, Z]; w2 = down [Z, M].
struct ExpertView {
  WeightView w1;
  WeightView w2;
  WeightView w3;
};

// The routed experts of a layer, indexed by id.
struct ExpertTable {
  ExpertTable() = default;
  ExpertTable(std::span<const ExpertView> on_host) : views(on_host) {}     // NOLINT(google-explicit-constructor): a name for it
  ExpertTable(const std::vector<ExpertView>& on_host) : views(on_host) {}  // NOLINT(google-explicit-constructor): likewise
  ExpertTable(std::span<const ExpertView> on_host, const ExpertView* on_device) : views(on_host), device(on_device) {}

  std::span<const ExpertView> views;
  const ExpertView* device = nullptr;  // GPU: the same entries in its memory, from which kernels take the experts that ids name
};

}  // namespace weft::ops
