#include "model/truncate.h"

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/new_folder.h"
#include "base/plural.h"
#include "formats/inventory.h"
#include "formats/safetensors.h"
#include "model/checkpoint.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPlace = "truncate";
constexpr size_t kChunk = 8 << 20;
constexpr std::string_view kIndex = "model.safetensors.index.json";

Json truncated_config(Json json, bool nested, int64_t layers, bool filter_lists) {
  Json& text = nested ? json.at("text_config") : json;
  text["num_hidden_layers"] = layers;
  if (!filter_lists) return json;
  for (const char* key : {"kda_layers", "full_attn_layers"}) {
    if (!text.contains("linear_attn_config")) break;
    Json& list = text.at("linear_attn_config").at(key);
    Json kept = Json::array();
    for (const Json& number : list)
      if (number.get<int64_t>() <= layers) kept.push_back(number);
    list = std::move(kept);
  }
  // Repetitions of the lists in files of the transformers library, one entry a layer.
  for (const char* key : {"layer_types", "mlp_layer_types"}) {
    const auto list = text.find(key);
    if (list == text.end() || !list->is_array() || static_cast<int64_t>(list->size()) <= layers) continue;
    list->erase(list->begin() + layers, list->end());
  }
  return json;
}

bool is_companion(const fs::path& path) {
  const std::string extension = path.extension().string();
  const std::string name = path.filename().string();
  const bool known = extension == ".json" || extension == ".model" || extension == ".jinja" || extension == ".txt";
  return known && name != "config.json" && name != kIndex;
}

class Truncator {
 public:
  Truncator(const TruncateOptions& options, const std::function<void(int64_t, int64_t)>& progress)
      : options_(options), progress_(progress), source_(options.model) {}

  TruncateReport run() {
    const int64_t found = source_.config().layer_count;
    if (options_.layers < 1 || options_.layers > found)
      fail(ErrorKind::bad_input, kPlace, "layers: wanted 1 to {}, found {}", found, options_.layers);
    NewFolder folder(options_.out, kPlace);
    report_.layers = options_.layers;
    sort_tensors();
    for (uint32_t f = 0; f < kept_.size(); ++f) keep_file(f, folder);
    index_ += "\n }\n}\n";
    write_file_atomic(options_.out / kIndex,
                      fmt::format("{{\n \"metadata\": {{\n  \"total_size\": {}\n }},\n \"weight_map\": {{", data_) + index_);
    const Json config =
        truncated_config(source_.config_json(), source_.config().nested, options_.layers, options_.filter_lists);
    write_file_atomic(options_.out / "config.json", config.dump(2) + "\n");
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.model))
      if (entry.is_regular_file() && is_companion(entry.path())) copy(entry.path());
    std::ranges::sort(report_.copied);

    const Checkpoint copy(options_.out);
    copy.require(copy.all_layers());
    report_.notes = copy.notes();
    folder.keep();
    return report_;
  }

 private:
  // Tensors to keep, per file. What the source does not load (vision) stays; layers >= N of any spelling go.
  void sort_tensors() {
    const Inventory& inventory = source_.inventory();
    kept_.resize(inventory.files().size());
    for (TensorId id = 0; id < inventory.size(); ++id) {
      const std::optional<LayerIndex> layer = source_.layer_of(inventory.name(id));
      if (layer && layer->value >= options_.layers) continue;
      kept_[inventory.file_index(id)].push_back(id);
      data_ += inventory.bytes(id);
    }
  }

  void keep_file(uint32_t f, const NewFolder& folder) {
    const Inventory& inventory = source_.inventory();
    const InventoryFile& file = inventory.files()[f];
    if (kept_[f].empty()) return;
    for (const TensorId id : kept_[f]) {
      index_ += fmt::format("{}\n  {}: {}", index_.empty() ? "" : ",", Json(inventory.name(id)).dump(), Json(file.name).dump());
      ++report_.tensors;
    }
    if (static_cast<int64_t>(kept_[f].size()) == file.tensors && link(f)) return;
    int64_t bytes = 0;
    for (const TensorId id : kept_[f]) bytes += inventory.bytes(id);
    folder.require_free(bytes);
    write(f);
  }

  bool link(uint32_t f) {
    const Inventory& inventory = source_.inventory();
    std::error_code error;
    fs::create_hard_link(fs::canonical(inventory.path_of(f)), options_.out / inventory.files()[f].name, error);
    if (error) return false;  // another file system: the shard is copied below and counted as written
    ++report_.linked_files;
    done_ += inventory.files()[f].size - inventory.files()[f].header_size;
    tell();
    return true;
  }

  void write(uint32_t f) {
    const Inventory& inventory = source_.inventory();
    const SafetensorsFile original(inventory.path_of(f));
    std::vector<TensorSpec> specs;
    for (const TensorId id : kept_[f])
      specs.push_back({std::string(inventory.name(id)), inventory.dtype(id), inventory.shape(id)});
    SafetensorsWriter writer(options_.out / inventory.files()[f].name, std::move(specs), original.header().metadata());
    std::vector<std::byte> buffer;
    for (const TensorId id : kept_[f]) {
      const TensorEntry& entry = original.at(inventory.name(id));
      for (int64_t at = 0; at < entry.bytes(); at += static_cast<int64_t>(buffer.size())) {
        buffer.resize(std::min(kChunk, static_cast<size_t>(entry.bytes() - at)));
        original.read_into(entry, at, buffer);
        writer.append(entry.name, buffer);
        done_ += static_cast<int64_t>(buffer.size());
        tell();
      }
    }
    writer.finish();
    ++report_.written_files;
    report_.written_bytes += writer.file_size();
  }

  void copy(const fs::path& path) {
    std::error_code error;
    fs::copy_file(path, options_.out / path.filename(), error);
    if (error) fail(ErrorKind::unavailable, kPlace, "{}: {}", path.string(), error.message());
    report_.copied.push_back(path.filename().string());
  }

  void tell() const {
    if (progress_) progress_(done_, data_);
  }

  const TruncateOptions& options_;
  const std::function<void(int64_t, int64_t)>& progress_;
  Checkpoint source_;
  std::vector<std::vector<TensorId>> kept_;
  std::string index_;
  int64_t data_ = 0;
  int64_t done_ = 0;
  TruncateReport report_;
};

}  // namespace

TruncateReport truncate_checkpoint(const TruncateOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  return Truncator(options, progress).run();
}

Json TruncateReport::to_json() const {
  return {{"layers", layers},
          {"tensors", tensors},
          {"linked_files", linked_files},
          {"written_files", written_files},
          {"written_bytes", written_bytes},
          {"copied", copied},
          {"notes", notes}};
}

std::string TruncateReport::to_text() const {
  std::string text =
      fmt::format("{}, {}; {} linked, {} written ({} bytes)\n", counted(layers, "layer"), counted(tensors, "tensor"),
                  counted(linked_files, "file"), written_files, with_commas(written_bytes));
  if (!copied.empty()) text += fmt::format("copied: {}\n", fmt::join(copied, ", "));
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace weft
