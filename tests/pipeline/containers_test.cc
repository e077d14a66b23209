// A checkpoint in each container and weight format gives the logits of its widened twin, the same bits in profile exact.
//
// A tiny fixture is written again twice: in a container (FP8 blocks; a conversion of MLX; fused experts) and with the float32
// values that its stored weights mean. The quantisers here are the tests' own.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/guard.h"
#include "formats/mx.h"
#include "formats/safetensors.h"
#include "tensor/bf16.h"

#include "support/models.h"

namespace weft {
namespace {

using namespace testing_support;
using testing::HasSubstr;

struct Stored {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> bytes;
};
using Tensors = std::map<std::string, Stored>;

struct Model {
  Json config;
  Tensors tensors;
};

Model read_model(const std::filesystem::path& dir) {
  Model model{read_json_file(dir / "config.json"), {}};
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("model") || entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const TensorEntry& tensor : file.entries()) {
      const std::span<const std::byte> bytes = file.bytes(tensor);
      model.tensors[tensor.name] = {tensor.dtype, tensor.shape, {bytes.begin(), bytes.end()}};
    }
  }
  return model;
}

void write_model(const std::filesystem::path& dir, const Model& model) {
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << model.config.dump(1);
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : model.tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  SafetensorsWriter writer(dir / "model.safetensors", specs);
  for (const auto& [name, tensor] : model.tensors) writer.append(name, tensor.bytes);
  writer.finish();
}

std::vector<float> values_of(const Stored& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.shape.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    if (tensor.dtype == DType::f32) std::memcpy(&values[i], tensor.bytes.data() + 4 * i, 4);
    if (tensor.dtype == DType::bf16) {
      std::memcpy(&half, tensor.bytes.data() + 2 * i, 2);
      values[i] = bf16_to_f32(half);
    }
  }
  return values;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
Stored f32_tensor(const Shape& shape, const std::vector<float>& values) { return {DType::f32, shape, bytes_of(values)}; }

float rounded(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// A matrix in a format, and the values that it then has.
struct Quantized {
  Tensors parts;  // by suffix of the module's name
  std::vector<float> values;
};

float e4m3_value(unsigned code) {
  const unsigned exponent = code >> 3U & 15U;
  const float magnitude =
      std::ldexp(static_cast<float>((code & 7U) + (exponent > 0 ? 8U : 0U)), static_cast<int>(std::max(1U, exponent)) - 10);
  return (code & 128U) != 0 ? -magnitude : magnitude;
}

Quantized to_fp8(const std::vector<float>& values, int64_t out, int64_t in, DType scale_dtype) {
  const int64_t down = (out + 127) / 128;
  const int64_t across = (in + 127) / 128;
  std::vector<float> scales(static_cast<size_t>(down * across), 0x1p-20F);
  for (int64_t i = 0; i < out * in; ++i) {
    float& scale = scales[static_cast<size_t>(i / in / 128 * across + i % in / 128)];
    scale = std::max(scale, std::fabs(values[static_cast<size_t>(i)]) / 440.0F);
  }
  if (scale_dtype == DType::bf16) std::ranges::transform(scales, scales.begin(), rounded);
  Quantized made;
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < out * in; ++i) {
    const float scale = scales[static_cast<size_t>(i / in / 128 * across + i % in / 128)];
    const float wanted = values[static_cast<size_t>(i)] / scale;
    unsigned best = 0;
    for (unsigned code = 0; code < 256; ++code) {
      if ((code & 127U) != 127 && std::fabs(e4m3_value(code) - wanted) < std::fabs(e4m3_value(best) - wanted)) best = code;
    }
    codes.push_back(static_cast<uint8_t>(best));
    made.values.push_back(e4m3_value(best) * scale);
  }
  made.parts[".weight"] = {DType::f8_e4m3, {out, in}, bytes_of(codes)};
  if (scale_dtype == DType::f32) {
    made.parts[".weight_scale_inv"] = f32_tensor({down, across}, scales);
  } else {
    std::vector<uint16_t> halves;
    for (const float scale : scales) halves.push_back(f32_to_bf16(scale));
    made.parts[".weight_scale_inv"] = {DType::bf16, {down, across}, bytes_of(halves)};
  }
  return made;
}

