// The streams of prompt_and_api.md 3.10 and 9, and of cases C3 and C15: input, start, end and the events that must come out.
//
// ⟨tag⟩ and ⟨/tag⟩ stand for the tags, EOM for <|end_of_msg|>, EOS for [EOS]. Events: R reasoning, C content, C* recovered
// content, B call start, A arguments, E call end, F finish; a number is the call.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/kimi_tokenizer.h"
#include "text/xtml_parser.h"

namespace weft::text_test {

struct Stream {
  std::string name;
  ParserStart start;
  std::string input;
  EndReason end;
  std::vector<std::string> events;     // neighbours of one kind joined
  std::vector<std::string> id_events;  // of the id front end, where it differs
  bool discard_calls = false;
};

inline const std::vector<Stream>& streams() {
  using enum ParserStart;
  constexpr auto kStop = EndReason::stop;
  constexpr auto kLength = EndReason::length;
  static const std::vector<Stream> all{
      {"S1", think, "97 works.⟨/think⟩⟨response⟩97⟨/response⟩⟨/message⟩EOM", kStop, {"R97 works.", "C97", "Fstop"}, {}},
      {"S2", start, "⟨think⟩97 works.⟨/think⟩⟨response⟩97⟨/response⟩⟨/message⟩", kStop, {"R97 works.", "C97", "Fstop"}, {}},
      {"S3", response, "a<|b <|opal|> 3<5⟨/response⟩⟨/message⟩", kStop, {"Ca<|b <|opal|> 3<5", "Fstop"}, {}},
      {"S4",
       think,
       "Two calls.⟨/think⟩⟨response⟩⟨/response⟩⟨tools⟩⟨call tool=\"tide_height\" index=\"1\"⟩⟨argument key=\"port\" "
       "type=\"string\"⟩"
       "Barry \"2\"\n⟨/argument⟩⟨argument key=\"hours\" type=\"number\"⟩1e1⟨/argument⟩⟨/call⟩⟨call tool=\"ping\" "
       "index=\"7\"⟩⟨/call⟩"
       "⟨/tools⟩⟨/message⟩EOM",
       kStop,
       {"RTwo calls.", "B0tide_height", "A0{\"port\": \"Barry \\\"2\\\"\\n\", \"hours\": 1e1}", "E0", "B1ping", "A1{}", "E1",
        "Ftool_calls"},
       {}},
      {"S5", think, "Let me think about it and", kLength, {"RLet me think about it and", "Flength"}, {}},
      {"S6", think, "Let me think about it andEOS", kStop, {"RLet me think about it and", "Fstop"}, {}},
      {"S7", think, "Paris⟨/response⟩⟨/message⟩EOM", kStop, {"RParis", "C*Paris", "Fstop"}, {}},
      {"S8",
       think,
       "plan⟨tools⟩⟨call tool=\"ping\" index=\"1\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"Rplan", "B0ping", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"S9", think, "x⟨/think⟩⟨response⟩answer<|cl", kLength, {"Rx", "Canswer", "Flength"}, {"Rx", "Canswer<|cl", "Flength"}},
      {"S9 at a normal end (R12)", think, "x⟨/think⟩⟨response⟩answer<|cl", kStop, {"Rx", "Canswer<|cl", "Fstop"}, {}},
      {"S10",
       think,
       "x⟨/think⟩⟨response⟩⟨/response⟩⟨tools⟩⟨call tool=\"write\" index=\"1\"⟩⟨argument key=\"text\" type=\"string\"⟩line "
       "one\nli",
       kLength,
       {"Rx", "B0write", "A0{\"text\": \"line one\\nli", "Flength"},
       {}},
      {"S11",
       think,
       "x⟨/think⟩⟨response⟩ok⟨/response⟩⟨tools⟩⟨call tool=\"ping\" index=\"1\"⟩⟨/call⟩⟨/tools⟩⟨call tool=\"rm\" "
       "index=\"2\"⟩⟨/call⟩"
       "⟨/message⟩",
       kStop,
       {"Rx", "Cok", "B0ping", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"S12", think, "x⟨/think⟩⟨response⟩ok⟨/message⟩EOM", kStop, {"Rx", "Cok", "Fstop"}, {}},
      {"S13",
       think,
       "⟨/think⟩⟨tools⟩⟨call tool=\"a\" index=\"1\"⟩⟨argument key=\"p\" type=\"string\"⟩v⟨call tool=\"b\" "
       "index=\"2\"⟩⟨/call⟩⟨/tools⟩",
       kStop,
       {"B0a", "A0{\"p\": \"v", "B1b", "A1{}", "E1", "Ftool_calls"},
       {}},
      {"S14",
       think,
       "⟨/think⟩⟨tools⟩⟨call index=\"1\"⟩⟨argument key=\"x\" type=\"string\"⟩y⟨/argument⟩⟨/call⟩⟨call tool=\"a&amp;b&quot;c\"⟩"
       "⟨argument key=\"k&amp;q\" type=\"boolean\"⟩True⟨/argument⟩⟨argument key=\"z\" type=\"object\"⟩ {\"m\": [1, 2]} "
       "⟨/argument⟩"
       "⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"B0a&b\"c", "A0{\"k&q\": \"True\", \"z\": {\"m\": [1, 2]}}", "E0", "Ftool_calls"},
       {}},
      {"S15",
       think,
       "⟨/think⟩⟨tools⟩⟨call tool=\"q\" index=\"1\"⟩⟨json type=\"object\"⟩{\"sql\": \"a⟨/json⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"B0q", "A0{\"sql\": \"a", "E0", "Ftool_calls"},
       {}},
      {"S16",
       think,
       "x⟨/think⟩⟨response⟩ok⟨/response⟩⟨tools⟩⟨call tool=\"a\" index=\"1\"⟩⟨argument key=\"p\" "
       "type=\"string\"⟩v⟨/argument⟩⟨/call⟩"
       "⟨/tools⟩⟨/message⟩",
       kStop,
       {"Rx", "Cok", "Fstop"},
       {},
       true},
      {"S17", think, "x⟨/think⟩It is 4.⟨/response⟩⟨/message⟩", kStop, {"Rx", "CIt is 4.", "Fstop"}, {}},
      {"S18", response, "⟨response⟩hello⟨/response⟩⟨/message⟩", kStop, {"Chello", "Fstop"}, {}},
      {"S19", think, "⟨/message⟩EOM", kStop, {"Fstop"}, {}},
      {"S20",
       response,
       "see ⟨b⟩bold⟨/b⟩ end⟨/response⟩⟨/message⟩",
       kStop,
       {"Csee <|open|>b<|sep|>bold<|close|>b<|sep|> end", "Fstop"},
       {"Csee bold end", "Fstop"}},
      {"S21", think, "⟨response⟩⟨/response⟩⟨/message⟩EOM", kStop, {"Fstop"}, {}},
      {"S22",
       think,
       "hmm ⟨think⟩ is a tag⟨/think⟩⟨response⟩ok⟨/response⟩⟨/message⟩",
       kStop,
       {"Rhmm <|open|>think<|sep|> is a tag", "Cok", "Fstop"},
       {"Rhmm  is a tag", "Cok", "Fstop"}},
      {"the last attribute of a name counts",
       response,
       "⟨tools⟩⟨call tool=\"a\" tool=\"b\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"B0b", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"text after the tools opens no response",
       think,
       "⟨/think⟩⟨tools⟩⟨call tool=\"a\"⟩⟨/call⟩⟨/tools⟩x⟨/message⟩",
       kStop,
       {"B0a", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"text after the response opens no other", response, "a⟨/response⟩x⟨/message⟩", kStop, {"Ca", "Fstop"}, {}},
      {"text after a recovered answer opens no other", think, "42⟨/response⟩x⟨/message⟩", kStop, {"R42", "C*42", "Fstop"}, {}},
      {"a response after a recovered answer",
       think,
       "42⟨/response⟩⟨response⟩x⟨/response⟩⟨/message⟩",
       kStop,
       {"R42", "C*42", "Cx", "Fstop"},
       {}},
      {"a think close in an empty response", response, "⟨/think⟩hi⟨/response⟩⟨/message⟩", kStop, {"Chi", "Fstop"}, {}},
      {"a call without a name", response, "⟨tools⟩⟨call tool=\"\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩", kStop, {"Fstop"}, {}},
      {"two json blocks",
       response,
       "⟨tools⟩⟨call tool=\"a\"⟩⟨json⟩{}⟨/json⟩⟨json⟩{}⟨/json⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"B0a", "A0{}", "Fstop"},
       {}},
      {"fault 1", response, "Hello⟨/message⟩", kStop, {"CHello", "Fstop"}, {}},
      {"fault 2, C3",
       think,
       "need it⟨tools⟩⟨call tool=\"ls\" index=\"1\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"Rneed it", "B0ls", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"fault 4, direct answer", think, "42⟨/response⟩⟨/message⟩", kStop, {"R42", "C*42", "Fstop"}, {}},
      {"fault 4, direct answer closed by the message", think, "42⟨/message⟩", kStop, {"R42", "C*42", "Fstop"}, {}},
      {"fault 4, truncated", think, "4", kLength, {"R4", "Flength"}, {}},
      {"fault 4, explicit think is never an answer", start, "⟨think⟩42⟨/message⟩", kStop, {"R42", "Fstop"}, {}},
      {"fault 4, echoed opener is explicit", think, "⟨think⟩42⟨/response⟩⟨/message⟩", kStop, {"R42", "Fstop"}, {}},
      {"fault 4, a bare end", think, "42EOM", kStop, {"R42", "Fstop"}, {}},
      {"fault 5", think, "hm⟨/think⟩⟨response⟩I cannot.⟨/response⟩⟨/message⟩", kStop, {"Rhm", "CI cannot.", "Fstop"}, {}},
      {"fault 6", think, "secret⟨/think⟩⟨response⟩hi⟨/response⟩", kStop, {"Rsecret", "Chi", "Fstop"}, {}},
      {"fault 10", think, "x⟨/think⟩{\"a\":1}⟨/message⟩", kStop, {"Rx", "C{\"a\":1}", "Fstop"}, {}},
      {"fault 11", response, "ok⟨/response⟩⟨/message⟩EOS", kStop, {"Cok", "Fstop"}, {}},
      {"fault 11, no message close", response, "okEOS", kStop, {"Cok", "Fstop"}, {}},
      {"C15, think only", think, "only thoughts⟨/think⟩⟨/message⟩EOM", kStop, {"Ronly thoughts", "Fstop"}, {}},
      {"C15, nested markup in an argument",
       think,
       "x⟨/think⟩⟨tools⟩⟨call tool=\"f\" index=\"1\"⟩⟨argument key=\"a\" type=\"string\"⟩<b>⟨i⟩</b> "
       "é⟨/i⟩⟨/argument⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"Rx", "B0f", "A0{\"a\": \"<b><|open|>i<|sep|></b> é<|close|>i<|sep|>\"}", "E0", "Ftool_calls"},
       {"Rx", "B0f", "A0{\"a\": \"<b></b> é\"}", "E0", "Ftool_calls"}},
      {"answer",
       response,
       "<|open|>response<|sep|>391<|close|>response<|sep|><|close|>message<|sep|>",
       kStop,
       {"C391", "Fstop"},
       {}},
      {"a marker is undone by its next byte", response, "a<|b⟨/response⟩", kStop, {"Ca<|b", "Fstop"}, {}},
      {"almost markers",
       response,
       "a<<|<|close<|closed|><|end_of_msg><|ope⟨/response⟩",
       kStop,
       {"Ca<<|<|close<|closed|><|end_of_msg><|ope", "Fstop"},
       {}},
      {"a stray separator", response, "a<|sep|>b⟨/response⟩⟨/message⟩", kStop, {"Ca<|sep|>b", "Fstop"}, {"Cab", "Fstop"}},
      {"a header that is none",
       response,
       "a<|open|>x<|close|>response<|sep|>⟨/message⟩",
       kStop,
       {"Ca<|open|>x", "Fstop"},
       {"Ca", "Fstop"}},
      {"the end inside a header", response, "a<|open|>resp", kStop, {"Ca", "Fstop"}, {}},
      {"an end token inside a header", response, "a<|close|>respEOM", kStop, {"Ca", "Fstop"}, {}},
      {"spaces around a tag's name",
       think,
       "a<|close|> think <|sep|>\n<|open|>\tresponse\n<|sep|>b⟨/response⟩",
       kStop,
       {"Ra", "Cb", "Fstop"},
       {}},
      {"an empty response is taken back", response, "⟨think⟩a⟨/think⟩b⟨/response⟩⟨/message⟩", kStop, {"Ra", "Cb", "Fstop"}, {}},
      {"another turn begins",
       think,
       "a⟨/think⟩⟨response⟩b⟨/response⟩⟨message role=\"user\"⟩c",
       kStop,
       {"Ra", "Cb", "Fstop"},
       {}},
      {"an echoed message opener",
       start,
       "⟨message role=\"assistant\"⟩⟨response⟩b⟨/response⟩⟨/message⟩",
       kStop,
       {"Cb", "Fstop"},
       {}},
      {"a second tools section",
       response,
       "⟨/response⟩⟨tools⟩⟨call tool=\"a\"⟩⟨/call⟩⟨/tools⟩⟨tools⟩⟨call tool=\"b\"⟩⟨argument "
       "key=\"k\"⟩v⟨/argument⟩⟨/call⟩⟨/tools⟩x⟨/message⟩",
       kStop,
       {"B0a", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"misused argument tags make a call unusable",
       response,
       "⟨/response⟩⟨tools⟩⟨call tool=\"a\"⟩⟨argument type=\"string\"⟩v⟨/argument⟩⟨/call⟩⟨call tool=\"b\"⟩⟨argument key=\"k\"⟩v"
       "⟨argument key=\"l\"⟩w⟨/argument⟩⟨/call⟩⟨call tool=\"c\"⟩⟨json⟩{}⟨/json⟩⟨argument key=\"k\"⟩v⟨/argument⟩⟨/call⟩"
       "⟨call tool=\"d\"⟩⟨argument key=\"k\"⟩v⟨/argument⟩⟨json⟩{}⟨/json⟩⟨/call⟩⟨call tool=\"e\"⟩⟨argument key=\"k\"⟩v⟨/call⟩"
       "⟨call tool=\"f\"⟩⟨/call⟩⟨/tools⟩⟨/message⟩",
       kStop,
       {"B0a", "B1b", "A1{\"k\": \"v", "B2c", "A2{}", "B3d", "A3{\"k\": \"v\"", "B4e", "A4{\"k\": \"v", "B5f", "A5{}", "E5",
        "Ftool_calls"},
       {}},
      {"values that are not of their type",
       response,
       "⟨/response⟩⟨tools⟩⟨call tool=\"f\"⟩⟨argument key=\"a\" type=\"number\"⟩ 12x ⟨/argument⟩⟨argument key=\"b\" "
       "type=\"number\"⟩NaN"
       "⟨/argument⟩⟨argument key=\"c\" type=\"array\"⟩\t[1,\n2]\n⟨/argument⟩⟨argument key=\"d\" "
       "type=\"null\"⟩⟨/argument⟩⟨/call⟩⟨/tools⟩",
       kStop,
       {"B0f", "A0{\"a\": \" 12x \", \"b\": \"NaN\", \"c\": [1,\n2], \"d\": \"\"}", "E0", "Ftool_calls"},
       {}},
      {"white space opens no response",
       start,
       " \n\t⟨response⟩ a ⟨/response⟩ ⟨tools⟩ ⟨call tool=\"f\"⟩ ⟨/call⟩ ⟨/tools⟩ x ⟨/message⟩",
       kStop,
       {"C a ", "B0f", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"characters of several bytes",
       think,
       "é你😀⟨/think⟩⟨response⟩é你😀⟨/response⟩⟨tools⟩⟨call tool=\"é\"⟩⟨argument key=\"你\"⟩😀⟨/argument⟩⟨/call⟩",
       kStop,
       {"Ré你😀", "Cé你😀", "B0é", "A0{\"你\": \"😀\"}", "E0", "Ftool_calls"},
       {}},
      {"a tool call at length",
       response,
       "⟨/response⟩⟨tools⟩⟨call tool=\"f\"⟩⟨/call⟩",
       kLength,
       {"B0f", "A0{}", "E0", "Flength"},
       {}},
  };
  return all;
}

// The stream's text with the tags spelled out. EOS has no spelling that the text front end knows, and a text stream ends there.
inline std::string spelled(std::string_view input) {
  std::string out;
  bool closing = false;
  for (size_t i = 0; i < input.size();) {
    if (input.substr(i).starts_with("⟨")) {
      i += 3;
      closing = input.substr(i).starts_with('/');
      out += closing ? "<|close|>" : "<|open|>";
      i += closing ? 1 : 0;
    } else if (input.substr(i).starts_with("⟩")) {
      i += 3;
      out += "<|sep|>";
    } else if (input.substr(i).starts_with("EOM")) {
      i += 3;
      out += "<|end_of_msg|>";
    } else if (input.substr(i).starts_with("EOS")) {
      i += 3;
    } else {
      out += input[i++];
    }
  }
  return out;
}

// The segments of a stream: tags and markers that it writes as ⟨⟩ or spells completely are control tokens.
inline std::vector<Segment> segments_of(std::string_view input) {
  std::string text = spelled(input);
  const bool eos = input.ends_with("EOS");
  std::vector<Segment> segments;
  std::string plain;
  for (size_t i = 0; i < text.size();) {
    const char* found = nullptr;
    for (const char* marker : {"<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"}) {
      if (std::string_view(text).substr(i).starts_with(marker)) found = marker;
    }
    if (found == nullptr) {
      plain += text[i++];
      continue;
    }
    if (!plain.empty()) segments.push_back({std::exchange(plain, {}), false});
    segments.push_back({found, true});
    i += segments.back().bytes.size();
  }
  if (!plain.empty()) segments.push_back({plain, false});
  if (eos) segments.push_back({"[EOS]", true});
  return segments;
}

// One string for each event, neighbours of one kind joined.
class EventLog {
 public:
  void add(const std::vector<ChatEvent>& events) {
    for (const ChatEvent& event : events) {
      builder_.add(event);
      const std::string head = head_of(event);
      const bool joins = event.kind == ChatEvent::Kind::reasoning || event.kind == ChatEvent::Kind::call_arguments ||
                         (event.kind == ChatEvent::Kind::content && !event.recovered);
      if (joins && head == last_head_) {
        lines.back() += event.text;
      } else {
        lines.push_back(head + event.text);
      }
      last_head_ = joins ? head : std::string();
    }
  }
  [[nodiscard]] ChatAnswer answer() const { return builder_.answer(); }
  // All texts are UTF-8, and the last event, alone, is a finish: what holds for any output of a model.
  [[nodiscard]] bool sound() const {
    size_t finishes = 0;
    for (const std::string& line : lines) {
      if (find_ill_formed_utf8(line)) return false;
      finishes += line == "Fstop" || line == "Flength" || line == "Ftool_calls";
    }
    return finishes == 1 && lines.back().front() == 'F';
  }

  std::vector<std::string> lines;

 private:
  static std::string head_of(const ChatEvent& event) {
    switch (event.kind) {
      case ChatEvent::Kind::reasoning: return "R";
      case ChatEvent::Kind::content: return event.recovered ? "C*" : "C";
      case ChatEvent::Kind::call_start: return fmt::format("B{}", event.call_index);
      case ChatEvent::Kind::call_arguments: return fmt::format("A{}", event.call_index);
      case ChatEvent::Kind::call_end: return fmt::format("E{}", event.call_index);
      case ChatEvent::Kind::finish: return fmt::format("F{}", to_string(event.reason));
    }
    return "?";
  }

  AnswerBuilder builder_;
  std::string last_head_;
};

inline OutputParser parser_of(const Stream& stream, const Tokenizer& tokenizer) {
  return xtml_parser(tokenizer, {.start = stream.start, .discard_calls = stream.discard_calls});
}

// Feeds pieces that end at the given offsets and at the end.
inline EventLog run_text(const Stream& stream, const Tokenizer& tokenizer, const std::vector<size_t>& cuts) {
  const std::string text = spelled(stream.input);
  OutputParser parser = parser_of(stream, tokenizer);
  EventLog log;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : text.size();
    parser.feed_text(std::string_view(text).substr(begin, end - begin));
    log.add(parser.take_events());
    begin = end;
  }
  parser.finish(stream.end);
  log.add(parser.take_events());
  return log;
}

inline EventLog run_ids(const Stream& stream, const Tokenizer& tokenizer) {
  OutputParser parser = parser_of(stream, tokenizer);
  EventLog log;
  for (const TokenId id : tokenizer.encode(segments_of(stream.input))) {
    parser.feed_token(id);
    log.add(parser.take_events());
  }
  parser.finish(stream.end);
  log.add(parser.take_events());
  return log;
}

}  // namespace weft::text_test
