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
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/owned_sequence.h"
#include "engine/request.h"

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
  };
  // The longest stored prefix of `ids` that leaves at least one of them. `make_room(use)` says whether that much memory is free
  // (it may evict); a state on disk for which there is none is passed over.
  [[nodiscard]] Found resume(std::span<const int32_t> ids, const std::function<bool(StateUse)>& make_room);

  // Files the state under `ids`, which it must have consumed. Another state of the same ids gives way to the older one.
  void keep(std::span<const int32_t> ids, OwnedSequence sequence);

  // Gives up the memory of the least recently used state. False: there is none in memory.
  bool evict();
  // Writes what is in memory only, most recently used last.
  void flush();

  [[nodiscard]] int64_t in_memory() const;
  [[nodiscard]] int64_t on_disk() const;
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct File {
    std::filesystem::path path;
    ByteCount bytes;
  };
  struct Entry {
    std::optional<OwnedSequence> sequence;
    std::optional<File> file;
    int64_t used = 0;  // later is larger
  };
  // Lexicographic order: the prefixes of a list come before it, and what lies between shares less with it than they do.
  struct Less {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  using Entries = std::map<std::vector<int32_t>, Entry, Less>;

  void read_folder();
  [[nodiscard]] Entries::iterator longest_prefix(std::span<const int32_t> ids);
  // Reads the entry's file. False: it had to be given up.
  bool load(Entries::iterator entry);
  void write(Entries::iterator entry);
  void drop_file(Entries::iterator entry);
  [[nodiscard]] Entries::iterator least_recent(bool in_memory);

  Executor& executor_;
  PrefixStoreOptions options_;
  Entries entries_;
  ByteCount disk_used_;
  int64_t clock_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace weft
