// The arguments of one tool call, written as JSON text while the model writes them as XTML (prompt_and_api.md 3.7, 3.8).
#pragma once

#include <string>
#include <string_view>

namespace weft {

// Each function appends what may be sent now to `out`; all that was appended, up to finish(), is the call's arguments.
class ArgumentWriter {
 public:
  // `type` is the tag's type attribute, empty when it has none.
  void open_argument(std::string_view key, std::string_view type, std::string& out);
  void open_json_block();
  // A part of the body of what is open; well-formed UTF-8.
  void text(std::string_view part, std::string& out);
  void close(std::string& out);
  // The end of the call.
  void finish(std::string& out) const;

  [[nodiscard]] bool has_argument() const { return has_argument_; }
  [[nodiscard]] bool has_json_block() const { return has_json_block_; }

 private:
  bool has_argument_ = false;
  bool has_json_block_ = false;
  bool streamed_ = false;  // the open body is a string, which is sent as it comes
  std::string body_;       // of a body that is sent whole
};

}  // namespace weft
