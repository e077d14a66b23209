// The bit promise: whole call == row by row == any split, with any number of threads, in both profiles, for the reference and
// for the CPU under every dispatch target.
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ops/ops.h"
#include "ops/ops_test_util.h"
#include "ops/targets_test_util.h"

namespace weft::ops {
namespace {

struct Version {
  Backend backend;
  int64_t target;  // of the CPU's operators; 0: the reference, which has none
  Profile profile;
};

std::vector<Version> versions() {
  std::vector<Version> all;
  for (const Profile profile : {Profile::exact, Profile::bf16}) {
    all.push_back({Backend::reference, 0, profile});
    for (const int64_t target : dispatch_targets()) all.push_back({Backend::cpu, target, profile});
  }
  return all;
}

class Invariance : public testing::TestWithParam<Version> {
 protected:
  Invariance() {
    if (GetParam().target != 0) use_.emplace(GetParam().target);
  }

  // `run` computes rows [begin, end) into fresh outputs and returns them, [end - begin, ...] each; `reset` restores the state.
  using Run = std::function<std::vector<Tensor>(Context&, int64_t begin, int64_t end)>;

  void check(
      int64_t rows, const Run& run, const std::function<void()>& reset = [] {},
      const std::function<std::vector<Tensor>()>& state = [] { return std::vector<Tensor>(); }) {
    std::vector<Tensor> wanted;
    std::vector<Tensor> wanted_state;
    for (const int threads : {1, 2, 3}) {
      TestContext context{GetParam().backend, GetParam().profile, threads};
      for (const std::vector<int64_t>& cuts :
           {std::vector<int64_t>{}, {1}, {2, 5}, {3, 4, rows - 4}, {rows - 1}, every(rows)}) {
        reset();
        std::vector<int64_t> ends = cuts;
        ends.push_back(rows);
        std::vector<Tensor> joined;
        int64_t begin = 0;
        for (const int64_t end : ends) {
          std::vector<Tensor> parts = run(context, begin, end);
          if (joined.empty()) {
            for (const Tensor& part : parts) joined.push_back(Tensor::zeros(part.dtype(), {rows, part.shape()[1]}));
          }
          for (size_t i = 0; i < parts.size(); ++i) {
            std::memcpy(rows_of(joined[i], begin, end).data, parts[i].data(), static_cast<size_t>(parts[i].bytes()));
          }
          begin = end;
        }
        std::vector<Tensor> end_state = state();
        if (wanted.empty()) {
          wanted = std::move(joined);
          wanted_state = std::move(end_state);
          continue;
        }
        const std::string what = fmt::format("{} threads, {} calls", threads, ends.size());
        for (size_t i = 0; i < wanted.size(); ++i) expect_same_bits(joined[i].view(), wanted[i].view(), what.c_str());
        for (size_t i = 0; i < wanted_state.size(); ++i) {
          expect_same_bits(end_state[i].view(), wanted_state[i].view(), ("state, " + what).c_str());
        }
      }
    }
  }

  static std::vector<int64_t> every(int64_t rows) {
    std::vector<int64_t> ends;
    for (int64_t t = 1; t < rows; ++t) ends.push_back(t);
    return ends;
  }

  Tensor values(const Shape& shape, double range = 1.0) {
    return random(random_, shape, range, GetParam().profile == Profile::bf16);
  }

  void mla(const suite::WeightForm& form, int64_t latent);
  void route_and_moe(const suite::WeightForm& form);

  Random random_{11};

