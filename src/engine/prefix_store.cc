#include "engine/prefix_store.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/state_file.h"

namespace weft {
namespace {

// FNV-1a: names files only; what is in a file decides.
class NameHash {
 public:
  void add(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) hash_ = (hash_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3ULL;
  }
  [[nodiscard]] std::string name() const { return fmt::format("{:016x}.safetensors", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace

bool PrefixStore::Less::operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
  return std::ranges::lexicographical_compare(a, b);
}

PrefixStore::PrefixStore(Executor& executor, PrefixStoreOptions options) : executor_(executor), options_(std::move(options)) {
  if (!options_.folder.empty()) read_folder();
}

void PrefixStore::read_folder() {
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  if (!std::filesystem::is_directory(options_.folder)) {
    fail(ErrorKind::bad_input, options_.folder.string(), "wanted a folder for stored states, found: {}", error.message());
  }
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> files;
  for (const auto& file : std::filesystem::directory_iterator(options_.folder)) {
    if (file.path().extension() == ".safetensors") files.emplace_back(file.last_write_time(), file.path());
  }
  std::ranges::sort(files);
  for (const auto& [time, path] : files) {
    const std::optional<Failure> failure = guard([&] {
      StateFileHeader header = read_state_header(path);
      header.require(executor_.fingerprint(), executor_.layer_count(), path);
      if (header.ids.empty()) fail(ErrorKind::bad_input, path.string(), "wanted the state's token ids, found none");
      Entry& entry = entries_[std::move(header.ids)];
      entry.file = File{path, ByteCount(static_cast<int64_t>(std::filesystem::file_size(path)))};
      entry.used = ++clock_;
      disk_used_ += entry.file->bytes;
    });
    if (failure) notes_.push_back(fmt::format("a stored state is not used: {}", failure->message));
  }
}

PrefixStore::Entries::iterator PrefixStore::longest_prefix(std::span<const int32_t> ids) {
  while (!ids.empty()) {
    auto at = entries_.upper_bound(ids);
    if (at == entries_.begin()) break;
    --at;
    // Every prefix of `ids` that is longer than what it shares with the entry would lie behind the entry.
    const auto shared = static_cast<size_t>(std::ranges::mismatch(at->first, ids).in2 - ids.begin());
    if (shared == at->first.size()) return at;
    ids = ids.first(shared);
  }
  return entries_.end();
}

PrefixStore::Found PrefixStore::resume(std::span<const int32_t> ids, const std::function<bool(StateUse)>& make_room) {
  std::span<const int32_t> rest = ids.empty() ? ids : ids.first(ids.size() - 1);
  for (;;) {
    auto entry = longest_prefix(rest);
    if (entry == entries_.end()) return {OwnedSequence(executor_), ReusedFrom::nothing};
    entry->second.used = ++clock_;
    const bool from_disk = !entry->second.sequence;
    if (from_disk) {
      const size_t length = entry->first.size();
      if (!make_room(executor_.states().whole(TokenCount(static_cast<int64_t>(length))))) {
        rest = rest.first(length - 1);
        continue;
      }
      entry = entries_.find(rest.first(length));  // making room may have cost its file
      if (entry == entries_.end() || !load(entry)) continue;
    }
    std::optional<OwnedSequence> fork;
    const std::optional<Failure> failure =
        guard([&] { fork.emplace(executor_, executor_.fork(entry->second.sequence->id())); });
    if (!failure) return {std::move(*fork), from_disk ? ReusedFrom::disk : ReusedFrom::memory};
    // A step of its sequence failed after the state was filed.
    if (entry->second.file) drop_file(entry);
    entries_.erase(entry);
  }
}

bool PrefixStore::load(Entries::iterator entry) {
  const std::optional<Failure> failure = guard([&] {
    const std::filesystem::path& path = entry->second.file->path;
    if (read_state_header(path).ids != entry->first) {
      fail(ErrorKind::bad_input, path.string(), "wanted the ids that it had at first, found others");
    }
    entry->second.sequence.emplace(executor_, executor_.load(path));
  });
  if (!failure) return true;
  notes_.push_back(fmt::format("a stored state is not used: {}", failure->message));
  disk_used_ -= entry->second.file->bytes;
  entries_.erase(entry);
  return false;
}

void PrefixStore::keep(std::span<const int32_t> ids, OwnedSequence sequence) {
  const TokenCount consumed = executor_.consumed(sequence.id());
  if (consumed.value != static_cast<int64_t>(ids.size())) {
    fail(ErrorKind::internal, "prefix store", "wanted a state of {} tokens, found one of {}", ids.size(), consumed);
  }
  if (ids.empty()) return;
  auto at = entries_.find(ids);
  if (at == entries_.end()) at = entries_.emplace(std::vector<int32_t>(ids.begin(), ids.end()), Entry{}).first;
  if (!at->second.sequence) at->second.sequence = std::move(sequence);
  at->second.used = ++clock_;
}

PrefixStore::Entries::iterator PrefixStore::least_recent(bool in_memory) {
  auto found = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    const bool counts = in_memory ? at->second.sequence.has_value() : at->second.file.has_value();
    if (counts && (found == entries_.end() || at->second.used < found->second.used)) found = at;
  }
  return found;
}

bool PrefixStore::evict() {
  const auto entry = least_recent(true);
  if (entry == entries_.end()) return false;
  if (!options_.folder.empty() && !entry->second.file) write(entry);
  entry->second.sequence.reset();
  if (!entry->second.file) entries_.erase(entry);
  return true;
}

void PrefixStore::write(Entries::iterator entry) {
  NameHash hash;
  hash.add(std::as_bytes(std::span(executor_.fingerprint())));
  hash.add(std::as_bytes(std::span(entry->first)));
  const std::filesystem::path path = options_.folder / hash.name();
  const std::optional<Failure> failure = guard([&] {
    executor_.save(entry->second.sequence->id(), path, entry->first);
    entry->second.file = File{path, ByteCount(static_cast<int64_t>(std::filesystem::file_size(path)))};
    disk_used_ += entry->second.file->bytes;
  });
  if (failure) notes_.push_back(fmt::format("a state was not stored: {}", failure->message));
  while (disk_used_ > options_.disk) {
    const auto oldest = least_recent(false);
    drop_file(oldest);
    if (!oldest->second.sequence) entries_.erase(oldest);
  }
}

void PrefixStore::drop_file(Entries::iterator entry) {
  std::error_code ignored;  // a file that stays behind is found again at the next start
  std::filesystem::remove(entry->second.file->path, ignored);
  disk_used_ -= entry->second.file->bytes;
  entry->second.file.reset();
}

void PrefixStore::flush() {
  if (options_.folder.empty()) return;
  std::vector<Entries::iterator> unwritten;
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second.sequence && !at->second.file) unwritten.push_back(at);
  }
  std::ranges::sort(unwritten, {}, [](Entries::iterator entry) { return entry->second.used; });
  for (const Entries::iterator entry : unwritten) write(entry);
}

int64_t PrefixStore::in_memory() const {
  return std::ranges::count_if(entries_, [](const auto& entry) { return entry.second.sequence.has_value(); });
}

int64_t PrefixStore::on_disk() const {
  return std::ranges::count_if(entries_, [](const auto& entry) { return entry.second.file.has_value(); });
}

}  // namespace weft
