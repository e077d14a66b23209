// The loops of the dense products, for a kernel K of one instruction set. Included inside the namespace and target attributes
// of each instruction set, once per set: no include guard.
//
// K provides: Element, what packed rows and panels hold; Vec, a vector of them; Sum, a vector of sums; kUnitVecs, vectors of a
// unit; kSumVecs, vectors of one sum (vector v of a unit adds to vector v mod kSumVecs); kBlockRows and kBlockOutputs, the sums
// that fit into registers; kFastDecode, whether a core decodes MXFP4 about as fast as it reads memory; and load, store, zero,
// load_sum, store_sum, multiply_add, fold.
//
// A reader decodes a row of a weight unit by unit: open(shared, weight, o); unit(shared, unit, w), with ascending units from a
// multiple of kReaderUnits on; kFormat; and kTails with tail(shared, weight, unit, w) for the last, incomplete unit.
// Shared(weight) is what all rows have in common, so that it stands in registers once.

template <class K>
constexpr int64_t kVecElements = kUnit / K::kUnitVecs;
template <class K>
constexpr int64_t kSumFloats = static_cast<int64_t>(K::kSumVecs * sizeof(typename K::Sum) / sizeof(float));
template <class K>
constexpr int64_t kPanelColumns = kPanelRowBytes / static_cast<int64_t>(sizeof(typename K::Element));

constexpr int64_t kReaderUnits = 4;  // 128 columns: no scale changes in between

// The reader of f32, bf16 and mxfp4: K::unit<format>(row, scales, unit, w) decodes.
template <class K, WeightFormat kRead>
struct UnitReader {
  static constexpr WeightFormat kFormat = kRead;
  static constexpr bool kTails = kRead != WeightFormat::mxfp4;
  struct Shared {
    HWY_INLINE explicit Shared(const WeightView& /*weight*/) {}
  };
  HWY_INLINE UnitReader() {}  // NOLINT(modernize-use-equals-default): as in Sums
  HWY_INLINE void open(const Shared& /*shared*/, const WeightView& weight, int64_t o) {
    row = weight.data + o * weight.row_bytes();
    scales = kRead == WeightFormat::mxfp4 ? weight.scales + o * (weight.in / kUnit) : nullptr;
  }
  HWY_INLINE void unit(const Shared& /*shared*/, int64_t unit, typename K::Vec* w) const {
    K::template unit<kRead>(row, scales, unit, w);
  }
  HWY_INLINE void tail(const Shared& /*shared*/, const WeightView& weight, int64_t /*unit*/, typename K::Vec* w) const {
    const TailUnit last(weight, row);
    K::template unit<kRead>(last.bytes, nullptr, 0, w);
  }
  const std::byte* row;
  const std::byte* scales;
};

template <class K>
HWY_INLINE const typename K::Element* packed_row(const DenseProduct& product, int64_t r) {
  return reinterpret_cast<const typename K::Element*>(product.x[r]);
}

template <class K, int kRows, int kOut>
struct Sums {
  HWY_INLINE Sums() {}  // NOLINT(modernize-use-equals-default): a defaulted one is compiled for the baseline, not the target
  typename K::Sum lanes[kRows][kOut][K::kSumVecs];
};

// Adds one unit of output i.
template <class K, int kRows, int kOut>
HWY_INLINE void add_unit(const typename K::Vec* w, const typename K::Element* const* x, int64_t unit, int i,
                         Sums<K, kRows, kOut>& sums) {
  for (int v = 0; v < K::kUnitVecs; ++v) {
    for (int r = 0; r < kRows; ++r) {
      typename K::Sum& sum = sums.lanes[r][i][v % K::kSumVecs];
      sum = K::multiply_add(w[v], K::load(x[r] + unit * kUnit + v * kVecElements<K>), sum);
    }
  }
}

