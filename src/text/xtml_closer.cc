#include "text/xtml_closer.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weft {
namespace {

// A tag outside the grammar is noise (3.5) and needs no closing; a second message ends the turn.
bool nests(std::string_view tag) {
  static constexpr std::array<std::string_view, 6> kTags = {"think", "response", "tools", "call", "argument", "json"};
  return std::ranges::find(kTags, tag) != kTags.end();
}

}  // namespace

XtmlCloser::XtmlCloser(const Tokenizer& tokenizer, ParserStart start) : tokenizer_(tokenizer), markers_(tokenizer) {
  if (start == ParserStart::think) open_.emplace_back("think");
  if (start == ParserStart::response) open_.emplace_back("response");
  saw_response_ = start == ParserStart::response;
}

void XtmlCloser::add(TokenId id) {
  if (id == markers_.open || id == markers_.close) {
    header_ = id == markers_.open ? Header::open : Header::close;
    name_.clear();
    return;
  }
  const bool is_text = id >= 0 && id < tokenizer_.rank_count();
  if (!is_text && id != markers_.sep) return;
  if (header_ == Header::none) return;
  if (id != markers_.sep) {
    name_ += tokenizer_.token_bytes(id);
    return;
  }
  const size_t begin = std::min(name_.find_first_not_of(" \t\r\n"), name_.size());
  const std::string tag = name_.substr(begin, name_.find_first_of(" \t\r\n", begin) - begin);
  const Header header = std::exchange(header_, Header::none);
  if (header == Header::open) {
    saw_response_ = saw_response_ || tag == "response";
    saw_tools_ = saw_tools_ || tag == "tools";
    // An echo of the opener that the prompt wrote already.
    if (nests(tag) && !open_.empty() && open_.back() != tag) open_.push_back(tag);
    return;
  }
  const auto found = std::find(open_.rbegin(), open_.rend(), tag);
  if (found != open_.rend()) open_.erase(found.base() - 1, open_.end());
}

std::vector<TokenId> XtmlCloser::closers() const {
  std::vector<TokenId> ids;
  const auto write = [&](TokenId marker, std::string_view tag) {
    ids.push_back(marker);
    const std::vector<TokenId> name = tokenizer_.encode(tag);
    ids.insert(ids.end(), name.begin(), name.end());
    ids.push_back(markers_.sep);
  };
  if (header_ != Header::none) ids.push_back(markers_.sep);
  for (auto tag = open_.rbegin(); tag != open_.rend(); ++tag) {
    if (*tag == "message" && !saw_response_ && !saw_tools_) {
      write(markers_.open, "response");
      write(markers_.close, "response");
    }
    write(markers_.close, *tag);
  }
  ids.push_back(markers_.end_of_message);
  return ids;
}

}  // namespace weft
