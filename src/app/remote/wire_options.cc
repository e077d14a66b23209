#include "app/wire_flags.h"
#include "base/error.h"
#include "engine/remote/remote_loader.h"
#include "pipeline/plan.h"
#include "pipeline/wire/link.h"

namespace weft {
namespace {

constexpr int64_t kSmallestFrame = 1 << 20;  // bytes

}  // namespace

LinkOptions WireFlags::options(bool is_protected) const {
  LinkOptions made = link_options();
  if (!max_frame.empty()) {
    made.limits.frame = parse_memory(max_frame, "--max-frame");
    if (made.limits.frame < kSmallestFrame)
      fail(ErrorKind::bad_input, "--max-frame", "wanted at least 1 MiB, found {}", max_frame);
  }
  made.checksum = checksum == "on" || (checksum == "auto" && !is_protected) ? Checksum::on : Checksum::off;
  made.compression = compress == "lz4" ? Compression::lz4 : Compression::none;
  return made;
}

}  // namespace weft
