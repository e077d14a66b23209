// Functions of single rows and elements: rms_norm, add, split_groups, sigmoid_gate, gated_activation, residual_mix, kda_gate,
// gated_rms_norm.
#include "ops/suite/builder.h"

namespace weft::ops::suite {
namespace {

constexpr float kEpsilon = 1e-5F;
constexpr std::array<int64_t, 2> kK3Rows = {1, 64};

double elements(int64_t rows, int64_t size) { return static_cast<double>(rows * size); }

// Rows of the awkward sets: another number at each step.
int64_t some_rows(size_t step) {
  constexpr std::array<int64_t, 4> kRows = {1, 3, 17, 33};
  return kRows[step % kRows.size()];
}

// Adds the awkward sizes with changing rows, or `k3` with 1 and 64.
template <class Add>
void add_sizes(CaseSet set, int64_t k3, const Add& add) {
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) add(rows, k3);
    return;
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) add(some_rows(i), kAwkward[i]);
}

std::string rows_of(int64_t rows, int64_t size) { return fmt::format("{} rows {}", size, rows); }

void add_activation(SpecList& list, std::string_view name, const Activation& activation, double range, int64_t rows,
                    int64_t size) {
  list.add(fmt::format("{} {} up to {}", name, rows_of(rows, size), range), [=](CaseBuilder& b) {
    const size_t gate = b.activation("gate", {rows, size}, range);
    const size_t up = b.activation("up", {rows, size}, range);
    const size_t y = b.output("y", {rows, size}, {kPerElement, kPerElement, 1});
    return b.finish(14.0 * elements(rows, size),
                    [=](Context& context, Operands o) { gated_activation(context, activation, o[gate], o[up], o[y]); });
  });
}

void add_mix(SpecList& list, int64_t sources, int64_t rows, int64_t size) {
  list.add(fmt::format("{} sources of {}", sources, rows_of(rows, size)), [=](CaseBuilder& b) {
    std::vector<size_t> from;
    for (int64_t i = 0; i < sources; ++i) {
      from.push_back(b.activation(fmt::format("source {}", i), {rows, size}, 1.0 + static_cast<double>(i)));
    }
    const double range = 3.0 / std::sqrt(static_cast<double>(size));  // logits of about 1
    const size_t w = b.vector("w", {size}, -range, range);
    const Tolerance copy;
    const double exact = 2.0 * of_sum(size);
    const size_t out = b.output("out", {rows, size}, sources == 1 ? copy : Tolerance{exact, exact, 1});
    const size_t p = b.output("probabilities", {rows, sources}, {exact, exact});
    return b.finish(static_cast<double>(sources) * 6.0 * elements(rows, size), [=](Context& context, Operands o) {
      std::vector<TensorView> views;
      for (const size_t index : from) views.emplace_back(o[index]);
      residual_mix(context, views, o[w], kEpsilon, o[out], o[p].as<float>());
    });
  });
}

void add_gate(SpecList& list, std::optional<float> lower_bound, int64_t heads, int64_t size, int64_t rows) {
  list.add(fmt::format("{}x{} rows {} {}", heads, size, rows, lower_bound ? "bounded" : "softplus"), [=](CaseBuilder& b) {
    const size_t z = b.activation("z", {rows, heads * size}, 8.0);
    const size_t a_log = b.vector("a_log", {heads}, 0.0, 2.8);
    const size_t bias = b.vector("dt_bias", {heads * size}, -4.0, 4.0);
    const size_t g = b.output("g", {rows, heads * size}, {kPerElement, kPerElement});
    return b.finish(8.0 * elements(rows, heads * size),
                    [=](Context& context, Operands o) { kda_gate(context, o[z], o[a_log], o[bias], lower_bound, o[g]); });
  });
}

