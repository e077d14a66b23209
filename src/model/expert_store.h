// Where the routed experts of a stage are. The MoE operator receives a table of views; the store sees to it that those named
// are there and were checked.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/weight_placer.h"
#include "ops/weight.h"

namespace weft {

class Checkpoint;

class ExpertStore {
 public:
  virtual ~ExpertStore() = default;
  virtual void add_layer(LayerIndex layer, int64_t experts) = 0;
  // A table indexed by expert id, valid for the entries in `ids` until the next call. Scale bytes of an expert are checked
  // before its first use (ruling R6): bad_checkpoint naming tensor, row and block.
  [[nodiscard]] virtual ops::ExpertTable acquire(LayerIndex layer, std::span<const int32_t> ids) = 0;
};

// Experts that lie in the mapped checkpoint files and are paged in on demand.
class MappedExperts final : public ExpertStore {
 public:
  explicit MappedExperts(std::shared_ptr<const Checkpoint> checkpoint) : checkpoint_(std::move(checkpoint)) {}
  void add_layer(LayerIndex layer, int64_t experts) override;
  [[nodiscard]] ops::ExpertTable acquire(LayerIndex layer, std::span<const int32_t> ids) override;

 private:
  struct Layer {
    LayerIndex layer;
    std::vector<ops::ExpertView> views;
    std::vector<bool> checked;
  };
  std::shared_ptr<const Checkpoint> checkpoint_;
  std::vector<Layer> layers_;
};

// Experts that lie in the memory of a GPU: all of them, checked when their layer is added. `ids` lie there too and are not
// read.
class ResidentExperts final : public ExpertStore {
 public:
  ResidentExperts(std::shared_ptr<const Checkpoint> checkpoint, WeightPlacer placer)
      : checkpoint_(std::move(checkpoint)), placer_(std::move(placer)) {}
  void add_layer(LayerIndex layer, int64_t experts) override;
  [[nodiscard]] ops::ExpertTable acquire(LayerIndex layer, std::span<const int32_t> ids) override;

 private:
  struct Layer {
    LayerIndex layer;
    std::vector<ops::ExpertView> views;
    const ops::ExpertView* on_device = nullptr;
  };
  std::shared_ptr<const Checkpoint> checkpoint_;
  WeightPlacer placer_;
  std::vector<Layer> layers_;
};

}  // namespace weft
