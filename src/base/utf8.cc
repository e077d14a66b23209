#include "base/utf8.h"

namespace weft {

Utf8Step utf8_step(std::string_view bytes) {
  if (bytes.empty()) return {};
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {lead, 1, true, false};
  // The length of the character and the range that its second byte may have (Unicode table 3-7).
  uint8_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  uint32_t code = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    code = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    code = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    code = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {0, 1, false, false};
  }
  for (uint8_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {0, i, false, true};
    const uint8_t byte = at(i);
    if (byte < low || byte > high) return {0, i, false, false};
    low = 0x80;
    high = 0xBF;
    code = code << 6 | (byte & 0x3Fu);
  }
  return {code, length, true, false};
}

std::optional<size_t> find_ill_formed_utf8(std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (static_cast<uint8_t>(bytes[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (!step.good) return i;
    i += step.length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else if ((code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) {
    out += kReplacement;
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (code & 0x3F));
  }
}

void Utf8Decoder::feed(std::string_view bytes, std::string& out) {
  std::string joined;
  if (!tail_.empty()) {
    joined = tail_;
    joined += bytes;
    bytes = joined;
    tail_.clear();
  }
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.cut) {
      tail_.assign(bytes);
      return;
    }
    if (step.good) {
      out += bytes.substr(0, step.length);
    } else {
      out += kReplacement;
    }
    bytes.remove_prefix(step.length);
  }
}

void Utf8Decoder::flush(std::string& out) {
  if (!tail_.empty()) out += kReplacement;
  tail_.clear();
}

std::string printable(std::string_view bytes) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const bool control = step.code < 0x20 || (step.code >= 0x7F && step.code < 0xA0);
    for (const char c : bytes.substr(0, step.length)) {
      if (step.good && !control) {
        out += c;
      } else {
        out += "\\x";
        out += kHex[static_cast<uint8_t>(c) >> 4];
        out += kHex[static_cast<uint8_t>(c) & 15];
      }
    }
    bytes.remove_prefix(step.length);
  }
  return out;
}

std::string shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  size_t length = most;
  while (length > 0 && (static_cast<uint8_t>(text[length]) & 0xC0) == 0x80) --length;
  return std::string(text.substr(0, length)) + "...";
}

std::string to_valid_utf8(std::string_view bytes) {
  std::string out;
  Utf8Decoder decoder;
  decoder.feed(bytes, out);
  decoder.flush(out);
  return out;
}

}  // namespace weft