void add_gated_norm(SpecList& list, NormGate kind, int64_t heads, int64_t size, int64_t rows) {
  list.add(fmt::format("{}x{} rows {}{}", heads, size, rows, kind == NormGate::silu ? " silu" : ""), [=](CaseBuilder& b) {
    const size_t o_in = b.activation("o", {rows, heads * size}, 2.0);
    const size_t weight = b.vector("weight", {size}, 0.5, 1.5);
    const size_t gate = b.activation("gate", {rows, heads * size}, 8.0);
    const size_t y = b.output("y", {rows, heads * size}, {kPerElement, kPerElement, 1});
    return b.finish(9.0 * elements(rows, heads * size), [=](Context& context, Operands o) {
      gated_rms_norm(context, o[o_in], o[weight], kEpsilon, o[gate], o[y], kind);
    });
  });
}

void add_norm(SpecList& list, NormRounding rounding, int64_t rows, int64_t size) {
  const bool once = rounding == NormRounding::once;
  list.add(rows_of(rows, size) + (once ? " once" : ""), [=](CaseBuilder& b) {
    const size_t x = b.activation("x", {rows, size}, 3.0);
    const size_t weight = b.vector("weight", {size}, 0.5, 1.5);
    const size_t y = b.output("y", {rows, size}, {kPerElement, kPerElement, once ? 1 : 2});
    return b.finish(4.0 * elements(rows, size),
                    [=](Context& context, Operands o) { rms_norm(context, o[x], o[weight], kEpsilon, o[y], rounding); });
  });
}

// A gate for each element, or one for a row.
void add_sigmoid_gate(SpecList& list, bool one, int64_t rows, int64_t size) {
  list.add(rows_of(rows, size) + (one ? " one gate a row" : ""), [=](CaseBuilder& b) {
    const size_t x = b.activation("x", {rows, size}, 3.0);
    const size_t gate = b.activation("gate", {rows, one ? 1 : size}, one ? 3.0 : 30.0);
    const size_t y = b.output("y", {rows, size}, {kPerElement, kPerElement, 2});
    return b.finish(5.0 * elements(rows, size),
                    [=](Context& context, Operands o) { sigmoid_gate(context, o[x], o[gate], o[y]); });
  });
}

void add_split(SpecList& list, int64_t groups, const std::vector<int64_t>& widths, int64_t rows) {
  list.add(fmt::format("{} groups of {} rows {}", groups, fmt::join(widths, "+"), rows), [=](CaseBuilder& b) {
    int64_t group = 0;
    for (const int64_t width : widths) group += width;
    const size_t x = b.activation("x", {rows, groups * group});
    std::vector<size_t> parts;
    for (size_t i = 0; i < widths.size(); ++i) {
      parts.push_back(b.output(fmt::format("part {}", i), {rows, groups * widths[i]}, {}));
    }
    return b.finish(0.0, [=](Context& context, Operands o) {
      std::vector<MutableTensorView> views;
      for (const size_t part : parts) views.push_back(o[part]);
      split_groups(context, o[x], widths, views);
    });
  });
}

}  // namespace

std::vector<CaseSpec> rms_norm_cases(CaseSet set) {
  SpecList list("rms_norm");
  add_sizes(set, 7168, [&](int64_t rows, int64_t size) { add_norm(list, NormRounding::twice, rows, size); });
  add_sizes(set, 2048, [&](int64_t rows, int64_t size) { add_norm(list, NormRounding::once, rows, size); });
  return std::move(list).take();
}

std::vector<CaseSpec> add_cases(CaseSet set) {
  SpecList list("add");
  add_sizes(set, 7168, [&](int64_t rows, int64_t size) {
    list.add(rows_of(rows, size), [=](CaseBuilder& b) {
      const size_t first = b.activation("a", {rows, size});
      const size_t second = b.activation("b", {rows, size});
      const size_t out = b.output("out", {rows, size}, {});  // one operation: the same bits everywhere
      return b.finish(elements(rows, size), [=](Context& context, Operands o) { add(context, o[first], o[second], o[out]); });
    });
  });
  return std::move(list).take();
}

