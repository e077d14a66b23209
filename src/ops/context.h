// What every operator receives beside its operands.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/worker_pool.h"

namespace weft {
class Device;        // tensor/device.h
class Workspace;     // tensor/workspace.h
class Communicator;  // parallel/communicator.h, a layer above: operators hand it on and never call it
}  // namespace weft

namespace weft::ops {

// Which implementation of the operators runs. `reference` is the plain scalar form that the others are checked against.
enum class Backend : uint8_t { reference, cpu, cuda };

// Where values are rounded (ARCHITECTURE.md, "Numbers"). exact: activations float32, no rounding. bf16: every rounding point of
// K3 spec 3.0 (R1 to R12, with normalised q and k of KDA kept float32); values stay in float32 storage and are bf16 values.
enum class Profile : uint8_t { exact, bf16 };

[[nodiscard]] std::string_view to_string(Backend backend);
[[nodiscard]] std::string_view to_string(Profile profile);

struct Context {
  Backend backend = Backend::cpu;
  Profile profile = Profile::exact;
  WorkerPool* pool = nullptr;      // never null while an operator runs
  Communicator* comm = nullptr;    // never null while an operator runs
  Device* device = nullptr;        // where the operands lie; never null with Backend::cuda
  Workspace* workspace = nullptr;  // scratch memory of the operators on that device; likewise

  [[nodiscard]] bool reference() const { return backend == Backend::reference; }
  [[nodiscard]] bool on_gpu() const { return backend == Backend::cuda; }
  [[nodiscard]] bool rounds() const { return profile == Profile::bf16; }
};

}  // namespace weft::ops
