#include "text/text_json.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "text/json_value.h"

namespace weft {
namespace {

using Kind = JsonValue::Kind;

// The members of the input object of one command.
class Input {
 public:
  Input(std::string_view text, std::string_view place, std::initializer_list<std::string_view> keys)
      : place_(place), root_(parse_json_value(text, place)) {
    if (!root_.is(Kind::object)) fail(ErrorKind::bad_input, place_, "wanted an object, found {}", describe(root_.kind));
    for (const auto& [key, value] : root_.members) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        fail(ErrorKind::bad_input, place_, "wanted only the fields {}, found '{}'", fmt::join(keys, ", "), key);
    }
  }

  [[nodiscard]] const JsonValue* get(std::string_view key) const { return root_.find(key); }
  [[nodiscard]] const JsonValue* get(std::string_view key, Kind kind) const {
    const JsonValue* value = get(key);
    if (value != nullptr && !value->is(kind))
      fail(ErrorKind::bad_input, place_, "{}: wanted {}, found {}", key, describe(kind), describe(value->kind));
    return value;
  }
  [[nodiscard]] bool flag(std::string_view key) const {
    const JsonValue* value = get(key, Kind::boolean);
    return value != nullptr && value->boolean;
  }
  // The index in `words` of a string member; 0 when it is absent.
  [[nodiscard]] size_t word(std::string_view key, std::initializer_list<std::string_view> words) const {
    const JsonValue* value = get(key, Kind::string);
    if (value == nullptr) return 0;
    const auto found = std::find(words.begin(), words.end(), value->text);
    if (found == words.end())
      fail(ErrorKind::bad_input, place_, "{}: wanted one of {}, found '{}'", key, fmt::join(words, ", "), value->text);
    return static_cast<size_t>(found - words.begin());
  }
  [[nodiscard]] int64_t integer(std::string_view where, const JsonValue& value) const {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
    if (!value.is(Kind::number) || error != std::errc() || end != value.text.data() + value.text.size())
      fail(ErrorKind::bad_input, place_, "{}: wanted an integer, found {}", where,
           value.is(Kind::number) ? value.text : describe(value.kind));
    return number;
  }
  [[nodiscard]] std::vector<TokenId> ids(std::string_view key, const Tokenizer& tokenizer) const {
    std::vector<TokenId> list;
    const JsonValue* value = get(key, Kind::array);
    if (value == nullptr) fail(ErrorKind::bad_input, place_, "{}: wanted an array of ids, found nothing", key);
    for (size_t i = 0; i < value->items.size(); ++i) {
      const int64_t id = integer(fmt::format("{}[{}]", key, i), value->items[i]);
      if (id < 0 || id >= tokenizer.vocab_size())
        fail(ErrorKind::bad_input, place_, "{}[{}]: wanted an id in [0, {}), found {}", key, i, tokenizer.vocab_size(), id);
      list.push_back(static_cast<TokenId>(id));
    }
    return list;
  }
  [[nodiscard]] std::string_view place() const { return place_; }

