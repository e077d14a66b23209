#include "base/open_files.h"

#include <algorithm>
#include <limits>

#include <sys/resource.h>

namespace weft {

int64_t raise_open_file_limit(std::optional<int64_t> wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t most = wanted ? std::min(static_cast<rlim_t>(std::max<int64_t>(*wanted, 0)), limit.rlim_max) : limit.rlim_max;
  if (most > limit.rlim_cur) {
    rlimit raised = limit;
    raised.rlim_cur = most;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  const auto largest = static_cast<rlim_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(limit.rlim_cur, largest));
}

}  // namespace weft
