// Scalar functions that several operators share. Formulas: K3 spec 3.0, 3.4, 3.6.
#pragma once

#include <cmath>

#include "ops/context.h"
#include "ops/ops.h"
#include "tensor/bf16.h"

namespace weft::ops {

// The nearest bfloat16 (ties to even) as a float32.
[[nodiscard]] inline float round_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// A rounding point: rounds in profile bf16 only.
[[nodiscard]] inline float round_if(bool rounds, float value) { return rounds ? round_bf16(value) : value; }

// Both branches keep the exponential at most 1, so that nothing overflows and small results keep their relative precision.
[[nodiscard]] inline float sigmoid(float x) {
  const float e = std::exp(-std::fabs(x));
  return x >= 0.0F ? 1.0F / (1.0F + e) : e / (1.0F + e);
}

[[nodiscard]] inline float silu(float x) { return x * sigmoid(x); }

// The identity above 20, as the publisher's kernels do (the difference is below half a float32 ulp).
[[nodiscard]] inline float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }

// One element of SiTU or SwiGLU, not rounded.
[[nodiscard]] inline float activate(const Activation& activation, float gate, float up) {
  if (activation.kind == Activation::Kind::silu) return silu(gate) * up;
  const float bounded_gate = activation.beta * std::tanh(gate / activation.beta) * sigmoid(gate);
  const float bounded_up = activation.linear_beta ? *activation.linear_beta * std::tanh(up / *activation.linear_beta) : up;
  return bounded_gate * bounded_up;
}

}  // namespace weft::ops