// `lead`: the extents of the stored tensor but the last; their product is `out`.
Quantized to_affine(const std::vector<float>& values, const std::vector<int64_t>& lead, int64_t in, int64_t bits,
                    int64_t group) {
  int64_t out = 1;
  for (const int64_t extent : lead) out *= extent;
  const auto highest = static_cast<float>((1 << bits) - 1);
  std::vector<uint16_t> scales;
  std::vector<uint16_t> biases;
  std::vector<uint32_t> words(static_cast<size_t>(out * in * bits / 32));
  Quantized made;
  for (int64_t g = 0; g < out * in / group; ++g) {
    const auto first = values.begin() + g * group;
    const auto [low, high] = std::minmax_element(first, first + group);
    const float bias = rounded(*low);
    const float scale = rounded(std::max(*high - *low, 1e-6F) / highest);
    scales.push_back(f32_to_bf16(scale));
    biases.push_back(f32_to_bf16(bias));
    for (int64_t i = g * group; i < (g + 1) * group; ++i) {
      const auto code =
          static_cast<uint32_t>(std::clamp(std::round((values[static_cast<size_t>(i)] - bias) / scale), 0.0F, highest));
      for (int64_t bit = 0; bit < bits; ++bit) {  // consecutive bits of the row, lowest first
        const int64_t at = i * bits + bit;
        words[static_cast<size_t>(at / 32)] |= (code >> bit & 1U) << (at % 32);
      }
      made.values.push_back(static_cast<float>(code) * scale + bias);
    }
  }
  const auto shape = [&](int64_t last) {
    std::vector<int64_t> extents = lead;
    extents.push_back(last);
    return Shape(std::span<const int64_t>(extents));
  };
  made.parts[".weight"] = {DType::u32, shape(in * bits / 32), bytes_of(words)};
  made.parts[".scales"] = {DType::bf16, shape(in / group), bytes_of(scales)};
  made.parts[".biases"] = {DType::bf16, shape(in / group), bytes_of(biases)};
  return made;
}

void replace(std::string& text, std::string_view from, std::string_view to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

class Containers : public testing::Test {
 protected:
  std::vector<float> logits(const Model& model, ops::Backend backend, ops::Profile profile = ops::Profile::exact) {
    const std::filesystem::path dir = folder_.path() / std::to_string(count_++);
    write_model(dir, model);
    const std::vector<int32_t> ids = {3, 141, 59, 265, 35, 89, 7, 9, 300, 2, 3, 8};
    const auto executor = open_executor(dir, {.backend = backend, .profile = profile});
    return feed(*executor, executor->create(), ids, 7);
  }
  void expect_same(const Model& model, const Model& twin) {
    for (const ops::Backend backend : {ops::Backend::reference, ops::Backend::cpu}) {
      const std::vector<float> found = logits(model, backend);
      const std::vector<float> wanted = logits(twin, backend);
      ASSERT_EQ(found.size(), wanted.size());
      EXPECT_EQ(std::memcmp(found.data(), wanted.data(), found.size() * 4), 0) << ops::to_string(backend);
      EXPECT_TRUE(std::ranges::all_of(found, [](float value) { return std::isfinite(value); }));
    }
  }
  std::string refusal(const Model& model) {
    const std::filesystem::path dir = folder_.path() / std::to_string(count_++);
    write_model(dir, model);
    const auto failure = guard([&] {
      const auto checkpoint = std::make_shared<const Checkpoint>(dir);
      checkpoint->require(checkpoint->all_layers());
      const auto executor = open_executor(checkpoint);
      (void)feed(*executor, executor->create(), std::vector<int32_t>{1, 2, 3}, 3);
      for (LayerIndex layer(0); layer < LayerIndex(checkpoint->config().layer_count); ++layer) {  // routed to or not
        if (!checkpoint->config().is_moe(layer)) continue;
        for (int64_t e = 0; e < checkpoint->config().experts; ++e) checkpoint->check_expert_scales(layer, e);
      }
    });
    return failure ? failure->message : "no error";
  }

  TemporaryFolder folder_;
  int count_ = 0;
};

bool is_matrix(const std::string& name, const Stored& tensor) {
  return tensor.shape.rank() == 2 && name.ends_with(".weight") && name.find("norm") == std::string::npos &&
         name.find("res_proj") == std::string::npos;
}
std::string module_of(const std::string& name) { return name.substr(0, name.size() - std::string_view(".weight").size()); }

// --- FP8 ---

struct Pair {
  Model model;
  Model twin;
};

Pair fp8_pair(DType scale_dtype) {
  Pair pair{read_model(fixture("tiny-qwen3-next-8l")), {}};
  pair.twin = pair.model;
  Json skipped = Json::array({"lm_head"});
  for (const auto& [name, tensor] : pair.twin.tensors) {
    if (!is_matrix(name, tensor) || name.find("embed") != std::string::npos || name == "lm_head.weight") continue;
    const std::string module = module_of(name);
    if (module.ends_with("in_proj_ba") || module.ends_with("mlp.gate") || module.ends_with("shared_expert_gate")) {
      skipped.push_back(module);
      continue;
    }
    const Quantized made = to_fp8(values_of(tensor), tensor.shape[0], tensor.shape[1], scale_dtype);
    for (const auto& [suffix, part] : made.parts) pair.model.tensors[module + suffix] = part;
    pair.twin.tensors[name] = f32_tensor(tensor.shape, made.values);
  }
  pair.model.config["quantization_config"] = {{"quant_method", "fp8"},
                                              {"fmt", "e4m3"},
                                              {"activation_scheme", "dynamic"},
                                              {"weight_block_size", {128, 128}},
                                              {"modules_to_not_convert", skipped}};
  return pair;
}

TEST_F(Containers, Fp8Blocks) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Pair pair = fp8_pair(dtype);
    expect_same(pair.model, pair.twin);
  }
}

