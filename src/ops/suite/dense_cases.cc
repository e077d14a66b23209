// embed, linear, gather_rows, moe.
#include <algorithm>
#include <bit>
#include <set>

#include "ops/suite/builder.h"

namespace weft::ops::suite {
namespace {

void add_embed(SpecList& list, const WeightForm& form, int64_t vocabulary, int64_t size, int64_t rows) {
  list.add(fmt::format("{} {}x{} rows {}", to_string(form), vocabulary, size, rows), [=](CaseBuilder& b) {
    const size_t ids = b.ids(
        "ids", {rows}, [&](size_t i) { return static_cast<int32_t>(i == 0 ? vocabulary - 1 : b.random().below(vocabulary)); });
    const StoredWeight table = b.weight("table", form, vocabulary, size);
    const size_t out = b.output("out", {rows, size}, {});
    const int64_t bytes = rows * (form.shape(1, size).bytes() + size * 4);
    return b.finish(
        0.0, [=](Context& context, Operands o) { embed(context, TensorView(o[ids]).as<int32_t>(), table.view(o), o[out]); },
        bytes);
  });
}

void add_linear(SpecList& list, const WeightForm& form, int64_t out, int64_t in, int64_t rows, bool keep_f32 = false) {
  list.add(fmt::format("{} {}x{} rows {}{}", to_string(form), out, in, rows, keep_f32 ? " kept float32" : ""),
           [=](CaseBuilder& b) {
             const size_t x = b.activation("x", {rows, in});
             const StoredWeight weight = b.weight("weight", form, out, in);
             const double magnitude = kWeightSize * 0.5 * std::sqrt(static_cast<double>(in));
             const size_t y = b.output("y", {rows, out}, {of_sum(in), of_sum(in), keep_f32 ? 0 : 1, magnitude});
             return b.finish(2.0 * static_cast<double>(rows * out * in),
                             [=](Context& context, Operands o) { linear(context, o[x], weight.view(o), o[y], keep_f32); });
           });
}

void add_gather(SpecList& list, int64_t from, int64_t size, int64_t rows) {
  list.add(fmt::format("{} of {} rows of {}", rows, from, size), [=](CaseBuilder& b) {
    const size_t x = b.activation("x", {from, size});
    Tensor numbers = Tensor::uninitialized(DType::i64, {rows});
    for (int64_t& row : numbers.as<int64_t>()) row = b.random().below(from);
    const size_t chosen = b.input("rows", std::move(numbers));
    const size_t out = b.output("out", {rows, size}, {});
    return b.finish(
        0.0, [=](Context& context, Operands o) { gather_rows(context, o[x], TensorView(o[chosen]).as<int64_t>(), o[out]); },
        2 * rows * size * 4);
  });
}

// Sizes of a mixture. Experts beyond `stored` are never named and have no memory.
struct Mixture {
  WeightForm form = WeightFormat::mxfp4;
  int64_t experts = 0;
  int64_t stored = 0;
  int64_t chosen = 0;
  int64_t size = 0;    // Z
  int64_t middle = 0;  // M
};

void add_moe(SpecList& list, const Mixture& m, const Activation& activation, int64_t rows) {
  const char* kind = activation.kind == Activation::Kind::situ ? "situ" : "silu";
  list.add(
      fmt::format("{} {} {} of {} experts {}x{} rows {}", to_string(m.form), kind, m.chosen, m.experts, m.middle, m.size, rows),
      [=](CaseBuilder& b) {
        const size_t z = b.activation("z", {rows, m.size});
        std::set<int32_t> named;
        std::vector<int32_t> row;
        const size_t ids = b.ids("ids", {rows, m.chosen}, [&](size_t i) {
          const size_t at = i % static_cast<size_t>(m.chosen);
          if (at == 0) {  // another ascending choice of the stored experts, which lie evenly among all
            std::set<int32_t> choice;
            while (static_cast<int64_t>(choice.size()) < m.chosen) {
              choice.insert(static_cast<int32_t>(b.random().below(m.stored) * m.experts / m.stored));
            }
            row.assign(choice.begin(), choice.end());
            named.insert(row.begin(), row.end());
          }
          return row[at];
        });
        const size_t weights = b.vector("weights", {rows, m.chosen}, 0.0, 1.0);
        std::vector<std::array<StoredWeight, 3>> stored;  // w1, w2, w3
        for (int64_t e = 0; e < m.stored; ++e) {
          stored.push_back({b.weight(fmt::format("expert {} w1", e), m.form, m.middle, m.size),
                            b.weight(fmt::format("expert {} w2", e), m.form, m.size, m.middle),
                            b.weight(fmt::format("expert {} w3", e), m.form, m.middle, m.size)});
        }
        const double exact = of_sum(m.size) + of_sum(m.middle);
        // bf16: a rounding of a hidden value that falls the other way reaches every output.
        const size_t out = b.output("out", {rows, m.size}, {exact, 0x1p-7, 1});
        const int64_t expert_bytes = 2 * m.form.shape(m.middle, m.size).bytes() + m.form.shape(m.size, m.middle).bytes();
        const int64_t bytes = static_cast<int64_t>(named.size()) * expert_bytes + 2 * rows * m.size * 4;
        return b.finish(
            6.0 * static_cast<double>(rows * m.chosen * m.middle * m.size),
            [=](Context& context, Operands o) {
              std::vector<ExpertView> experts(static_cast<size_t>(m.experts));
              for (int64_t e = 0; e < m.stored; ++e) {
                const auto& [w1, w2, w3] = stored[static_cast<size_t>(e)];
                experts[static_cast<size_t>(e * m.experts / m.stored)] = {w1.view(o), w2.view(o), w3.view(o)};
              }
              moe(context, activation, o[z], o[ids], o[weights], experts, o[out]);
            },
            bytes);
      });
}

}  // namespace

std::vector<CaseSpec> embed_cases(CaseSet set) {
  SpecList list("embed");
  if (set == CaseSet::k3) {
    add_embed(list, WeightFormat::bf16, 4096, 7168, 512);  // a slice of 163,840 rows
    return std::move(list).take();
  }
  for (const WeightForm& form : all_forms()) {
    for (const int64_t size : kAwkward) {
      if (form.holds(size)) add_embed(list, form, 9, size, 17);
    }
    if (form.quantized()) add_embed(list, form, 130, 384, 17);
  }
  return std::move(list).take();
}

std::vector<CaseSpec> linear_cases(CaseSet set) {
  SpecList list("linear");
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 4, 64}) {
      add_linear(list, WeightFormat::mxfp4, 3072, 3584, rows);  // w1, w3 of an expert
      add_linear(list, WeightFormat::mxfp4, 3584, 3072, rows);  // w2
      add_linear(list, WeightFormat::bf16, 1536, 7168, rows);   // q_a of MLA
    }
    for (const WeightForm& form : {WeightForm::fp8(ScaleType::bf16), WeightForm::affine(4, 64), WeightForm::affine(8, 64),
                                   WeightForm::affine(3, 64), WeightForm::affine(5, 64), WeightForm::affine(6, 64)}) {
      for (const int64_t rows : {1, 4, 64}) add_linear(list, form, 3072, 3584, rows);  // beside an expert's MXFP4
    }
    for (const WeightForm& form : {WeightForm::fp8(ScaleType::bf16), WeightForm::affine(4, 64)}) {
      add_linear(list, form, 12288, 2048, 1);  // in_proj_qkvz of Qwen3-Next
    }
    for (const int64_t rows : {1, 4}) add_linear(list, WeightFormat::bf16, 12288, 7168, rows);  // q, k, v, gate of KDA
    add_linear(list, WeightFormat::bf16, 7168, 12288, 1);                                       // o of KDA and MLA
    add_linear(list, WeightFormat::bf16, 18432, 1536, 1);                                       // q_b
    add_linear(list, WeightFormat::bf16, 576, 7168, 1);                                         // latent and k_r
    add_linear(list, WeightFormat::bf16, 6144, 7168, 1);                                        // shared experts
    add_linear(list, WeightFormat::bf16, 96, 7168, 1);                                          // beta
    add_linear(list, WeightFormat::bf16, 896, 7168, 1, true);                                   // router
    add_linear(list, WeightFormat::bf16, 20480, 7168, 1, true);                                 // an eighth of the head
    return std::move(list).take();
  }
  constexpr std::array<int64_t, 7> kRows = {1, 2, 3, 4, 5, 17, 65};  // a whole cycle over the 11 outputs of every width
  size_t turn = 0;
  for (const WeightForm& form : all_forms()) {
    for (const int64_t in : {1, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 256, 300, 544}) {
      if (!form.holds(in)) continue;
      for (const int64_t out : kAwkward) add_linear(list, form, out, in, kRows[turn++ % kRows.size()]);
    }
    if (form.quantized()) {  // blocks and groups that end inside a panel of columns, and beyond it
      for (const int64_t in : {384, 640, 1152}) {
        for (const int64_t rows : {1, 3, 65}) add_linear(list, form, 130, in, rows);
      }
    }
    const int64_t in = form.holds(96) ? 96 : 128;
    const int64_t out = form.quantized() ? 34 : 33;  // not among the sizes above
    for (const int64_t rows : kAwkward) add_linear(list, form, out, in, rows);
    add_linear(list, form, out, in, 5, true);
  }
  return std::move(list).take();
}

