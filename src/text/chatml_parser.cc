#include "text/chatml_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "text/chatml_markers.h"
#include "text/hermes_call.h"
#include "text/marker_lexer.h"
#include "text/parser_machine.h"

namespace weft {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

bool is_blank(std::string_view text) { return text.find_first_not_of(kSpace) == text.npos; }
void drop_leading_breaks(std::string& text) { text.erase(0, std::min(text.find_first_not_of('\n'), text.size())); }
void drop_trailing_breaks(std::string& text) { text.erase(text.find_last_not_of('\n') + 1); }

// 4.5. `skip` is the rest of a call that went wrong after its name was sent.
enum class State : uint8_t { think, normal, call, skip };

class ChatmlMachine final : public ParserMachine {
 public:
  ChatmlMachine(const Tokenizer& tokenizer, ParserOptions options)
      : ParserMachine(std::move(options)), tokenizer_(tokenizer), markers_(tokenizer) {
    const ParserStart start = this->options().start;
    state_ = start == ParserStart::think ? State::think : State::normal;
    content_begun_ = start == ParserStart::response;
  }

  void feed_token(TokenId id) override {
    if (done_) return;
    if (!buffer_.empty()) on_text(std::exchange(buffer_, {}));
    const auto marker = std::ranges::find(markers_.ids, id);
    if (tokenizer_.is_stop(id)) {
      on_marker(ChatmlMarker::end);
    } else if (marker != markers_.ids.end()) {
      on_marker(static_cast<ChatmlMarker>(marker - markers_.ids.begin()));
    } else if (id < 0 || id >= tokenizer_.vocab_size() || tokenizer_.is_special(id)) {
      ++counters_.stray_markers;
    } else {
      if (state_ == State::think) ++counters_.reasoning_tokens;
      on_text(tokenizer_.token_bytes(id));
    }
  }

  void feed_text(std::string_view bytes) override {
    if (done_) return;
    buffer_ += bytes;
    std::string_view rest = buffer_;
    while (!rest.empty() && !done_) {
      if (!read_front(rest)) break;
    }
    buffer_.erase(0, done_ ? buffer_.size() : buffer_.size() - rest.size());
  }

  void finish(EndReason reason) override {
    if (done_) return;
    if (reason == EndReason::length) {
      counters_.dropped_tail_bytes += static_cast<int64_t>(buffer_.size());
    } else if (state_ == State::think || state_ == State::normal) {
      // Inside a call, where what is held can only be the beginning of its end, nothing is lost.
      on_text(buffer_);
    }
    end_turn(reason == EndReason::length);
  }

  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] bool in_reasoning() const override { return !done_ && state_ == State::think; }
  [[nodiscard]] bool in_content() const override { return !done_ && state_ == State::normal; }

  [[nodiscard]] std::vector<TokenId> closers() const override {
    std::vector<TokenId> ids;
    const auto text = [&](std::string_view plain) {
      const std::vector<TokenId> spelled = tokenizer_.encode(plain);
      ids.insert(ids.end(), spelled.begin(), spelled.end());
    };
    if (state_ == State::think) {
      if (!ends_in_break_) text("\n");
      ids.push_back(markers_[ChatmlMarker::close_think]);
      text("\n\n");
    } else if (state_ != State::normal) {
      if (!ends_in_break_) text("\n");
      ids.push_back(markers_[ChatmlMarker::close_call]);
    }
    ids.push_back(markers_[ChatmlMarker::end]);
    text("\n");
    return ids;
  }

 private:
  // ---- Input events: text and markers.

  // Reads the text before the next marker, or that marker. False when the front is held back.
  bool read_front(std::string_view& rest) {
    const auto take = [&](size_t length) {
      const std::string_view text = rest.substr(0, length);
      rest.remove_prefix(length);
      on_text(text);
    };
    // Inside a string of a call every byte is text, and only reading it says where the string ends.
    if (state_ == State::call && (call_->in_string() || rest.front() != '<')) {
      take(1);
      return true;
    }
    const size_t at = std::min(rest.find('<'), rest.size());
    if (at > 0) {
      take(at);
      return true;
    }
    for (size_t i = 0; i < kChatmlMarkers.size(); ++i) {
      const std::string_view spelled = kChatmlMarkers[i];
      const size_t length = std::min(rest.size(), spelled.size());
      if (!is_marker(static_cast<ChatmlMarker>(i)) || rest.substr(0, length) != spelled.substr(0, length)) continue;
      if (length < spelled.size()) return false;
      rest.remove_prefix(length);
      on_marker(static_cast<ChatmlMarker>(i));
      return true;
    }
    take(1);
    return true;
  }

  // Whether it means something here.
  [[nodiscard]] bool is_marker(ChatmlMarker marker) const {
    switch (marker) {
      case ChatmlMarker::open_think:
        return (state_ == State::think && !reasoning_begun_) || (state_ == State::normal && !content_begun_ && !after_call_);
      case ChatmlMarker::close_think: return state_ == State::think || state_ == State::normal;
      case ChatmlMarker::open_call: return state_ == State::normal;
      case ChatmlMarker::close_call: return state_ == State::skip || (state_ == State::call && !call_->in_string());
      case ChatmlMarker::end:
      case ChatmlMarker::other_end: return true;
    }
    return false;
  }