TEST_F(Containers, Fp8IsRefusedWhereItIsWrong) {
  const Pair pair = fp8_pair(DType::bf16);
  const std::string expert = "model.layers.2.mlp.experts.5.up_proj";
  const std::string dense = "model.layers.1.linear_attn.out_proj";
  const auto changed = [&](const std::function<void(Model&)>& change) {
    Model model = pair.model;
    change(model);
    return refusal(model);
  };
  EXPECT_EQ(refusal(pair.model), "no error");
  EXPECT_THAT(changed([&](Model& m) { m.tensors.erase(dense + ".weight_scale_inv"); }),
              HasSubstr("tensor '" + dense + ".weight': missing scale tensor '" + dense + ".weight_scale_inv'"));
  EXPECT_THAT(changed([&](Model& m) { m.tensors.erase(dense + ".weight"); }),
              HasSubstr("tensor '" + dense + ".weight_scale_inv': orphan scale, no '" + dense + ".weight'"));
  EXPECT_THAT(changed([&](Model& m) { m.config.erase("quantization_config"); }),
              HasSubstr("wanted \"quant_method\": \"fp8\" in config.json for F8_E4M3 weights"));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization_config"]["weight_block_size"] = {64, 128}; }),
              HasSubstr("quantization_config.weight_block_size: wanted [128,128], found [64,128]"));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization_config"]["modules_to_not_convert"].push_back(dense); }),
              HasSubstr("tensor '" + dense + ".weight': wanted a plain tensor, as modules_to_not_convert"));
  EXPECT_THAT(changed([&](Model& m) { m.tensors[dense + ".weight"].bytes[70] = std::byte{0xFF}; }),
              HasSubstr("'" + dense + ".weight' in 'model.safetensors', row 1, column 6: wanted a number, found an E4M3 code"));
  for (const std::string& module : {dense, expert}) {
    EXPECT_THAT(
        changed([&](Model& m) {
          const uint16_t nan = 0x7FC0;
          std::memcpy(m.tensors[module + ".weight_scale_inv"].bytes.data(), &nan, 2);
        }),
        HasSubstr("'" + module + ".weight_scale_inv' in 'model.safetensors', row 0, block 0: wanted a number below 2^120"));
  }
  EXPECT_THAT(changed([&](Model& m) {
                m.tensors["model.layers.0.input_layernorm.weight_scale_inv"] = m.tensors[dense + ".weight_scale_inv"];
              }),
              HasSubstr("wanted a quantized 'model.layers.0.input_layernorm.weight' beside it"));
}

// --- fused experts ---

