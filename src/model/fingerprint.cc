#include "model/fingerprint.h"

#include <algorithm>
#include <memory>
#include <span>
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

void add_shard(Sha256& hash, const std::filesystem::path& path, const InventoryFile& file) {
  const ReadFile opened(path);
  hash.part(file.name);
  hash.length(opened.size());
  std::vector<std::byte> buffer(static_cast<size_t>(kSampleBytes));
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += kSampleBytes) {
      const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(kSampleBytes, end - at)));
      opened.read_at(at, piece);
      hash.add(piece);
    }
  };
  hash.length(file.header_size);
  range(0, file.header_size);
  const int64_t data = opened.size() - file.header_size;
  if (data <= kSamples * kSampleBytes) {
    range(file.header_size, opened.size());
    return;
  }
  // The first sample at the data's start, the last at its end, the others evenly between.
  const int64_t step = (data - kSampleBytes) / (kSamples - 1);
  for (int64_t i = 0; i < kSamples; ++i) {
    const int64_t at = i == kSamples - 1 ? opened.size() - kSampleBytes : file.header_size + i * step;
    range(at, at + kSampleBytes);
  }
}

}  // namespace

std::string model_fingerprint(const Checkpoint& checkpoint, ops::Profile profile, std::string_view state_dtypes) {
  Sha256 hash;
  hash.part("weft model fingerprint 1");
  hash.part(read_text_file(checkpoint.dir() / "config.json", ErrorKind::bad_checkpoint));
  const Inventory& inventory = checkpoint.inventory();
  hash.length(static_cast<int64_t>(inventory.files().size()));
  for (uint32_t f = 0; f < inventory.files().size(); ++f) add_shard(hash, inventory.path_of(f), inventory.files()[f]);
  hash.part(to_string(profile));
  hash.part(state_dtypes);
  return hash.hex();
}

}  // namespace weft
