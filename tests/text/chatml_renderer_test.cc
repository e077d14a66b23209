#include "text/chatml_renderer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "text/chat.h"
#include "text/text_fixture.h"
#include "text/toy_qwen.h"

namespace weft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using text_test::qwen;
using text_test::small_qwen;

constexpr ChatTemplate kInstruct{.opens_think = false, .can_turn_off = false, .keeps_reasoning = false};
constexpr ChatTemplate kThinking{.opens_think = true, .can_turn_off = false, .keeps_reasoning = true};
constexpr ChatTemplate kBoth{.opens_think = false, .can_turn_off = true, .keeps_reasoning = true};

RenderedPrompt render(std::string_view json, const ChatTemplate& chat_template) {
  return render_chatml(parse_chat_request(json), chat_template);
}

const Json& cases() {
  static const Json all = read_json_file(text_test::fixture("chatml_cases.json"));
  return all;
}

TEST(ChatTemplate, IsReadFromItsText) {
  const auto read = [&](const char* name) { return read_chat_template(cases()["templates"][name].get<std::string>(), "t"); };
  EXPECT_EQ(read("instruct"), kInstruct);
  EXPECT_EQ(read("thinking"), kThinking);
  EXPECT_EQ(read("both"), kBoth);
  EXPECT_EQ(load_chat_template(text_test::qwen_folder()), kBoth);
  const auto refused = [](std::string_view text) {
    try {
      (void)read_chat_template(text, "dir/chat_template.jinja");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refused("{{ bos }}"), HasSubstr("[dir/chat_template.jinja] wanted a ChatML template"));
  EXPECT_THAT(refused("<|im_start|> <tool_call>\\n<function= add_generation_prompt"), HasSubstr("<function=NAME>"));
  EXPECT_THAT(refused("<|im_start|>"), HasSubstr("add_generation_prompt"));
  EXPECT_THAT(refused("{% if add_generation_prompt %}<|im_start|>assistant\\n<think>"), HasSubstr("has no <think>"));
}

// The published template, run by Jinja.
TEST(ChatmlRenderer, EqualsTheTemplate) {
  for (const Json& test : cases()["cases"]) {
    const auto name = test["template"].get<std::string>();
    const ChatTemplate chat_template = name == "both" ? kBoth : name == "thinking" ? kThinking : kInstruct;
    ASSERT_EQ(render(test["request"].dump(), chat_template).text(), test["text"].get<std::string>())
        << name << test["request"].dump();
  }
}

// For text that spells no control token, the ids are those of the whole text with its markers.
TEST(ChatmlRenderer, IdsAreThoseOfTheWholeText) {
  int64_t compared = 0;
  for (const Json& test : cases()["cases"]) {
    const std::string request = test["request"].dump();
    const auto spells = [&](const auto& token) { return request.find(token.first) != std::string::npos; };
    if (std::ranges::any_of(text_test::qwen_added(), spells)) continue;
    EXPECT_EQ(qwen().encode(render(request, kThinking).segments), qwen().encode(render(request, kThinking).text(), true));
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

constexpr const char* kTool =
    R"({"type": "function", "function": {"name": "tide_height", "description": "Tide & time", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}}})";

// 4.4
TEST(ChatmlRenderer, WorkedExamplesOfTheSpecification) {
  EXPECT_EQ(render(R"({"messages": [{"role": "user", "content": "Hi"}]})", kThinking).text(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(
      render(
          fmt::format(
              R"({{"messages": [{{"role": "system", "content": "Be brief."}}, {{"role": "user", "content": "Tide at Barry?"}}],
                           "tools": [{}]}})",
              kTool),
          kThinking)
          .text(),
      fmt::format(
          "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user "
          "query.\n\nYou are "
          "provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n</tools>\n\nFor each function "
          "call, "
          "return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
          "{{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n</tool_call><|im_end|>\n<|im_start|>user\nTide at "
          "Barry?<|im_end|>\n<|im_start|>assistant\n<think>\n",
          kTool));
  const std::string loop =
      R"({"role": "user", "content": "Tide at Barry?"}, {"role": "assistant", "content": null, "reasoning_content": "Use the tool.\n",
      "tool_calls": [{"function": {"name": "tide_height", "arguments": "{\"port\":\"Barry\"}"}},
                     {"function": {"name": "tide_height", "arguments": {"port": "Tenby", "n": [1, 2]}}}]},
      {"role": "tool", "content": "11.9"}, {"role": "tool", "content": "7.2"})";
  const std::string calls =
      "<tool_call>\n{\"name\": \"tide_height\", \"arguments\": {\"port\":\"Barry\"}}\n</tool_call>\n<tool_call>\n{\"name\": "
      "\"tide_height\", \"arguments\": {\"port\": \"Tenby\", \"n\": [1, 2]}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
      "<tool_response>\n11.9\n</tool_response>\n<tool_response>\n7.2\n</tool_response><|im_end|>\n";
  EXPECT_EQ(render("{\"messages\": [" + loop + "]}", kThinking).text(),
            "<|im_start|>user\nTide at Barry?<|im_end|>\n<|im_start|>assistant\n<think>\nUse the tool.\n</think>\n\n" + calls +
                "<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(render("{\"messages\": [" + loop +
                       R"(, {"role": "assistant", "content": "<think>\nDone.\n</think>\n\nBarry 11.9 m."},
                          {"role": "user", "content": "Thanks"}]})",
                   kThinking)
                .text(),
            "<|im_start|>user\nTide at Barry?<|im_end|>\n<|im_start|>assistant\n" + calls +
                "<|im_start|>assistant\nBarry 11.9 "
                "m.<|im_end|>\n<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n<think>\n");
  EXPECT_EQ(render(R"({"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "Let me look.",
                       "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "ok"}]})",
                   kInstruct)
                .text(),
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nLet me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
            "{}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nok\n</"
            "tool_response><|im_end|>\n<|im_start|>assistant\n");
}

