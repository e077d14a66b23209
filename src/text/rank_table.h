// A vocabulary of byte strings, whose places are the token ids, and byte-level BPE over it: the adjacent pair with the lowest
// rank merges first, the leftmost of equals. tiktoken.model gives no pairs: two tokens merge where their bytes together are a
// token, whose id is the rank, and a piece that is a token is not cut at all (prompt_and_api.md 1.1, 1.4). tokenizer.json lists
// the pairs, and a pair's place in the list is its rank (1.8).
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
  // Tokens by id, and no pair yet. Refuses, naming the id, empty tokens, one that comes twice, and a missing single byte.
  static RankTable of_tokens(const std::vector<std::string>& tokens, std::string_view place);
  struct Pair {
    TokenId left = -1;
    TokenId right = -1;
    TokenId whole = -1;
  };
  // The pairs of a table of_tokens(), by rank. Refuses a pair that comes twice, naming its place.
  void set_pairs(const std::vector<Pair>& pairs, std::string_view place);

  [[nodiscard]] TokenId size() const { return static_cast<TokenId>(offsets_.size()) - 1; }
  // The bytes of token `id`, 0 <= id < size().
  [[nodiscard]] std::string_view bytes(TokenId id) const {
    const auto i = static_cast<size_t>(id);
    return {arena_.data() + offsets_[i], offsets_[i + 1] - offsets_[i]};
  }
  // The id of `bytes`, or -1.
  [[nodiscard]] TokenId find(std::string_view bytes) const;

  // Reused between pieces so that encoding does not allocate for each.
  struct Scratch {
    std::vector<uint64_t> heap;  // rank << 32 | node
    std::vector<uint32_t> next;  // by node; a node is the offset of its first byte
    std::vector<uint32_t> previous;
    std::vector<TokenId> token;   // -1 once merged into the node before
    std::vector<int32_t> merged;  // the rank of token and its right neighbour together, or -1
  };
  // Appends the ids of one piece. O(n log n).
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
  // crosses their ends. So, where no list says which pairs there are, a token comes from at most one pair of tokens, and a pair
  // of ids says as much as the bytes of both.
  struct Merge {
    TokenId left = -1;
    TokenId right = -1;
    int32_t rank = -1;  // -1: free
  };

  static Key key_of(std::string_view bytes);
  // The slot that holds `bytes`, or the free one where it would go.
  [[nodiscard]] size_t slot_of(std::string_view bytes, const Key& key) const;
  // Makes room for tokens, which then are appended in the order of their ids.
  void reserve(size_t tokens, size_t bytes);
  // The id of the token if it is there already, else -1.
  [[nodiscard]] TokenId append(std::string_view token);
  void check_bytes(std::string_view place) const;
  // The rank of two adjacent parts together, or -1.
  [[nodiscard]] int32_t merge_of(TokenId left, TokenId right) const;
  [[nodiscard]] TokenId whole_of(int32_t rank) const { return wholes_.empty() ? rank : wholes_[static_cast<size_t>(rank)]; }
  void make_merges(size_t count);
  // False when the pair is there already.
  bool add_merge(TokenId left, TokenId right, int32_t rank);
  void find_merges();
  void merge(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const;
  void merge_short(std::string_view piece, std::vector<TokenId>& out) const;
  void merge_long(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const;

  std::string arena_;              // the bytes of all ranks, one after the other
  std::vector<uint32_t> offsets_;  // [size + 1] into arena_
  std::vector<Slot> slots_;        // open addressing; a power of two, at most half full
  std::array<TokenId, 256> byte_ids_{};
  std::vector<int32_t> byte_pairs_;  // [65536] rank of two bytes, or -1
  std::vector<Merge> merges_;        // of all other pairs; open addressing; a power of two
  std::vector<TokenId> wholes_;      // by rank; empty where the rank is the id
  // A bit for each hash of a pair in merges_: most pairs are not there, and these bits stay in a near cache.
  std::vector<uint64_t> may_merge_;
  int merge_shift_ = 0;        // 64 - log2(merges_.size())
  int may_shift_ = 0;          // 64 - log2(bits of may_merge_)
  size_t longest_ = 0;         // bytes of the longest token
  bool whole_pieces_ = false;  // a piece that is a token is that token
};

}  // namespace weft
