// mla_absorb_query, mla_append, mla_attention, mla_project_value.
#include <algorithm>

#include "ops/suite/builder.h"
#include "ops/suite/paged.h"

namespace weft::ops::suite {
namespace {

constexpr MlaShape kK3Shape{96, 128, 64, 128, 512};

std::string name_of(const MlaShape& s) {
  return fmt::format("{} heads {}+{} value {} latent {}", s.heads, s.nope, s.rope, s.value, s.latent);
}

// Awkward shapes with every awkward size at the latent, the head sizes and the heads; `rows` changes with them.
template <class Add>
void for_shapes(CaseSet set, const Add& add) {
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 16}) add(kK3Shape, rows);
    return;
  }
  constexpr std::array<int64_t, 3> kRows = {1, 3, 17};
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const auto size = [&](size_t step) { return kAwkward[(i + step) % kAwkward.size()]; };
    const auto turn = static_cast<int64_t>(i);
    add(MlaShape{1 + turn % 4, size(3), turn % 3 == 0 ? 0 : size(7), size(5), size(0)}, kRows[i % kRows.size()]);
  }
  add(MlaShape{13, 17, 3, 15, 33}, 5);
}

// The same with a stored kv_b: bf16 everywhere, every other form at a few shapes whose heads begin inside a block of rows.
template <class Add>
void for_weights(CaseSet set, const Add& add) {
  for_shapes(set, [&](const MlaShape& shape, int64_t rows) { add(WeightForm(WeightFormat::bf16), shape, rows); });
  if (set == CaseSet::k3) {
    for (const WeightForm& form : {WeightForm::fp8(ScaleType::bf16), WeightForm::affine(4, 64)}) add(form, kK3Shape, 1);
    return;
  }
  for (const WeightForm& form : all_forms()) {
    if (form.format == WeightFormat::bf16) continue;
    add(form, {3, 33, 4, 17, 384}, 1);
    add(form, {5, 64, 0, 65, 128}, 5);
    if (form.holds(300)) add(form, {3, 31, 4, 48, 300}, 3);
  }
}
std::string name_of(const WeightForm& form, const MlaShape& shape, int64_t rows) {
  const std::string format = form.format == WeightFormat::bf16 ? "" : to_string(form) + " ";
  return fmt::format("{}{}, rows {}", format, name_of(shape), rows);
}

void add_append(SpecList& list, const MlaShape& shape, const std::vector<Part>& parts) {
  list.add(fmt::format("{}, {}", name_of(shape), name_of(parts)), [=](CaseBuilder& b) {
    const Cache cache(shape.latent + shape.rope, parts);
    const size_t c = b.activation("c", {cache.rows(), shape.latent});
    const size_t k_r = b.activation("k_r", {cache.rows(), shape.rope});
    const size_t pages = b.state("pages", cache.shape(), {});
    return b.finish(
        0.0,
        [=](Context& context, Operands o) {
          cache.with_segments(o[pages].as<float>().data(), [&](std::span<const PagedSegment> segments) {
            mla_append(context, shape, o[c], o[k_r], segments);
          });
        },
        2 * cache.rows() * (shape.latent + shape.rope) * 4);
  });
}

void add_attention(SpecList& list, const MlaShape& shape, const std::vector<Part>& parts) {
  list.add(fmt::format("{}, {}", name_of(shape), name_of(parts)), [=](CaseBuilder& b) {
    const Cache cache(shape.latent + shape.rope, parts);
    const size_t q = b.activation("q", {cache.rows(), shape.heads * (shape.nope + shape.rope)}, 3.0);
    const size_t ql = b.vector("ql", {cache.rows(), shape.heads * shape.latent}, -3.0, 3.0);
    const size_t pages = b.activation("pages", cache.shape());
    const size_t lat = b.output("lat", {cache.rows(), shape.heads * shape.latent}, {1e-5, 1e-5});
    const int64_t row_bytes = shape.heads * (2 * shape.latent + shape.rope) * 4;
    return b.finish(
        2.0 * cache.pairs() * static_cast<double>(shape.heads * (2 * shape.latent + shape.rope)),
        [=](Context& context, Operands o) {
          cache.with_segments(o[pages].as<float>().data(), [&](std::span<const PagedSegment> segments) {
            mla_attention(context, shape, o[q], o[ql], segments, o[lat]);
          });
        },
        cache.positions() * (shape.latent + shape.rope) * 4 + cache.rows() * row_bytes);
  });
}

}  // namespace

