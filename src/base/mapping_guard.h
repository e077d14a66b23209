// Survives mapped files that shrink, or whose disk fails, while they are used.
//
// Touching a page of a mapping that the system cannot fill raises SIGBUS, which ends the process and with it every request that
// it serves. Once guard_mappings() was called, such a page of a registered mapping reads as zeros instead and the mapping is
// marked as lost; whoever computes from it asks lost() before it hands a result on.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft {

// Installs the process's handler of SIGBUS. A fault outside of registered mappings still ends the process.
void guard_mappings();

// A mapping is registered while this object lives; the mapping must outlive it.
class RegisteredMapping {
 public:
  explicit RegisteredMapping(std::span<const std::byte> mapping);
  ~RegisteredMapping();
  RegisteredMapping(const RegisteredMapping&) = delete;
  RegisteredMapping& operator=(const RegisteredMapping&) = delete;

  [[nodiscard]] bool lost() const { return entry_->lost.load(); }

  // What the handler sees. Entries are reused and never freed, since it may walk their list at any time.
  struct Entry {
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: free
    std::atomic<bool> lost{false};
    Entry* next = nullptr;  // set before the entry is published
  };

 private:
  Entry* entry_;
};

}  // namespace weft
