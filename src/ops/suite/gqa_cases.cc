// rotate, gqa_append, gqa_attention. The sizes of a model are Qwen3-Next's: 16 query and 2 key/value heads of 256.
#include "ops/suite/builder.h"
#include "ops/suite/paged.h"

namespace weft::ops::suite {
namespace {

constexpr GqaShape kQwenShape{16, 2, 256};

std::string name_of(const GqaShape& s) { return fmt::format("{} heads of {} on {}", s.heads, s.size, s.kv_heads); }

void add_rotate(SpecList& list, const HeadShape& shape, int64_t rotary, int64_t rows) {
  list.add(fmt::format("{} of {}x{} rows {}", rotary, shape.heads, shape.size, rows), [=](CaseBuilder& b) {
    const size_t x = b.activation("x", {rows, shape.heads * shape.size}, 3.0);
    const size_t table = b.vector("table", {rows, rotary}, -1.0, 1.0);
    const size_t y = b.output("y", {rows, shape.heads * shape.size}, {kPerElement, kPerElement, 1});
    return b.finish(3.0 * static_cast<double>(rows * shape.heads * rotary),
                    [=](Context& context, Operands o) { rotate(context, shape, rotary, o[x], o[table], o[y]); });
  });
}

// y is x.
void add_rotate_in_place(SpecList& list, const HeadShape& shape, int64_t rotary, int64_t rows) {
  list.add(fmt::format("{} of {}x{} rows {}, in place", rotary, shape.heads, shape.size, rows), [=](CaseBuilder& b) {
    const size_t table = b.vector("table", {rows, rotary}, -1.0, 1.0);
    const size_t y = b.state("y", {rows, shape.heads * shape.size}, {kPerElement, kPerElement, 1});
    return b.finish(3.0 * static_cast<double>(rows * shape.heads * rotary),
                    [=](Context& context, Operands o) { rotate(context, shape, rotary, o[y], o[table], o[y]); });
  });
}

void add_append(SpecList& list, const GqaShape& shape, const std::vector<Part>& parts) {
  list.add(fmt::format("{}, {}", name_of(shape), suite::name_of(parts)), [=](CaseBuilder& b) {
    const int64_t width = shape.kv_heads * shape.size;
    const Cache cache(2 * width, parts);
    const size_t k = b.activation("k", {cache.rows(), width});
    const size_t v = b.activation("v", {cache.rows(), width});
    const size_t pages = b.state("pages", cache.shape(), {});
    return b.finish(
        0.0,
        [=](Context& context, Operands o) {
          cache.with_segments(o[pages].as<float>().data(), [&](std::span<const PagedSegment> segments) {
            gqa_append(context, shape, o[k], o[v], segments);
          });
        },
        4 * cache.rows() * width * 4);
  });
}

void add_attention(SpecList& list, const GqaShape& shape, const std::vector<Part>& parts) {
  list.add(fmt::format("{}, {}", name_of(shape), suite::name_of(parts)), [=](CaseBuilder& b) {
    const int64_t row_size = 2 * shape.kv_heads * shape.size;
    const Cache cache(row_size, parts);
    const Shape wide{cache.rows(), shape.heads * shape.size};
    const size_t q = b.activation("q", wide, 3.0);
    const size_t pages = b.activation("pages", cache.shape());
    const size_t out = b.output("out", wide, {1e-5, 1e-5, 1});
    return b.finish(
        4.0 * cache.pairs() * static_cast<double>(shape.heads * shape.size),
        [=](Context& context, Operands o) {
          cache.with_segments(o[pages].as<float>().data(), [&](std::span<const PagedSegment> segments) {
            gqa_attention(context, shape, o[q], segments, o[out]);
          });
        },
        (cache.positions() * row_size + 2 * cache.rows() * shape.heads * shape.size) * 4);
  });
}

}  // namespace

std::vector<CaseSpec> rotate_cases(CaseSet set) {
  SpecList list("rotate");
  if (set == CaseSet::k3) {
    for (const int64_t rows : {1, 64}) add_rotate(list, {16, 256}, 64, rows);
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const int64_t size = kAwkward[i];
    add_rotate(list, {1 + static_cast<int64_t>(i % 3), size}, size / 2 * 2, 3);
    add_rotate_in_place(list, {3, 2 * size + 1}, 2 * size, 1 + static_cast<int64_t>(i));
  }
  add_rotate(list, {2, 33}, 8, 17);
  add_rotate(list, {2, 33}, 0, 17);
  return std::move(list).take();
}

std::vector<CaseSpec> gqa_append_cases(CaseSet set) {
  SpecList list("gqa_append");
  if (set == CaseSet::k3) {
    add_append(list, kQwenShape, {{0, 64, 1000}});
    return std::move(list).take();
  }
  for (const int64_t size : kAwkward) add_append(list, {4, 2, size}, kMixed);
  add_append(list, {3, 1, 16}, {{0, 130, 62}});
  return std::move(list).take();
}

std::vector<CaseSpec> gqa_attention_cases(CaseSet set) {
  SpecList list("gqa_attention");
  if (set == CaseSet::k3) {
    add_attention(list, kQwenShape, {{0, 1, 16383}});
    add_attention(list, kQwenShape, {{0, 64, 1984}});
    return std::move(list).take();
  }
  for (size_t i = 0; i < kAwkward.size(); ++i) {
    const auto turn = static_cast<int64_t>(i);
    const int64_t kv_heads = 1 + turn % 3;
    add_attention(list, {kv_heads * (1 + turn % 9), kv_heads, kAwkward[i]}, {{0, 1 + turn % 5 * 4, 60}});
  }
  for (const int64_t start : {0, 14, 15, 16, 30, 31, 32, 62, 63, 64, 126, 254, 255, 256}) {
    add_attention(list, {6, 2, 17}, {{0, 2, start}});
  }
  for (const int64_t group : {1, 3, 8, 33}) add_attention(list, {2 * group, 2, 33}, kMixed);
  add_attention(list, kQwenShape, {{0, 1, 700}, {1, 9, 250}});
  return std::move(list).take();
}

}  // namespace weft::ops::suite