TEST_F(Containers, FusedExperts) {
  const Model plain = read_model(fixture("tiny-qwen3-next-8l"));
  Model fused{plain.config, {}};
  for (const auto& [name, tensor] : plain.tensors) {
    const size_t at = name.find(".experts.");
    if (at == std::string::npos) {
      fused.tensors[name] = tensor;
      continue;
    }
    if (!name.ends_with(".experts.0.gate_proj.weight")) continue;
    const std::string stem = name.substr(0, at + std::string_view(".experts").size());
    Stored both{tensor.dtype, {8, 2 * tensor.shape[0], tensor.shape[1]}, {}};
    Stored down{tensor.dtype, {8, tensor.shape[1], tensor.shape[0]}, {}};
    for (int e = 0; e < 8; ++e) {
      for (const char* part : {"gate_proj", "up_proj"}) {
        const std::vector<std::byte>& bytes = plain.tensors.at(fmt::format("{}.{}.{}.weight", stem, e, part)).bytes;
        both.bytes.insert(both.bytes.end(), bytes.begin(), bytes.end());
      }
      const std::vector<std::byte>& bytes = plain.tensors.at(fmt::format("{}.{}.down_proj.weight", stem, e)).bytes;
      down.bytes.insert(down.bytes.end(), bytes.begin(), bytes.end());
    }
    fused.tensors[stem + ".gate_up_proj"] = both;
    fused.tensors[stem + ".down_proj"] = down;
  }
  expect_same(fused, plain);
  fused.tensors["model.layers.1.mlp.experts.gate_up_proj"].shape = {8, 64, 32};
  fused.tensors["model.layers.1.mlp.experts.gate_up_proj"].bytes.resize(size_t{8} * 64 * 32 * 2);
  EXPECT_THAT(refusal(fused), HasSubstr("tensor 'model.layers.1.mlp.experts.gate_up_proj': wanted BF16 [8, 64, 64]"));
}

// --- MLX ---

struct MlxOptions {
  int64_t bits = 4;
  int64_t group = 32;
};

// Stacks the experts of `stem`.{e}.`part`.weight.
Stored stacked(const Tensors& from, const std::string& stem, std::string_view part, std::string_view suffix, int64_t experts) {
  Stored all;
  for (int64_t e = 0; e < experts; ++e) {
    const Stored& one = from.at(fmt::format("{}{}.{}.{}", stem, e, part, suffix));
    all.dtype = one.dtype;
    all.shape = {experts, one.shape[0], one.shape[1]};
    all.bytes.insert(all.bytes.end(), one.bytes.begin(), one.bytes.end());
  }
  return all;
}

// What mlx_lm's quantisation does to the matrices of `from`: whole groups only, the router at 8 bits in groups of 64 where
// they are whole.
void quantize_mlx(Model& model, Model& twin, const MlxOptions& options) {
  Json rules = {{"group_size", options.group}, {"bits", options.bits}, {"mode", "affine"}};
  const Tensors from = model.tensors;
  for (const auto& [name, tensor] : from) {
    if (!name.ends_with(".weight") || (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16)) continue;
    const bool planes = tensor.shape.rank() == 3 && name.find("conv") == std::string::npos;
    if (!is_matrix(name, tensor) && !planes) continue;
    const std::string module = module_of(name);
    const bool router = module.ends_with("mlp.gate") || module.ends_with("shared_expert_gate");
    int64_t bits = options.bits;
    int64_t group = options.group;
    const int64_t in = tensor.shape[tensor.shape.rank() - 1];
    if (router && in % 64 == 0) {
      bits = 8;
      group = 64;
      rules[module] = {{"group_size", group}, {"bits", bits}};
    }
    if (in % group != 0) continue;
    std::vector<int64_t> lead;
    for (int axis = 0; axis + 1 < tensor.shape.rank(); ++axis) lead.push_back(tensor.shape[axis]);
    const Quantized made = to_affine(values_of(tensor), lead, in, bits, group);
    for (const auto& [suffix, part] : made.parts) model.tensors[module + suffix] = part;
    twin.tensors[name] = f32_tensor(tensor.shape, made.values);
  }
  model.config["quantization"] = rules;
  model.config["quantization_config"] = rules;
}

