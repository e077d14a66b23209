#include "text/rank_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace weft {
namespace {

// Pieces up to this length are merged by scanning all pairs, which beats a heap there. A word has a bit for each of their
// bytes.
constexpr size_t kShortPiece = 64;
// So many bytes hold less than 2^25 lines, which leaves 6 bits for a place beside a rank.
constexpr size_t kMostFileBytes = size_t{128} << 20;
constexpr size_t kMostPairs = size_t{1} << 24;

uint64_t load64(const char* p) {
  uint64_t v = 0;
  std::memcpy(&v, p, 8);
  return v;
}
uint32_t load32(const char* p) {
  uint32_t v = 0;
  std::memcpy(&v, p, 4);
  return v;
}

uint64_t mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// The first 8 bytes as one word, padded with zeros; words that overlap instead of a loop over bytes.
uint64_t head_of(std::string_view bytes) {
  const char* p = bytes.data();
  const size_t n = bytes.size();
  if (n >= 8) return load64(p);
  if (n >= 4) return load32(p) | static_cast<uint64_t>(load32(p + n - 4)) << (8 * (n - 4));
  if (n == 0) return 0;
  const auto at = [&](size_t i) { return static_cast<uint64_t>(static_cast<uint8_t>(p[i])) << (8 * i); };
  return at(0) | at(n / 2) | at(n - 1);
}

constexpr std::array<int8_t, 256> kBase64 = [] {
  std::array<int8_t, 256> table{};
  table.fill(-1);
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kAlphabet.size(); ++i) table[static_cast<uint8_t>(kAlphabet[i])] = static_cast<int8_t>(i);
  return table;
}();

// Strict base64 with padding; false when `text` is anything else.
bool append_base64(std::string_view text, std::string& out) {
  if (text.empty() || text.size() % 4 != 0) return false;
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const int padding = !last || text[i + 3] != '=' ? 0 : text[i + 2] == '=' ? 2 : 1;
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const int8_t digit = k >= 4 - padding ? int8_t{0} : kBase64[static_cast<uint8_t>(text[i + static_cast<size_t>(k)])];
      if (digit < 0) return false;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    if (padding != 0 && (bits & ((1u << (8 * padding)) - 1)) != 0) return false;
    out += static_cast<char>(bits >> 16);
    if (padding < 2) out += static_cast<char>(bits >> 8 & 0xFF);
    if (padding < 1) out += static_cast<char>(bits & 0xFF);
  }
  return true;
}

uint64_t hash_of(TokenId left, TokenId right) {
  const uint64_t pair = static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  return (pair ^ pair >> 29) * 0x9E3779B97F4A7C15;
}

struct Entry {
  uint32_t begin;  // into the bytes as read
  uint32_t end;
  int64_t line;  // 0: no such rank yet
};

}  // namespace

RankTable RankTable::parse(std::string_view file, std::string_view place) {
  if (file.size() > kMostFileBytes)
    fail(ErrorKind::bad_checkpoint, place, "wanted at most {} bytes, found {}", kMostFileBytes, file.size());
  const auto most = static_cast<size_t>(std::count(file.begin(), file.end(), '\n')) + 1;
  std::string read;
  read.reserve(file.size());
  std::vector<Entry> entries(most, Entry{0, 0, 0});
  size_t count = 0;
  int64_t line_number = 0;
  while (!file.empty()) {
    ++line_number;
    const size_t line_end = std::min(file.find('\n'), file.size());
    std::string_view line = file.substr(0, line_end);
    file.remove_prefix(std::min(line_end + 1, file.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    if (space == line.npos)
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted '<base64> <rank>', found no space", line_number);
    const auto begin = static_cast<uint32_t>(read.size());
    if (!append_base64(line.substr(0, space), read))
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted base64 with padding, found '{}'", line_number,
           line.substr(0, std::min<size_t>(space, 40)));
    const std::string_view digits = line.substr(space + 1);
    if (digits.empty() || digits.size() > 10 ||
        !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; }))
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted a decimal rank, found '{}'", line_number, digits.substr(0, 40));
    uint64_t rank = 0;
    for (char c : digits) rank = rank * 10 + static_cast<uint64_t>(c - '0');
    if (rank >= most)
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted ranks contiguous from 0, found rank {} in a file of {} lines",
           line_number, rank, most);
    Entry& entry = entries[rank];
    if (entry.line != 0)
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted each rank once, found rank {} of line {} again", line_number,
           rank, entry.line);
    entry = {begin, static_cast<uint32_t>(read.size()), line_number};
    ++count;
  }
  RankTable table;
  table.reserve(count, read.size());
  for (size_t rank = 0; rank < count; ++rank) {
    const Entry& entry = entries[rank];
    if (entry.line == 0)
      fail(ErrorKind::bad_checkpoint, place, "wanted ranks contiguous from 0, found {} entries and no rank {}", count, rank);
    const TokenId same = table.append(std::string_view(read).substr(entry.begin, entry.end - entry.begin));
    if (same >= 0)
      fail(ErrorKind::bad_checkpoint, place, "line {}: wanted each byte string once, found that of rank {} again", entry.line,
           same);
  }
  table.check_bytes(place);
  table.find_merges();
  return table;
}

