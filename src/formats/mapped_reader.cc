#include "formats/mapped_reader.h"

#include <algorithm>
#include <functional>
#include <mutex>

#include "base/pages.h"
#include "base/worker_pool.h"

namespace weft {

std::vector<MappedPart> plan_mapped_requests(std::vector<MappedPart> parts, const MappedReadOptions& options) {
  const auto limit = static_cast<size_t>(options.max_request);
  std::ranges::sort(parts, std::less<>{}, &MappedPart::data);
  std::vector<MappedPart> requests;
  for (MappedPart part : parts) {
    if (!requests.empty()) {
      MappedPart& last = requests.back();
      const std::byte* const end = last.data() + last.size();
      if (part.data() <= end) {
        const auto known = std::min(part.size(), static_cast<size_t>(end - part.data()));
        part = part.subspan(known);
        const size_t room = std::min(limit - last.size(), part.size());
        last = {last.data(), last.size() + room};
        part = part.subspan(room);
      }
    }
    for (; !part.empty(); part = part.subspan(requests.back().size()))
      requests.push_back(part.first(std::min(limit, part.size())));
  }
  return requests;
}

void read_mapped(std::vector<MappedPart> parts, const MappedReadOptions& options,
                 const std::function<void(int64_t done)>& on_progress) {
  const std::vector<MappedPart> requests = plan_mapped_requests(std::move(parts), options);
  WorkerPool pool(static_cast<int>(std::min<int64_t>(options.in_flight, std::max<int64_t>(1, std::ssize(requests)))));
  std::mutex mutex;
  int64_t done = 0;
  pool.parallel_for(std::ssize(requests), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const MappedPart request = requests[static_cast<size_t>(i)];
      bring_in(request);
      if (!on_progress) continue;
      const std::lock_guard lock(mutex);
      done += std::ssize(request);
      on_progress(done);
    }
  });
}

}  // namespace weft