Model mlx_qwen(const Model& plain) {
  Model made{plain.config, {}};
  for (const auto& [name, tensor] : plain.tensors) {
    const size_t at = name.find(".experts.");
    if (at != std::string::npos) {
      if (name.find(".experts.0.") == std::string::npos) continue;
      const std::string part = module_of(name.substr(at + std::string_view(".experts.0.").size()));
      made.tensors[fmt::format("{}.switch_mlp.{}.weight", name.substr(0, at), part)] =
          stacked(plain.tensors, name.substr(0, at + std::string_view(".experts.").size()), part, "weight", 8);
    } else if (name.ends_with("conv1d.weight")) {
      made.tensors[name] = {tensor.dtype, {tensor.shape[0], tensor.shape[2], 1}, tensor.bytes};
    } else if (name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight")) {
      std::vector<float> values = values_of(tensor);
      for (float& value : values) value += 1.0F;
      made.tensors[name] = f32_tensor(tensor.shape, values);
    } else {
      made.tensors[name] = tensor;
    }
  }
  return made;
}

// The published layout with the experts' planes of a conversion.
Model unstacked_qwen(const Model& published, const Model& converted) {
  Model made = published;
  for (const auto& [name, tensor] : converted.tensors) {
    if (tensor.dtype == DType::u32 || name.ends_with(".scales") || name.ends_with(".biases")) continue;
    const size_t at = name.find(".switch_mlp.");
    if (at == std::string::npos) {
      if (is_matrix(name, tensor)) made.tensors[name] = tensor;
      continue;
    }
    const std::string part = name.substr(at + std::string_view(".switch_mlp.").size());
    const size_t size = tensor.bytes.size() / 8;
    for (size_t e = 0; e < 8; ++e) {
      const auto first = tensor.bytes.begin() + static_cast<int64_t>(e * size);
      made.tensors[fmt::format("{}.experts.{}.{}", name.substr(0, at), e, part)] = {
          tensor.dtype, {tensor.shape[1], tensor.shape[2]}, {first, first + static_cast<int64_t>(size)}};
    }
  }
  return made;
}

TEST_F(Containers, MlxQwen3Next) {
  const Model published = read_model(fixture("tiny-qwen3-next-8l"));
  const Model converted = mlx_qwen(published);
  expect_same(converted, published);  // without quantisation
  for (const MlxOptions& options : {MlxOptions{4, 32}, {4, 64}, {8, 64}, {2, 32}, {3, 32}, {5, 32}, {6, 64}}) {
    SCOPED_TRACE(fmt::format("{} bits, groups of {}", options.bits, options.group));
    Model model = converted;
    Model twin = converted;
    quantize_mlx(model, twin, options);
    EXPECT_EQ(model.tensors.at("model.layers.0.mlp.switch_mlp.up_proj.weight").dtype, DType::u32);
    expect_same(model, twin);
    expect_same(model, unstacked_qwen(published, twin));
  }
}

TEST_F(Containers, MlxIsRefusedWhereItIsWrong) {
  const Model converted = mlx_qwen(read_model(fixture("tiny-qwen3-next-8l")));
  Model model = converted;
  Model twin = converted;
  quantize_mlx(model, twin, {4, 32});
  const std::string dense = "model.layers.1.linear_attn.out_proj";
  const auto changed = [&](const std::function<void(Model&)>& change) {
    Model other = model;
    change(other);
    return refusal(other);
  };
  EXPECT_EQ(refusal(model), "no error");
  EXPECT_THAT(changed([&](Model& m) { m.tensors.erase(dense + ".scales"); }),
              HasSubstr("tensor '" + dense + ".weight': missing scale tensor '" + dense + ".scales'"));
  EXPECT_THAT(changed([&](Model& m) { m.tensors.erase(dense + ".biases"); }),
              HasSubstr("tensor '" + dense + ".weight': missing biases '" + dense + ".biases'"));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization"]["bits"] = 8; }), HasSubstr("wanted U32"));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization"][dense] = false; }),
              HasSubstr("config.json states no quantization of it"));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization"]["mode"] = "nvfp4"; }),
              HasSubstr("quantization.mode: wanted \"affine\" or \"mxfp4\", found \"nvfp4\""));
  EXPECT_THAT(changed([&](Model& m) { m.config["quantization"]["bits"] = 7; }), HasSubstr("found {"));
  EXPECT_THAT(changed([&](Model& m) {
                const uint16_t infinite = 0x7F80;
                std::memcpy(m.tensors[dense + ".biases"].bytes.data() + 2 * 3, &infinite, 2);
              }),
              HasSubstr("'" + dense + ".biases' in 'model.safetensors', row 1, group 1: wanted a finite number, found inf"));
}

