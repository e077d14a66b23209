#pragma once

#include <utility>

#include "base/guard.h"
#include "pipeline/executor.h"

namespace weft {

// A sequence of an executor, released at the end of its owner. The executor outlives it.
class OwnedSequence {
 public:
  explicit OwnedSequence(Executor& executor) : OwnedSequence(executor, executor.create()) {}  // new, empty
  OwnedSequence(Executor& executor, SequenceId id) : executor_(&executor), id_(id) {}         // takes it over
  ~OwnedSequence() { release(); }
  OwnedSequence(OwnedSequence&& other) noexcept : executor_(std::exchange(other.executor_, nullptr)), id_(other.id_) {}
  OwnedSequence& operator=(OwnedSequence&& other) noexcept {
    if (this != &other) {
      release();
      executor_ = std::exchange(other.executor_, nullptr);
      id_ = other.id_;
    }
    return *this;
  }
  OwnedSequence(const OwnedSequence&) = delete;
  OwnedSequence& operator=(const OwnedSequence&) = delete;

  [[nodiscard]] SequenceId id() const { return id_; }

 private:
  void release() noexcept {
    if (executor_ != nullptr) static_cast<void>(guard([&] { executor_->release(id_); }));
  }

  Executor* executor_;  // nullptr: moved from
  SequenceId id_;
};

}  // namespace weft
