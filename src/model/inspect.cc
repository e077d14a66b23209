#include "model/inspect.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <tuple>

#include "base/file.h"
#include "base/guard.h"
#include "base/worker_pool.h"
#include "formats/packed.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

constexpr int64_t kChunk = 8 << 20;  // bytes a thread reads at a time

// Rows of K3 spec 4.2, in its order, and those of Qwen3-Next.
constexpr std::string_view kClasses[] = {"routed experts", "KDA attention", "shared experts", "MLA attention", "gated DeltaNet",
                                         "GQA attention",  "latent MoE",    "embedding",      "lm_head",       "dense MLP",
                                         "router",         "AttnRes",       "norms"};

std::string_view class_of(const ParamSpec& p) {
  const std::string_view role = p.role;
  if (role.starts_with("moe.expert.")) return "routed experts";
  if (role.starts_with("moe.shared.")) return "shared experts";
  if (role.starts_with("moe.latent_")) return "latent MoE";
  if (role.starts_with("moe.")) return "router";
  if (role.starts_with("kda.")) return "KDA attention";
  if (role.starts_with("mla.")) return "MLA attention";
  if (role.starts_with("gdn.")) return "gated DeltaNet";
  if (role.starts_with("gqa.")) return "GQA attention";
  if (role.starts_with("mlp.")) return "dense MLP";
  if (role.find("_res.") != std::string_view::npos) return "AttnRes";
  if (role == "embed") return "embedding";
  return role == "lm_head" ? "lm_head" : "norms";
}

// First index whose value is not finite, or -1.
int64_t first_not_finite(DType dtype, std::span<const std::byte> bytes) {
  const auto scan = [&]<class Bits>(Bits exponent) {
    const auto count = static_cast<int64_t>(bytes.size() / sizeof(Bits));
    for (int64_t i = 0; i < count; ++i) {
      Bits bits = 0;
      std::memcpy(&bits, bytes.data() + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
      if ((bits & exponent) == exponent) return i;
    }
    return int64_t{-1};
  };
  switch (dtype) {
    case DType::f64: return scan(uint64_t{0x7ff0000000000000});
    case DType::f32: return scan(uint32_t{0x7f800000});
    case DType::f16: return scan(uint16_t{0x7c00});
    case DType::bf16: return scan(uint16_t{0x7f80});
    case DType::f8_e5m2: return scan(uint8_t{0x7c});
    case DType::f8_e4m3: return scan(uint8_t{0x7f});
    default: return -1;
  }
}

// Reads every byte of a checkpoint, in pieces of about kChunk.
class Verifier {
 public:
  Verifier(const Checkpoint& checkpoint, const InspectOptions& options, Inspection& result)
      : inventory_(checkpoint.inventory()), options_(options), result_(result), pairs_(inventory_) {
    for (uint32_t f = 0; f < inventory_.files().size(); ++f)
      files_.push_back(std::make_unique<ReadFile>(inventory_.path_of(f)));
  }

  void run() {
    std::vector<bool> paired(inventory_.size());
    for (const PackedPair& pair : pairs_.pairs()) {
      paired[pair.packed] = true;
      paired[pair.scale] = true;
      const int64_t rows = inventory_.shape(pair.packed)[0];
      const int64_t step = std::max<int64_t>(1, kChunk / inventory_.shape(pair.packed)[1]);
      for (int64_t row = 0; row < rows; row += step)
        pieces_.push_back({pair.packed, pair.scale, row, std::min(step, rows - row)});
    }
    for (TensorId id = 0; id < inventory_.size(); ++id) {
      if (paired[id]) continue;
      for (int64_t at = 0; at < inventory_.bytes(id); at += kChunk)
        pieces_.push_back({id, id, at, std::min(kChunk, inventory_.bytes(id) - at)});
    }
    // In the order of the files, so that a disk reads forwards.
    std::ranges::sort(pieces_, {},
                      [&](const Piece& p) { return std::tuple(inventory_.file_index(p.id), inventory_.begin(p.id), p.begin); });

    WorkerPool pool(std::max(options_.threads, 1));
    pool.parallel_for(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) check(pieces_[static_cast<size_t>(i)]);
    });
    std::ranges::sort(found_);
    for (const auto& [piece, message] : found_) {
      ++result_.problem_count;
      if (result_.problems.size() < Inspection::kMaxProblems) result_.problems.push_back(message);
    }
  }

 private:
  struct Piece {
    TensorId id = 0;
    TensorId scale = 0;  // of a pair; else id again
    int64_t begin = 0;   // byte, or row of a pair
    int64_t count = 0;   // bytes, or rows
  };

  [[nodiscard]] std::vector<std::byte> read(TensorId id, int64_t begin, int64_t count) const {
    std::vector<std::byte> bytes(static_cast<size_t>(count));
    files_[inventory_.file_index(id)]->read_at(inventory_.begin(id) + begin, bytes);
    return bytes;
  }

  void check(const Piece& piece) {
    const bool pair = piece.scale != piece.id;
    const int64_t bytes = pair ? piece.count * (inventory_.shape(piece.id)[1] + inventory_.shape(piece.scale)[1]) : piece.count;
    const std::optional<Failure> failure = guard([&] {
      if (pair)
        check_pair(piece);
      else
        check_plain(piece);
    });
    const std::lock_guard lock(mutex_);
    // A piece stops at its first fault.
    if (failure) found_.emplace_back(std::pair(piece.id, piece.begin), failure->message);
    result_.bytes_read += bytes;
    if (options_.progress) options_.progress(result_.bytes_read, inventory_.data_bytes());
  }

  void check_plain(const Piece& piece) const {
    const DType dtype = inventory_.dtype(piece.id);
    const std::vector<std::byte> bytes = read(piece.id, piece.begin, piece.count);
    const int64_t bad = first_not_finite(dtype, bytes);
    if (bad >= 0)
      fail(ErrorKind::bad_checkpoint, inventory_.path_of(inventory_.file_index(piece.id)).string(),
           "tensor '{}': wanted finite values, found NaN or infinity at index {}", inventory_.name(piece.id),
           piece.begin / size_of(dtype) + bad);
  }

  void check_pair(const Piece& piece) const {
    const int64_t width = inventory_.shape(piece.id)[1];
    const int64_t groups = inventory_.shape(piece.scale)[1];
    const std::vector<std::byte> packed = read(piece.id, piece.begin * width, piece.count * width);
    const std::vector<std::byte> scales = read(piece.scale, piece.begin * groups, piece.count * groups);
    const auto u8 = [](const std::vector<std::byte>& bytes) {
      return std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    };
    check_finite_blocks(inventory_.name(piece.scale), u8(packed), u8(scales), groups, piece.begin);
  }

  const Inventory& inventory_;
  const InspectOptions& options_;
  Inspection& result_;
  PackedTensors pairs_;
  std::vector<std::unique_ptr<ReadFile>> files_;
  std::vector<Piece> pieces_;
  std::mutex mutex_;
  std::vector<std::pair<std::pair<TensorId, int64_t>, std::string>> found_;
};

