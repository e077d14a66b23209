#include "engine/bench/disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/pages.h"
#include "base/plural.h"
#include "base/worker_pool.h"
#include "engine/bench/timing.h"
#include "formats/mapped_reader.h"
#include "model/checkpoint.h"
#include "model/expert_store.h"
#include "model/stage.h"
#include "model/stage_options.h"
#include "model/trunk.h"
#include "tensor/tensor.h"

namespace weft::bench {
namespace {

constexpr double kGiga = 1e9;
constexpr int64_t kLeastBytes = 1 << 20;
constexpr MappedReadOptions kLoader;  // the loader's own request size and number in flight

struct Way {
  std::string name;
  int in_flight = 1;
  bool direct = false;
};

std::vector<Way> ways() {
  const std::string many = fmt::format("{} requests of {} at once", kLoader.in_flight, human_bytes(kLoader.max_request));
  return {{"in order", 1, false}, {many, kLoader.in_flight, false}, {many + ", past the page cache", kLoader.in_flight, true}};
}

class OpenFile {
 public:
  OpenFile(const std::filesystem::path& path, bool direct)
      : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0))) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] bool opened() const { return descriptor_ >= 0; }

  // Bytes [offset, offset + out.size()) or up to the end of the file. Direct reads want whole blocks.
  void read(int64_t offset, std::span<std::byte> out) const {
    ssize_t got = 0;
    do {
      got = ::pread(descriptor_, out.data(), out.size(), offset);
    } while (got < 0 && errno == EINTR);
    if (got <= 0)
      fail(ErrorKind::unavailable, path_.string(), "reading at byte {}: {}", offset,
           got == 0 ? "the file ends" : std::strerror(errno));
  }

 private:
  std::filesystem::path path_;
  int descriptor_;
};

int64_t size_of_all(const std::vector<std::filesystem::path>& files) {
  return std::accumulate(files.begin(), files.end(), int64_t{0},
                         [](int64_t sum, const auto& file) { return sum + ReadFile(file, ErrorKind::bad_input).size(); });
}

void evict_all(const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& file : files) evict_pages(file);
}

// Seconds of reading all files, which were evicted; negative when this way is refused.
double read_all(const std::vector<std::filesystem::path>& files, const Way& way) {
  struct Request {
    const OpenFile* file;
    int64_t offset;
  };
  const Timer timer;
  std::vector<std::unique_ptr<OpenFile>> open;
  std::vector<Request> requests;
  for (const std::filesystem::path& file : files) {
    open.push_back(std::make_unique<OpenFile>(file, way.direct));
    if (!open.back()->opened()) return -1.0;
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    for (int64_t at = 0; at < size; at += kLoader.max_request) requests.push_back({open.back().get(), at});
  }
  WorkerPool pool(way.in_flight);
  pool.parallel_for(std::ssize(requests), 1, [&](int64_t begin, int64_t end) {
    // Tensors are aligned to 64 bytes, direct reads want blocks of the disk.
    thread_local Tensor buffer = Tensor::uninitialized(DType::u8, {kLoader.max_request + page_bytes()});
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    const auto page = static_cast<uintptr_t>(page_bytes());
    std::byte* const aligned = buffer.data() + ((address + page - 1) / page * page - address);
    for (int64_t i = begin; i < end; ++i) {
      const Request& request = requests[static_cast<size_t>(i)];
      request.file->read(request.offset, {aligned, static_cast<size_t>(kLoader.max_request)});
    }
  });
  return timer.seconds();
}

// One more sample of each way.
void measure_ways(const std::vector<std::filesystem::path>& files, double gigabytes, std::vector<Figure>& figures) {
  const std::vector<Way> all = ways();
  figures.resize(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    evict_all(files);
    const double seconds = read_all(files, all[i]);
    figures[i].name = all[i].name;
    figures[i].unit = "GB/s";
    if (seconds > 0.0) figures[i].samples.push_back(gigabytes / seconds);
  }
}

void keep_measured(std::vector<Figure>& figures, Record& record) {
  for (Figure& figure : figures) {
    if (figure.samples.empty()) {
      record.notes.push_back(fmt::format("{}: not measured, the file system refuses it", figure.name));
    } else {
      record.figures.push_back(std::move(figure));
    }
  }
}

// Seconds of loading as engine/executor_loader.h and the stage do.
double load(const std::filesystem::path& dir) {
  const Timer timer;
  const auto checkpoint = std::make_shared<const Checkpoint>(dir);
  const LayerRange layers = checkpoint->all_layers();
  read_trunk(*checkpoint, layers);
  StageOptions options;
  options.layers = layers;
  const std::unique_ptr<Stage> stage = make_stage(checkpoint, options);
  const ModelConfig& config = checkpoint->config();
  std::vector<int32_t> all(static_cast<size_t>(config.experts));
  std::iota(all.begin(), all.end(), 0);
  MappedExperts experts(checkpoint);
  for (LayerIndex layer = layers.begin; layer < layers.end; ++layer) {
    if (!config.is_moe(layer)) continue;
    experts.add_layer(layer, config.experts);
    (void)experts.acquire(layer, all);
  }
  // The rest: rows of the embedding table come one by one in a run.
  std::vector<MappedPart> tables;
  for (const ParamSpec& spec : checkpoint->params()) {
    if (spec.owner != Owner::first) continue;
    for (const StoredPart& part : checkpoint->stored_parts(spec)) tables.push_back(checkpoint->bytes_of(part));
  }
  read_mapped(tables);
  return timer.seconds();
}

}  // namespace

Record bench_disk(const std::vector<std::filesystem::path>& files, int repeats) {
  Record record{"disk", {}, {}, {}};
  const int64_t bytes = size_of_all(files);
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t before = 0; before < i; ++before) {  // would be read from memory the second time
      if (std::filesystem::equivalent(files[before], files[i]))
        fail(ErrorKind::bad_input, "bench", "wanted different files, found '{}' again", files[i].string());
    }
  }
  if (bytes < kLeastBytes) {
    fail(ErrorKind::bad_input, "bench",
         "wanted files of at least {} together, whose reading takes a time that can be measured, found {}",
         human_bytes(kLeastBytes), counted(bytes, "byte"));
  }
  record.facts = {{"file_bytes", bytes}};
  std::vector<Figure> figures;
  for (int repeat = 0; repeat < repeats; ++repeat) measure_ways(files, static_cast<double>(bytes) / kGiga, figures);
  keep_measured(figures, record);
  return record;
}

Record bench_load(const std::filesystem::path& dir, int repeats) {
  Record record{"load", {}, {}, {}};
  std::vector<std::filesystem::path> files;
  int64_t weights = 0;
  {
    const Checkpoint checkpoint(dir);
    for (const int64_t shard : checkpoint.shards_of(checkpoint.all_layers()))
      files.push_back(checkpoint.inventory().path_of(static_cast<uint32_t>(shard)));
    weights = checkpoint.weight_bytes(checkpoint.all_layers()).value;
  }
  const int64_t bytes = size_of_all(files);
  record.facts = {{"file_bytes", bytes}, {"weight_bytes", weights}};
  Figure loaded{"load", "GB/s", {}, {}};
  std::vector<Figure> figures;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    measure_ways(files, static_cast<double>(bytes) / kGiga, figures);
    evict_all(files);
    loaded.samples.push_back(static_cast<double>(weights) / kGiga / load(dir));
  }
  keep_measured(figures, record);
  loaded.limit = std::ranges::max_element(record.figures, {}, &Figure::value)->as_limit();
  record.figures.push_back(std::move(loaded));
  return record;
}

}  // namespace weft::bench
