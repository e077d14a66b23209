// A vocabulary of byte strings in which the rank is the token id, and byte-level BPE over it (prompt_and_api.md 1.1, 1.4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

using TokenId = int32_t;

class RankTable {
 public:
  // Reads the text of a tiktoken.model file: one "<base64> <rank>" a line. `place` names the file in errors. Refuses (as
  // bad_checkpoint, naming the line) a malformed line, empty bytes, duplicate bytes, duplicate ranks, gaps in the ranks, and
  // a file without one of the 256 single bytes.
  static RankTable parse(std::string_view file, std::string_view place);

  [[nodiscard]] TokenId size() const { return static_cast<TokenId>(offsets_.size()) - 1; }
  // The bytes of rank `id`, 0 <= id < size().
  [[nodiscard]] std::string_view bytes(TokenId id) const {
    const auto i = static_cast<size_t>(id);
    return {arena_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  // The rank of `bytes`, or -1.
  [[nodiscard]] TokenId find(std::string_view bytes) const;

  // Reused between pieces so that encoding does not allocate for each.
  struct Scratch {
    std::vector<uint64_t> heap;  // rank << 32 | node
    std::vector<uint32_t> next;  // by node; a node is the offset of its first byte
    std::vector<uint32_t> previous;
    std::vector<TokenId> token;   // -1 once merged into the node before
    std::vector<TokenId> merged;  // the rank of token and its right neighbour together, or -1
  };
  // Appends the ids of one piece: its own id when the whole piece is in the vocabulary, else BPE: the adjacent pair with the
  // lowest rank merges first, the leftmost of equals. O(n log n).
  void encode_piece(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const;

 private:
  // One cache line serves four slots, and a token of up to 8 bytes is compared without going to the arena.
  struct Slot {
    uint64_t head = 0;  // the first 8 bytes, padded with zeros
    uint32_t tag = 0;   // length (at most 255) and bits of the hash
    TokenId id = -1;    // -1: free
  };
  struct Key {
    uint64_t head;
    uint64_t hash;
    uint32_t tag;
  };

  // While a piece is merged, the parts inside the bytes of a token go the way they go when these bytes stand alone, as no merge
  // crosses their ends. So a token comes from at most one pair of tokens, and a pair of ids says as much as the bytes of both.
  struct Merge {
    TokenId left = -1;
    TokenId right = -1;
    TokenId id = -1;  // -1: free
  };

  static Key key_of(std::string_view bytes);
  // The slot that holds `bytes`, or the free one where it would go.
  [[nodiscard]] size_t slot_of(std::string_view bytes, const Key& key) const;
  void insert(TokenId id, std::string_view place, int64_t line);
  // The rank of two adjacent parts together, or -1.
  [[nodiscard]] TokenId merge_of(TokenId left, TokenId right) const;
  void build_merges();
  void merge(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const;

  std::string arena_;              // the bytes of all ranks, one after the other
  std::vector<uint32_t> offsets_;  // [size + 1] into arena_
  std::vector<Slot> slots_;        // open addressing; a power of two, at most half full
  std::array<TokenId, 256> byte_ids_{};
  std::vector<TokenId> pair_ids_;  // [65536] rank of two bytes, or -1
  std::vector<Merge> merges_;      // open addressing; a power of two
  // A bit for each hash of a pair in merges_: most pairs are not there, and these bits stay in a near cache.
  std::vector<uint64_t> may_merge_;
  int merge_shift_ = 0;  // 64 - log2(merges_.size())
  int may_shift_ = 0;    // 64 - log2(bits of may_merge_)
  size_t longest_ = 0;   // bytes of the longest token
};

}  // namespace weft