// Asks for lines of the outputs behind these kOut, a share with each unit: packed rows are short (1.8 KiB at K3's sizes), so
// that the processor's own prefetching starts late for each. MXFP4 and affine codes go to L1, where two blocks of rows fit,
// bf16 and FP8 to L2; rows of float32 are long enough. One row of MXFP4, decoded about as fast as memory is read, waits the
// least if the block behind the next is on its way to L2. Addresses may lie beyond the weight, which a prefetch ignores: they
// are numbers, not pointers.
template <class K, WeightFormat kFormat, int kRows, int kOut>
struct NextRows {
  static constexpr int64_t kLine = LineBuffer::kLine;
  static constexpr bool kPacked = kFormat == WeightFormat::mxfp4;
  static constexpr bool kFar = kPacked && kRows == 1 && K::kFastDecode;
  // Of a unit of kOut rows; affine: unit_bytes.
  static constexpr int64_t kBytes = kOut * kUnit * (kPacked ? 1 : kFormat == WeightFormat::fp8_block ? 2 : 4) / 2;

  HWY_INLINE NextRows(const WeightView& weight, int64_t o)
      : data(reinterpret_cast<uintptr_t>(weight.data) + static_cast<uintptr_t>((o + kOut) * weight.row_bytes())),
        scales(reinterpret_cast<uintptr_t>(weight.scales) + static_cast<uintptr_t>((o + kOut) * weight.scale_row_bytes())),
        biases(reinterpret_cast<uintptr_t>(weight.biases) + static_cast<uintptr_t>((o + kOut) * weight.scale_row_bytes())),
        units(weight.in / kUnit) {
    if constexpr (kFormat == WeightFormat::affine) {
      unit_bytes = kOut * kUnit * weight.bits / 8;
      scale_bytes = kOut * kReaderUnits * kUnit / weight.group * weight.scale_size();
    }
  }
  HWY_INLINE void prefetch(int64_t unit) const {
    if constexpr (kFormat == WeightFormat::f32) {
      return;
    } else if constexpr (kFormat == WeightFormat::affine) {
      for (int64_t i = 0; i < unit_bytes; i += kLine) line<3>(data, unit * unit_bytes + i);
      if (unit % kReaderUnits != 0) return;
      line<3>(scales, unit / kReaderUnits * scale_bytes);
      line<3>(biases, unit / kReaderUnits * scale_bytes);
    } else {
      if (kBytes < kLine && unit % (kLine / std::min(kBytes, kLine)) != 0) return;
      for (int64_t i = 0; i < kBytes; i += kLine) {
        line<kPacked ? 3 : 2>(data, unit * kBytes + i);
        if (kFar) far_line(data + static_cast<uintptr_t>((units + unit) * kBytes + i));
      }
      if (kPacked && unit % (kLine / kOut) == 0) {
        line<3>(scales, unit * kOut);
        if (kFar) line<2>(scales, (units + unit) * kOut);
      }
    }
  }
  // A line to L2; and when it begins a page, the first lines of a later page too, with which the processor's own prefetching
  // begins anew.
  static HWY_INLINE void far_line(uintptr_t from) {
    constexpr uintptr_t kPage = 4096;
    constexpr int64_t kAhead = 8192;
    constexpr int64_t kFirstLines = 4;
    line<2>(from, 0);
    if (from % kPage >= kLine) return;
    for (int64_t n = 0; n < kFirstLines; ++n) line<2>(from, kAhead + n * kLine);
  }
  template <int kLocality>
  static HWY_INLINE void line(uintptr_t from, int64_t offset) {
    __builtin_prefetch(reinterpret_cast<const void*>(from + static_cast<uintptr_t>(offset)), 0, kLocality);
  }
  uintptr_t data;
  uintptr_t scales;
  uintptr_t biases;
  int64_t units;
  int64_t unit_bytes = 0;
  int64_t scale_bytes = 0;
};