RankTable RankTable::of_tokens(const std::vector<std::string>& tokens, std::string_view place) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  if (bytes > kMostFileBytes)
    fail(ErrorKind::bad_checkpoint, place, "wanted at most {} bytes of tokens, found {}", kMostFileBytes, bytes);
  RankTable table;
  table.reserve(tokens.size(), bytes);
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) fail(ErrorKind::bad_checkpoint, place, "wanted tokens with bytes, found none in id {}", id);
    const TokenId same = table.append(tokens[id]);
    if (same >= 0)
      fail(ErrorKind::bad_checkpoint, place, "wanted each byte string once, found that of id {} again in id {}", same, id);
  }
  table.check_bytes(place);
  table.make_merges(0);
  return table;
}

void RankTable::set_pairs(const std::vector<Pair>& pairs, std::string_view place) {
  if (pairs.size() > kMostPairs)
    fail(ErrorKind::bad_checkpoint, place, "wanted at most {} merges, found {}", kMostPairs, pairs.size());
  make_merges(pairs.size());
  wholes_.clear();
  for (const Pair& pair : pairs) {
    const auto rank = static_cast<int32_t>(wholes_.size());
    wholes_.push_back(pair.whole);
    if (!add_merge(pair.left, pair.right, rank))
      fail(ErrorKind::bad_checkpoint, place, "merges[{}]: wanted each pair once, found one that came before", rank);
  }
}

void RankTable::reserve(size_t tokens, size_t bytes) {
  arena_.reserve(bytes);
  offsets_.reserve(tokens + 1);
  offsets_.push_back(0);
  slots_.resize(std::bit_ceil(std::max<size_t>(tokens * 2, 512)));
  byte_ids_.fill(-1);
}

void RankTable::check_bytes(std::string_view place) const {
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte_ids_[byte] < 0)
      fail(ErrorKind::bad_checkpoint, place, "wanted all 256 single bytes in the vocabulary, found no entry for byte 0x{:02x}",
           byte);
  }
}

inline int32_t RankTable::merge_of(TokenId left, TokenId right) const {
  const uint64_t hash = hash_of(left, right);
  if ((may_merge_[hash >> may_shift_ >> 6] >> (hash >> may_shift_ & 63) & 1) == 0) return -1;
  size_t i = hash >> merge_shift_;
  while (merges_[i].rank >= 0 && (merges_[i].left != left || merges_[i].right != right)) i = (i + 1) & (merges_.size() - 1);
  return merges_[i].rank;
}

void RankTable::make_merges(size_t count) {
  byte_pairs_.assign(65536, -1);
  merges_.assign(std::bit_ceil(std::max<size_t>(count * 3 / 2, 2)), {});
  merge_shift_ = 64 - std::countr_zero(merges_.size());
  const size_t bits = std::bit_ceil(std::max<size_t>(count * 8, 64));
  may_merge_.assign(bits / 64, 0);
  may_shift_ = 64 - std::countr_zero(bits);
}

