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

  // The first chunk of memory has room for `planned` bytes, so that the takes of a planned step lie in one piece. The device
  // outlives the workspace.
  explicit Workspace(Device& device, ByteCount planned = ByteCount(0)) : device_(&device), planned_(planned) {}

  [[nodiscard]] MutableTensorView take(const Shape& shape, DType dtype = DType::f32);
  [[nodiscard]] ByteCount bytes_allocated() const;
  [[nodiscard]] ByteCount most_used() const { return ByteCount(most_used_); }  // at once, gaps at the ends of chunks included

 private:
  struct Chunk {
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  Device* device_;
  ByteCount planned_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // the chunk that is being filled
  int64_t used_ = 0;  // bytes of it
  int64_t most_used_ = 0;
};

}  // namespace weft
