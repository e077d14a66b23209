// Elementwise functions inside larger operators. An element's result depends neither on its place nor on the count.
#pragma once

#include <cstdint>
#include <span>

#include "ops/attention_blocks.h"
#include "ops/ops.h"

namespace weft::ops::cpu {

// y[i] = e^x[i]; y may be x. Within 1 ulp.
void exponentials(const float* x, int64_t count, float* y);

// y[i] = 1 / (1 + e^-x[i]); y may be x.
void sigmoids(const float* x, int64_t count, float* y);

// y[i] = SiTU or SwiGLU of gate[i] and up[i]; y may be either; `rounds`: to bf16.
void activate(const Activation& activation, const float* gate, const float* up, int64_t count, bool rounds, float* y);

// As ops::exponentiate of `scale` times the scores; the sum runs in 32 parts.
[[nodiscard]] RunningSoftmax exponentiate(std::span<float> scores, float scale);

}  // namespace weft::ops::cpu