// kOut outputs from `o` on, for kRows rows; weights are decoded into registers.
template <class K, class Reader, int kRows, int kOut>
HWY_NOINLINE void direct(const DenseProduct& product, int64_t o) {
  const WeightView& weight = product.weight;
  const typename Reader::Shared shared(weight);
  Reader reader[kOut];
  for (int i = 0; i < kOut; ++i) reader[i].open(shared, weight, o + i);
  const typename K::Element* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = packed_row<K>(product, r);
  Sums<K, kRows, kOut> sums;
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) {
      for (int v = 0; v < K::kSumVecs; ++v) sums.lanes[r][i][v] = K::zero();
    }
  }
  const int64_t units = weight.in / kUnit;
  typename K::Vec w[K::kUnitVecs];
  const NextRows<K, Reader::kFormat, kRows, kOut> next(weight, o);
  for (int64_t unit = 0; unit < units; ++unit) {
    next.prefetch(unit);
    for (int i = 0; i < kOut; ++i) {
      reader[i].unit(shared, unit, w);
      add_unit<K, kRows, kOut>(w, x, unit, i, sums);
    }
  }
  if constexpr (Reader::kTails) {
    if (units * kUnit < weight.in) {
      for (int i = 0; i < kOut; ++i) {
        reader[i].tail(shared, weight, units, w);
        add_unit<K, kRows, kOut>(w, x, units, i, sums);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kOut; ++i) {
      product.y[r][o + i - product.first] = round_if(product.rounds, K::fold(sums.lanes[r][i]));
    }
  }
}

template <class K, class Reader, int kRows, int kOut>
void direct_range(const DenseProduct& product, int64_t begin, int64_t end) {
  int64_t o = begin;
  for (; o + kOut <= end; o += kOut) direct<K, Reader, kRows, kOut>(product, o);
  for (; o < end; ++o) direct<K, Reader, kRows, 1>(product, o);
}

// Vector v of the sum of row r and output i of a panel.
template <class K>
HWY_INLINE float* sum_at(float* sums, int64_t r, int64_t i, int v) {
  return sums + (r * kPanelOutputs + i) * kSumFloats<K> + v * (kSumFloats<K> / K::kSumVecs);
}

