#include "model/fingerprint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <openssl/evp.h>

#include "base/file.h"

namespace weft {
namespace {

constexpr int64_t kSamples = 16;
constexpr int64_t kSampleBytes = 64 << 10;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  void add(std::span<const std::byte> bytes) { check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1); }
  // Every part is preceded by its length, so that no two lists of parts look alike.
  void part(std::span<const std::byte> bytes) {
    length(static_cast<int64_t>(bytes.size()));
    add(bytes);
  }
  void part(std::string_view text) { part(std::as_bytes(std::span(text))); }
  void length(int64_t value) {
    std::byte bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
    add(bytes);
  }

  [[nodiscard]] std::string hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    check(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  static void check(bool ok) {
    if (!ok) fail(ErrorKind::internal, "fingerprint", "the SHA-256 library refused");
  }
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

std::string digest_of(const Checkpoint& checkpoint, uint32_t shard) {
  const InventoryFile& file = checkpoint.inventory().files()[shard];
  const ReadFile opened(checkpoint.inventory().path_of(shard));
  if (opened.size() != file.size)
    fail(ErrorKind::bad_checkpoint, opened.path().string(), "wanted {} bytes as when its header was read, found {}", file.size,
         opened.size());
  Sha256 hash;
  hash.part("weft shard 1");
  hash.length(file.size);
  std::vector<std::byte> buffer(static_cast<size_t>(kSampleBytes));
  const auto range = [&](int64_t begin, int64_t end) {
    checkpoint.note_read(shard, begin, end);
    for (int64_t at = begin; at < end; at += kSampleBytes) {
      const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(kSampleBytes, end - at)));
      opened.read_at(at, piece);
      hash.add(piece);
    }
  };
  hash.length(file.header_size);
  range(0, file.header_size);
  const int64_t data = file.size - file.header_size;
  if (data <= kSamples * kSampleBytes) {
    range(file.header_size, file.size);
    return hash.hex();
  }
  // The first sample at the data's start, the last at its end, the others evenly between.
  const int64_t step = (data - kSampleBytes) / (kSamples - 1);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t at = i == kSamples - 1 ? file.size - kSampleBytes : file.header_size + i * step;
    range(at, at + kSampleBytes);
  }
  return hash.hex();
}

bool is_digest(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

}  // namespace

std::vector<ShardDigest> shard_digests(const Checkpoint& checkpoint) {
  std::vector<ShardDigest> digests;
  for (const uint32_t shard : checkpoint.model_shards())
    digests.push_back({checkpoint.inventory().files()[shard].name, digest_of(checkpoint, shard)});
  return digests;
}

std::vector<ShardConflict> shard_conflicts(std::span<const std::vector<ShardDigest>> holders) {
  std::map<std::string_view, std::pair<size_t, std::string_view>> first;  // holder and digest, by file
  std::vector<ShardConflict> found;
  for (size_t h = 0; h < holders.size(); ++h) {
    for (const ShardDigest& shard : holders[h]) {
      const auto& [holder, digest] = first.try_emplace(shard.file, h, shard.sha256).first->second;
      if (digest != shard.sha256) found.push_back({shard.file, holder, h, std::string(digest), shard.sha256});
    }
  }
  return found;
}

std::string combine_fingerprint(std::string_view config_text, std::span<const ShardDigest> shards, ops::Profile profile,
                                std::string_view state_dtypes) {
  std::map<std::string_view, std::string_view> by_name;
  for (const ShardDigest& shard : shards) {
    if (!is_digest(shard.sha256))
      fail(ErrorKind::bad_checkpoint, "fingerprint", "shard '{}': wanted a digest of 64 hexadecimal digits, found '{}'",
           shard.file, shard.sha256);
    const auto [known, is_new] = by_name.emplace(shard.file, shard.sha256);
    if (!is_new && known->second != shard.sha256)
      fail(ErrorKind::bad_checkpoint, "fingerprint", "shard '{}': wanted one content on all stages, found digests {} and {}",
           shard.file, known->second, shard.sha256);
  }
  Sha256 hash;
  hash.part("weft model fingerprint 2");
  hash.part(config_text);
  hash.length(std::ssize(by_name));
  for (const auto& [file, digest] : by_name) {
    hash.part(file);
    hash.part(digest);
  }
  hash.part(to_string(profile));
  hash.part(state_dtypes);
  return hash.hex();
}

std::string config_text(const Checkpoint& checkpoint) {
  return read_text_file(checkpoint.dir() / "config.json", ErrorKind::bad_checkpoint);
}

std::string model_fingerprint(const Checkpoint& checkpoint, ops::Profile profile, std::string_view state_dtypes) {
  if (checkpoint.is_partial())
    fail(ErrorKind::internal, "fingerprint", "wanted a checkpoint with all {} layers, found one opened for layers {} to {}",
         checkpoint.config().layer_count, checkpoint.layers().begin, checkpoint.layers().end);
  return combine_fingerprint(config_text(checkpoint), shard_digests(checkpoint), profile, state_dtypes);
}

}  // namespace weft
