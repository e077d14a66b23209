// The wrapper between worlds: no exception leaves a thread, pool task, coroutine, callback or destructor.
//
//     std::optional<Failure> failure = guard([&] { stage.forward(batch); });
//     if (failure) ticket.fail(*failure);
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace weft {

// An error as a value.
struct Failure {
  ErrorKind kind = ErrorKind::internal;
  std::string message;                                // as Error::what()
  std::shared_ptr<const StagePlace> stage = nullptr;  // as Error::stage()

  [[noreturn]] void raise() const;
};

// What the exception that is being handled says. Call it inside a catch block only.
[[nodiscard]] Failure current_failure() noexcept;

// Runs `body` and returns what it threw, or nothing.
template <class Body>
[[nodiscard]] std::optional<Failure> guard(Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return std::nullopt;
  } catch (...) {
    return current_failure();
  }
}

}  // namespace weft
