// Distinct strings with dense ids 0, 1, 2, ..., stored back to back: about 20 bytes beside the text of each.
//
// A checkpoint has half a million tensor names; std::string and std::unordered_map would cost ten times the text's overhead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace weft {

class NameTable {
 public:
  void reserve(size_t names, size_t text_bytes) {
    ends_.reserve(names);
    text_.reserve(text_bytes);
    if (names * 2 > slots_.size()) rehash(names * 2);
  }

  [[nodiscard]] size_t size() const { return ends_.size(); }
  [[nodiscard]] size_t text_bytes() const { return text_.size(); }
  [[nodiscard]] std::string_view operator[](uint32_t id) const {
    const size_t begin = id == 0 ? 0 : ends_[id - 1];
    return {text_.data() + begin, ends_[id] - begin};
  }

  [[nodiscard]] std::optional<uint32_t> find(std::string_view name) const {
    if (slots_.empty()) return std::nullopt;
    const uint32_t id = slots_[slot_of(name)];
    if (id == kFree) return std::nullopt;
    return id;
  }

  // The new id, or nothing when the name is there already.
  std::optional<uint32_t> insert(std::string_view name) {
    if ((ends_.size() + 1) * 2 > slots_.size()) rehash((ends_.size() + 1) * 4);
    uint32_t& slot = slots_[slot_of(name)];
    if (slot != kFree) return std::nullopt;
    slot = static_cast<uint32_t>(ends_.size());
    text_.insert(text_.end(), name.begin(), name.end());
    ends_.push_back(text_.size());
    return slot;
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;

  // The slot that holds `name`, or the free one where it belongs. At least half of the slots are free.
  [[nodiscard]] size_t slot_of(std::string_view name) const {
    size_t slot = std::hash<std::string_view>{}(name) & (slots_.size() - 1);
    while (slots_[slot] != kFree && (*this)[slots_[slot]] != name) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void rehash(size_t wanted) {
    size_t count = 16;
    while (count < wanted) count *= 2;
    slots_.assign(count, kFree);
    for (uint32_t id = 0; id < ends_.size(); ++id) slots_[slot_of((*this)[id])] = id;
  }

  std::vector<char> text_;
  std::vector<uint64_t> ends_;   // of each name in text_
  std::vector<uint32_t> slots_;  // ids by hash, linear probing; the size is a power of two
};

}  // namespace weft
