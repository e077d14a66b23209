// A saved state is bytes from outside: whatever they are, loading ends with a state or a weft::Error.
#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "model/sequence_state.h"
#include "model/state_file.h"

namespace {

weft::StateLayout layout() {
  weft::StateLayout made({weft::LayerIndex(0), weft::LayerIndex(2)});
  made.add_slot_layer(weft::LayerIndex(0), {{"S", {1, 2, 2}}, {"conv_q", {1, 2}}});
  made.add_page_layer(weft::LayerIndex(1), {{"latent", 2}, {"pe", 1}});
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int descriptor = ::memfd_create("state", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  if (::ftruncate(descriptor, 0) != 0 || ::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) return 0;
  try {
    const weft::StateFile file(path);
    file.require(file.header().fingerprint, file.header().layer_count);
    weft::StatePool pool(layout(), [] { return std::string("model"); }, {.slots = 1, .pages = 16});
    (void)weft::SequenceState::import_tensors(pool, file.header().consumed, file.tensors());
  } catch (const weft::Error&) {
    return 0;
  }
  return 0;
}