// A conversion of K3 or Kimi Linear. `fuse`: the projections and convolutions of KDA. `heads`, `nope`: of MLA; 0 heads leave
// kv_b_proj as it is.
Model mlx_kimi(const Model& plain, bool fuse, int64_t heads, int64_t nope) {
  Model made{plain.config, {}};
  for (const auto& [name, tensor] : plain.tensors) {
    std::string to = name;
    Stored stored = tensor;
    if (name.find("block_sparse_moe.") != std::string::npos) replace(to, "block_sparse_moe.", "mlp.");
    replace(to, "mlp.gate.e_score", "mlp.e_score");
    if (const size_t at = to.find(".experts."); at != std::string::npos) {
      if (name.find(".experts.0.") == std::string::npos) continue;
      std::string part = to.substr(at + std::string_view(".experts.0.").size());
      const std::string source = name.substr(0, name.find(".experts.0.") + std::string_view(".experts.").size());
      const std::string matrix = part.substr(0, 2);
      stored = stacked(plain.tensors, source, matrix, part.substr(3), 8);
      if (stored.dtype == DType::u8 && part.ends_with("_packed")) {  // the same bytes as words
        stored.dtype = DType::u32;
        stored.shape = {stored.shape[0], stored.shape[1], stored.shape[2] / 4};
      }
      replace(part, ".weight_scale", ".scales");
      replace(part, "_packed", "");
      replace(part, "w1.", "gate_proj.");
      replace(part, "w2.", "down_proj.");
      replace(part, "w3.", "up_proj.");
      to = to.substr(0, at) + ".switch_mlp." + part;
    } else if (to.find("_conv1d.weight") != std::string::npos) {
      replace(to, "_conv1d.", "_conv.conv.");
      stored.shape = {tensor.shape[0], tensor.shape[2], 1};
    } else if (to.ends_with("kv_b_proj.weight") && heads > 0) {
      const std::vector<float> values = values_of(tensor);
      const int64_t latent = tensor.shape[1];
      const int64_t value = tensor.shape[0] / heads - nope;
      std::vector<float> keys;
      std::vector<float> outs;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t c = 0; c < latent; ++c)
          for (int64_t i = 0; i < nope; ++i) keys.push_back(values[static_cast<size_t>((h * (nope + value) + i) * latent + c)]);
        for (int64_t i = 0; i < value * latent; ++i)
          outs.push_back(values[static_cast<size_t>((h * (nope + value) + nope) * latent + i)]);
      }
      replace(to, "kv_b_proj", "embed_q");
      made.tensors[to] = f32_tensor({heads, latent, nope}, keys);
      replace(to, "embed_q", "unembed_out");
      made.tensors[to] = f32_tensor({heads, value, latent}, outs);
      continue;
    }
    made.tensors[to] = stored;
  }
  if (fuse) {
    const Tensors all = made.tensors;
    for (const auto& [name, tensor] : all) {
      for (const char* suffix : {"_proj.weight", "_conv.conv.weight"}) {
        const std::string first = fmt::format(".self_attn.q{}", suffix);
        if (!name.ends_with(first)) continue;
        const std::string stem = name.substr(0, name.size() - first.size()) + ".self_attn.";
        if (!all.contains(stem + "k" + suffix)) continue;  // MLA
        Stored three = tensor;
        three.shape = tensor.shape.rank() == 2 ? Shape{3 * tensor.shape[0], tensor.shape[1]}
                                               : Shape{3 * tensor.shape[0], tensor.shape[1], tensor.shape[2]};
        for (const char* other : {"k", "v"}) {
          const std::vector<std::byte>& more = all.at(stem + other + suffix).bytes;
          three.bytes.insert(three.bytes.end(), more.begin(), more.end());
        }
        for (const char* other : {"q", "k", "v"}) made.tensors.erase(stem + other + suffix);
        made.tensors[stem + "qkv" + suffix] = three;
      }
    }
  }
  return made;
}

