#include "text/xtml_parser.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/call_writer.h"
#include "text/marker_lexer.h"
#include "text/parser_machine.h"
#include "text/tag.h"
#include "text/xtml_closer.h"
#include "text/xtml_markers.h"

namespace weft {
namespace {

enum class Marker : uint8_t { open, close, sep, end_of_message };  // as in kXtmlMarkers
std::string_view spelling(Marker marker) { return kXtmlMarkers[static_cast<size_t>(marker)]; }

constexpr size_t kMostHeaderBytes = 8192;  // 3.3
constexpr std::string_view kSpace = " \t\n\r\f\v";

// 3.4. `bad` is a call that cannot be used, `skip` a second tools section.
enum class State : uint8_t { start, think, between, response, tools, call, argument, json, bad, skip, done };

class XtmlMachine final : public ParserMachine {
 public:
  XtmlMachine(const Tokenizer& tokenizer, ParserOptions options)
      : ParserMachine(std::move(options)),
        tokenizer_(tokenizer),
        markers_(tokenizer),
        closer_(tokenizer, this->options().start) {
    if (this->options().start == ParserStart::think) state_ = State::think;
    think_from_prompt_ = state_ == State::think;
    if (this->options().start == ParserStart::response) open_response();
  }

  void feed_token(TokenId id) override {
    closer_.add(id);
    release_held();
    if (state_ == State::done) return;
    literal_markers_ = false;
    if (id == markers_.open) return on_marker(Marker::open);
    if (id == markers_.close) return on_marker(Marker::close);
    if (id == markers_.sep) return on_marker(Marker::sep);
    if (tokenizer_.is_stop(id)) return on_marker(Marker::end_of_message);
    if (id < 0 || id >= tokenizer_.rank_count()) {
      ++counters_.stray_markers;
      return;
    }
    if (state_ == State::think && !in_header_) ++counters_.reasoning_tokens;
    on_text(tokenizer_.token_bytes(id));
  }

  void feed_text(std::string_view bytes) override {
    if (state_ == State::done) return;
    lex(bytes);
  }

  void finish(EndReason reason) override {
    if (state_ == State::done) return;
    if (reason == EndReason::stop) {
      release_held();
    } else {
      counters_.dropped_tail_bytes += static_cast<int64_t>(lexer_.take_held().size());
    }
    end_turn(reason == EndReason::length);
  }

  [[nodiscard]] bool done() const override { return state_ == State::done; }
  [[nodiscard]] bool in_reasoning() const override { return state_ == State::think && !in_header_; }
  [[nodiscard]] bool in_content() const override { return state_ == State::response && !in_header_; }
  [[nodiscard]] std::vector<TokenId> closers() const override { return closer_.closers(); }

 private:
  // ---- Input events: TEXT, OPEN, CLOSE, SEP, EOM.

  void lex(std::string_view bytes) {
    literal_markers_ = true;
    lexer_.feed(
        bytes, [this](std::string_view text) { on_text(text); },
        [this](size_t marker) { on_marker(static_cast<Marker>(marker)); });
  }

  // Held bytes of the text front end are text after all.
  void release_held() {
    const std::string held = lexer_.take_held();
    if (!held.empty()) on_text(held);
  }

  void on_text(std::string_view text) {
    if (in_header_) {
      const size_t room = kMostHeaderBytes - header_.size();
      header_ += text.substr(0, room);
      if (text.size() <= room) return;
      give_up_header();
      text.remove_prefix(room);
    }
    body_text(text);
  }

  void on_marker(Marker marker) {
    if (state_ == State::done) return;
    switch (marker) {
      case Marker::open:
      case Marker::close:
        if (in_header_) give_up_header();
        in_header_ = true;
        header_opens_ = marker == Marker::open;
        break;
      case Marker::sep:
        if (!in_header_) {
          literal(spelling(Marker::sep));
          break;
        }
        in_header_ = false;
        on_tag(std::exchange(header_, {}));
        break;
      case Marker::end_of_message:
        complete_ = true;
        end_turn(false);
        break;
    }
  }

