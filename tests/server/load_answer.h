// What a client of a load test makes of an answer, as it comes: head, body, events, and what each choice says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace weft::load_test {

// What one choice of an answer says, reasoning, content, calls and the reason of its end in one text each: the text of a stream
// that was left is the beginning of the whole one.
struct Said {
  std::string text;
  std::string logprobs;
  std::string part;  // of the answer that is being written: "reasoning", "content", "call"

  bool operator==(const Said& other) const { return text == other.text && logprobs == other.logprobs; }
  [[nodiscard]] bool begins(const Said& whole) const {
    return whole.text.starts_with(text) && whole.logprobs.starts_with(logprobs);
  }
};

// Reads one answer of HTTP/1.1 piece by piece. What is against the API's rules (prompt_and_api.md 6.5, 6.7, 6.10) throws.
class AnswerReader {
 public:
  // `told` gets the index of the choice for each event that brings text; it may be null.
  void take(std::string_view bytes, std::vector<size_t>* told);

  [[nodiscard]] int status() const { return status_; }  // 0: the head is not there yet
  [[nodiscard]] bool complete() const { return complete_; }
  [[nodiscard]] bool streams() const { return streams_; }
  [[nodiscard]] bool keeps_alive() const { return keeps_alive_; }
  [[nodiscard]] bool has_header(std::string_view line) const { return head_.find(line) != std::string::npos; }
  [[nodiscard]] const std::vector<Said>& said() const { return said_; }
  [[nodiscard]] int64_t texts() const { return texts_; }           // events that brought text
  [[nodiscard]] const std::string& body() const { return body_; }  // of an answer that is no stream

 private:
  void read_head();
  void read_chunks();
  void read_events();
  void read_event(std::string_view event);
  void read_chat_chunk(const Json& chunk);
  void read_response_event(const Json& event);
  void read_whole();
  void end();

  void say(size_t choice, std::string_view part, std::string_view text);
  void call(size_t choice, const std::string& name);
  void finish(size_t choice, const std::string& reason);
  Said& at(size_t choice);

  std::string in_;  // not understood yet
  std::string head_;
  std::string body_;  // of a stream: the event that is not complete yet
  int status_ = 0;
  bool head_read_ = false;
  bool chunked_ = false;
  bool streams_ = false;
  bool keeps_alive_ = true;
  bool complete_ = false;
  bool done_ = false;      // [DONE], or the last event of a response
  bool response_ = false;  // events have names
  size_t length_ = 0;
  int64_t next_number_ = 0;  // of the events of a response
  std::string id_;           // the same in all chunks
  std::vector<Said> said_;
  std::vector<size_t> finished_;
  int64_t texts_ = 0;
  std::vector<size_t>* told_ = nullptr;
};

}  // namespace weft::load_test
