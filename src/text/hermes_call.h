// The body of a tool call as Qwen writes it, {"name": "f", "arguments": {...}}, read while it is written
// (prompt_and_api.md 4.5).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/json_scanner.h"

namespace weft {

class HermesCall {
 public:
  enum class Status : uint8_t {
    open,
    complete,  // white space may follow
    bad,       // it is no call
  };

  // Reads `text` (well-formed UTF-8) up to the byte that makes it bad; how many bytes it took. Appends to `arguments` what of
  // them may be sent now: nothing before the name is known; then their source text as it comes, or "{}" for null or none, or
  // what a string holds whose text is an object.
  size_t feed(std::string_view text, std::string& arguments);

  [[nodiscard]] Status status() const { return status_; }
  // Empty until it is known.
  [[nodiscard]] const std::string& name() const { return name_; }
  // What looks like a marker is text here.
  [[nodiscard]] bool in_string() const { return status_ == Status::open && scanner_.in_string(); }

 private:
  enum class Part : uint8_t { none, key, value };  // of the outer object
  enum class Use : uint8_t { ignore, name, arguments };

  bool take(char c, std::string& arguments);
  bool begin_value(char c);
  bool end_key();
  bool end_value(std::string& arguments);
  bool end_arguments(std::string& arguments);
  bool end_object(std::string& arguments);
  void send(std::string_view text, std::string& arguments);

  JsonScanner scanner_;
  Status status_ = Status::open;
  Part part_ = Part::none;
  Use use_ = Use::ignore;   // of the value that stands behind the last key
  bool is_object_ = false;  // that value is one: it is sent as it comes
  std::string raw_;         // of a key, or of a value that is needed whole
  std::string name_;
  std::string unsent_;  // arguments that came before the name
  bool has_arguments_ = false;
};

}  // namespace weft