bool RankTable::add_merge(TokenId left, TokenId right, int32_t rank) {
  if (bytes(left).size() == 1 && bytes(right).size() == 1) {
    int32_t& entry =
        byte_pairs_[static_cast<size_t>(static_cast<uint8_t>(bytes(left)[0])) << 8 | static_cast<uint8_t>(bytes(right)[0])];
    if (entry >= 0) return false;
    entry = rank;
    return true;
  }
  const uint64_t hash = hash_of(left, right);
  may_merge_[hash >> may_shift_ >> 6] |= uint64_t{1} << (hash >> may_shift_ & 63);
  size_t i = hash >> merge_shift_;
  for (; merges_[i].rank >= 0; i = (i + 1) & (merges_.size() - 1)) {
    if (merges_[i].left == left && merges_[i].right == right) return false;
  }
  merges_[i] = {left, right, rank};
  return true;
}

void RankTable::find_merges() {
  const auto count = static_cast<size_t>(size());
  make_merges(count);
  whole_pieces_ = true;
  // A token's parts are shorter than the token. Shorter tokens first, then what is left of a token's bytes is its two parts.
  std::vector<TokenId> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](TokenId a, TokenId b) { return bytes(a).size() < bytes(b).size(); });
  std::vector<TokenId> parts;
  Scratch scratch;
  for (const TokenId id : ids) {
    if (bytes(id).size() < 2) continue;
    parts.clear();
    merge(bytes(id), parts, scratch);
    if (parts.size() == 2) add_merge(parts[0], parts[1], id);  // else it is found as a whole piece only
  }
}

RankTable::Key RankTable::key_of(std::string_view bytes) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15;
  constexpr uint64_t kB = 0xD1B54A32D192ED03;
  const size_t n = bytes.size();
  Key key{head_of(bytes), 0, 0};
  key.hash = mix(key.head ^ kA, kB ^ n);
  if (n > 8) {
    for (size_t i = 8; i + 8 < n; i += 8) key.hash = mix(key.hash ^ load64(bytes.data() + i), kB);
    key.hash = mix(key.hash ^ load64(bytes.data() + n - 8), kA);
  }
  key.tag = static_cast<uint32_t>(std::min<size_t>(n, 255)) << 24 | static_cast<uint32_t>(key.hash >> 40);
  return key;
}

size_t RankTable::slot_of(std::string_view token, const Key& key) const {
  const size_t mask = slots_.size() - 1;
  size_t i = key.hash & mask;
  for (; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == key.tag && slots_[i].head == key.head && (token.size() <= 8 || bytes(slots_[i].id) == token)) break;
  }
  return i;
}

TokenId RankTable::append(std::string_view token) {
  const auto id = static_cast<TokenId>(offsets_.size()) - 1;
  const Key key = key_of(token);
  Slot& slot = slots_[slot_of(token, key)];
  if (slot.id >= 0) return slot.id;
  arena_ += token;
  offsets_.push_back(static_cast<uint32_t>(arena_.size()));
  slot = {key.head, key.tag, id};
  longest_ = std::max(longest_, token.size());
  if (token.size() == 1) byte_ids_[static_cast<uint8_t>(token[0])] = id;
  return -1;
}

TokenId RankTable::find(std::string_view token) const {
  if (token.size() > longest_ || token.empty()) return -1;
  return slots_[slot_of(token, key_of(token))].id;
}