 private:
  std::string_view place_;
  JsonValue root_;
};

std::string json_string(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}
std::string list_of(const std::vector<TokenId>& ids) { return fmt::format("[{}]", fmt::join(ids, ", ")); }
std::string list_of(const std::vector<Segment>& segments) {
  std::string out = "[";
  for (const Segment& segment : segments)
    out += fmt::format("{}[{}, {}]", out.size() > 1 ? ", " : "", json_string(segment.bytes), segment.is_control);
  return out + "]";
}

std::vector<Segment> read_segments(const Input& input, const JsonValue& list, const Tokenizer& tokenizer) {
  std::vector<Segment> segments;
  for (size_t i = 0; i < list.items.size(); ++i) {
    const JsonValue& pair = list.items[i];
    if (!pair.is(Kind::array) || pair.items.size() != 2 || !pair.items[0].is(Kind::string) || !pair.items[1].is(Kind::boolean))
      fail(ErrorKind::bad_input, input.place(), "segments[{}]: wanted [text, is_control], found otherwise", i);
    if (pair.items[1].boolean && tokenizer.control_id(pair.items[0].text) < 0)
      fail(ErrorKind::bad_input, input.place(), "segments[{}]: wanted the name of a control token, found '{}'", i,
           pair.items[0].text);
    segments.push_back({pair.items[0].text, pair.items[1].boolean});
  }
  return segments;
}

std::string event_json(const ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::reasoning: return fmt::format(R"({{"reasoning": {}}})", json_string(event.text));
    case ChatEvent::Kind::content:
      return fmt::format(R"({{"content": {}{}}})", json_string(event.text), event.recovered ? R"(, "recovered": true)" : "");
    case ChatEvent::Kind::call_start:
      return fmt::format(R"({{"call": {}, "name": {}}})", event.call_index, json_string(event.text));
    case ChatEvent::Kind::call_arguments:
      return fmt::format(R"({{"call": {}, "arguments": {}}})", event.call_index, json_string(event.text));
    case ChatEvent::Kind::call_end: return fmt::format(R"({{"call": {}, "complete": true}})", event.call_index);
    case ChatEvent::Kind::finish: return fmt::format(R"({{"finish": "{}"}})", to_string(event.reason));
  }
  return "null";
}

}  // namespace

std::string text_encode_json(const ChatFormat& format, std::string_view text) {
  const Input input(text, "text encode", {"text", "segments", "allow_special"});
  const JsonValue* plain = input.get("text", Kind::string);
  const JsonValue* segments = input.get("segments", Kind::array);
  if ((plain == nullptr) == (segments == nullptr))
    fail(ErrorKind::bad_input, input.place(), "wanted one of 'text' and 'segments', found {}",
         plain == nullptr ? "neither" : "both");
  const bool allow_special = input.flag("allow_special");
  if (allow_special && plain == nullptr)
    fail(ErrorKind::bad_input, input.place(), "allow_special: wanted 'text' beside it, found 'segments'");
  const std::vector<TokenId> ids = plain != nullptr
                                       ? format.tokenizer().encode(plain->text, allow_special)
                                       : format.tokenizer().encode(read_segments(input, *segments, format.tokenizer()));
  return fmt::format(R"({{"ids": {}, "count": {}}})", list_of(ids), ids.size());
}

std::string text_decode_json(const ChatFormat& format, std::string_view text) {
  const Input input(text, "text decode", {"ids", "control", "count"});
  const std::vector<TokenId> ids = input.ids("ids", format.tokenizer());
  // The output of encode is an input of decode.
  if (const JsonValue* count = input.get("count")) {
    const int64_t number = input.integer("count", *count);
    if (number != static_cast<int64_t>(ids.size()))
      fail(ErrorKind::bad_input, input.place(), "count: wanted the number of ids, {}, found {}", ids.size(), number);
  }
  const auto control = static_cast<ControlText>(input.word("control", {"none", "unflagged", "all"}));
  return fmt::format(R"({{"text": {}}})", json_string(format.tokenizer().decode(ids, control)));
}

std::string text_render_json(const ChatFormat& format, std::string_view text) {
  const JsonValue root = parse_json_value(text, "chat request");
  ChatRequest request = parse_chat_request(root);
  // What decides how an answer is generated has no part in a prompt, so its absence from one is no omission.
  std::vector<std::string_view> of_generation(std::begin(kSamplingFields), std::end(kSamplingFields));
  for (const std::string_view field : {"n", "stop", "logit_bias", "logprobs", "top_logprobs", "stream", "stream_options",
                                       "ignore_eos", "min_tokens", "stop_token_ids"}) {
    of_generation.push_back(field);
  }
  note_other_fields(root, of_generation, "weft text render", request.notes);
  const ChatPrompt prompt = format.render(request);
  std::string joined;
  for (const Segment& segment : prompt.segments) joined += segment.bytes;
  std::string notes;
  std::vector<std::string> all_notes = format.notes();
  all_notes.insert(all_notes.end(), prompt.notes.begin(), prompt.notes.end());
  for (const std::string& note : all_notes) notes += fmt::format("{}{}", notes.empty() ? "" : ", ", json_string(note));
  const std::string_view start = prompt.start == ParserStart::think      ? "think"
                                 : prompt.start == ParserStart::response ? "response"
                                                                         : "start";
  return fmt::format(R"({{"text": {}, "segments": {}, "ids": {}, "count": {}, "start": "{}", "notes": [{}]}})",
                     json_string(joined), list_of(prompt.segments), list_of(prompt.ids), prompt.ids.size(), start, notes);
}