std::vector<CaseSpec> gather_rows_cases(CaseSet set) {
  SpecList list("gather_rows");
  if (set == CaseSet::k3) {
    add_gather(list, 512, 7168, 32);
    return std::move(list).take();
  }
  for (const int64_t size : kAwkward) add_gather(list, 5, size, 3);
  return std::move(list).take();
}

std::vector<CaseSpec> moe_cases(CaseSet set) {
  SpecList list("moe");
  const Activation situ{Activation::Kind::situ, 4.0F, 25.0F};
  if (set == CaseSet::k3) {
    add_moe(list, {WeightFormat::mxfp4, 896, 16, 16, 3584, 3072}, situ, 1);
    add_moe(list, {WeightFormat::mxfp4, 896, 24, 16, 3584, 3072}, situ, 4);  // two or three rows for each expert
    const Activation silu{Activation::Kind::silu, 1.0F, std::nullopt};
    for (const WeightForm& form : {WeightForm::fp8(ScaleType::bf16), WeightForm::affine(4, 64)}) {
      add_moe(list, {form, 512, 10, 10, 2048, 512}, silu, 1);  // Qwen3-Next
    }
    return std::move(list).take();
  }
  const Activation silu{Activation::Kind::silu, 1.0F, std::nullopt};
  for (const WeightForm& form : {WeightForm(WeightFormat::bf16), WeightForm(WeightFormat::mxfp4),
                                 WeightForm::fp8(ScaleType::f32), WeightForm::affine(3, 32), WeightForm::affine(4, 32)}) {
    add_moe(list, {form, 8, 8, 2, 32, 64}, situ, 1);
    add_moe(list, {form, 3, 3, 3, 64, 32}, situ, 5);
    add_moe(list, {form, 17, 9, 4, 96, 160}, silu, 33);
    add_moe(list, {form, 5, 5, 2, 64, 96}, situ, 127);
    add_moe(list, {form, 4, 4, 3, 32, 32}, silu, 300);
  }
  add_moe(list, {WeightForm::fp8(ScaleType::bf16), 5, 5, 2, 130, 300}, silu, 9);
  add_moe(list, {WeightForm::affine(8, 64), 5, 5, 2, 128, 192}, silu, 9);
  add_moe(list, {WeightFormat::bf16, 6, 6, 2, 33, 65}, situ, 17);
  add_moe(list, {WeightFormat::bf16, 6, 6, 2, 17, 15}, situ, 16);
  return std::move(list).take();
}

}  // namespace weft::ops::suite
