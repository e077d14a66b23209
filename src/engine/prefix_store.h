// Stored states of sequences, found by the tokens that they have consumed (docs/engine.md, S).
//
//     store.keep(ids, std::move(sequence));               // the state after exactly these ids
//     PrefixStore::Found found = store.resume(more_ids, make_room);
//     executor.consumed(found.sequence.id())              // the longest stored prefix of more_ids, short of its last id
//
// A state is filed under the tokens that its sequence has consumed and nothing else (cases.md C2). In memory it is one slot and
// pages that it shares with its relatives; evict() gives up the least recently used one, which goes to a file when there is a
// folder. Files survive the process, and load under any stage split of the same model and profile.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/task_thread.h"
#include "engine/owned_sequence.h"
#include "engine/request.h"
#include "model/state_file.h"

namespace weft {

struct PrefixStoreOptions {
  std::filesystem::path folder;  // of the files; empty: none are written
  ByteCount disk;                // most bytes of files
};

class PrefixStore {
 public:
  // Finds the files of the folder, which is made if need be. One that cannot be read, is of another model or has no ids is left
  // alone and named in notes().
  PrefixStore(Executor& executor, PrefixStoreOptions options);

  struct Found {
    OwnedSequence sequence;  // a fork, or empty
    ReusedFrom from = ReusedFrom::nothing;
    bool waits = false;  // a file is being read: ask again
  };
  // The longest stored prefix of `ids` that leaves at least one of them. `make_room(use)` says whether that much memory is free
  // (it may evict); a state on disk for which there is none is passed over.
  [[nodiscard]] Found resume(std::span<const int32_t> ids, const std::function<bool(StateUse)>& make_room);

  // Files the state under `ids`, which it must have consumed. Another state of the same ids gives way to the older one.
  void keep(std::span<const int32_t> ids, OwnedSequence sequence);

  // Until resume() need not wait.
  void wait_for_read() const {
    if (read_) read_->done.wait();
  }
  // Until no file is being written or read.
  void wait_for_files() const {
    wait_for_read();
    if (!writing_.empty()) writing_.back().done.wait();
  }

  // Gives up the memory of the least recently used state, which goes to a file beside what comes next. False: there is none in
  // memory.
  bool evict();
  // Writes what is in memory only, most recently used last, and waits for all files.
  void flush();

  [[nodiscard]] int64_t in_memory() const { return static_cast<int64_t>(in_memory_.size()); }
  [[nodiscard]] int64_t on_disk() const { return static_cast<int64_t>(on_disk_.size()); }
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct File {
    std::filesystem::path path;
    ByteCount bytes;
  };
  struct Entry {
    std::optional<OwnedSequence> sequence;
    std::optional<File> file;
    int64_t used = 0;  // later is larger; of no two entries the same
  };
  // Lexicographic order: the prefixes of a list come before it, and what lies between shares less with it than they do.
  struct Less {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  using Entries = std::map<std::vector<int32_t>, Entry, Less>;
  using ByUse = std::map<int64_t, Entries::iterator>;

  // A file on its way to the disk. It counts as the entry's from the beginning, with the bytes of its tensors.
  struct Writing {
    std::vector<int32_t> ids;
    std::filesystem::path path;
    std::future<ByteCount> done;  // of the file
  };
  struct Reading {
    std::vector<int32_t> ids;
    std::future<std::unique_ptr<StateFile>> done;
  };

  void read_folder();
  [[nodiscard]] Entries::iterator longest_prefix(std::span<const int32_t> ids);
  enum class Loaded : uint8_t { yes, later, given_up };
  // Goes on with reading the entry's file.
  Loaded load(Entries::iterator entry);
  // Takes the results of the writes that are done.
  void settle();
  void write(Entries::iterator entry);
  // Drops files, the least recently used first, until the rest fits.
  void limit_disk();
  void drop_file(Entries::iterator entry);
  // All changes of what an entry holds, and of its last use, go through these two.
  void unlist(Entries::iterator entry);
  void list(Entries::iterator entry);
  void use(Entries::iterator entry);
  void erase(Entries::iterator entry);

  Executor& executor_;
  PrefixStoreOptions options_;
  Entries entries_;
  ByUse in_memory_;  // entries with a sequence
  ByUse on_disk_;    // entries with a file
  ByteCount disk_used_;
  int64_t clock_ = 0;
  std::vector<std::string> notes_;
  std::deque<Writing> writing_;  // in the order of files_
  std::optional<Reading> read_;
  TaskThread files_;
};

}  // namespace weft
