// Every query of a tile of rows that uses a key/value head shares its keys and values: at one row they are read once.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/attention_blocks.h"
#include "ops/cpu/attention_rows.h"
#include "ops/cpu/cpu.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/packed_rows.h"
#include "ops/math.h"
#include "ops/split.h"

namespace weft::ops::cpu {
namespace {

constexpr int64_t kTileQueries = 32;  // with their scores 64 KiB at size 256
constexpr int64_t kPartsPerThread = 8;
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

// Consecutive rows of one sequence.
struct Tile {
  const PagedSegment* segment = nullptr;
  int64_t first_row = 0;  // of the call
  int64_t rows = 0;
  int64_t position = 0;  // of the first row
  [[nodiscard]] int64_t end() const { return position + rows; }
};

struct Call {
  GqaShape shape;
  const float* q = nullptr;
  float* out = nullptr;
  bool rounds = false;
  [[nodiscard]] int64_t group() const { return shape.heads / shape.kv_heads; }
};

// The queries of one key/value head in the rows of a tile: query j is head j % group of row j / group.
struct Item {
  const Tile* tile = nullptr;
  int64_t kv_head = 0;
  [[nodiscard]] int64_t queries(const Call& call) const { return tile->rows * call.group(); }
  // Of row `row`'s first query among q or out.
  [[nodiscard]] int64_t offset(const Call& call, int64_t row) const {
    return ((tile->first_row + row) * call.shape.heads + kv_head * call.group()) * call.shape.size;
  }
  // Rows before this one end before the block that begins at position `begin`.
  [[nodiscard]] int64_t first_in_block(int64_t begin) const { return std::max<int64_t>(0, begin - tile->position); }
};

// What one block of positions adds to the queries of an item.
struct Part {
  void resize(int64_t queries, int64_t size) {
    softmax.resize(static_cast<size_t>(queries));
    lines.resize(queries * padded_size(size) * kFloat);
  }
  [[nodiscard]] float* sums() { return reinterpret_cast<float*>(lines.data()); }  // [queries, padded size]
  std::vector<RunningSoftmax> softmax;                                            // [queries]
  LineBuffer lines;
};

struct Scratch {
  [[nodiscard]] float* queries() { return reinterpret_cast<float*>(query_lines.data()); }  // [queries, padded size]
  [[nodiscard]] float* scores() { return reinterpret_cast<float*>(score_lines.data()); }   // [queries, kAttentionBlock]
  LineBuffer query_lines;
  LineBuffer score_lines;
};

void pack(const Call& call, const Item& item, Scratch& work) {
  const int64_t size = call.shape.size;
  const int64_t padded = padded_size(size);
  work.query_lines.resize(item.queries(call) * padded * kFloat);
  work.score_lines.resize(item.queries(call) * kAttentionBlock * kFloat);
  float* to = work.queries();
  for (int64_t row = 0; row < item.tile->rows; ++row) {
    const float* from = call.q + item.offset(call, row);
    for (int64_t g = 0; g < call.group(); ++g, from += size, to += padded)
      std::fill_n(std::copy_n(from, size, to), padded - size, 0.0F);
  }
}

// Calls body(at, keys, values) for each page of the positions [begin + from, begin + to), at = those before it in the block.
template <class Body>
void for_pages(const Call& call, const Item& item, int64_t begin, int64_t from, int64_t to, const Body& body) {
  const int64_t width = call.shape.kv_heads * call.shape.size;
  for (int64_t at = from; at < to;) {
    const int64_t position = begin + at;
    const int64_t in_page = position % kPageTokens;
    const int64_t count = std::min(kPageTokens - in_page, to - at);
    const float* key = item.tile->segment->pages[static_cast<size_t>(position / kPageTokens)] + in_page * 2 * width +
                       item.kv_head * call.shape.size;
    const CachedRows keys{key, 2 * width, count, call.shape.size};
    body(at, keys, CachedRows{key + width, 2 * width, count, call.shape.size});
    at += count;
  }
}

// The block that begins at position `begin`, for the rows that reach it.
void attend(const Call& call, const Item& item, int64_t begin, Scratch& work, Part& part) {
  const int64_t group = call.group();
  const int64_t padded = padded_size(call.shape.size);
  const float scale = 1.0F / std::sqrt(static_cast<float>(call.shape.size));
  const int64_t first = item.first_in_block(begin);
  const auto count_of = [&](int64_t row) { return std::min(kAttentionBlock, item.tile->position + row + 1 - begin); };
  const int64_t queries = (item.tile->rows - first) * group;
  float* scores = work.scores() + first * group * kAttentionBlock;
  float* sums = part.sums() + first * group * padded;
  for_pages(call, item, begin, 0, count_of(item.tile->rows - 1), [&](int64_t at, const CachedRows& keys, const CachedRows&) {
    score_rows(work.queries() + first * group * padded, queries, keys, scores + at);
  });
  for (int64_t row = first; row < item.tile->rows; ++row) {
    for (int64_t j = row * group; j < (row + 1) * group; ++j) {
      const std::span<float> of_query{work.scores() + j * kAttentionBlock, static_cast<size_t>(count_of(row))};
      part.softmax[static_cast<size_t>(j)] = exponentiate(of_query, scale);
    }
  }
  std::fill_n(sums, queries * padded, 0.0F);
  const int64_t common = count_of(first);  // positions of all rows
  for_pages(call, item, begin, 0, common, [&](int64_t at, const CachedRows&, const CachedRows& values) {
    add_weighted_rows(scores + at, queries, values, sums);
  });
  for (int64_t row = first; row < item.tile->rows; ++row) {
    for_pages(call, item, begin, common, count_of(row), [&](int64_t at, const CachedRows&, const CachedRows& values) {
      const int64_t j = row * group;
      add_weighted_rows(work.scores() + j * kAttentionBlock + at, group, values, part.sums() + j * padded);
    });
  }
}

void start(const Call& call, const Item& item, RunningSoftmax* running) {
  std::fill_n(running, item.queries(call), RunningSoftmax{});
  for (int64_t row = 0; row < item.tile->rows; ++row) {
    std::fill_n(call.out + item.offset(call, row), call.group() * call.shape.size, 0.0F);
  }
}

// Adds the block to the sums so far of query j, if it reaches the block.
void add_part(const Call& call, const Item& item, int64_t j, int64_t begin, Part& part, RunningSoftmax& running) {
  const int64_t size = call.shape.size;
  const int64_t row = j / call.group();
  if (row < item.first_in_block(begin)) return;
  const MergeFactors factors = merge(running, part.softmax[static_cast<size_t>(j)]);
  const float* sums = part.sums() + j * padded_size(size);
  float* out = call.out + item.offset(call, row) + j % call.group() * size;
  for (int64_t c = 0; c < size; ++c) out[c] = out[c] * factors.old_part + sums[c] * factors.new_part;
}

void finish(const Call& call, const Item& item, const RunningSoftmax* running) {
  const int64_t size = call.shape.size;
  for (int64_t row = 0; row < item.tile->rows; ++row) {
    float* out = call.out + item.offset(call, row);
    for (int64_t j = row * call.group(); j < (row + 1) * call.group(); ++j, out += size) {
      for (int64_t c = 0; c < size; ++c) out[c] = round_if(call.rounds, out[c] / running[j].sum);
    }
  }
}

// Each item by one thread, block after block.
void run_items(Context& context, const Call& call, const std::vector<Item>& items, int64_t cost) {
  const auto count = static_cast<int64_t>(items.size());
  context.pool->parallel_for(count, task_grain(context, count, cost), [&](int64_t first, int64_t end) {
    thread_local Scratch work;
    thread_local Part part;
    thread_local std::vector<RunningSoftmax> running;
    for (int64_t i = first; i < end; ++i) {
      const Item& item = items[static_cast<size_t>(i)];
      pack(call, item, work);
      part.resize(item.queries(call), call.shape.size);
      running.resize(part.softmax.size());
      start(call, item, running.data());
      for (int64_t begin = 0; begin < item.tile->end(); begin += kAttentionBlock) {
        attend(call, item, begin, work, part);
        for (int64_t j = 0; j < item.queries(call); ++j) add_part(call, item, j, begin, part, running[static_cast<size_t>(j)]);
      }
      finish(call, item, running.data());
    }
  });
}

// Few items: the threads share their blocks, some blocks at a time, which are then added in order as above.
void run_blocks(Context& context, const Call& call, const std::vector<Item>& items, int64_t longest, int64_t queries) {
  thread_local std::vector<Part> kept_parts;
  thread_local std::vector<RunningSoftmax> kept_running;
  const auto count = static_cast<int64_t>(items.size());
  const int64_t blocks = (longest + kAttentionBlock - 1) / kAttentionBlock;
  const int64_t at_once = std::min(blocks, (context.pool->threads() * kPartsPerThread + count - 1) / count);
  kept_parts.resize(static_cast<size_t>(count * at_once));
  kept_running.resize(static_cast<size_t>(count * queries));
  Part* parts = kept_parts.data();                // [at_once, items]
  RunningSoftmax* running = kept_running.data();  // [items, queries]
  for (int64_t p = 0; p < count * at_once; ++p) parts[p].resize(queries, call.shape.size);
  for (int64_t i = 0; i < count; ++i) start(call, items[static_cast<size_t>(i)], running + i * queries);
  for (int64_t block = 0; block < blocks; block += at_once) {
    // All key/value heads of a block are one task: they share pages, which the processor's own prefetching reads as a whole.
    context.pool->parallel_for(count * at_once, call.shape.kv_heads, [&](int64_t first, int64_t end) {
      thread_local Scratch work;
      for (int64_t p = first; p < end; ++p) {
        const Item& item = items[static_cast<size_t>(p % count)];
        const int64_t begin = (block + p / count) * kAttentionBlock;
        if (begin >= item.tile->end()) continue;
        pack(call, item, work);
        attend(call, item, begin, work, parts[p]);
      }
    });
    const int64_t grain = task_grain(context, count * queries, at_once * call.shape.size);
    context.pool->parallel_for(count * queries, grain, [&](int64_t first, int64_t end) {
      for (int64_t at = first; at < end; ++at) {
        const int64_t i = at / queries;
        const int64_t j = at % queries;
        const Item& item = items[static_cast<size_t>(i)];
        if (j >= item.queries(call)) continue;
        for (int64_t b = 0; b < at_once && (block + b) * kAttentionBlock < item.tile->end(); ++b) {
          add_part(call, item, j, (block + b) * kAttentionBlock, parts[b * count + i], running[at]);
        }
      }
    });
  }
  for (int64_t i = 0; i < count; ++i) finish(call, items[static_cast<size_t>(i)], running + i * queries);
}

}  // namespace

void gqa_attention(Context& context, const GqaShape& shape, TensorView q, std::span<const PagedSegment> segments,
                   MutableTensorView out) {
  thread_local std::vector<Tile> tiles;
  thread_local std::vector<Item> items;
  const Call call{shape, q.as<float>().data(), out.as<float>().data(), context.rounds()};
  const int64_t rows_of_tile = std::max<int64_t>(1, kTileQueries / call.group());
  int64_t longest = 0;  // positions
  tiles.clear();
  for (const PagedSegment& segment : segments) {
    for (int64_t t = 0; t < segment.row_count; t += rows_of_tile) {
      tiles.push_back({&segment, segment.first_row + t, std::min(rows_of_tile, segment.row_count - t), segment.start + t});
      longest = std::max(longest, tiles.back().end());
    }
  }
  items.clear();
  for (const Tile& tile : tiles) {
    for (int64_t head = 0; head < shape.kv_heads; ++head) items.push_back({&tile, head});
  }
  const int64_t queries = rows_of_tile * call.group();
  if (static_cast<int64_t>(items.size()) < int64_t{4} * context.pool->threads() && longest > kAttentionBlock) {
    run_blocks(context, call, items, longest, queries);
  } else {
    run_items(context, call, items, longest * 2 * shape.size * queries / 16);
  }
}

}  // namespace weft::ops::cpu
