// Where the routed experts of a stage are. The MoE operator receives a table of views; the store sees to it that those named
// are there and were checked.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
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
  // Of the experts that are in memory.
  [[nodiscard]] virtual ByteCount bytes() const = 0;
};

// Experts that lie in the mapped checkpoint files. One that is named is brought in whole at the speed of the disk, one that
// never is stays unread. With a budget the experts that were not named for the longest time are given back, so that those in
// memory never exceed it; what the page cache still has of them costs no read when they are named again.
class MappedExperts final : public ExpertStore {
 public:
  explicit MappedExperts(std::shared_ptr<const Checkpoint> checkpoint, std::optional<ByteCount> budget = std::nullopt)
      : checkpoint_(std::move(checkpoint)), budget_(budget) {}
  MappedExperts(const MappedExperts&) = delete;
  MappedExperts& operator=(const MappedExperts&) = delete;

  void add_layer(LayerIndex layer, int64_t experts) override;
  // Also throws unavailable when the named experts alone exceed the budget.
  [[nodiscard]] ops::ExpertTable acquire(LayerIndex layer, std::span<const int32_t> ids) override;
  [[nodiscard]] ByteCount bytes() const override { return held_; }

 private:
  struct Key {
    size_t layer = 0;  // index into layers_
    size_t expert = 0;
  };
  struct Expert {
    bool checked = false;
    std::optional<std::list<Key>::iterator> place;  // in order_, while in memory
    uint64_t last_call = 0;                         // that named it
  };
  struct Layer {
    LayerIndex layer;
    std::vector<ops::ExpertView> views;
    std::vector<Expert> experts;
    ByteCount expert_bytes;  // of one
  };

  void fetch(Layer& layer, std::span<const size_t> experts);
  void make_room(const Layer& wanting, ByteCount wanted);

  std::shared_ptr<const Checkpoint> checkpoint_;
  std::optional<ByteCount> budget_;
  std::vector<Layer> layers_;
  std::list<Key> order_;  // of those in memory, the one named longest ago first
  ByteCount held_;
  uint64_t calls_ = 0;
};

// Experts that lie in the memory of a GPU: all of them, checked when their layer is added. `ids` lie there too and are not
// read.
class ResidentExperts final : public ExpertStore {
 public:
  ResidentExperts(std::shared_ptr<const Checkpoint> checkpoint, WeightPlacer placer)
      : checkpoint_(std::move(checkpoint)), placer_(std::move(placer)) {}
  void add_layer(LayerIndex layer, int64_t experts) override;
  [[nodiscard]] ops::ExpertTable acquire(LayerIndex layer, std::span<const int32_t> ids) override;
  [[nodiscard]] ByteCount bytes() const override { return held_; }

 private:
  struct Layer {
    LayerIndex layer;
    std::vector<ops::ExpertView> views;
    const ops::ExpertView* on_device = nullptr;
  };
  std::shared_ptr<const Checkpoint> checkpoint_;
  WeightPlacer placer_;
  std::vector<Layer> layers_;
  ByteCount held_;
};

}  // namespace weft