// Adds `vecs` vectors of columns of a panel to the sums of kRows rows and all outputs of the panel. sums: [kRows,
// kPanelOutputs, kSumFloats].
template <class K, int kRows>
HWY_NOINLINE void panel_block(const typename K::Element* panel, int64_t outputs, const typename K::Element* const* rows,
                              int64_t vecs, float* sums) {
  constexpr int kOut = K::kBlockOutputs;
  constexpr int64_t kStride = kPanelStride / static_cast<int64_t>(sizeof(typename K::Element));
  const typename K::Element* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r];
  for (int64_t first = 0; first < outputs; first += kOut) {
    typename K::Sum sum[kRows][kOut][K::kSumVecs];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kOut; ++i) {
        for (int v = 0; v < K::kSumVecs; ++v) sum[r][i][v] = K::load_sum(sum_at<K>(sums, r, first + i, v));
      }
    }
    const typename K::Element* from = panel + first * kStride;
    for (int64_t vec = 0; vec < vecs; vec += K::kSumVecs) {
      for (int v = 0; v < K::kSumVecs; ++v) {
        const int64_t column = (vec + v) * kVecElements<K>;
        typename K::Vec w[kOut];
        for (int i = 0; i < kOut; ++i) w[i] = K::load(from + i * kStride + column);
        for (int r = 0; r < kRows; ++r) {
          const typename K::Vec value = K::load(x[r] + column);
          for (int i = 0; i < kOut; ++i) sum[r][i][v] = K::multiply_add(w[i], value, sum[r][i][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kOut; ++i) {
        for (int v = 0; v < K::kSumVecs; ++v) K::store_sum(sum[r][i][v], sum_at<K>(sums, r, first + i, v));
      }
    }
  }
}

// Fewer than kBlockRows rows.
template <class K, int kRows>
void panel_rest(const typename K::Element* panel, int64_t outputs, const typename K::Element* const* x, int64_t rows,
                int64_t vecs, float* sums) {
  if (rows == kRows) return panel_block<K, kRows>(panel, outputs, x, vecs, sums);
  if constexpr (kRows > 1) panel_rest<K, kRows - 1>(panel, outputs, x, rows, vecs, sums);
}

template <class K>
void panel_rows(const typename K::Element* panel, int64_t outputs, const typename K::Element* const* x, int64_t rows,
                int64_t vecs, float* sums) {
  constexpr int64_t kRowSums = kPanelOutputs * kSumFloats<K>;
  int64_t r = 0;
  for (; r + K::kBlockRows <= rows; r += K::kBlockRows) {
    panel_block<K, K::kBlockRows>(panel, outputs, x + r, vecs, sums + r * kRowSums);
  }
  if (r < rows) panel_rest<K, K::kBlockRows - 1>(panel, outputs, x + r, rows - r, vecs, sums + r * kRowSums);
}

// Decodes columns [column, column + count) of outputs [begin, end) into a panel.
template <class K, class Reader>
HWY_NOINLINE void decode_panel(const WeightView& weight, int64_t begin, int64_t end, int64_t column, int64_t count,
                               std::byte* panel) {
  static_assert(kPanelColumns<K> % (kReaderUnits * kUnit) == 0);
  typename K::Vec w[K::kUnitVecs];
  const typename Reader::Shared shared(weight);
  Reader reader;
  for (int64_t o = begin; o < end; ++o) {
    reader.open(shared, weight, o);
    auto* to = reinterpret_cast<typename K::Element*>(panel + (o - begin) * kPanelStride);
    const int64_t first = column / kUnit;
    for (int64_t unit = first; unit < first + (count + kUnit - 1) / kUnit; ++unit, to += kUnit) {
      bool whole = true;
      if constexpr (Reader::kTails) {
        whole = (unit + 1) * kUnit <= weight.in;
        if (!whole) reader.tail(shared, weight, unit, w);
      }
      if (whole) reader.unit(shared, unit, w);
      for (int v = 0; v < K::kUnitVecs; ++v) K::store(w[v], to + v * kVecElements<K>);
    }
  }
}

// Rows [row, row + rows) and outputs [begin, end), at most kPanelRows and kPanelOutputs: each block of columns is decoded once
// for all rows.
template <class K, class Reader>
void panel_tile(const DenseProduct& product, int64_t begin, int64_t end, int64_t row, int64_t rows) {
  PanelScratch& scratch = panel_scratch();
  static_assert(kSumFloats<K> <= kMaxSumFloats);
  std::byte* panel = scratch.panel.data();
  auto* sums = reinterpret_cast<float*>(scratch.sums.data());
  const WeightView& weight = product.weight;
  const int64_t outputs = end - begin;
  std::fill_n(sums, rows * kPanelOutputs * kSumFloats<K>, 0.0F);
  const typename K::Element* x[kPanelRows];
  for (int64_t column = 0; column < weight.in; column += kPanelColumns<K>) {
    const int64_t count = std::min(kPanelColumns<K>, weight.in - column);
    decode_panel<K, Reader>(weight, begin, end, column, count, panel);
    for (int64_t r = 0; r < rows; ++r) x[r] = packed_row<K>(product, row + r) + column;
    const int64_t vecs = (count + kUnit - 1) / kUnit * K::kUnitVecs;
    panel_rows<K>(reinterpret_cast<const typename K::Element*>(panel), outputs, x, rows, vecs, sums);
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < outputs; ++i) {
      typename K::Sum sum[K::kSumVecs];
      for (int v = 0; v < K::kSumVecs; ++v) sum[v] = K::load_sum(sum_at<K>(sums, r, i, v));
      product.y[row + r][begin + i - product.first] = round_if(product.rounds, K::fold(sum));
    }
  }
}

template <class K, class Reader>
void dense_of(const DenseProduct& product, int64_t begin, int64_t end) {
  switch (product.rows) {
    case 0: return;
    case 1: return direct_range<K, Reader, 1, 4>(product, begin, end);
    case 2: return direct_range<K, Reader, 2, 4>(product, begin, end);
    case 3: return direct_range<K, Reader, 3, 2>(product, begin, end);
    case kDirectRows: return direct_range<K, Reader, kDirectRows, 2>(product, begin, end);
    default: break;
  }
  for (int64_t o = begin; o < end; o += kPanelOutputs) {
    for (int64_t row = 0; row < product.rows; row += kPanelRows) {
      panel_tile<K, Reader>(product, o, std::min(o + kPanelOutputs, end), row, std::min(kPanelRows, product.rows - row));
    }
  }
}
