// Sums over tensor-parallel ranks. Layers call it from the first day; with one rank it does nothing.
#pragma once

#include "tensor/tensor.h"

namespace weft {

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // values <- sum of the ranks' values, elementwise, the same bits on every rank.
  virtual void all_reduce(MutableTensorView values) = 0;
};

// The communicator of an unsplit model.
class SingleRank final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  void all_reduce(MutableTensorView) override {}
};

}  // namespace weft
