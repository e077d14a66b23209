// Sampling and prompt choices: what wins, and what is refused.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "base/error.h"
#include "engine/prompt_choice.h"
#include "engine/sampling_choice.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

SamplingChoice read(std::string_view json) { return SamplingChoice::read(parse_json_value(json, "test"), "test"); }

template <class Body>
std::string error_of(Body body, ErrorKind kind = ErrorKind::bad_input) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind);
    return error.what();
  }
  return "no error";
}

TEST(SamplingChoice, TheFirstThatSaysAValueWins) {
  const SamplingChoice flags = read(R"({"temperature": 0.5})");
  const SamplingChoice request = read(R"({"temperature": 0.7, "top_p": 0.9, "seed": 11})");
  const SamplingChoice file = read(R"({"top_p": 0.5, "top_k": 40, "min_p": null})");
  const ops::SamplingParams params = flags.or_else(request).or_else(file).resolve();
  EXPECT_EQ(params.temperature, 0.5F);
  EXPECT_EQ(params.top_p, 0.9F);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.min_p, 0.0F);
  EXPECT_EQ(params.repetition_penalty, 1.0F);
  EXPECT_EQ(params.seed, 11U);
}

TEST(SamplingChoice, BuiltInValues) {
  const ops::SamplingParams params = SamplingChoice{}.resolve();
  EXPECT_EQ(params.temperature, 1.0F);
  EXPECT_EQ(params.top_p, 1.0F);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_LT(params.seed, 1ULL << 53);
  EXPECT_NE(params.seed, SamplingChoice{}.resolve().seed);
}

TEST(SamplingChoice, OffValues) {
  EXPECT_EQ(read(R"({"top_k": -1})").resolve().top_k, 0);
  EXPECT_EQ(read(R"({"top_p": 0})").resolve().top_k, 1);
}

TEST(SamplingChoice, OutOfRangeNamesTheField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"temperature": 2.5})", "temperature"},
      {R"({"temperature": -1})", "temperature"},
      {R"({"top_p": 1.5})", "top_p"},
      {R"({"top_k": -2})", "top_k"},
      {R"({"min_p": 2})", "min_p"},
      {R"({"repetition_penalty": 0})", "repetition_penalty"},
      {R"({"frequency_penalty": 3})", "frequency_pe"},
      {R"({"presence_penalty": -3})", "presence_penalty"},
      {R"({"top_k": 1.5})", "top_k"},
      {R"({"temperature": "hot"})", "temperature"},
  };
  for (const auto& [json, field] : cases) {
    const auto* text = json;
    EXPECT_THAT(error_of([text] { static_cast<void>(read(text).resolve()); }), HasSubstr(field));
  }
}

TEST(SamplingChoice, GenerationConfig) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "generation_config";
  std::filesystem::create_directories(folder);
  EXPECT_FALSE(read_generation_config(folder / "none").temperature);
  std::ofstream(folder / "generation_config.json") << R"({"temperature": 0.6, "top_p": 0.95, "eos_token_id": [1, 2]})";
  EXPECT_EQ(read_generation_config(folder).temperature, 0.6);
  std::ofstream(folder / "generation_config.json") << R"({"temperature": 0.6, "do_sample": false})";
  EXPECT_EQ(read_generation_config(folder).temperature, 0.0);
  std::ofstream(folder / "generation_config.json") << R"({"temperature": )";
  EXPECT_THAT(error_of([&] { static_cast<void>(read_generation_config(folder)); }, ErrorKind::bad_checkpoint),
              HasSubstr("generation_config.json"));
  std::ofstream(folder / "generation_config.json") << R"({"top_p": 3})";
  EXPECT_THAT(error_of([&] { static_cast<void>(read_generation_config(folder)); }, ErrorKind::bad_checkpoint),
              AllOf(HasSubstr("generation_config.json"), HasSubstr("top_p")));
}

TEST(PromptChoice, PartsMakeARequest) {
  PromptChoice choice;
  choice.prompt = "Hi";
  choice.system = "Be brief.";
  choice.thinking = false;
  choice.tools = R"([{"type": "function", "function": {"name": "ping"}}])";
  const ChatRequest request = build_request(choice).request;
  ASSERT_EQ(request.messages.size(), 2U);
  EXPECT_EQ(request.messages[0].role, Role::system);
  EXPECT_EQ(request.messages[1].content, std::vector<std::string>{"Hi"});
  EXPECT_FALSE(request.thinking);
  EXPECT_TRUE(request.tools.has_value());
}