TEST_F(Containers, MlxKimiLinear) {
  const Model published = read_model(fixture("tiny-kimi-linear"));
  const Model converted = mlx_kimi(published, false, 0, 0);
  expect_same(converted, published);
  for (const MlxOptions& options : {MlxOptions{4, 32}, {6, 32}}) {
    Model model = converted;
    Model twin = converted;
    quantize_mlx(model, twin, options);
    expect_same(model, twin);
  }
}

TEST_F(Containers, MlxK3WithPackedExperts) {
  const Model published = read_model(fixture("tiny-k3-8l"));
  Model converted = mlx_kimi(published, true, 4, 32);
  converted.config["text_config"].erase("quantization_config");
  Model twin = converted;
  quantize_mlx(converted, twin, {8, 32});
  for (const auto& [name, tensor] : twin.tensors) {
    if (name.find(".switch_mlp.") != std::string::npos && tensor.dtype == DType::u32) {
      for (const char* key : {"quantization", "quantization_config"}) {
        const Json rule = {{"group_size", 32}, {"bits", 4}, {"mode", "mxfp4"}};
        converted.config[key][module_of(name)] = rule;
        twin.config[key]["group_size"] = 32;  // the twin's experts stay packed: their own twins are tested in tests/ops
        twin.config[key]["bits"] = 8;
        twin.config[key][module_of(name)] = rule;
      }
    }
  }
  expect_same(converted, twin);
  // Without quantisation beside the packed experts: the published model in other names. Keys stand transposed, so sums of the
  // query side are taken in another order.
  Model renamed = mlx_kimi(published, true, 4, 32);
  renamed.config["text_config"].erase("quantization_config");
  renamed.config["quantization"] = twin.config["quantization"];
  const std::vector<float> found = logits(renamed, ops::Backend::cpu);
  const std::vector<float> wanted = logits(published, ops::Backend::cpu);
  double error = 0.0;
  double largest = 0.0;
  for (size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::fabs(static_cast<double>(found[i]) - wanted[i]));
    largest = std::max(largest, std::fabs(static_cast<double>(wanted[i])));
  }
  EXPECT_LE(error, 1e-5 * largest);
}

// Rows of a stored matrix in another order.
Stored rows_of(const Stored& tensor, const std::vector<int64_t>& rows) {
  const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
  Stored made{tensor.dtype, {std::ssize(rows), tensor.shape[1]}, {}};
  for (const int64_t row : rows) {
    const auto from = tensor.bytes.begin() + row * static_cast<int64_t>(row_bytes);
    made.bytes.insert(made.bytes.end(), from, from + static_cast<int64_t>(row_bytes));
  }
  return made;
}

// Qwen3.5 has the rows of Qwen3-Next's interleaved projections sorted (Qwen3-Next spec 2.2, general form, and 11.2).
Tensors sorted_projections(const Tensors& tensors, const Json& config, const std::string& prefix) {
  const auto size_of = [&](const char* key) { return config.at(key).get<int64_t>(); };
  const int64_t keys = size_of("linear_num_key_heads");
  const int64_t values = size_of("linear_num_value_heads");
  const int64_t dk = size_of("linear_key_head_dim");
  const int64_t dv = size_of("linear_value_head_dim");
  const int64_t r = values / keys;
  const int64_t group = 2 * dk + 2 * r * dv;
  std::vector<int64_t> qkv;
  std::vector<int64_t> z;
  std::vector<int64_t> b;
  std::vector<int64_t> a;
  for (const int64_t part : {int64_t{0}, dk}) {
    for (int64_t head = 0; head < keys; ++head) {
      for (int64_t d = 0; d < dk; ++d) qkv.push_back(head * group + part + d);
    }
  }
  for (int64_t head = 0; head < values; ++head) {
    for (int64_t d = 0; d < dv; ++d) {
      qkv.push_back(head / r * group + 2 * dk + head % r * dv + d);
      z.push_back(qkv.back() + r * dv);
    }
    b.push_back(head / r * 2 * r + head % r);
    a.push_back(b.back() + r);
  }
  Tensors made;
  for (const auto& [name, tensor] : tensors) {
    const std::string to = name.starts_with("model.") ? prefix + name.substr(6) : name;
    const std::string stem = to.substr(0, to.rfind("in_proj_"));
    if (name.ends_with("in_proj_qkvz.weight")) {
      made[stem + "in_proj_qkv.weight"] = rows_of(tensor, qkv);
      made[stem + "in_proj_z.weight"] = rows_of(tensor, z);
    } else if (name.ends_with("in_proj_ba.weight")) {
      made[stem + "in_proj_b.weight"] = rows_of(tensor, b);
      made[stem + "in_proj_a.weight"] = rows_of(tensor, a);
    } else {
      made[to] = tensor;
    }
  }
  return made;
}