std::vector<CaseSpec> mla_absorb_query_cases(CaseSet set) {
  SpecList list("mla_absorb_query");
  for_weights(set, [&](const WeightForm& form, const MlaShape& shape, int64_t rows) {
    list.add(name_of(form, shape, rows), [=](CaseBuilder& b) {
      const size_t q = b.activation("q", {rows, shape.heads * (shape.nope + shape.rope)});
      const StoredWeight kv_b = b.weight("kv_b", form, shape.heads * (shape.nope + shape.value), shape.latent);
      const double magnitude = 0.5 * kWeightSize * std::sqrt(static_cast<double>(shape.nope));
      const size_t ql =
          b.output("ql", {rows, shape.heads * shape.latent}, {of_sum(shape.nope), of_sum(shape.nope), 0, magnitude});
      const int64_t weight_bytes = form.shape(shape.heads * shape.nope, shape.latent).bytes();
      return b.finish(
          2.0 * static_cast<double>(rows * shape.heads * shape.nope * shape.latent),
          [=](Context& context, Operands o) { mla_absorb_query(context, shape, o[q], kv_b.view(o), o[ql]); },
          weight_bytes + rows * shape.heads * (shape.nope + shape.latent) * 4);
    });
  });
  if (set == CaseSet::awkward) {  // keys alone, transposed
    for (const WeightForm& form : all_forms()) {
      for (const MlaShape& shape : {MlaShape{3, 384, 4, 17, 33}, MlaShape{2, 128, 0, 5, 127}}) {
        const int64_t rows = shape.heads == 3 ? 1 : 5;
        list.add("keys alone " + to_string(form) + " " + name_of(shape), [=](CaseBuilder& b) {
          const size_t q = b.activation("q", {rows, shape.heads * (shape.nope + shape.rope)});
          const StoredWeight keys = b.weight("keys", form, shape.heads * shape.latent, shape.nope);
          const double magnitude = 0.5 * kWeightSize * std::sqrt(static_cast<double>(shape.nope));
          const size_t ql =
              b.output("ql", {rows, shape.heads * shape.latent}, {of_sum(shape.nope), of_sum(shape.nope), 0, magnitude});
          return b.finish(2.0 * static_cast<double>(rows * shape.heads * shape.nope * shape.latent),
                          [=](Context& context, Operands o) { mla_absorb_query(context, shape, o[q], keys.view(o), o[ql]); });
        });
      }
    }
  }
  return std::move(list).take();
}

std::vector<CaseSpec> mla_append_cases(CaseSet set) {
  SpecList list("mla_append");
  if (set == CaseSet::k3) {
    add_append(list, kK3Shape, {{0, 64, 1000}});
    return std::move(list).take();
  }
  for (const int64_t latent : kAwkward) add_append(list, {2, 8, 5, 8, latent}, kMixed);
  add_append(list, {2, 8, 0, 8, 16}, {{0, 130, 62}});
  return std::move(list).take();
}

std::vector<CaseSpec> mla_attention_cases(CaseSet set) {
  SpecList list("mla_attention");
  if (set == CaseSet::k3) {
    add_attention(list, kK3Shape, {{0, 1, 4095}});
    add_attention(list, kK3Shape, {{0, 16, 496}});
    return std::move(list).take();
  }
  for_shapes(set, [&](const MlaShape& shape, int64_t rows) { add_attention(list, shape, {{0, rows, 60}}); });
  for (const int64_t start : {0, 14, 15, 16, 30, 31, 32, 62, 63, 64, 126, 254, 255, 256}) {
    add_attention(list, {3, 8, 4, 8, 17}, {{0, 2, start}});
  }
  add_attention(list, {13, 8, 4, 8, 33}, kMixed);
  return std::move(list).take();
}

std::vector<CaseSpec> mla_project_value_cases(CaseSet set) {
  SpecList list("mla_project_value");
  for_weights(set, [&](const WeightForm& form, const MlaShape& shape, int64_t rows) {
    list.add(name_of(form, shape, rows), [=](CaseBuilder& b) {
      const size_t lat = b.vector("lat", {rows, shape.heads * shape.latent}, -1.0, 1.0);
      const StoredWeight kv_b = b.weight("kv_b", form, shape.heads * (shape.nope + shape.value), shape.latent);
      const double magnitude = 0.5 * kWeightSize * std::sqrt(static_cast<double>(shape.latent));
      const size_t y =
          b.output("o", {rows, shape.heads * shape.value}, {of_sum(shape.latent), of_sum(shape.latent), 1, magnitude});
      const int64_t weight_bytes = form.shape(shape.heads * shape.value, shape.latent).bytes();
      return b.finish(
          2.0 * static_cast<double>(rows * shape.heads * shape.value * shape.latent),
          [=](Context& context, Operands o) { mla_project_value(context, shape, o[lat], kv_b.view(o), o[y]); },
          weight_bytes + rows * shape.heads * (shape.value + shape.latent) * 4);
    });
  });
  if (set == CaseSet::awkward) {  // values alone
    for (const WeightForm& form : all_forms()) {
      for (const MlaShape& shape : {MlaShape{3, 8, 4, 33, 384}, MlaShape{2, 5, 0, 127, 128}}) {
        const int64_t rows = shape.heads == 3 ? 1 : 5;
        list.add("values alone " + to_string(form) + " " + name_of(shape), [=](CaseBuilder& b) {
          const size_t lat = b.vector("lat", {rows, shape.heads * shape.latent}, -1.0, 1.0);
          const StoredWeight values = b.weight("values", form, shape.heads * shape.value, shape.latent);
          const double magnitude = 0.5 * kWeightSize * std::sqrt(static_cast<double>(shape.latent));
          const size_t y =
              b.output("o", {rows, shape.heads * shape.value}, {of_sum(shape.latent), of_sum(shape.latent), 1, magnitude});
          return b.finish(
              2.0 * static_cast<double>(rows * shape.heads * shape.value * shape.latent),
              [=](Context& context, Operands o) { mla_project_value(context, shape, o[lat], values.view(o), o[y]); });
        });
      }
    }
  }
  return std::move(list).take();
}

}  // namespace weft::ops::suite
