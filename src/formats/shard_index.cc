#include "formats/shard_index.h"

#include <cmath>
#include <set>
#include <unordered_map>

#include <simdjson.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace weft {

namespace dom = simdjson::dom;

std::optional<std::string> refused_file_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.find('/') != std::string_view::npos) return "holds '/'";
  if (name.find('\\') != std::string_view::npos) return "holds '\\'";
  if (name.find("..") != std::string_view::npos) return "holds '..'";
  if (name == ".") return "is a folder";
  if (name.find('\0') != std::string_view::npos) return "holds a zero byte";
  return std::nullopt;
}

class ShardIndexParser {
 public:
  explicit ShardIndexParser(std::string_view place) : place_(place) {}

  ShardIndex parse(simdjson::padded_string_view text) {
    dom::parser parser;
    simdjson::error_code error = parser.allocate(text.size(), static_cast<size_t>(kMaxJsonDepth));
    if (error == simdjson::MEMALLOC)
      fail(ErrorKind::unavailable, place_, "no memory to parse an index of {} bytes", text.size());
    dom::element root;
    // The text is padded: no copy of it is made.
    if (error == simdjson::SUCCESS) error = parser.parse(text.data(), text.size(), false).get(root);
    if (error == simdjson::DEPTH_ERROR)
      fail(ErrorKind::bad_checkpoint, place_, "wanted JSON nested at most {} deep, found more", kMaxJsonDepth);
    if (error != simdjson::SUCCESS)
      fail(ErrorKind::bad_checkpoint, place_, "wanted a JSON index, found: {}", simdjson::error_message(error));
    dom::object object;
    if (root.get(object) != simdjson::SUCCESS) fail(ErrorKind::bad_checkpoint, place_, "wanted a JSON object");

    std::set<std::string_view> keys;
    for (const dom::key_value_pair field : object) {
      if (!keys.insert(field.key).second)
        fail(ErrorKind::bad_checkpoint, place_, "wanted each key once, found '{}' twice", field.key);
      if (field.key == "weight_map") parse_weight_map(field.value, text.size());
      if (field.key == "metadata") parse_metadata(field.value);
    }
    if (!keys.contains("weight_map")) fail(ErrorKind::bad_checkpoint, place_, "wanted 'weight_map', found no such key");
    return std::move(index_);
  }

 private:
  void parse_weight_map(dom::element value, size_t text_bytes) {
    dom::object map;
    if (value.get(map) != simdjson::SUCCESS) fail(ErrorKind::bad_checkpoint, place_, "wanted 'weight_map' to be an object");
    // The object's own count saturates at 2^24 - 1, which is fine for a reservation.
    index_.tensors_.reserve(map.size(), text_bytes / 3 * 2);
    index_.file_of_.reserve(map.size());
    std::unordered_map<std::string_view, uint32_t> file_ids;  // keys live in the parsed document
    for (const dom::key_value_pair field : map) {
      std::string_view file;
      if (field.value.get(file) != simdjson::SUCCESS)
        fail(ErrorKind::bad_checkpoint, place_, "tensor '{}': wanted the name of a file", field.key);
      const auto [known, is_new] = file_ids.try_emplace(file, static_cast<uint32_t>(index_.files_.size()));
      if (is_new) {
        if (const std::optional<std::string> reason = refused_file_name(file))
          fail(ErrorKind::bad_checkpoint, place_, "tensor '{}': the file name '{}' {}", field.key, file, *reason);
        index_.files_.emplace_back(file);
      }
      if (!index_.tensors_.insert(field.key))
        fail(ErrorKind::bad_checkpoint, place_, "wanted each tensor once, found '{}' twice", field.key);
      index_.file_of_.push_back(known->second);
    }
    if (index_.size() == 0) fail(ErrorKind::bad_checkpoint, place_, "wanted tensors in 'weight_map', found none");
  }

  void parse_metadata(dom::element value) {
    dom::object metadata;
    if (value.get(metadata) != simdjson::SUCCESS) fail(ErrorKind::bad_checkpoint, place_, "wanted 'metadata' to be an object");
    std::set<std::string_view> keys;
    for (const dom::key_value_pair field : metadata) {
      if (!keys.insert(field.key).second)
        fail(ErrorKind::bad_checkpoint, place_, "wanted each key once, found 'metadata.{}' twice", field.key);
      if (field.key != "total_size") continue;
      int64_t total = 0;
      double real = 0;
      if (field.value.get(total) == simdjson::SUCCESS && total >= 0) {
        index_.total_size_ = total;
      } else if (field.value.get(real) == simdjson::SUCCESS && real >= 0 && real < 0x1p53 && std::floor(real) == real) {
        index_.total_size_ = static_cast<int64_t>(real);  // some writers print 1.5e12 or 123.0
      } else {
        fail(ErrorKind::bad_checkpoint, place_, "wanted 'metadata.total_size' to be a whole number, found {}",
             simdjson::minify(field.value));
      }
    }
  }

  std::string_view place_;
  ShardIndex index_;
};

ShardIndex ShardIndex::load(const std::filesystem::path& path) {
  const std::string place = path.string();
  const ReadFile file(path);
  if (file.size() > kMaxShardIndexBytes)
    fail(ErrorKind::bad_checkpoint, place, "wanted an index of at most {} bytes, found {}", kMaxShardIndexBytes, file.size());
  simdjson::padded_string text(static_cast<size_t>(file.size()));
  file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return ShardIndexParser(place).parse(text);
}

ShardIndex ShardIndex::parse(std::span<const std::byte> bytes, std::string_view place) {
  const simdjson::padded_string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return ShardIndexParser(place).parse(text);
}

}  // namespace weft
