// What every operator receives beside its operands.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/worker_pool.h"

namespace weft {
class Communicator;  // parallel/communicator.h, a layer above: operators hand it on and never call it
}

namespace weft::ops {

// Which implementation of the operators runs. `reference` is the plain scalar form that the others are checked against.
enum class Backend : uint8_t { reference, cpu };

// Where values are rounded (ARCHITECTURE.md, "Numbers"). exact: activations float32, no rounding. bf16: every rounding point of
// K3 spec 3.0 (R1 to R12, with normalised q and k of KDA kept float32); values stay in float32 storage and are bf16 values.
enum class Profile : uint8_t { exact, bf16 };

[[nodiscard]] std::string_view to_string(Backend backend);
[[nodiscard]] std::string_view to_string(Profile profile);

struct Context {
  Backend backend = Backend::cpu;
  Profile profile = Profile::exact;
  WorkerPool* pool = nullptr;    // never null while an operator runs
  Communicator* comm = nullptr;  // never null while an operator runs

  [[nodiscard]] bool reference() const { return backend == Backend::reference; }
  [[nodiscard]] bool rounds() const { return profile == Profile::bf16; }
};

}  // namespace weft::ops
