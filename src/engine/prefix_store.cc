#include "engine/prefix_store.h"

#include <algorithm>
#include <chrono>
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
      const File file{path, ByteCount(static_cast<int64_t>(std::filesystem::file_size(path)))};
      const auto entry = entries_.try_emplace(std::move(header.ids)).first;
      unlist(entry);
      if (entry->second.file) disk_used_ -= entry->second.file->bytes;  // two files of one state: the later one counts
      entry->second.file = file;
      use(entry);
      disk_used_ += file.bytes;
    });
    if (failure) notes_.push_back(fmt::format("a stored state is not used: {}", failure->message));
  }
}

void PrefixStore::unlist(Entries::iterator entry) {
  in_memory_.erase(entry->second.used);
  on_disk_.erase(entry->second.used);
}

void PrefixStore::list(Entries::iterator entry) {
  if (entry->second.sequence) in_memory_.emplace(entry->second.used, entry);
  if (entry->second.file) on_disk_.emplace(entry->second.used, entry);
}

void PrefixStore::use(Entries::iterator entry) {
  unlist(entry);
  entry->second.used = ++clock_;
  list(entry);
}

void PrefixStore::erase(Entries::iterator entry) {
  unlist(entry);
  entries_.erase(entry);
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
    use(entry);
    const bool from_disk = !entry->second.sequence;
    if (from_disk) {
      const size_t length = entry->first.size();
      if (!make_room(executor_.states().whole(TokenCount(static_cast<int64_t>(length))))) {
        rest = rest.first(length - 1);
        continue;
      }
      entry = entries_.find(rest.first(length));  // making room may have cost its file
      if (entry == entries_.end()) continue;
      const Loaded loaded = load(entry);
      if (loaded == Loaded::later) return {OwnedSequence(executor_), ReusedFrom::nothing, true};
      if (loaded == Loaded::given_up) continue;
    }
    std::optional<OwnedSequence> fork;
    const std::optional<Failure> failure =
        guard([&] { fork.emplace(executor_, executor_.fork(entry->second.sequence->id())); });
    if (!failure) return {std::move(*fork), from_disk ? ReusedFrom::disk : ReusedFrom::memory};
    // A step of its sequence failed after the state was filed.
    if (entry->second.file) drop_file(entry);
    erase(entry);
  }
}

PrefixStore::Loaded PrefixStore::load(Entries::iterator entry) {
  if (!read_ || read_->ids != entry->first) {
    read_ = Reading{entry->first, files_.post([path = entry->second.file->path] { return std::make_unique<StateFile>(path); })};
    return Loaded::later;  // always, however fast the disk is
  }
  if (read_->done.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return Loaded::later;
  std::future<std::unique_ptr<StateFile>> done = std::move(read_->done);
  read_.reset();
  const std::optional<Failure> failure = guard([&] {
    const std::unique_ptr<StateFile> file = done.get();
    if (file->header().ids != entry->first) {
      fail(ErrorKind::bad_input, entry->second.file->path.string(), "wanted the ids that it had at first, found others");
    }
    entry->second.sequence.emplace(executor_, executor_.restore(*file));
    list(entry);
  });
  if (!failure) return Loaded::yes;
  notes_.push_back(fmt::format("a stored state is not used: {}", failure->message));
  disk_used_ -= entry->second.file->bytes;
  erase(entry);
  return Loaded::given_up;
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
  use(at);
}

bool PrefixStore::evict() {
  if (in_memory_.empty()) return false;
  const auto entry = in_memory_.begin()->second;
  if (!options_.folder.empty() && !entry->second.file) write(entry);
  unlist(entry);
  entry->second.sequence.reset();
  list(entry);
  if (!entry->second.file) erase(entry);
  return true;
}

void PrefixStore::write(Entries::iterator entry) {
  NameHash hash;
  hash.add(std::as_bytes(std::span(executor_.fingerprint())));
  hash.add(std::as_bytes(std::span(entry->first)));
  const std::filesystem::path path = options_.folder / hash.name();
  if (!writing_.empty()) writing_.back().done.wait();  // of the copies of states that wait for the disk there is one
  settle();
  const std::optional<Failure> failure = guard([&] {
    const auto state = std::make_shared<const SavedState>(executor_.snapshot(entry->second.sequence->id(), entry->first));
    ByteCount bytes;
    for (const auto& [name, tensor] : state->tensors) bytes += ByteCount(tensor.bytes());
    writing_.push_back({entry->first, path, files_.post([path, state] {
                          write_state_file(path, state->header, state->tensors);
                          return ByteCount(static_cast<int64_t>(std::filesystem::file_size(path)));
                        })});
    entry->second.file = File{path, bytes};
    disk_used_ += bytes;
    list(entry);
  });
  if (failure) notes_.push_back(fmt::format("a state was not stored: {}", failure->message));
  limit_disk();
}

void PrefixStore::settle() {
  while (!writing_.empty() && writing_.front().done.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    Writing writing = std::move(writing_.front());
    writing_.pop_front();
    ByteCount bytes;
    const std::optional<Failure> failure = guard([&] { bytes = writing.done.get(); });
    const auto entry = entries_.find(writing.ids);
    const bool is_known = entry != entries_.end() && entry->second.file && entry->second.file->path == writing.path;
    if (is_known) {
      disk_used_ += bytes - entry->second.file->bytes;
      entry->second.file->bytes = bytes;
    }
    if (!failure) continue;
    notes_.push_back(fmt::format("a state was not stored: {}", failure->message));
    if (!is_known) continue;
    drop_file(entry);
    if (!entry->second.sequence) erase(entry);
  }
}

void PrefixStore::limit_disk() {
  while (disk_used_ > options_.disk) {
    const auto oldest = on_disk_.begin()->second;
    drop_file(oldest);
    if (!oldest->second.sequence) erase(oldest);
  }
}

void PrefixStore::drop_file(Entries::iterator entry) {
  // One that is still on its way would come back.
  const auto writes = [&](const Writing& writing) { return writing.path == entry->second.file->path; };
  if (const auto writing = std::ranges::find_if(writing_, writes); writing != writing_.end()) writing->done.wait();
  std::error_code ignored;  // a file that stays behind is found again at the next start
  std::filesystem::remove(entry->second.file->path, ignored);
  disk_used_ -= entry->second.file->bytes;
  unlist(entry);
  entry->second.file.reset();
  list(entry);
}

void PrefixStore::flush() {
  if (options_.folder.empty()) return;
  std::vector<Entries::iterator> unwritten;
  for (const auto& [used, entry] : in_memory_) {
    if (!entry->second.file) unwritten.push_back(entry);
  }
  for (const Entries::iterator entry : unwritten) write(entry);
  if (!writing_.empty()) writing_.back().done.wait();
  settle();
  limit_disk();
}

}  // namespace weft
