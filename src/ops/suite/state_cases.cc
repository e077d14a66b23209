// Operators of recurrent state: short_conv, delta_rule.
#include "ops/suite/builder.h"

namespace weft::ops::suite {
namespace {

// Several sequences in one call: A continues from `in` to another slot, B starts from zeros (and is one row shorter than a
// convolution's history), C decodes one row in place, D prefills in place.
struct Sequences {
  static constexpr int64_t kRows = 20;
  size_t in = 0;
  size_t a = 0;
  size_t b = 0;
  size_t c = 0;
  size_t d = 0;

  Sequences(CaseBuilder& builder, const Shape& state, const Tolerance& tolerance)
      : in(builder.vector("state of A before", state, -1.0, 1.0)),
        a(builder.output("state of A", state, tolerance)),
        b(builder.output("state of B", state, tolerance)),
        c(builder.state("state of C", state, tolerance)),
        d(builder.state("state of D", state, tolerance)) {}

  [[nodiscard]] std::array<StateSegment, 4> segments(Operands o) const {
    const auto at = [&](size_t index) { return o[index].as<float>().data(); };
    return {StateSegment{0, 5, at(in), at(a)}, StateSegment{5, 2, nullptr, at(b)}, StateSegment{7, 1, at(c), at(c)},
            StateSegment{8, 12, at(d), at(d)}};
  }
};

// The sizes of a model: one sequence, in place.
struct Sequence {
  int64_t rows = 0;
  size_t slot = 0;

  Sequence(CaseBuilder& builder, int64_t row_count, const Shape& state, const Tolerance& tolerance)
      : rows(row_count), slot(builder.state("state", state, tolerance)) {}

  [[nodiscard]] std::array<StateSegment, 1> segments(Operands o) const {
    return {StateSegment{0, rows, o[slot].as<float>().data(), o[slot].as<float>().data()}};
  }
};

template <class MakeSequences>
Case conv_case(CaseBuilder& b, int64_t channels, int64_t kernel, int64_t rows, const MakeSequences& make) {
  const size_t x = b.activation("x", {rows, channels});
  const size_t taps = b.vector("taps", {channels, kernel}, -1.0, 1.0);
  const auto sequences = make(Shape{kernel - 1, channels}, Tolerance{});  // rows of x: copied
  const size_t y = b.output("y", {rows, channels}, {kPerElement, kPerElement, 1, 0.25});
  const double operations = static_cast<double>(rows * channels) * (2.0 * static_cast<double>(kernel) + 4.0);
  return b.finish(operations,
                  [=](Context& context, Operands o) { short_conv(context, o[x], o[taps], sequences.segments(o), o[y]); });
}

std::string name_of(const DeltaShape& s) {
  const std::string values = fmt::format("{}x{}", s.value_heads, s.value_size);
  const bool own_keys = s.key_heads == s.value_heads && s.key_size == s.value_size;
  return values + (own_keys ? "" : fmt::format(" on {}x{}", s.key_heads, s.key_size)) +
         (s.decay_per_channel ? "" : " one decay a head");
}
DeltaShape kda(int64_t heads, int64_t size) { return {heads, heads, size, size, true}; }

template <class MakeSequences>
Case delta_case(CaseBuilder& b, const DeltaShape& shape, int64_t rows, const MakeSequences& make) {
  const Shape keys{rows, shape.key_heads * shape.key_size};
  const Shape values{rows, shape.value_heads * shape.value_size};
  const size_t q = b.activation("q", keys, 2.0);
  const size_t k = b.activation("k", keys, 2.0);
  const size_t v = b.activation("v", values, 2.0);
  // Half of the gates are mild, the others go down to -5: mild gates alone hide faults (K3 spec 8.2).
  const size_t g = b.vector("g", {rows, shape.value_heads * (shape.decay_per_channel ? shape.key_size : 1)}, -0.1, 0.0);
  for (float& value : b.initial(g).template as<float>()) {
    if (b.random().below(2) == 0) value = static_cast<float>(b.random().uniform(-5.0, 0.0));
  }
  const size_t beta = b.activation("beta", {rows, shape.value_heads}, 3.0);
  const Tolerance sums{4e-6, 4e-6};
  const auto sequences = make(Shape{shape.value_heads, shape.key_size, shape.value_size}, sums);
  const size_t o_out = b.output("o", values, {4e-6, 4e-6, 1});
  const int64_t state = shape.value_heads * shape.key_size * shape.value_size;
  return b.finish(7.0 * static_cast<double>(rows * state), [=](Context& context, Operands o) {
    delta_rule(context, shape, o[q], o[k], o[v], o[g], o[beta], sequences.segments(o), o[o_out]);
  });
}

auto several(CaseBuilder& b) {
  return [&b](const Shape& state, const Tolerance& tolerance) { return Sequences(b, state, tolerance); };
}
auto single(CaseBuilder& b, int64_t rows) {
  return [&b, rows](const Shape& state, const Tolerance& tolerance) { return Sequence(b, rows, state, tolerance); };
}

}  // namespace

std::vector<CaseSpec> short_conv_cases(CaseSet set) {
  SpecList list("short_conv");
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 64}) {
      list.add(fmt::format("12288 channels 4 taps rows {}", rows),
               [=](CaseBuilder& b) { return conv_case(b, 12288, 4, rows, single(b, rows)); });
    }
    return std::move(list).take();
  }
  for (const int64_t kernel : {2, 4, 5}) {
    for (const int64_t channels : kAwkward) {
      list.add(fmt::format("{} channels {} taps, 4 sequences", channels, kernel),
               [=](CaseBuilder& b) { return conv_case(b, channels, kernel, Sequences::kRows, several(b)); });
    }
  }
  return std::move(list).take();
}

std::vector<CaseSpec> delta_rule_cases(CaseSet set) {
  SpecList list("delta_rule");
  if (set == CaseSet::k3) {
    for (const DeltaShape& shape : {kda(96, 128), DeltaShape{16, 32, 128, 128, false}}) {
      for (const int64_t rows : {1, 64}) {
        list.add(fmt::format("{} rows {}", name_of(shape), rows),
                 [=](CaseBuilder& b) { return delta_case(b, shape, rows, single(b, rows)); });
      }
    }
    return std::move(list).take();
  }
  const auto add = [&](const DeltaShape& shape) {
    list.add(fmt::format("{}, 4 sequences", name_of(shape)),
             [=](CaseBuilder& b) { return delta_case(b, shape, Sequences::kRows, several(b)); });
  };
  for (const int64_t heads : {1, 3}) {
    for (const int64_t size : kAwkward) add(kda(heads, size));
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const auto turn = static_cast<int64_t>(i);
    const int64_t key_heads = 1 + turn % 2;
    add({key_heads, key_heads * (1 + turn % 3), kAwkward[i], kAwkward[(i + 4) % kAwkward.size()], false});
  }
  add({2, 4, 128, 128, false});
  add({1, 2, 17, 33, true});
  return std::move(list).take();
}

}  // namespace weft::ops::suite
