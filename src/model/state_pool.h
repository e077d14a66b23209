// The memory of all sequences of a stage: slots for state of fixed size, pages of 64 tokens for state that grows.
//
// A slot's or page's address never changes while it is held. Both are counted by reference: sequences that were forked from one
// another share what none of them writes. Only SequenceState takes and drops references.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/state_layout.h"
#include "tensor/device.h"

namespace weft {

class StatePool {
 public:
  struct Limits {
    int64_t slots = 0;
    int64_t pages = 0;
  };
  // `fingerprint` gives the name of the model, its numeric profile and the state's dtypes (model/fingerprint.h). It reads from
  // every shard, so it is called when a state is first saved or loaded. The memory is `device`'s.
  StatePool(StateLayout layout, std::function<std::string()> fingerprint, Limits limits,
            std::shared_ptr<Device> device = std::make_shared<HostDevice>());
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  [[nodiscard]] const StateLayout& layout() const { return layout_; }
  [[nodiscard]] const std::string& fingerprint() const;
  [[nodiscard]] Limits limits() const { return limits_; }
  [[nodiscard]] Device& device() const { return *device_; }

  // A slot or page with one reference and undefined content. Throws `unavailable` when all are held, or the device is full.
  [[nodiscard]] SlotId take_slot();
  [[nodiscard]] PageId take_page();
  void retain(SlotId slot);
  void retain(PageId page);
  void release(SlotId slot);
  void release(PageId page);
  [[nodiscard]] bool shared(SlotId slot) const;  // more than one reference
  [[nodiscard]] bool shared(PageId page) const;

  // On the device.
  [[nodiscard]] float* data(SlotId slot);  // [slot_floats]
  [[nodiscard]] float* data(PageId page);  // [page_floats]

  [[nodiscard]] int64_t slots_held() const;
  [[nodiscard]] int64_t pages_held() const;
  [[nodiscard]] ByteCount bytes_allocated() const;

 private:
  // One kind of equal blocks; memory is taken on first use and kept for reuse.
  struct Blocks {
    int64_t floats = 0;
    int64_t limit = 0;
    std::string_view name;
    std::vector<float*> memory;
    std::vector<int64_t> references;
    std::vector<int64_t> free;

    int64_t take(Device& device);
    void retain(int64_t id);
    void release(int64_t id);
    [[nodiscard]] int64_t held() const { return static_cast<int64_t>(memory.size() - free.size()); }
  };

  std::shared_ptr<Device> device_;
  StateLayout layout_;
  std::function<std::string()> make_fingerprint_;
  mutable std::once_flag fingerprint_once_;
  mutable std::string fingerprint_;
  Limits limits_;
  mutable std::mutex mutex_;
  Blocks slots_;  // guarded by mutex_
  Blocks pages_;  // guarded by mutex_
};

}  // namespace weft
