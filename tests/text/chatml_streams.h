// The streams of prompt_and_api.md 4.5 and 9 (12, 13, 15), and more of our own. Events as in parser_streams.h.
#pragma once

#include <string>
#include <vector>

#include "text/chatml_parser.h"
#include "text/parser_streams.h"

namespace weft::text_test {

inline const std::vector<Stream>& chatml_streams() {
  using enum ParserStart;
  constexpr auto kStop = EndReason::stop;
  constexpr auto kLength = EndReason::length;
  static const std::vector<Stream> all{
      {"T1",
       think,
       "I should check.\n</think>\n\nBarry is higher.",
       kStop,
       {"RI should check.", "CBarry is higher.", "Fstop"},
       {}},
      {"T2",
       think,
       "Need tool.\n</think>\n\n<tool_call>\n{\"name\": \"tide_height\", \"arguments\": {\"port\": \"Barry {2}\", \"n\": [1, "
       "{\"a\": "
       "\"}\"}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
       kStop,
       {"RNeed tool.", "B0tide_height", "A0{\"port\": \"Barry {2}\", \"n\": [1, {\"a\": \"}\"}]}", "E0", "B1ping", "A1{}", "E1",
        "Ftool_calls"},
       {}},
      {"T3",
       start,
       "Let me look.\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
       kStop,
       {"CLet me look.", "B0ping", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"T4", think, "cut off in the midd", kLength, {"Rcut off in the midd", "Flength"}, {}},
      {"T5", think, "<think>\nhm\n</think>\n\nok", kStop, {"Rhm", "Cok", "Fstop"}, {}},
      {"T6", start, "a <tool b <tool_cal c", kStop, {"Ca <tool b <tool_cal c", "Fstop"}, {}},
      {"T7",
       start,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}\n</tool_call>",
       kStop,
       {"B0f", "A0{\"s\": \"</tool_call>\"}", "E0", "Ftool_calls"},
       {}},
      {"T8",
       start,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}",
       kLength,
       {"B0f", "A0{\"a\": 1}", "Flength"},
       {}},
      {"T9",
       start,
       "<tool_call>\n{name: f}\n</tool_call> sorry",
       kStop,
       {"C<tool_call>\n{name: f}\n</tool_call> sorry", "Fstop"},
       {}},
      {"T10",
       start,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}<|im_end|>",
       kStop,
       {"B0f", "A0{\"a\": 1}", "E0", "Ftool_calls"},
       {}},
      {"fault 12", think, "Greet.\n</think>\n\nHello!", kStop, {"RGreet.", "CHello!", "Fstop"}, {}},
      {"fault 13",
       start,
       "<tool_call>\n{\"name\": \"sh\", \"arguments\": {\"c\": \"mkdir -p t/{a,b\"}}\n</tool_call>",
       kStop,
       {"B0sh", "A0{\"c\": \"mkdir -p t/{a,b\"}", "E0", "Ftool_calls"},
       {}},
      {"fault 15",
       start,
       "I will look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
       kStop,
       {"CI will look.", "B0f", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"no tag at all is reasoning", think, "42<|im_end|>", kStop, {"R42", "Fstop"}, {}},
      {"a call inside reasoning is text",
       think,
       "so <tool_call>\n{}\n</tool_call>\n</think>\n\nok",
       kStop,
       {"Rso <tool_call>\n{}\n</tool_call>", "Cok", "Fstop"},
       {}},
      {"the model opens its own think block", start, "\n<think>\nhm\n</think>\n\nok", kStop, {"Rhm", "Cok", "Fstop"}, {}},
      {"a think block behind content is text", start, "a <think>\nhm\n</think>b", kStop, {"Ca <think>\nhm\nb", "Fstop"}, {}},
      {"a think block in a continued answer is text", response, "\n<think>a", kStop, {"C\n<think>a", "Fstop"}, {}},
      {"a stray close of thinking is dropped", start, "a</think>b", kStop, {"Cab", "Fstop"}, {}},
      {"a later think opener is text", think, "a<think>b</think>c", kStop, {"Ra<think>b", "Cc", "Fstop"}, {}},
      {"line breaks at the edges",
       think,
       "\n\na\n\nb\n\n</think>\n\n\nc\n\nd\n\n",
       kStop,
       {"Ra\n\nb", "Cc\n\nd\n\n", "Fstop"},
       {}},
      {"nothing else is trimmed", think, " a \n</think>\n b ", kStop, {"R a ", "C b ", "Fstop"}, {}},
      {"line breaks of reasoning that is cut", think, "a\n\n", kLength, {"Ra\n\n", "Flength"}, {}},
      {"empty reasoning", think, "\n\n</think>\n\nok", kStop, {"Cok", "Fstop"}, {}},
      {"a held tail at a normal end", start, "a<tool_ca", kStop, {"Ca<tool_ca", "Fstop"}, {"Ca<tool_ca", "Fstop"}},
      {"a held tail at length", start, "a<tool_ca", kLength, {"Ca", "Flength"}, {"Ca<tool_ca", "Flength"}},
      {"what is no marker here is not held", think, "a<tool_ca", kLength, {"Ra<tool_ca", "Flength"}, {}},
      {"what is no marker behind content is not held", start, "a <thi", kLength, {"Ca <thi", "Flength"}, {}},
      {"the end of a call is held",
       start,
       "<tool_call>{\"name\": \"f\"}</tool_",
       kStop,
       {"B0f", "A0{}", "E0", "Ftool_calls"},
       {"B0f", "A0{}", "Fstop"}},
      {"an end token ends everything", think, "a<|im_end|>b", kStop, {"Ra", "Fstop"}, {}},
      {"the other end token", start, "a<|endoftext|>b", kStop, {"Ca", "Fstop"}, {}},
      {"parameters, and the name last",
       start,
       "<tool_call>{\"parameters\": {\"a\": [1e2, \"}\"]}, \"id\": [{}, 1], \"name\": \"f\"}</tool_call>",
       kStop,
       {"B0f", "A0{\"a\": [1e2, \"}\"]}", "E0", "Ftool_calls"},
       {}},
      {"arguments in a string, null and none",
       start,
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\\"}\"}</tool_call><tool_call>{\"name\": \"g\", "
       "\"arguments\": "
       "null}</tool_call>\n\n<tool_call>{\"name\": \"h\"}</tool_call>\n",
       kStop,
       {"B0f", "A0{\"a\": \"é\"}", "E0", "B1g", "A1{}", "E1", "B2h", "A2{}", "E2", "Ftool_calls"},
       {}},
      {"arguments that are no object",
       start,
       "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call><tool_call>{\"arguments\": 1, \"name\": \"f\"}</tool_call>",
       kStop,
       {"B0f", "C<tool_call>{\"arguments\": 1, \"name\": \"f\"}</tool_call>", "Fstop"},
       {}},
      {"a call without a name",
       start,
       "a\n<tool_call>{\"arguments\": {}}</tool_call>\nb",
       kStop,
       {"Ca\n<tool_call>{\"arguments\": {}}</tool_call>\nb", "Fstop"},
       {}},
      {"an empty name",
       start,
       "<tool_call>{\"name\": \"\"}</tool_call>",
       kStop,
       {"C<tool_call>{\"name\": \"\"}</tool_call>", "Fstop"},
       {}},
      {"a call that goes wrong behind its name",
       start,
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": x}}</tool_call>\nb",
       kStop,
       {"B0f", "A0{\"a\": ", "Cb", "Fstop"},
       {}},
      {"a call in the text of a call that is none",
       start,
       "<tool_call> is how: <tool_call>\n{\"name\": \"f\"}\n</tool_call>",
       kStop,
       {"C<tool_call> is how: ", "B0f", "A0{}", "E0", "Ftool_calls"},
       {}},
      {"text behind calls",
       start,
       "<tool_call>{\"name\": \"f\"}</tool_call> \n b\n",
       kStop,
       {"B0f", "A0{}", "E0", "Cb\n", "Ftool_calls"},
       {}},
      {"keys and strings with escapes",
       start,
       "<tool_call>{\"n\\u0061me\": \"\\u00e9\\\"\", \"arguments\": {\"\\\\\": \"\\\"\"}}</tool_call>",
       kStop,
       {"B0é\"", "A0{\"\\\\\": \"\\\"\"}", "E0", "Ftool_calls"},
       {}},
      {"characters of several bytes",
       think,
       "é你😀\n</think>\n\né你😀\n<tool_call>\n{\"name\": \"é\", \"arguments\": {\"你\": \"😀\"}}\n</tool_call>",
       kStop,
       {"Ré你😀", "Cé你😀", "B0é", "A0{\"你\": \"😀\"}", "E0", "Ftool_calls"},
       {}},
      {"calls that may not be",
       start,
       "a\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\nb",
       kStop,
       {"Cab", "Fstop"},
       {},
       true},
      {"a whole call at length",
       start,
       "<tool_call>{\"name\": \"f\"}</tool_call>",
       kLength,
       {"B0f", "A0{}", "E0", "Flength"},
       {}},
      {"a call before its end at length", start, "<tool_call>{\"name\": \"f\"}", kLength, {"B0f", "A0{}", "E0", "Flength"}, {}},
      {"a call without a name at the end", start, "a\n<tool_call>{\"na", kStop, {"Ca", "Fstop"}, {}},
  };
  return all;
}

// Feeds pieces that end at the given offsets and at the end.
inline EventLog run_chatml(const Stream& stream, const Tokenizer& tokenizer, const std::vector<size_t>& cuts) {
  OutputParser parser = chatml_parser(tokenizer, {.start = stream.start, .discard_calls = stream.discard_calls});
  EventLog log;
  size_t begin = 0;
  for (size_t i = 0; i <= cuts.size(); ++i) {
    const size_t end = i < cuts.size() ? cuts[i] : stream.input.size();
    parser.feed_text(std::string_view(stream.input).substr(begin, end - begin));
    log.add(parser.take_events());
    begin = end;
  }
  parser.finish(stream.end);
  log.add(parser.take_events());
  return log;
}

}  // namespace weft::text_test