  void on_marker(ChatmlMarker marker) {
    flush();
    if (!is_marker(marker)) return read_text(spelling(marker));
    ends_in_break_ = false;
    switch (marker) {
      case ChatmlMarker::open_think:
        held_.clear();
        if (state_ == State::think) return;  // an echo of the prompt's
        state_ = State::think;
        reasoning_begun_ = false;
        return;
      case ChatmlMarker::close_think:
        if (state_ == State::normal) {
          ++counters_.stray_markers;
          return;
        }
        drop_trailing_breaks(held_);
        emit(Kind::reasoning, std::exchange(held_, {}));
        state_ = State::normal;
        return;
      case ChatmlMarker::open_call:
        call_.emplace();
        literal_ = std::exchange(held_, {});
        literal_content_ = literal_;
        drop_trailing_breaks(literal_content_);
        literal_ += spelling(ChatmlMarker::open_call);
        state_ = State::call;
        return;
      case ChatmlMarker::close_call: return close_call();
      case ChatmlMarker::end:
      case ChatmlMarker::other_end:
        complete_ = true;
        end_turn(false);
        return;
    }
  }

  void on_text(std::string_view bytes) {
    std::string decoded;
    decoder_.feed(bytes, decoded);
    read_text(decoded);
  }
  // Half a character does not reach the next channel.
  void flush() {
    std::string tail;
    decoder_.flush(tail);
    read_text(tail);
  }

  // ---- Bodies. Texts are well-formed UTF-8 from here on.

  void read_text(std::string_view text) {
    if (text.empty()) return;
    ends_in_break_ = text.back() == '\n';
    switch (state_) {
      case State::think: return read_reasoning(text);
      case State::normal: return read_content(text);
      case State::call: return read_call(text);
      case State::skip: return;
    }
  }

  // Line breaks at the beginning are dropped; those at the end wait for what follows, and so does white space alone.
  void read_reasoning(std::string_view text) {
    held_ += text;
    if (!reasoning_begun_) {
      drop_leading_breaks(held_);
      if (is_blank(held_)) return;
      reasoning_begun_ = true;
    }
    release(Kind::reasoning);
  }

  void read_content(std::string_view text) {
    held_ += text;
    if (after_call_) {
      held_.erase(0, std::min(held_.find_first_not_of(kSpace), held_.size()));
      if (held_.empty()) return;
      after_call_ = false;
      content_begun_ = true;
    }
    if (!content_begun_) {
      drop_leading_breaks(held_);
      if (is_blank(held_)) return;
      content_begun_ = true;
    }
    release(Kind::content);
  }

  void release(Kind kind) {
    const size_t end = held_.find_last_not_of('\n') + 1;
    emit(kind, std::string_view(held_).substr(0, end));
    held_.erase(0, end);
  }

  // ---- Calls.

  void read_call(std::string_view text) {
    const bool was_named = !call_->name().empty();
    std::string arguments;
    const size_t taken = call_->feed(text, arguments);
    const bool is_named = !call_->name().empty();
    if (is_named && !was_named) {
      emit(Kind::content, literal_content_);
      emit_call_start(call_->name());
      literal_.clear();
    }
    if (is_named) {
      emit_arguments(arguments);
      if (call_->status() != HermesCall::Status::bad) return;
      ++counters_.abandoned_calls;
      state_ = State::skip;
      return;
    }
    literal_ += text.substr(0, taken);
    if (call_->status() == HermesCall::Status::bad) give_up_call(text.substr(taken));
  }

  // What was read as a call is none, and nothing of it was sent: it is content (4.5).
  void give_up_call(std::string_view more) {
    state_ = State::normal;
    after_call_ = false;
    content_begun_ = true;
    read_content(std::exchange(literal_, {}));
    if (!more.empty()) read_content(more);
  }

  void close_call() {
    if (state_ == State::call && call_->name().empty()) {
      literal_ += spelling(ChatmlMarker::close_call);
      return give_up_call({});
    }
    if (state_ == State::call) end_call();
    after_call_ = true;
    state_ = State::normal;
  }
  void end_call() {
    if (call_->status() == HermesCall::Status::complete) {
      emit_call_end();
    } else {
      ++counters_.abandoned_calls;
    }
  }

  void end_turn(bool length) {
    flush();
    switch (state_) {
      case State::think: emit(Kind::reasoning, held_); break;
      case State::normal: emit(Kind::content, held_); break;
      case State::call: end_call(); break;
      case State::skip: break;
    }
    held_.clear();
    done_ = true;
    emit_finish(length);
  }

  const Tokenizer& tokenizer_;
  ChatmlMarkers markers_;
  std::string buffer_;  // of the text front end: what may become a marker
  Utf8Decoder decoder_;

  State state_ = State::normal;  // stays as it was when the turn ends
  bool done_ = false;
  bool reasoning_begun_ = false;
  bool content_begun_ = false;
  bool after_call_ = false;     // and nothing but white space since
  bool ends_in_break_ = false;  // what was written last is a line break
  std::string held_;            // of reasoning or content: what may have to be dropped

  std::optional<HermesCall> call_;
  std::string literal_;          // the call as it was written, while it may turn out to be none
  std::string literal_content_;  // what of it comes before the call if it is one
};

}  // namespace

OutputParser chatml_parser(const Tokenizer& tokenizer, ParserOptions options) {
  return OutputParser(std::make_unique<ChatmlMachine>(tokenizer, std::move(options)));
}

}  // namespace weft