std::string text_parse_json(const ChatFormat& format, std::string_view text) {
  const Input input(text, "text parse", {"text", "ids", "start", "end", "discard_calls", "pieces"});
  constexpr ParserStart kStarts[] = {ParserStart::think, ParserStart::response, ParserStart::start};
  int64_t made = 0;
  OutputParser parser = format.parser(ParserOptions{.start = kStarts[input.word("start", {"think", "response", "start"})],
                                                    .discard_calls = input.flag("discard_calls"),
                                                    .make_call_id = [&made] { return fmt::format("call_{}", made++); }});
  const auto end = input.word("end", {"stop", "length"}) == 0 ? EndReason::stop : EndReason::length;
  const JsonValue* plain = input.get("text", Kind::string);
  if ((plain == nullptr) == (input.get("ids") == nullptr))
    fail(ErrorKind::bad_input, input.place(), "wanted one of 'text' and 'ids', found {}",
         plain == nullptr ? "neither" : "both");
  if (plain == nullptr) {
    if (input.get("pieces") != nullptr)
      fail(ErrorKind::bad_input, input.place(), "pieces: wanted 'text' beside it, found 'ids'");
    for (const TokenId id : input.ids("ids", format.tokenizer())) parser.feed_token(id);
  } else {
    std::string_view rest = plain->text;
    const JsonValue* pieces = input.get("pieces");
    const int64_t size = pieces == nullptr ? static_cast<int64_t>(rest.size()) : input.integer("pieces", *pieces);
    if (pieces != nullptr && size < 1) fail(ErrorKind::bad_input, input.place(), "pieces: wanted at least 1, found {}", size);
    while (!rest.empty()) {
      const size_t length = std::min(rest.size(), static_cast<size_t>(size));
      parser.feed_text(rest.substr(0, length));
      rest.remove_prefix(length);
    }
  }
  parser.finish(end);

  AnswerBuilder builder;
  std::string events;
  for (const ChatEvent& event : parser.take_events()) {
    builder.add(event);
    events += fmt::format("{}{}", events.empty() ? "" : ", ", event_json(event));
  }
  const ChatAnswer answer = builder.answer();
  std::string calls;
  for (const ToolCall& call : answer.tool_calls)
    calls += fmt::format(R"({}{{"name": {}, "arguments": {}}})", calls.empty() ? "" : ", ", json_string(call.name),
                         json_string(call.arguments));
  const bool null_content = answer.content.empty() && !answer.tool_calls.empty();
  const ParserCounters& counters = parser.counters();
  return fmt::format(
      R"({{"reasoning_content": {}, "content": {}, "tool_calls": [{}], "finish_reason": "{}", "complete": {}, "events": [{}], )"
      R"("counters": {{"stray_markers": {}, "recoveries": {}, "dropped_tail_bytes": {}, "abandoned_calls": {}, )"
      R"("discarded_calls": {}, "reasoning_tokens": {}}}}})",
      json_string(answer.reasoning), null_content ? "null" : json_string(answer.content), calls,
      to_string(answer.finish_reason), parser.complete(), events, counters.stray_markers, counters.recoveries,
      counters.dropped_tail_bytes, counters.abandoned_calls, counters.discarded_calls, counters.reasoning_tokens);
}

}  // namespace weft
