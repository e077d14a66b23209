// The float32 arithmetic of the dense products, for kernels that differ in how they decode weights. Included inside the
// namespace and target attributes of each of Highway's targets, once per target: no include guard.

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

struct F32Arithmetic {
  using Element = float;
  using Vec = V;
  using Sum = V;
  static constexpr int kUnitVecs = static_cast<int>(kUnit) / kLanes;
  static constexpr int kSumVecs = kLanes >= 8 ? 1 : 8 / kLanes;  // 8 lanes at least: fewer make long sums less exact
  // 24 sums in 32 registers, 12 in 16; narrow targets hold a sum in several.
  static constexpr int kBlockRows = kLanes == 16 ? 6 : kLanes == 8 ? 3 : 2;
  static constexpr int kBlockOutputs = kLanes >= 8 ? 4 : 2;
  static constexpr bool kFastDecode = kLanes == 16;

  static HWY_INLINE Vec load(const float* p) { return hn::Load(D(), p); }
  static HWY_INLINE void store(Vec v, float* p) { hn::Store(v, D(), p); }
  static HWY_INLINE Sum zero() { return hn::Zero(D()); }
  static HWY_INLINE Sum load_sum(const float* p) { return hn::Load(D(), p); }
  static HWY_INLINE void store_sum(Sum sum, float* p) { hn::Store(sum, D(), p); }
  static HWY_INLINE Sum multiply_add(Vec w, Vec x, Sum sum) { return hn::MulAdd(w, x, sum); }
  static HWY_INLINE float fold(const Sum* sum) {
    Sum total = sum[0];
    for (int v = 1; v < kSumVecs; ++v) total = hn::Add(total, sum[v]);
    return hn::GetLane(hn::SumOfLanes(D(), total));
  }
};
