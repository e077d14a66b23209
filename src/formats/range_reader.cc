#include "formats/range_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <tuple>

#include "base/error.h"
#include "base/worker_pool.h"

namespace weft {
namespace {

int64_t end_of(const RangeRead& range) { return range.offset + static_cast<int64_t>(range.destination.size()); }

// Files by path, so that the order of requests does not depend on addresses.
bool file_before(const ReadFile* a, const ReadFile* b) {
  if (a == b) return false;
  if (a->path() != b->path()) return a->path() < b->path();
  return std::less<>{}(a, b);
}

std::vector<const RangeRead*> sorted(std::span<const RangeRead> ranges) {
  std::vector<const RangeRead*> order;
  order.reserve(ranges.size());
  for (const RangeRead& range : ranges) {
    if (range.destination.empty()) continue;
    if (range.offset < 0 || range.offset > INT64_MAX - static_cast<int64_t>(range.destination.size())) {
      fail(ErrorKind::internal, range.file->path().string(), "wanted a range inside a file, found {} bytes at offset {}",
           range.destination.size(), range.offset);
    }
    order.push_back(&range);
  }
  std::ranges::sort(order, [](const RangeRead* a, const RangeRead* b) {
    if (a->file != b->file) return file_before(a->file, b->file);
    return std::tuple(a->offset, end_of(*a)) < std::tuple(b->offset, end_of(*b));
  });
  return order;
}

struct Plan {
  std::vector<RangeRequest> requests;
  int64_t wanted = 0;
};

Plan plan(std::span<const RangeRead* const> order, const RangeReadOptions& options) {
  Plan result;
  std::vector<RangeRequest>& requests = result.requests;
  for (const RangeRead* range : order) {
    int64_t begin = range->offset;
    const int64_t end = end_of(*range);
    const bool same_file = !requests.empty() && requests.back().file == range->file;
    if (same_file) begin = std::max(begin, requests.back().end);  // what lies before is in an earlier request
    if (begin >= end) continue;
    result.wanted += end - begin;
    if (same_file && begin - requests.back().end <= options.merge_gap) {
      RangeRequest& last = requests.back();
      const int64_t room = last.begin + options.max_request;
      if (begin < room) {
        last.end = std::min(end, room);
        begin = last.end;
      }
    }
    while (begin < end) {
      requests.push_back({range->file, begin, std::min(end, begin + options.max_request)});
      begin = requests.back().end;
    }
  }
  return result;
}

}  // namespace

std::vector<RangeRequest> plan_requests(std::span<const RangeRead> ranges, const RangeReadOptions& options) {
  return plan(sorted(ranges), options).requests;
}

RangeReadStats read_ranges(std::span<const RangeRead> ranges, const RangeReadOptions& options) {
  if (options.merge_gap < 0 || options.max_request < 1 || options.in_flight < 1)
    fail(ErrorKind::internal, "read_ranges", "wanted a gap >= 0, a request size >= 1 and >= 1 in flight");
  const std::vector<const RangeRead*> order = sorted(ranges);
  const Plan planned = plan(order, options);
  const std::vector<RangeRequest>& requests = planned.requests;

  // The pieces of each request, as pairs (request, range): a range lies in consecutive requests.
  std::vector<std::vector<const RangeRead*>> pieces(requests.size());
  for (const RangeRead* range : order) {
    auto request = std::ranges::partition_point(requests, [&](const RangeRequest& r) {
      return r.file == range->file ? r.end <= range->offset : file_before(r.file, range->file);
    });
    for (; request != requests.end() && request->file == range->file && request->begin < end_of(*range); ++request)
      pieces[static_cast<size_t>(request - requests.begin())].push_back(range);
  }

  WorkerPool pool(static_cast<int>(std::min<int64_t>(options.in_flight, std::max<int64_t>(1, std::ssize(requests)))));
  std::atomic<int64_t> bytes_read = 0;
  pool.parallel_for(std::ssize(requests), 1, [&](int64_t first, int64_t last) {
    std::vector<std::byte> buffer;
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      const RangeRequest& request = requests[i];
      const auto size = static_cast<size_t>(request.end - request.begin);
      bytes_read += request.end - request.begin;
      if (pieces[i].size() == 1) {
        const RangeRead& range = *pieces[i].front();
        request.file->read_at(request.begin,
                              range.destination.subspan(static_cast<size_t>(request.begin - range.offset), size));
        continue;
      }
      buffer.resize(size);
      request.file->read_at(request.begin, buffer);
      for (const RangeRead* range : pieces[i]) {
        const int64_t begin = std::max(request.begin, range->offset);
        const int64_t end = std::min(request.end, end_of(*range));
        std::memcpy(range->destination.data() + (begin - range->offset), buffer.data() + (begin - request.begin),
                    static_cast<size_t>(end - begin));
      }
    }
  });
  return {static_cast<int64_t>(requests.size()), bytes_read.load(), planned.wanted};
}

}  // namespace weft