  // What was read as a header is none.
  void give_up_header() {
    in_header_ = false;
    literal(header_spelling(std::exchange(header_, {})));
  }
  [[nodiscard]] std::string header_spelling(std::string_view header) const {
    return fmt::format("{}{}", spelling(header_opens_ ? Marker::open : Marker::close), header);
  }

  // 3.5
  void literal(std::string_view text) {
    if (!literal_markers_) {
      ++counters_.stray_markers;
    } else if (is_body(state_)) {
      body_text(text);
    }
  }
  static bool is_body(State state) {
    return state == State::think || state == State::response || state == State::argument || state == State::json;
  }

  // ---- Bodies.

  void body_text(std::string_view text) {
    if ((state_ == State::start || state_ == State::between) && !response_opened_ && !tools_closed_) {
      // The model forgot the opener.
      const size_t first = text.find_first_not_of(kSpace);
      if (first == text.npos) return;
      text.remove_prefix(first);
      open_response();
    }
    if (!is_body(state_) || text.empty()) return;
    body_empty_ = false;
    std::string decoded;
    decoder_.feed(text, decoded);
    emit_body(decoded);
  }

  void emit_body(std::string_view text) {
    if (text.empty()) return;
    switch (state_) {
      case State::think:
        if (think_from_prompt_) skipped_think_ += text;
        emit(Kind::reasoning, text);
        break;
      case State::response: emit(Kind::content, text); break;
      case State::argument:
      case State::json: {
        std::string out;
        writer_.text(text, out);
        emit_arguments(out);
        break;
      }
      default: break;
    }
  }

  // The state changes; half a character of the body that ends does not reach the next one.
  void enter(State state) {
    std::string tail;
    decoder_.flush(tail);
    emit_body(tail);
    if (state_ == State::think) {
      think_from_prompt_ = false;
      skipped_think_.clear();
    }
    state_ = state;
    body_empty_ = true;
  }
  void open_response() {
    enter(State::response);
    response_opened_ = true;
  }

  // ---- Tags (the tables of 3.4).

  void on_tag(const std::string& header) {
    const Tag tag = parse_tag(header);
    const bool used = header_opens_ ? on_open(tag) : on_close(tag);
    if (!used) literal(header_spelling(header) + std::string(spelling(Marker::sep)));
  }

  bool on_open(const Tag& tag) {
    if (tag.name == "think") return open_think();
    if (tag.name == "response") return on_open_response();
    if (tag.name == "tools") return open_tools();
    if (tag.name == "call") return open_call(tag);
    if (tag.name == "argument") return open_argument(tag);
    if (tag.name == "json") return open_json();
    if (tag.name == "message") return open_message();
    return false;
  }

  bool open_think() {
    const bool empty_response = state_ == State::response && body_empty_;
    if (state_ == State::start || state_ == State::between || empty_response) {
      if (empty_response) response_opened_ = false;
      enter(State::think);
      return true;
    }
    if (state_ != State::think || !body_empty_) return false;
    think_from_prompt_ = false;  // an echo of the prompt's opener
    return true;
  }
  bool on_open_response() {
    if (state_ == State::start || state_ == State::between || state_ == State::think) {
      open_response();
      return true;
    }
    return state_ == State::response && body_empty_;
  }
  bool open_tools() {
    if (state_ != State::start && state_ != State::between && state_ != State::response && state_ != State::think) return false;
    enter(tools_closed_ ? State::skip : State::tools);
    return true;
  }
  bool open_call(const Tag& tag) {
    if (state_ == State::tools) {
      begin_call(tag);
      return true;
    }
    if (!in_call()) return state_ == State::skip;
    abandon_call(State::tools);
    begin_call(tag);
    return true;
  }
  void begin_call(const Tag& tag) {
    const std::string* name = tag.find("tool");
    if (name == nullptr || name->empty()) return enter(State::bad);
    enter(State::call);
    writer_ = {};
    call_open_ = true;
    emit_call_start(*name);
  }
  bool open_argument(const Tag& tag) {
    if (!in_call()) return false;
    const std::string* key = tag.find("key");
    if (state_ != State::call || key == nullptr || writer_.has_json_block()) {
      abandon_call(State::bad);
      return true;
    }
    enter(State::argument);
    const std::string* type = tag.find("type");
    std::string out;
    writer_.open_argument(*key, type == nullptr ? std::string_view() : *type, out);
    emit_arguments(out);
    return true;
  }
  bool open_json() {
    if (!in_call()) return false;
    if (state_ != State::call || writer_.has_argument() || writer_.has_json_block()) {
      abandon_call(State::bad);
      return true;
    }
    enter(State::json);
    writer_.open_json_block();
    return true;
  }
  bool open_message() {
    if (state_ == State::start) return true;
    if (state_ != State::between) return false;
    complete_ = true;
    end_turn(false);
    return true;
  }