std::vector<CaseSpec> split_groups_cases(CaseSet set) {
  SpecList list("split_groups");
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) {
      add_split(list, 16, {128, 128, 256, 256}, rows);  // in_proj_qkvz of Qwen3-Next
      add_split(list, 16, {2, 2}, rows);                // in_proj_ba
      add_split(list, 16, {256, 256}, rows);            // q_proj
    }
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const auto width = [&](size_t step) { return kAwkward[(i + step) % kAwkward.size()]; };
    add_split(list, 3, {width(0), width(2), width(5), width(7)}, some_rows(i));
    add_split(list, width(3), {1, width(0)}, some_rows(i + 1));
  }
  add_split(list, 5, {33}, 3);
  return std::move(list).take();
}

std::vector<CaseSpec> sigmoid_gate_cases(CaseSet set) {
  SpecList list("sigmoid_gate");
  add_sizes(set, 12288, [&](int64_t rows, int64_t size) { add_sigmoid_gate(list, false, rows, size); });
  add_sizes(set, 2048, [&](int64_t rows, int64_t size) { add_sigmoid_gate(list, true, rows, size); });
  return std::move(list).take();
}

std::vector<CaseSpec> gated_activation_cases(CaseSet set) {
  SpecList list("gated_activation");
  const Activation situ{Activation::Kind::situ, 4.0F, 25.0F};
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) {
      add_activation(list, "situ", situ, 4.0, rows, 6144);   // shared experts
      add_activation(list, "situ", situ, 4.0, rows, 33792);  // layer 0
    }
    return std::move(list).take();
  }
  for (const double range : {0.01, 4.0, 150.0}) {
    for (size_t i = 0; i < kAwkward.size(); ++i) {
      add_activation(list, "situ", situ, range, some_rows(i), kAwkward[i]);
      add_activation(list, "situ without an up bound", {Activation::Kind::situ, 4.0F, std::nullopt}, range, some_rows(i + 1),
                     kAwkward[i]);
      add_activation(list, "silu", {Activation::Kind::silu, 1.0F, std::nullopt}, range, some_rows(i + 2), kAwkward[i]);
    }
  }
  return std::move(list).take();
}

std::vector<CaseSpec> residual_mix_cases(CaseSet set) {
  SpecList list("residual_mix");
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) {
      for (const int64_t sources : {2, 9}) add_mix(list, sources, rows, 7168);  // layers 0-11; the last layers
    }
    return std::move(list).take();
  }
  for (const int64_t sources : {1, 2, 3, 9, 17}) {
    for (size_t i = 0; i < kAwkward.size(); ++i) add_mix(list, sources, some_rows(i), kAwkward[i]);
  }
  return std::move(list).take();
}

std::vector<CaseSpec> kda_gate_cases(CaseSet set) {
  SpecList list("kda_gate");
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) add_gate(list, -5.0F, 96, 128, rows);
    for (const int64_t rows : kK3Rows) add_gate(list, std::nullopt, 32, 1, rows);  // Qwen3-Next: a decay for each value head
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    add_gate(list, -5.0F, 3, kAwkward[i], some_rows(i));
    add_gate(list, std::nullopt, 3, kAwkward[i], some_rows(i + 1));
  }
  return std::move(list).take();
}

std::vector<CaseSpec> gated_rms_norm_cases(CaseSet set) {
  SpecList list("gated_rms_norm");
  if (set == CaseSet::k3) {
    for (const int64_t rows : kK3Rows) add_gated_norm(list, NormGate::sigmoid, 96, 128, rows);
    for (const int64_t rows : kK3Rows) add_gated_norm(list, NormGate::silu, 32, 128, rows);
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    for (const NormGate kind : {NormGate::sigmoid, NormGate::silu}) {
      add_gated_norm(list, kind, 1 + static_cast<int64_t>(i % 3), kAwkward[i], some_rows(i));
    }
  }
  return std::move(list).take();
}

}  // namespace weft::ops::suite