TEST(Qwen35, FlatAndInAWrapperIsQwen3NextWithSortedRows) {
  const Model next = read_model(fixture("tiny-qwen3-next-8l"));
  const std::vector<int32_t> ids = Goldens(fixture("tiny-qwen3-next-8l") / "goldens.safetensors").ids("p2.ids");
  const std::vector<float> wanted = logits_of(*open_executor(fixture("tiny-qwen3-next-8l")), ids, 64);
  Json text = next.config;
  for (const char* key : {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size"}) text.erase(key);
  text["model_type"] = "qwen3_5_moe_text";
  text["rope_parameters"]["mrope_interleaved"] = true;
  text["rope_parameters"]["mrope_section"] = {2, 1, 1};

  const TemporaryFolder folder;
  write_model(folder.path() / "flat", {text, sorted_projections(next.tensors, text, "model.")});
  EXPECT_TRUE(same_bits(wanted, logits_of(*open_executor(folder.path() / "flat"), ids, 64)));

  Model wrapper{{{"model_type", "qwen3_5_moe"}, {"text_config", text}},
                sorted_projections(next.tensors, text, "model.language_model.")};
  wrapper.tensors["model.visual.patch_embed.proj.weight"] = f32_tensor({2, 2}, {1.0F, 2.0F, 3.0F, 4.0F});
  wrapper.tensors["model.language_model.mtp.fc.weight"] = f32_tensor({2, 2}, {1.0F, 2.0F, 3.0F, 4.0F});
  write_model(folder.path() / "wrapper", wrapper);
  EXPECT_TRUE(same_bits(wanted, logits_of(*open_executor(folder.path() / "wrapper"), ids, 64)));
  EXPECT_THAT(Checkpoint(folder.path() / "wrapper").notes(),
              testing::ElementsAre(HasSubstr("vision"), HasSubstr("multi-token prediction")));
}

// Names of MLX in parts that are not loaded make no conversion of a checkpoint: its norms would be taken to hold the 1.
TEST(NotLoaded, PartsThatAreNotLoadedDecideNothing) {
  const std::vector<int32_t> ids = {3, 14, 15, 92, 65};
  const std::vector<float> wanted = logits_of(*open_executor(fixture("tiny-qwen3-next-8l")), ids, 5);
  for (const std::string name :
       {"mtp.layers.0.mlp.gate.scales", "model.visual.x.scales", "model.layers.9.mlp.switch_mlp.up_proj.weight"}) {
    const TemporaryFolder folder;
    Model model = read_model(fixture("tiny-qwen3-next-8l"));
    model.tensors[name] = f32_tensor({2, 2}, {1.0F, 2.0F, 3.0F, 4.0F});
    write_model(folder.path() / "model", model);
    EXPECT_TRUE(same_bits(wanted, logits_of(*open_executor(folder.path() / "model"), ids, 5))) << name;
  }
}

TEST(NotLoaded, TheHeadOfATiedModelIsIgnoredInEveryForm) {
  const TemporaryFolder folder;
  Model model = read_model(fixture("tiny-qwen3-next-tied-mlponly"));
  for (const char* part : {"weight", "biases", "weight_scale_inv"}) {
    model.tensors[std::string("lm_head.") + part] = f32_tensor({2, 2}, {1.0F, 2.0F, 3.0F, 4.0F});
  }
  write_model(folder.path() / "model", model);
  const Checkpoint checkpoint(folder.path() / "model");
  checkpoint.require(checkpoint.all_layers());
  EXPECT_THAT(checkpoint.notes(), testing::Contains(HasSubstr("the embeddings are tied")));
}

}  // namespace
}  // namespace weft