// 4.3, R18, R23, fault 14
TEST(ChatmlRenderer, WhatTheServerPutsRightBefore) {
  EXPECT_EQ(
      render(R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                       {"role": "system", "content": "c"}, {"role": "user", "content": null}], "add_generation_prompt": false})",
             kInstruct)
          .text(),
      "<|im_start|>system\nab<|im_end|>\n<|im_start|>system\nc<|im_end|>\n<|im_start|>user\n<|im_end|>\n");
  EXPECT_EQ(
      render(R"({"messages": [{"role": "user"}, {"role": "assistant", "content": null, "tool_calls": [
                         {"function": {"name": "f", "arguments": {"a": 1e2, "b": null}}}, {"function": {"name": "g"}}]},
                       {"role": "tool", "content": null}], "add_generation_prompt": false})",
             kInstruct)
          .text(),
      "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1e2, \"b\": "
      "null}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
      "<tool_response>\n\n</tool_response><|im_end|>\n");
}

TEST(ChatmlRenderer, WhereThePromptLeavesTheModel) {
  const std::string user = R"({"messages": [{"role": "user", "content": "x"}]})";
  EXPECT_EQ(render(user, kThinking).start, ParserStart::think);
  EXPECT_TRUE(render(user, kThinking).thinking);
  EXPECT_EQ(render(user, kInstruct).start, ParserStart::start);
  EXPECT_FALSE(render(user, kInstruct).thinking);
  EXPECT_EQ(render(user, kBoth).start, ParserStart::start);
  EXPECT_TRUE(render(user, kBoth).thinking);
  const RenderedPrompt off = render(R"({"messages": [{"role": "user", "content": "x"}], "thinking": false})", kBoth);
  EXPECT_TRUE(off.text().ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(off.thinking);
  EXPECT_EQ(off.start, ParserStart::start);
  const RenderedPrompt open =
      render(R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "He", "partial": true}]})",
             kThinking);
  EXPECT_TRUE(open.text().ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\nHe"));
  EXPECT_EQ(open.start, ParserStart::response);
}

