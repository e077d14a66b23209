// One object of a config.json, read key by key. Every refusal names file, key, what was wanted and what was found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace weft {

// Bounds of this program, far above published sizes: they keep every product of sizes inside int64.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxHeads = 1 << 14;
constexpr int64_t kMaxHeadDim = 1 << 14;
constexpr int64_t kMaxWidth = 1 << 18;
constexpr int64_t kMaxDenseWidth = 1 << 22;
constexpr int64_t kMaxVocab = (1LL << 31) - 1;
constexpr int64_t kMaxTokens = 1LL << 40;
constexpr int64_t kMaxConvKernel = 64;

// A value as messages show it.
[[nodiscard]] std::string shown(const Json& value);

// `path` is the object's dotted name, empty for the top level. Object and place outlive the section.
class Section {
 public:
  Section(const Json& object, std::string path, std::string_view place);

  [[nodiscard]] std::string name(std::string_view key) const;
  [[nodiscard]] std::string_view place() const { return place_; }
  [[nodiscard]] bool has(std::string_view key) const { return object_.contains(key); }
  // Present and not null.
  [[nodiscard]] bool states(std::string_view key) const { return has(key) && !object_.at(std::string(key)).is_null(); }
  [[nodiscard]] const Json& at(std::string_view key, std::string_view wanted) const;
  [[nodiscard]] int64_t integer(std::string_view key, int64_t low, int64_t high) const;
  [[nodiscard]] float positive(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::string text(std::string_view key, std::string_view wanted) const;
  [[nodiscard]] Section section(std::string_view key) const { return {at(key, "an object"), name(key), place_}; }
  // `eos_token_id`: an id or a list of ids below vocab_size.
  [[nodiscard]] std::vector<int64_t> eos_ids(int64_t vocab_size) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view wanted, ErrorKind kind = ErrorKind::bad_checkpoint) const;

 private:
  const Json& object_;
  std::string path_;
  std::string_view place_;
};

}  // namespace weft