  bool on_close(const Tag& tag) {
    if (tag.name == "think") return close_think();
    if (tag.name == "response") return close_response();
    if (tag.name == "tools") return close_tools();
    if (tag.name == "call") return close_call();
    if (tag.name == "argument") return close_body(State::argument);
    if (tag.name == "json") return close_body(State::json);
    if (tag.name != "message") return false;
    recover_skipped_think();
    complete_ = true;
    end_turn(false);
    return true;
  }

  bool close_think() {
    if (state_ == State::think) {
      enter(State::between);
      return true;
    }
    return state_ == State::response && body_empty_;
  }
  bool close_response() {
    if (state_ == State::think) recover_skipped_think();
    if (state_ != State::think && state_ != State::response) return false;
    enter(State::between);
    return true;
  }
  bool close_tools() {
    if (state_ != State::tools && state_ != State::skip && !in_call()) return false;
    abandon_call(State::between);
    tools_closed_ = true;
    return true;
  }
  bool close_call() {
    if (!in_call()) return state_ == State::skip;
    if (state_ != State::call) {
      abandon_call(State::tools);
      return true;
    }
    std::string out;
    writer_.finish(out);
    emit_arguments(out);
    emit_call_end();
    call_open_ = false;
    enter(State::tools);
    return true;
  }
  bool close_body(State state) {
    if (state_ != state) return state_ == State::bad;
    // The tail of the body belongs before the closing quote.
    std::string tail;
    decoder_.flush(tail);
    emit_body(tail);
    std::string out;
    writer_.close(out);
    emit_arguments(out);
    enter(State::call);
    return true;
  }

  [[nodiscard]] bool in_call() const {
    return state_ == State::call || state_ == State::argument || state_ == State::json || state_ == State::bad;
  }
  void abandon_call(State next) {
    if (call_open_) ++counters_.abandoned_calls;
    if (in_call()) decoder_ = {};  // nothing more is sent for it
    call_open_ = false;
    enter(next);
  }

  // 3.6: what was sent as reasoning was the answer.
  void recover_skipped_think() {
    if (state_ != State::think || !think_from_prompt_) return;
    std::string tail;
    decoder_.flush(tail);
    emit_body(tail);
    if (skipped_think_.empty()) return;
    ++counters_.recoveries;
    emit_recovered(std::exchange(skipped_think_, {}));
    response_opened_ = true;
  }

  void end_turn(bool length) {
    in_header_ = false;  // a header without its separator is never shown
    header_.clear();
    abandon_call(State::done);
    emit_finish(length);
  }

  const Tokenizer& tokenizer_;
  XtmlMarkers markers_;
  XtmlCloser closer_;
  MarkerLexer lexer_{kXtmlMarkers};
  bool literal_markers_ = true;  // the spelling of a misplaced tag is data (text front end) or noise (ids)

  bool in_header_ = false;
  bool header_opens_ = false;  // <|open|>, not <|close|>
  std::string header_;

  State state_ = State::start;
  Utf8Decoder decoder_;             // of the body that is open
  bool body_empty_ = true;          // no byte of it yet
  bool think_from_prompt_ = false;  // THINK was neither opened nor closed by the model
  bool response_opened_ = false;
  bool tools_closed_ = false;
  std::string skipped_think_;  // the reasoning so far, while it may turn out to be the answer

  ArgumentWriter writer_;
  bool call_open_ = false;
};

}  // namespace

OutputParser xtml_parser(const Tokenizer& tokenizer, ParserOptions options) {
  return OutputParser(std::make_unique<XtmlMachine>(tokenizer, std::move(options)));
}

}  // namespace weft
