// How fast files come from the disk, and how fast the engine's loader takes them from there.
#pragma once

#include <filesystem>
#include <vector>

#include "engine/bench/record.h"

namespace weft::bench {

// GB/s of reading the files, whose pages are evicted before each repeat (checked by mincore): in order by one thread; by as
// many requests at once as the loader has in flight, of the same size; the same past the page cache (O_DIRECT), left out with a
// note where the file system refuses it. Throws bad_input for files that cannot be read, unavailable when pages stay.
[[nodiscard]] Record bench_disk(const std::vector<std::filesystem::path>& files, int repeats);

// GB/s of loading the model `dir` as the program does, with its pages evicted before: the trunk when the stage is built, then
// every routed expert by its layer's store. Beside it what bench_disk measures on the same shards, in turn with it; the limit
// is the fastest of those.
[[nodiscard]] Record bench_load(const std::filesystem::path& dir, int repeats);

}  // namespace weft::bench