void RankTable::encode_piece(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const {
  if (piece.empty()) return;
  if (const TokenId id = whole_pieces_ ? find(piece) : -1; id >= 0) {
    out.push_back(id);
  } else {
    merge(piece, out, scratch);
  }
}

void RankTable::merge(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const {
  if (piece.size() <= kShortPiece) {
    merge_short(piece, out);
  } else {
    merge_long(piece, out, scratch);
  }
}

void RankTable::merge_short(std::string_view piece, std::vector<TokenId>& out) const {
  constexpr int32_t kNoMerge = 0x7FFFFFFF;
  constexpr size_t kLanes = 4;  // the search for the lowest keeps so many minima, which a compiler makes one register
  std::array<TokenId, kShortPiece> token;   // of the part that begins at a byte
  std::array<int32_t, kShortPiece> merged;  // its rank with the next part << 6 | place: the least is the leftmost lowest
  const size_t size = piece.size();
  const size_t padded = (size + kLanes - 1) / kLanes * kLanes;
  uint64_t live = size == 64 ? ~uint64_t{0} : (uint64_t{1} << size) - 1;  // the bytes that begin a part
  const auto entry = [](int32_t rank, size_t place) { return rank < 0 ? kNoMerge : rank << 6 | static_cast<int32_t>(place); };
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[i]); };
  for (size_t i = 0; i < size; ++i) token[i] = byte_ids_[byte(i)];
  for (size_t i = 0; i + 1 < size; ++i) merged[i] = entry(byte_pairs_[static_cast<size_t>(byte(i)) << 8 | byte(i + 1)], i);
  for (size_t i = size - 1; i < padded; ++i) merged[i] = kNoMerge;
  while (true) {
    std::array<int32_t, kLanes> least{kNoMerge, kNoMerge, kNoMerge, kNoMerge};
    for (size_t i = 0; i < padded; i += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) least[k] = merged[i + k] < least[k] ? merged[i + k] : least[k];
    }
    const int32_t lowest = std::min(std::min(least[0], least[1]), std::min(least[2], least[3]));
    if (lowest == kNoMerge) break;
    const auto at = static_cast<size_t>(lowest & 63);
    token[at] = whole_of(lowest >> 6);
    const uint64_t behind = live & (~uint64_t{1} << at);  // not empty, as the part has a neighbour
    merged[static_cast<size_t>(std::countr_zero(behind))] = kNoMerge;
    const uint64_t after = behind & (behind - 1);
    const uint64_t before = live & ((uint64_t{1} << at) - 1);
    live = before | uint64_t{1} << at | after;
    merged[at] = after == 0 ? kNoMerge : entry(merge_of(token[at], token[static_cast<size_t>(std::countr_zero(after))]), at);
    if (before != 0) {
      const auto left = static_cast<size_t>(63 - std::countl_zero(before));
      merged[left] = entry(merge_of(token[left], token[at]), left);
    }
  }
  for (; live != 0; live &= live - 1) out.push_back(token[static_cast<size_t>(std::countr_zero(live))]);
}

void RankTable::merge_long(std::string_view piece, std::vector<TokenId>& out, Scratch& scratch) const {
  const size_t size = piece.size();
  const auto end = static_cast<uint32_t>(size);
  auto& [heap, next, previous, token, merged] = scratch;
  heap.clear();
  next.resize(size);
  previous.resize(size);
  token.resize(size);
  merged.resize(size);
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(piece[i]); };
  for (size_t i = 0; i < size; ++i) {
    next[i] = static_cast<uint32_t>(i + 1);
    previous[i] = static_cast<uint32_t>(i) - 1;  // the first node's is never followed
    token[i] = byte_ids_[byte(i)];
    merged[i] = i + 1 < size ? byte_pairs_[static_cast<size_t>(byte(i)) << 8 | byte(i + 1)] : -1;
    if (merged[i] >= 0) heap.push_back(static_cast<uint64_t>(merged[i]) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto renew = [&](uint32_t node) {
    const uint32_t right = next[node];
    merged[node] = right == end ? -1 : merge_of(token[node], token[right]);
    if (merged[node] < 0) return;
    heap.push_back(static_cast<uint64_t>(merged[node]) << 32 | node);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const auto node = static_cast<uint32_t>(heap.back());
    const auto rank = static_cast<int32_t>(heap.back() >> 32);
    heap.pop_back();
    // An entry is stale when its node is gone or its pair has changed since.
    if (token[node] < 0 || merged[node] != rank) continue;
    const uint32_t right = next[node];
    token[node] = whole_of(rank);
    token[right] = -1;
    next[node] = next[right];
    if (next[node] != end) previous[next[node]] = node;
    renew(node);
    if (node != 0) renew(previous[node]);
  }
  for (uint32_t node = 0; node != end; node = next[node]) out.push_back(token[node]);
}

}  // namespace weft