void count_tensors(const Checkpoint& checkpoint, Inspection& out) {
  const ModelConfig& config = checkpoint.config();
  const Inventory& inventory = checkpoint.inventory();
  std::map<std::string_view, Inspection::Class> classes;
  std::set<TensorId> counted;
  std::vector<std::set<uint32_t>> files(static_cast<size_t>(config.layer_count));
  for (int64_t l = 0; l < config.layer_count; ++l) {
    Inspection::Layer layer;
    layer.kind = config.kind(LayerIndex(l));
    out.layers.push_back(std::move(layer));
  }
  for (const ParamSpec& p : checkpoint.params()) {
    Inspection::Class sum;
    std::set<uint32_t>* const shards = p.owner == Owner::layer ? &files[static_cast<size_t>(p.layer.value)] : nullptr;
    for (int64_t e = 0; e < p.copies; ++e) {
      const std::vector<StoredPart> parts = checkpoint.stored_parts(p, e);
      const bool plain = parts.size() == 1;
      sum.parameters += plain ? parts[0].bytes / size_of(inventory.dtype(parts[0].tensor)) : p.shape.elements();
      for (const StoredPart& part : parts) {
        sum.bytes += part.bytes;
        if (counted.insert(part.tensor).second) ++sum.tensors;  // several rows of the table may share one
        if (shards != nullptr) shards->insert(inventory.file_index(part.tensor));
      }
    }
    const auto add = [&](auto& to) {
      to.tensors += sum.tensors;
      to.parameters += sum.parameters;
      to.bytes += sum.bytes;
    };
    add(classes[class_of(p)]);
    add(out.text);
    if (p.owner == Owner::layer) add(out.layers[static_cast<size_t>(p.layer.value)]);
  }
  for (size_t l = 0; l < files.size(); ++l)
    for (const uint32_t f : files[l]) out.layers[l].files.push_back(inventory.files()[f].name);
  out.text.name = "text";
  for (const std::string_view name : kClasses) {
    Inspection::Class& one = classes[name];
    one.name = name;
    if (one.tensors > 0) out.classes.push_back(one);
  }
  const int64_t others = out.tensors - out.text.tensors;
  if (others > 0) out.classes.push_back({"not loaded", others, 0, out.data_bytes - out.text.bytes});
}

void read_small_tensors(const Checkpoint& checkpoint, Inspection& out) {
  for (const ParamSpec& p : checkpoint.params()) {
    if (p.matrix) continue;
    const std::optional<Failure> failure = guard([&] {
      if (p.storage == Storage::prefix)
        (void)checkpoint.prefix_f32(p.name);
      else
        (void)checkpoint.vector_f32(p.name);
    });
    ++out.small_tensors_read;
    if (!failure) continue;
    ++out.problem_count;
    if (out.problems.size() < Inspection::kMaxProblems) out.problems.push_back(failure->message);
  }
}

}  // namespace

Inspection inspect(const InspectOptions& options) {
  const Checkpoint checkpoint(options.model,
                              {.allow_unknown_tensors = options.allow_unknown_tensors, .rebuild_index = options.rebuild_index});
  checkpoint.require(checkpoint.all_layers());
  const Inventory& inventory = checkpoint.inventory();
  Inspection out;
  out.config = checkpoint.shared_config();
  out.folder = options.model.string();
  out.files = static_cast<int64_t>(inventory.files().size());
  out.file_bytes = inventory.file_bytes();
  out.data_bytes = inventory.data_bytes();
  out.tensors = inventory.size();
  out.dtypes = inventory.by_dtype();
  out.notes = checkpoint.notes();
  count_tensors(checkpoint, out);
  if (options.deep) read_small_tensors(checkpoint, out);
  if (options.verify) Verifier(checkpoint, options, out).run();
  checkpoint.require_intact();
  return out;
}

}  // namespace weft