 private:
  std::optional<UseTarget> use_;
};

INSTANTIATE_TEST_SUITE_P(All, Invariance, testing::ValuesIn(versions()), [](const auto& each) {
  const char* name = each.param.target == 0 ? "reference" : hwy::TargetName(each.param.target);
  return fmt::format("{}_{}", name, to_string(each.param.profile));
});

TEST_P(Invariance, Linear) {
  for (const suite::WeightForm& form : suite::all_forms()) {
    for (const int64_t in : {544, 640, 301}) {
      if (!form.holds(in)) continue;
      if (in == 640 && !form.quantized()) continue;
      const int64_t rows = 71;  // more than the 64 rows that share a decoded panel
      const int64_t out = 147;
      const TestWeight weight = random_weight(random_, form, out, in);
      const Tensor x = values({rows, in});
      check(rows, [&](Context& context, int64_t begin, int64_t end) {
        std::vector<Tensor> y = {empty({end - begin, out})};
        linear(context, rows_of(x, begin, end), weight.view(), y[0].mutable_view());
        return y;
      });
    }
  }
}

TEST_P(Invariance, RowOperators) {
  const int64_t rows = 23;
  const int64_t size = 4 * 97;
  const Tensor a = values({rows, size}, 3.0);
  const Tensor b = values({rows, size}, 3.0);
  const Tensor c = values({rows, size}, 3.0);
  const Tensor weight = values({size});
  const Tensor head_weight = values({97});
  const Tensor a_log = values({4});
  const Tensor one_gate = values({rows, 1}, 3.0);
  const Tensor table = values({rows, 62});
  const auto each = [&](const std::function<void(Context&, int64_t, int64_t, MutableTensorView)>& body) {
    check(rows, [&](Context& context, int64_t begin, int64_t end) {
      std::vector<Tensor> y = {empty({end - begin, size})};
      body(context, begin, end, y[0].mutable_view());
      return y;
    });
  };
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    rms_norm(context, rows_of(a, begin, end), weight.view(), 1e-5F, y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    rms_norm(context, rows_of(a, begin, end), weight.view(), 1e-6F, y, NormRounding::once);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    sigmoid_gate(context, rows_of(a, begin, end), rows_of(one_gate, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    rotate(context, {4, 97}, 62, rows_of(a, begin, end), rows_of(table, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    gated_rms_norm(context, rows_of(a, begin, end), head_weight.view(), 1e-6F, rows_of(b, begin, end), y, NormGate::silu);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    add(context, rows_of(a, begin, end), rows_of(b, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    sigmoid_gate(context, rows_of(a, begin, end), rows_of(b, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    gated_activation(context, {Activation::Kind::situ, 4.0F, 25.0F}, rows_of(a, begin, end), rows_of(b, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    kda_gate(context, rows_of(a, begin, end), a_log.view(), weight.view(), -5.0F, y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    kda_gate(context, rows_of(a, begin, end), a_log.view(), weight.view(), std::nullopt, y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    gated_rms_norm(context, rows_of(a, begin, end), head_weight.view(), 1e-5F, rows_of(b, begin, end), y);
  });
  each([&](Context& context, int64_t begin, int64_t end, MutableTensorView y) {
    const std::array<TensorView, 3> sources = {rows_of(a, begin, end), rows_of(b, begin, end), rows_of(c, begin, end)};
    residual_mix(context, sources, weight.view(), 1e-5F, y);
  });
}

TEST_P(Invariance, SplitGroups) {
  const int64_t rows = 23;
  const Tensor x = values({rows, 5 * (2 + 33)});
  check(rows, [&](Context& context, int64_t begin, int64_t end) {
    std::vector<Tensor> parts = {empty({end - begin, 5 * 2}), empty({end - begin, 5 * 33})};
    split_groups(context, rows_of(x, begin, end), std::array<int64_t, 2>{2, 33},
                 std::array{parts[0].mutable_view(), parts[1].mutable_view()});
    return parts;
  });
}

TEST_P(Invariance, ShortConv) {
  const int64_t rows = 19;
  const int64_t channels = 301;
  const Tensor x = values({rows, channels});
  const Tensor taps = values({channels, 4});
  const Tensor initial = values({3, channels});
  Tensor state;
  check(
      rows,
      [&](Context& context, int64_t begin, int64_t end) {
        std::vector<Tensor> y = {empty({end - begin, channels})};
        const StateSegment segment{0, end - begin, state.as<float>().data(), state.as<float>().data()};
        short_conv(context, rows_of(x, begin, end), taps.view(), {&segment, 1}, y[0].mutable_view());
        return y;
      },
      [&] { state = initial; }, [&] { return std::vector<Tensor>{state}; });
}

TEST_P(Invariance, DeltaRule) {
  for (const DeltaShape& shape : {DeltaShape{5, 5, 33, 33, true}, {2, 2, 64, 64, true}, {2, 6, 33, 65, false}}) {
    const int64_t rows = 21;
    const Shape keys{rows, shape.key_heads * shape.key_size};
    const Tensor q = values(keys);
    const Tensor k = values(keys);
    const Tensor v = values({rows, shape.value_heads * shape.value_size});
    Tensor g = values({rows, shape.value_heads * (shape.decay_per_channel ? shape.key_size : 1)});
    for (float& value : g.as<float>()) value = -5.0F * std::fabs(value);
    const Tensor beta = values({rows, shape.value_heads}, 3.0);
    const Tensor initial = random(random_, {shape.value_heads * shape.key_size, shape.value_size});
    Tensor state;
    check(
        rows,
        [&](Context& context, int64_t begin, int64_t end) {
          std::vector<Tensor> o = {empty({end - begin, shape.value_heads * shape.value_size})};
          const StateSegment segment{0, end - begin, state.as<float>().data(), state.as<float>().data()};
          delta_rule(context, shape, rows_of(q, begin, end), rows_of(k, begin, end), rows_of(v, begin, end),
                     rows_of(g, begin, end), rows_of(beta, begin, end), {&segment, 1}, o[0].mutable_view());
          return o;
        },
        [&] { state = initial; }, [&] { return std::vector<Tensor>{state}; });
  }
}

// Several sequences in one call give each the bits of a call of its own; a later segment may continue an earlier one, and a
// segment may write elsewhere than it reads.
TEST_P(Invariance, StateSegments) {
  const int64_t heads = 3;
  const int64_t d = 17;
  const int64_t rows = 12;
  const Shape wide{rows, heads * d};
  const Tensor q = values(wide);
  const Tensor taps = values({heads * d, 4});
  Tensor g = values(wide);
  for (float& value : g.as<float>()) value = -2.0F * std::fabs(value);
  const Tensor beta = values({rows, heads});
  const Tensor kda_in = random(random_, {heads * d, d});
  const Tensor conv_in = values({3, heads * d});
  TestContext context{GetParam().backend, GetParam().profile, 2};

  const auto run = [&](bool together) {
    // Sequence A: rows 0-4 from `in` to a copy, rows 5-6 on from there; B: rows 7-10 from zero; C: row 11, in place.
    std::vector<Tensor> result;
    for (const bool kda : {true, false}) {
      const Tensor& in = kda ? kda_in : conv_in;
      Tensor a = Tensor::zeros(DType::f32, in.shape());
      Tensor b = random(random_, in.shape());  // old content that must not matter
      Tensor c = in;
      Tensor out = empty(wide);
      const std::array<StateSegment, 4> segments = {StateSegment{0, 5, in.as<float>().data(), a.as<float>().data()},
                                                    StateSegment{5, 2, a.as<float>().data(), a.as<float>().data()},
                                                    StateSegment{7, 4, nullptr, b.as<float>().data()},
                                                    StateSegment{11, 1, c.as<float>().data(), c.as<float>().data()}};
      const auto call = [&](int64_t begin, int64_t end, std::span<const StateSegment> part) {
        if (kda) {
          delta_rule(context, {heads, heads, d, d, true}, rows_of(q, begin, end), rows_of(q, begin, end),
                     rows_of(q, begin, end), rows_of(g, begin, end), rows_of(beta, begin, end), part, rows_of(out, begin, end));
        } else {
          short_conv(context, rows_of(q, begin, end), taps.view(), part, rows_of(out, begin, end));
        }
      };
      if (together) {
        call(0, rows, segments);
      } else {
        for (StateSegment segment : segments) {
          const int64_t begin = segment.first_row;
          segment.first_row = 0;
          call(begin, begin + segment.row_count, {&segment, 1});
        }
      }
      for (Tensor* tensor : {&out, &a, &b, &c}) result.push_back(std::move(*tensor));
      expect_same_bits(in.view(), (kda ? kda_in : conv_in).view(), "input state");
    }
    return result;
  };
  const std::vector<Tensor> together = run(true);
  const std::vector<Tensor> apart = run(false);
  for (size_t i = 0; i < together.size(); ++i) expect_same_bits(together[i].view(), apart[i].view(), "segments");
}

TEST_P(Invariance, Mla) { mla(WeightFormat::bf16, 33); }
TEST_P(Invariance, MlaWithQuantizedWeights) {
  mla(suite::WeightForm::fp8(ScaleType::f32, 100), 160);
  mla(suite::WeightForm::affine(4, 64), 128);
}

void Invariance::mla(const suite::WeightForm& form, int64_t latent) {
  const MlaShape shape{14, 16, 4, 8, latent};
  const int64_t rows = 40;
  const int64_t start = 490;  // the rows cross a block of 256 and pages of 64
  const TestWeight kv_b = random_weight(random_, form, shape.heads * (shape.nope + shape.value), shape.latent);
  const Tensor q = values({rows, shape.heads * (shape.nope + shape.rope)}, 2.0);
  const Tensor c = values({rows, shape.latent});
  const Tensor k_r = values({rows, shape.rope});
  const Tensor initial = values({9 * kPageTokens, shape.latent + shape.rope});
  Tensor cache;
  check(
      rows,
      [&](Context& context, int64_t begin, int64_t end) {
        std::vector<float*> pages;
        for (int64_t i = 0; i < 9; ++i) {
          pages.push_back(cache.as<float>().data() + i * kPageTokens * (shape.latent + shape.rope));
        }
        const PagedSegment segment{0, end - begin, start + begin, pages};
        std::vector<Tensor> results = {empty({end - begin, shape.heads * shape.value}),
                                       empty({end - begin, shape.heads * shape.latent}),
                                       empty({end - begin, shape.heads * shape.latent})};
        mla_append(context, shape, rows_of(c, begin, end), rows_of(k_r, begin, end), {&segment, 1});
        mla_absorb_query(context, shape, rows_of(q, begin, end), kv_b.view(), results[1].mutable_view());
        mla_attention(context, shape, rows_of(q, begin, end), results[1].view(), {&segment, 1}, results[2].mutable_view());
        mla_project_value(context, shape, results[2].view(), kv_b.view(), results[0].mutable_view());
        return results;
      },
      [&] { cache = initial; }, [&] { return std::vector<Tensor>{cache}; });
}

TEST_P(Invariance, Gqa) {
  const GqaShape shape{12, 2, 33};
  const int64_t rows = 40;
  const int64_t start = 490;  // the rows cross a block of 256 and pages of 64
  const int64_t width = shape.kv_heads * shape.size;
  const Tensor q = values({rows, shape.heads * shape.size}, 2.0);
  const Tensor k = values({rows, width});
  const Tensor v = values({rows, width});
  const Tensor initial = values({9 * kPageTokens, 2 * width});
  Tensor cache;
  check(
      rows,
      [&](Context& context, int64_t begin, int64_t end) {
        std::vector<float*> pages;
        for (int64_t i = 0; i < 9; ++i) pages.push_back(cache.as<float>().data() + i * kPageTokens * 2 * width);
        const PagedSegment segment{0, end - begin, start + begin, pages};
        std::vector<Tensor> out = {empty({end - begin, shape.heads * shape.size})};
        gqa_append(context, shape, rows_of(k, begin, end), rows_of(v, begin, end), {&segment, 1});
        gqa_attention(context, shape, rows_of(q, begin, end), {&segment, 1}, out[0].mutable_view());
        return out;
      },
      [&] { cache = initial; }, [&] { return std::vector<Tensor>{cache}; });
}

TEST_P(Invariance, RouteBySoftmax) {
  const int64_t rows = 37;
  const Tensor logits = values({rows, 77}, 3.0);
  check(rows, [&](Context& context, int64_t begin, int64_t end) {
    std::vector<Tensor> results = {empty({end - begin, 10}), Tensor::zeros(DType::i32, {end - begin, 10})};
    route(context, {10, true, 1.0F, RouterRule::Score::softmax}, rows_of(logits, begin, end), {}, results[1].mutable_view(),
          results[0].mutable_view());
    return results;
  });
}

TEST_P(Invariance, RouteAndMoe) { route_and_moe(WeightFormat::mxfp4); }
TEST_P(Invariance, RouteAndMoeWithQuantizedWeights) {
  route_and_moe(suite::WeightForm::fp8(ScaleType::bf16));
  route_and_moe(suite::WeightForm::affine(5, 32));
}

void Invariance::route_and_moe(const suite::WeightForm& form) {
  const int64_t rows = 37;
  const int64_t experts = 11;
  const int64_t size = 64;
  const int64_t middle = 96;
  std::vector<TestWeight> stored;
  for (int64_t e = 0; e < experts; ++e) {
    stored.push_back(random_weight(random_, form, middle, size));
    stored.push_back(random_weight(random_, form, size, middle));
    stored.push_back(random_weight(random_, form, middle, size));
  }
  std::vector<ExpertView> views;
  for (size_t e = 0; e < static_cast<size_t>(experts); ++e) {
    views.push_back({stored[3 * e].view(), stored[3 * e + 1].view(), stored[3 * e + 2].view()});
  }
  const Tensor logits = values({rows, experts}, 3.0);
  const Tensor bias = values({experts}, 0.5);
  const Tensor z = values({rows, size});
  check(rows, [&](Context& context, int64_t begin, int64_t end) {
    std::vector<Tensor> results = {empty({end - begin, size}), Tensor::zeros(DType::i32, {end - begin, 4}),
                                   empty({end - begin, 4})};
    route(context, {4, true, 1.0F}, rows_of(logits, begin, end), bias.view(), results[1].mutable_view(),
          results[2].mutable_view());
    moe(context, {Activation::Kind::situ, 4.0F, 25.0F}, rows_of(z, begin, end), results[1].view(), results[2].view(), views,
        results[0].mutable_view());
    return results;
  });
}

}  // namespace
}  // namespace weft::ops
