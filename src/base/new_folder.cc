#include "base/new_folder.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/guard.h"
#include "base/units.h"

namespace weft {

namespace fs = std::filesystem;

NewFolder::NewFolder(fs::path path, std::string_view place) : path_(std::move(path)), place_(place) {
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_empty(path_, error))
    fail(ErrorKind::bad_input, place_, "{}: wanted an absent or empty folder", path_.string());
  made_ = fs::create_directories(path_, error);
  if (error) fail(ErrorKind::bad_input, place_, "{}: {}", path_.string(), error.message());
}

NewFolder::~NewFolder() {
  if (kept_) return;
  // A folder that cannot be read or emptied stays as it is.
  static_cast<void>(guard([&] {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) files.push_back(entry.path());
    for (const fs::path& file : files) {
      if (!fs::is_directory(fs::symlink_status(file))) fs::remove(file);
    }
    if (made_ && fs::is_empty(path_)) fs::remove(path_);
  }));
}

void NewFolder::require_free(int64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (error) fail(ErrorKind::unavailable, place_, "{}: free space: {}", path_.string(), error.message());
  if (bytes > 0 && space.available < static_cast<std::uintmax_t>(bytes)) {
    const auto available = static_cast<int64_t>(space.available);
    fail(ErrorKind::bad_input, place_, "{}: wanted {} bytes ({}) of free space, found {} ({})", path_.string(),
         with_commas(bytes), human_bytes(bytes), with_commas(available), human_bytes(available));
  }
}

}  // namespace weft