TEST(ChatmlRenderer, NotesWhatTheTemplateHasNoPlaceFor) {
  EXPECT_THAT(render(R"({"messages": [{"role": "user", "content": "x"}], "tool_choice": "none"})", kThinking).notes, IsEmpty());
  EXPECT_THAT(render(R"({"messages": [{"role": "user", "content": "x"}], "thinking": false})", kThinking).notes,
              ElementsAre(HasSubstr("thinking cannot be turned off: the chat template is Thinking")));
  EXPECT_THAT(render(R"({"messages": [{"role": "user", "content": "x"}], "thinking": true})", kInstruct).notes,
              ElementsAre(HasSubstr("thinking cannot be turned on: the chat template is Instruct")));
  EXPECT_THAT(render(R"({"messages": [{"role": "user", "content": "x", "name": "Ann"}, {"role": "assistant", "content": "y",
                         "reasoning_content": "z"}], "reasoning_effort": "low", "prefill_channel": false})",
                     kInstruct)
                  .notes,
              ElementsAre(HasSubstr("effort"), HasSubstr("prefill_channel"), HasSubstr("messages[].name"),
                          HasSubstr("reasoning_content")));
  try {
    (void)render(R"({"messages": [{"role": "user", "content": "x"}, {"role": "system", "tools": [{"name": "f"}]}]})",
                 kInstruct);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("messages[1].tools"));
  }
}

// 10.4: for every control spelling in every slot, the control ids are those of a harmless word.
TEST(ChatmlRenderer, NoSlotInjectsControlTokens) {
  const std::string frame =
      R"({"messages": [{"role": "system", "content": "@"}, {"role": "user", "content": "@"}, {"role": "assistant", "content": "@",
          "reasoning_content": "@", "tool_calls": [{"function": {"name": "@", "arguments": {"@": "@"}}},
          {"function": {"name": "f", "arguments": "@"}}]}, {"role": "tool", "content": "@"}],
          "tools": [{"function": {"name": "@", "description": "@", "parameters": {"properties": {"@": {"enum": ["@"]}}}}}]})";
  const auto controls = [&](const std::string& word) {
    std::string request = frame;
    for (size_t at = request.find('@'); at != std::string::npos; at = request.find('@', at + word.size()))
      request.replace(at, 1, word);
    std::vector<TokenId> found;
    for (const TokenId id : small_qwen().encode(render(request, kThinking).segments)) {
      if (small_qwen().is_control(id)) found.push_back(id);
    }
    return found;
  };
  for (TokenId id = small_qwen().rank_count(); id < small_qwen().vocab_size(); ++id)
    EXPECT_EQ(controls(std::string(small_qwen().token_bytes(id))), controls("word"));
}

TEST(ChatFormat, IsChosenByTheFilesOfTheFolder) {
  const ChatFormat format = ChatFormat::load(text_test::qwen_folder());
  EXPECT_EQ(format.style(), ChatStyle::chatml);
  EXPECT_THAT(format.notes(), ElementsAre(HasSubstr("chat template: both")));
  const ChatPrompt prompt = format.render(R"({"messages": [{"role": "user", "content": "Hi"}]})");
  EXPECT_THAT(prompt.ids, ElementsAre(151644, 872, 198, 13048, 151645, 198, 151644, 77091, 198));
  OutputParser parser = format.parser(prompt);
  parser.feed_token(151667);
  EXPECT_TRUE(parser.in_reasoning());
  EXPECT_EQ(ChatFormat::load(text_test::mini_folder()).style(), ChatStyle::xtml);
  try {
    (void)ChatFormat::load(text_test::fixture(""));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("wanted tiktoken.model (Kimi) or tokenizer.json (Qwen), found neither"));
  }
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("weft-xml-calls-{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << text_test::toy_qwen_files().tokenizer;
  std::ofstream(folder / "chat_template.jinja") << "<|im_start|>{{ '<tool_call>\n<function=' }}{% if add_generation_prompt %}";
  const ChatFormat coder = ChatFormat::load(folder);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(coder.tokenizer().encode("ab").size(), small_qwen().encode("ab").size());
  EXPECT_THAT(coder.notes(), ElementsAre(HasSubstr("conversations cannot be rendered: ")));
  try {
    (void)coder.render(R"({"messages": [{"role": "user", "content": "Hi"}]})");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    EXPECT_THAT(error.what(), HasSubstr("chat_template.jinja] wanted tool calls as JSON"));
  }
  try {
    (void)ChatFormat::qwen(make_qwen_tokenizer(text_test::toy_qwen_files()), std::nullopt)
        .render(R"({"messages": [{"role": "user", "content": "Hi"}]})");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_checkpoint);
    EXPECT_THAT(error.what(), HasSubstr("wanted chat_template.jinja, or 'chat_template' in tokenizer_config.json"));
  }
}

}  // namespace
}  // namespace weft