TEST(PromptChoice, PartsWinOverAWholeRequest) {
  PromptChoice choice;
  choice.messages = R"({"messages": [{"role": "user", "content": "Hi"}], "reasoning_effort": "low", "temperature": 0.25,
                        "max_tokens": 7, "thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": false}})";
  RequestChoice made = build_request(choice);
  EXPECT_FALSE(made.request.thinking);
  EXPECT_EQ(made.request.thinking_effort, "low");
  EXPECT_EQ(made.sampling.temperature, 0.25);
  EXPECT_EQ(made.max_tokens, 7);
  choice.thinking = true;
  choice.thinking_effort = "high";
  made = build_request(choice);
  EXPECT_TRUE(made.request.thinking);
  EXPECT_EQ(made.request.thinking_effort, "high");
}

TEST(PromptChoice, TheSystemMessageWinsOverTheRequestsOwn) {
  PromptChoice choice;
  choice.system = "Be brief.";
  for (const char* role : {"system", "developer"}) {
    choice.messages = fmt::format(R"([{{"role": "{}", "content": "Be long."}}, {{"role": "user", "content": "Hi"}}])", role);
    const std::vector<ChatMessage> messages = build_request(choice).request.messages;
    ASSERT_EQ(messages.size(), 2U) << role;
    EXPECT_EQ(messages[0].role, Role::system);
    EXPECT_EQ(messages[0].content, std::vector<std::string>{"Be brief."});
    EXPECT_EQ(messages[1].role, Role::user);
  }
}

TEST(PromptChoice, NotesWhatIsNotCarriedOut) {
  const auto notes = [](const std::string& fields) {
    PromptChoice choice;
    choice.messages = R"({"messages": [{"role": "user", "content": "Hi"}], )" + fields + "}";
    return build_request(choice).request.notes;
  };
  EXPECT_EQ(notes(R"("model": "m", "n": 1, "stop": null, "logprobs": false, "stream": true, "seed": 1, "logit_bias": {},
                     "parallel_tool_calls": true, "max_tokens": 3, "tool_choice": "auto", "user": "u")"),
            std::vector<std::string>{});
  for (const std::string field : {"stop", "n", "logit_bias", "logprobs", "top_logprobs", "stream_options"}) {
    EXPECT_EQ(notes(fmt::format(R"("{}": 2)", field)),
              std::vector<std::string>{fmt::format("'{}' is not carried out by weft generate", field)});
  }
  EXPECT_EQ(notes(R"("temperatur": 0, "tools_choice": "none")"),
            (std::vector<std::string>{"'temperatur' is not a known field and was ignored",
                                      "'tools_choice' is not a known field and was ignored"}));
}

TEST(PromptChoice, Refuses) {
  EXPECT_THAT(error_of([] { static_cast<void>(build_request({})); }), HasSubstr("at least one message"));
  PromptChoice choice;
  choice.messages = "3";
  EXPECT_THAT(error_of([&] { static_cast<void>(build_request(choice)); }), HasSubstr("messages"));
  choice.messages = R"([{"role": "user", "content": "x"}])";
  choice.tools = R"({"name": "x"})";
  EXPECT_THAT(error_of([&] { static_cast<void>(build_request(choice)); }), HasSubstr("tools"));
  choice = {};
  choice.prompt = "\xff";
  EXPECT_THAT(error_of([&] { static_cast<void>(build_request(choice)); }),
              HasSubstr("[--prompt] wanted UTF-8, found byte 0xff at offset 0"));
  choice.prompt = "x";
  choice.system = "a\xC3";
  EXPECT_THAT(error_of([&] { static_cast<void>(build_request(choice)); }),
              HasSubstr("[--system] wanted UTF-8, found byte 0xc3 at offset 1"));
  choice.system.reset();
  choice.tools = "[";
  choice.tools_place = "bad.json";
  EXPECT_THAT(error_of([&] { static_cast<void>(build_request(choice)); }), HasSubstr("[bad.json] JSON at byte 1"));
  EXPECT_TRUE(build_request({}, true).request.messages.empty());
}

}  // namespace
}  // namespace weft
