#include "model/state_pool.h"

#include <cassert>
#include <utility>

#include "base/error.h"

namespace weft {

int64_t StatePool::Blocks::take(Device& device) {
  if (free.empty()) {
    const auto id = static_cast<int64_t>(memory.size());
    if (id >= limit) fail(ErrorKind::unavailable, "state pool", "wanted a free {}, found all {} in use", name, limit);
    memory.push_back(reinterpret_cast<float*>(device.take(ByteCount(floats * static_cast<int64_t>(sizeof(float))))));
    references.push_back(1);
    return id;
  }
  const int64_t id = free.back();
  free.pop_back();
  references[static_cast<size_t>(id)] = 1;
  return id;
}

void StatePool::Blocks::retain(int64_t id) {
  assert(references[static_cast<size_t>(id)] > 0);
  ++references[static_cast<size_t>(id)];
}

void StatePool::Blocks::release(int64_t id) {
  assert(references[static_cast<size_t>(id)] > 0);
  if (--references[static_cast<size_t>(id)] == 0) free.push_back(id);
}

StatePool::StatePool(StateLayout layout, std::function<std::string()> fingerprint, Limits limits,
                     std::shared_ptr<Device> device)
    : device_(std::move(device)), layout_(std::move(layout)), make_fingerprint_(std::move(fingerprint)), limits_(limits) {
  slots_.floats = layout_.slot_floats();
  slots_.limit = limits.slots;
  slots_.name = "slot";
  pages_.floats = layout_.page_floats();
  pages_.limit = limits.pages;
  pages_.name = "page";
}

const std::string& StatePool::fingerprint() const {
  std::call_once(fingerprint_once_, [&] { fingerprint_ = make_fingerprint_(); });
  return fingerprint_;
}

SlotId StatePool::take_slot() {
  const std::lock_guard lock(mutex_);
  return SlotId(slots_.take(*device_));
}
PageId StatePool::take_page() {
  const std::lock_guard lock(mutex_);
  return PageId(pages_.take(*device_));
}
void StatePool::retain(SlotId slot) {
  const std::lock_guard lock(mutex_);
  slots_.retain(slot.value);
}
void StatePool::retain(PageId page) {
  const std::lock_guard lock(mutex_);
  pages_.retain(page.value);
}
void StatePool::release(SlotId slot) {
  const std::lock_guard lock(mutex_);
  slots_.release(slot.value);
}
void StatePool::release(PageId page) {
  const std::lock_guard lock(mutex_);
  pages_.release(page.value);
}
bool StatePool::shared(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return slots_.references[static_cast<size_t>(slot.value)] > 1;
}
bool StatePool::shared(PageId page) const {
  const std::lock_guard lock(mutex_);
  return pages_.references[static_cast<size_t>(page.value)] > 1;
}
float* StatePool::data(SlotId slot) {
  const std::lock_guard lock(mutex_);
  return slots_.memory[static_cast<size_t>(slot.value)];
}
float* StatePool::data(PageId page) {
  const std::lock_guard lock(mutex_);
  return pages_.memory[static_cast<size_t>(page.value)];
}
int64_t StatePool::slots_held() const {
  const std::lock_guard lock(mutex_);
  return slots_.held();
}
int64_t StatePool::pages_held() const {
  const std::lock_guard lock(mutex_);
  return pages_.held();
}
ByteCount StatePool::bytes_allocated() const {
  const std::lock_guard lock(mutex_);
  return ByteCount((static_cast<int64_t>(slots_.memory.size()) * slots_.floats +
                    static_cast<int64_t>(pages_.memory.size()) * pages_.floats) *
                   static_cast<int64_t>(sizeof(float)));
}

}  // namespace weft
