#pragma once

#include "base/guard.h"
#include "pipeline/executor.h"

namespace weft {

// A new, empty sequence of an executor, released at the end of its owner.
class OwnedSequence {
 public:
  explicit OwnedSequence(Executor& executor) : executor_(executor), id_(executor.create()) {}
  ~OwnedSequence() {
    static_cast<void>(guard([&] { executor_.release(id_); }));
  }
  OwnedSequence(const OwnedSequence&) = delete;
  OwnedSequence& operator=(const OwnedSequence&) = delete;

  [[nodiscard]] SequenceId id() const { return id_; }

 private:
  Executor& executor_;
  SequenceId id_;
};

}  // namespace weft
