// Scratch memory of a forward pass on a device: taken in order, given back by scope, reused by the next step. The same takes
// give the same addresses once the first of them have been seen.
//
//     const Workspace::Scope scope(workspace);
//     MutableTensorView x = workspace.take({rows, width});   // undefined content; gone when `scope` ends
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "tensor/device.h"

namespace weft {

class Workspace {
 public:
  class Scope {
   public:
    explicit Scope(Workspace& workspace) : workspace_(workspace), chunk_(workspace.chunk_), used_(workspace.used_) {}
    ~Scope() {
      workspace_.chunk_ = chunk_;
      workspace_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace& workspace_;
    size_t chunk_;
    int64_t used_;
  };

  explicit Workspace(Device& device) : device_(&device) {}  // which outlives the workspace

  [[nodiscard]] MutableTensorView take(const Shape& shape, DType dtype = DType::f32);
  [[nodiscard]] ByteCount bytes_allocated() const;

 private:
  struct Chunk {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  Device* device_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // the chunk that is being filled
  int64_t used_ = 0;  // bytes of it
};

}  // namespace weft
