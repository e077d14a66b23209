// The turn of K3 under a grammar: channels, calls, control tokens, limits; and what is refused.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/toy_vocabulary.h"
#include "text/xtml_parser.h"

#include "grammar_fixture.h"

namespace weft::engine_test {
namespace {

using grammar::Matcher;
using ::testing::HasSubstr;

const Tokenizer& tokenizer() { return mini_format().tokenizer(); }

std::vector<TokenId> allowed(Matcher& matcher, int64_t budget = 1000) {
  std::vector<uint32_t> words(mini_vocabulary()->mask_words());
  matcher.fill_mask(words, budget);
  return allowed_ids(words);
}

bool allows(Matcher& matcher, const std::string& text) {
  const std::vector<TokenId> ids = tokenizer().encode(text, true);
  const std::vector<TokenId> next = allowed(matcher);
  return std::ranges::find(next, ids.front()) != next.end();
}

// True when each token of the text is in the mask before it.
bool follows(Matcher matcher, const std::string& text) {
  for (const TokenId id : tokenizer().encode(text, true)) {
    const std::vector<TokenId> next = allowed(matcher);
    if (std::ranges::find(next, id) == next.end()) return false;
    matcher.accept(id);
  }
  return true;
}

Matcher matcher_of(const std::string& fields, ParserStart start = ParserStart::think, int64_t budget = 1000) {
  return rules_of(request_with(fields)).matcher(start, budget);
}

constexpr const char* kSchema =
    R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema":
       {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}})";
constexpr const char* kTools = R"("tools": [
    {"type": "function", "function": {"name": "tide", "strict": true, "parameters": {"type": "object", "properties":
       {"port": {"type": "string", "enum": ["Barry", "R&D"]}, "hours": {"type": "integer", "minimum": 1, "maximum": 24},
        "opts": {"type": "object", "properties": {"unit": {"const": "m"}}, "required": ["unit"]}}, "required": ["port"]}}},
    {"type": "function", "function": {"name": "a\"b"}}])";

const std::string kOpenResponse = "<|close|>think<|sep|><|open|>response<|sep|>";
const std::string kToTools = kOpenResponse + "<|close|>response<|sep|><|open|>tools<|sep|>";
const std::string kCall = "<|open|>call tool=\"tide\" index=\"1\"<|sep|>";
const std::string kPort = "<|open|>argument key=\"port\" type=\"string\"<|sep|>Barry<|close|>argument<|sep|>";
const std::string kHours = "<|open|>argument key=\"hours\" type=\"number\"<|sep|>12<|close|>argument<|sep|>";
const std::string kEndCall = "<|close|>call<|sep|>";
const std::string kEndTools = "<|close|>tools<|sep|><|close|>message<|sep|>";

std::string with_choice(const std::string& choice) { return std::string(kTools) + R"(, "tool_choice": )" + choice; }

TEST(GrammarTurn, ASchemaHoldsTheResponseAndNothingElse) {
  EXPECT_TRUE(follows(matcher_of(kSchema), "Some <think> & {thoughts}\n" + kOpenResponse +
                                               "{\"a\": 17}<|close|>response<|sep|><|close|>message<|sep|>"));
  EXPECT_TRUE(follows(matcher_of(kSchema), "x<|open|>response<|sep|>{\"a\":-1}<|close|>response<|sep|><|end_of_msg|>"));
  EXPECT_TRUE(follows(matcher_of(kSchema, ParserStart::start), "<|open|>think<|sep|>x" + kOpenResponse + "{\"a\": 1}"));
  EXPECT_TRUE(follows(matcher_of(kSchema, ParserStart::response), "{\"a\": 1}<|close|>response<|sep|>"));
  EXPECT_TRUE(follows(matcher_of(kSchema, ParserStart::response), "<|open|>response<|sep|>{\"a\": 1}"));
  for (const std::string wrong : {"<|end_of_msg|>", "x[EOS]", "x<|sep|>", "x<|close|>response", "x<|close|>message",
                                  "<|open|>tools", "x<|close|>think<|sep|>{", "x<|close|>think<|sep|><|end_of_msg|>"}) {
    EXPECT_FALSE(follows(matcher_of(kSchema), wrong)) << wrong;
  }
  EXPECT_FALSE(follows(matcher_of(kSchema), kOpenResponse + "{\"a\": 1}<|end_of_msg|>"));
  EXPECT_FALSE(follows(matcher_of(kSchema), kOpenResponse + "{\"a\": 1} "));
}

// vllm-project/vllm#57714: a completion that skips its reasoning is held to the schema too.
TEST(GrammarTurn, TheGateOpensWithTheResponse) {
  Matcher matcher = matcher_of(kSchema, ParserStart::start);
  for (const TokenId id : tokenizer().encode("<|open|>response<|sep|>", true)) matcher.accept(id);
  const TokenId sep = tokenizer().control_id("<|sep|>");
  for (const TokenId id : allowed(matcher)) {
    ASSERT_NE(id, sep);
    ASSERT_FALSE(tokenizer().is_control(id));
    ASSERT_EQ(tokenizer().token_bytes(id).front(), '{') << tokenizer().token_bytes(id);
  }
}

TEST(GrammarTurn, JsonObject) {
  const std::string fields = R"("response_format": {"type": "json_object"})";
  EXPECT_TRUE(follows(matcher_of(fields), kOpenResponse + "{\"x\": [1, {\"y\": null}]}<|close|>response<|sep|>"));
  EXPECT_FALSE(follows(matcher_of(fields), kOpenResponse + "[1]"));
}

TEST(GrammarTurn, RequiredCallsFollowTheirSchemas) {
  const auto tools = [&] { return matcher_of(with_choice("\"required\"")); };
  EXPECT_TRUE(follows(tools(), "x" + kToTools + kCall + kHours + kPort + kEndCall + kEndTools));
  EXPECT_TRUE(follows(
      tools(), kOpenResponse + "I look." + kToTools.substr(kOpenResponse.size()) + kCall + kPort + kEndCall + kCall + kPort));
  EXPECT_TRUE(follows(tools(), kToTools + "<|open|>call tool=\"a&quot;b\" index=\"1\"<|sep|>" + kEndCall + kEndTools));
  EXPECT_TRUE(
      follows(tools(),
              kToTools + kCall + "<|open|>argument key=\"port\" type=\"string\"<|sep|>R&D<|close|>argument<|sep|>" + kEndCall));
  EXPECT_TRUE(
      follows(tools(), "x<|open|>tools<|sep|>" + kCall + kPort +
                           "<|open|>argument key=\"opts\" type=\"object\"<|sep|>{\"unit\": \"m\"}<|close|>argument<|sep|>"));
  for (const std::string& wrong :
       {kToTools + "<|close|>", kToTools + "<|open|>call tool=\"rm\"", kToTools + kCall + kHours + kEndCall,
        kToTools + kCall + kPort + kPort, kToTools + kCall + "<|open|>argument key=\"port\" type=\"number\"",
        kToTools + kCall + "<|open|>argument key=\"x\"",
        kToTools + kCall + "<|open|>argument key=\"port\" type=\"string\"<|sep|>Tenby",
        kToTools + kCall + "<|open|>argument key=\"hours\" type=\"number\"<|sep|>25",
        kOpenResponse + "Hello<|close|>response<|sep|><|close|>", kOpenResponse + "<|end_of_msg|>",
        std::string("x<|end_of_msg|>"), kToTools + "<|open|>call tool=\"a&quot;b\" index=\"1\"<|sep|><|open|>"}) {
    EXPECT_FALSE(follows(tools(), wrong)) << wrong;
  }
  EXPECT_TRUE(follows(tools(), kOpenResponse + std::string(256, 'x') + "<|close|>"));
  EXPECT_FALSE(follows(tools(), kOpenResponse + std::string(257, 'x')));
}

TEST(GrammarTurn, ANamedChoiceIsOneCall) {
  const std::string fields = with_choice(R"({"type": "function", "function": {"name": "tide"}})");
  const auto named = [&] { return matcher_of(fields, ParserStart::response); };
  const std::string tools = kToTools.substr(kOpenResponse.size());
  EXPECT_TRUE(follows(named(), tools + kCall + kPort + kEndCall + kEndTools));
  EXPECT_FALSE(follows(named(), tools + kCall + kPort + kEndCall + kCall));
  EXPECT_FALSE(follows(named(), tools + "<|open|>call tool=\"a"));
}

TEST(GrammarTurn, ChoicesOfTheModel) {
  const auto free = [&] { return matcher_of(kTools); };
  EXPECT_TRUE(follows(free(), "x" + kOpenResponse + "Hello\n<|close|>response<|sep|><|close|>message<|sep|>"));
  EXPECT_TRUE(follows(free(), "x<|close|>response<|sep|><|close|>message<|sep|>"));  // the reasoning was the answer (3.6)
  EXPECT_TRUE(follows(free(), "x<|end_of_msg|>"));
  EXPECT_TRUE(follows(free(), kToTools + kCall + kPort + kEndCall + kEndTools));
  EXPECT_FALSE(follows(free(), kToTools + kCall + kEndCall));
  EXPECT_FALSE(follows(free(), kToTools + "<|open|>call tool=\"rm\""));

  // Where no tool is strict the model is free; of a JSON response calls are another choice then, with any arguments, and a
  // list of tools still holds their names.
  const std::string loose = R"("tools": [{"type": "function", "function": {"name": "tide", "parameters":
      {"type": "object", "properties": {"port": {"enum": ["Barry"]}}, "required": ["port"]}}}])";
  std::vector<std::string> notes;
  EXPECT_FALSE(grammar::AnswerRules::of(request_with(loose), mini_vocabulary(), notes));
  const std::string list = R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto",
      "tools": [{"type": "function", "function": {"name": "tide"}}]}})";
  for (const std::string& more : {std::string(", ") + kSchema, list}) {
    EXPECT_TRUE(follows(matcher_of(loose + more), kToTools + kCall + kEndCall + kEndTools)) << more;
    EXPECT_FALSE(follows(matcher_of(loose + more), kToTools + "<|open|>call tool=\"rm\"")) << more;
  }

  const auto none = [&] { return matcher_of(with_choice("\"none\"")); };
  EXPECT_TRUE(follows(none(), kOpenResponse + "Hello<|close|>response<|sep|><|end_of_msg|>"));
  EXPECT_FALSE(follows(none(), kToTools.substr(0, kToTools.size() - 7)));
  EXPECT_FALSE(follows(none(), kOpenResponse + "x<|open|>"));

  const auto both = [&] { return matcher_of(std::string(kTools) + ", " + kSchema); };
  EXPECT_TRUE(follows(both(), kOpenResponse + "{\"a\": 1}<|close|>response<|sep|>"));
  EXPECT_TRUE(follows(both(), kToTools + kCall));
  EXPECT_FALSE(follows(both(), kOpenResponse + "Hello"));
}

TEST(GrammarTurn, NothingAskedIsNoGrammar) {
  std::vector<std::string> notes;
  EXPECT_FALSE(grammar::AnswerRules::of(request_with(R"("seed": 1)"), mini_vocabulary(), notes));
  EXPECT_TRUE(notes.empty());
}

TEST(GrammarTurn, AContinuedAnswerGoesOnWhereItStands) {
  const auto request = [&](const std::string& text) {
    ChatRequest made =
        parse_chat_request(R"({"messages": [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "",
                                              "partial": true}], )" +
                           std::string(kSchema) + "}");
    made.messages.back().content = {text};
    return made;
  };
  EXPECT_TRUE(follows(rules_of(request("{\"a\": 4")).matcher(ParserStart::response, 100), "2}<|close|>"));
  try {
    (void)rules_of(request("{\"b")).matcher(ParserStart::response, 100);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_input);
    EXPECT_THAT(error.what(), HasSubstr("{\"b"));
  }
}

// Calls of random tokens at every limit: what the parser makes of them is what the schema allows.
TEST(GrammarTurn, CallsEndInTime) {
  const grammar::AnswerRules rules = rules_of(request_with(with_choice("\"required\"")));
  const int64_t whole = rules.matcher(ParserStart::think, 1 << 20).tokens_to_end();
  for (const int64_t budget : {whole, whole + 1, whole + 5, whole + 60}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      text_test::Numbers numbers(seed);
      Matcher matcher = rules.matcher(ParserStart::think, budget);
      OutputParser parser = xtml_parser(tokenizer(), {.start = ParserStart::think});
      AnswerBuilder builder;
      int64_t drawn = 0;
      for (; !parser.done() && drawn < budget; ++drawn) {
        const bool homeward = numbers.below(2) == 0;
        const std::vector<TokenId> ids =
            allowed(matcher, homeward ? std::min(budget - drawn, matcher.tokens_to_end() + 3) : budget - drawn);
        const TokenId id = ids[numbers.below(ids.size())];
        matcher.accept(id);
        parser.feed_token(id);
      }
      ASSERT_TRUE(parser.done());
      EXPECT_EQ(parser.counters().stray_markers + parser.counters().abandoned_calls, 0);
      for (const ChatEvent& event : parser.take_events()) builder.add(event);
      const ChatAnswer answer = builder.answer();
      ASSERT_FALSE(answer.tool_calls.empty());
      for (const ToolCall& call : answer.tool_calls) {
        const Json arguments = parse_json(call.arguments, "arguments");
        if (call.name == "a\"b") {
          EXPECT_TRUE(arguments.empty());
          continue;
        }
        ASSERT_EQ(call.name, "tide");
        EXPECT_TRUE(arguments.at("port") == "Barry" || arguments.at("port") == "R&D") << call.arguments;
        if (arguments.contains("hours")) {
          EXPECT_TRUE(arguments["hours"].is_number_integer() && arguments["hours"] >= 1 && arguments["hours"] <= 24);
        }
        if (arguments.contains("opts")) {
          EXPECT_EQ(arguments["opts"].dump(), R"({"unit":"m"})");
        }
      }
    }
  }
}

// ---- what is refused
// --------------------------------------------------------------------------------------------------------------

std::string refusal(const std::string& schema) {
  try {
    (void)compile_schema(schema);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// Whether the limit had a hand in how an answer ended.
TEST(GrammarTurn, WhatTheLimitCutIsKnown) {
  const std::string answer = "x" + kOpenResponse + "{\"a\": 17}<|close|>response<|sep|><|close|>message<|sep|>";
  const std::vector<TokenId> ids = tokenizer().encode(answer, true);
  const auto cut_with = [&](int64_t spare) {
    Matcher matcher = matcher_of(kSchema);
    std::vector<uint32_t> words(mini_vocabulary()->mask_words());
    for (size_t i = 0; i < ids.size(); ++i) {
      matcher.fill_mask(words, std::ssize(ids) - static_cast<int64_t>(i) + spare);
      matcher.accept(ids[i]);
    }
    return matcher.was_cut();
  };
  EXPECT_FALSE(cut_with(2000));
  EXPECT_TRUE(cut_with(1)) << "a longer number had no room";
}

TEST(GrammarRefusals, NameKeywordAndPlace) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {R"({"type": "array", "uniqueItems": true})", "schema#/uniqueItems"},
      {R"({"properties": {"a": {"not": {}}}})", "schema#/properties/a/not"},
      {R"({"properties": {"a": {"items": {"patternProperties": {}}}}})", "schema#/properties/a/items/patternProperties"},
      {R"({"type": "string", "format": "iri"})", "schema#/format"},
      {R"({"type": "string", "pattern": "(?=a)b"})", "schema#/pattern: offset 2"},
      {R"({"type": "string", "pattern": "(a)\\1"})", "schema#/pattern: offset 4"},
      {R"({"type": "string", "pattern": "(a"})", "schema#/pattern"},
      {R"({"type": "number", "multipleOf": 0.3})", "schema#/multipleOf"},
      {R"({"$ref": "other.json"})", "schema#/$ref"},
      {R"({"$ref": "#/$defs/x"})", "schema#/$ref"},
      {R"({"$ref": "#"})", "stand for itself"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "schema#/oneOf"},
      {R"({"type": "text"})", "schema#/type"},
      {R"({"type": "object", "properties": {"a": 5}})", "schema#/properties/a"},
      {R"({"enum": ["abc"], "maxLength": 2})", "schema#/maxLength"},
      {R"({"anyOf": [{"if": {}}]})", "schema#/anyOf/0/if"},
      {R"({"type": "object", "minProperties": 2})", "schema#/minProperties"},
      {R"({"minLenght": 2})", "schema#/minLenght"}};
  for (const auto& [schema, place] : cases) EXPECT_THAT(refusal(schema), HasSubstr(place)) << schema;
}

TEST(GrammarRefusals, NoValueAtAll) {
  for (const std::string schema :
       {R"(false)", R"({"type": "integer", "minimum": 3, "maximum": 2})", R"({"enum": []})",
        R"({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}},
                                       "required": ["n"]}}})"}) {
    const std::string fields =
        R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": )" + schema + "}}";
    try {
      (void)rules_of(request_with(fields));
      ADD_FAILURE() << schema;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("wanted a schema that some value fulfils")) << schema;
    }
  }
}

TEST(GrammarRefusals, OnlyStrictToolsAreRefused) {
  const auto tool = [](const std::string& strict) {
    return request_with(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}})" + strict +
                        R"(}}], "tool_choice": "required")");
  };
  std::vector<std::string> notes;
  ASSERT_TRUE(grammar::AnswerRules::of(tool(""), mini_vocabulary(), notes));
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes[0], HasSubstr("'f'"));
  EXPECT_THAT(notes[0], HasSubstr("tools[0].function.parameters#/not"));
  EXPECT_THROW((void)grammar::AnswerRules::of(tool(R"(, "strict": true)"), mini_vocabulary(), notes), Error);
}

// Sizes that would grow without bounds.
TEST(GrammarLimits, HostileSchemasEndInNamedErrorsOrSmallGrammars) {
  std::string product = R"({"allOf": [)";
  for (int i = 0; i < 12; ++i)
    product += std::string(i == 0 ? "" : ",") + R"({"anyOf": [{"minimum": )" + std::to_string(i) + R"(}, {"minLength": 1}]})";
  EXPECT_THAT(refusal(product + "]}"), HasSubstr("alternatives"));
  EXPECT_THAT(refusal(R"({"type": "string", "pattern": "^(a|b)*a(a|b){20}$", "minLength": 1})"), HasSubstr("states"));
  EXPECT_THAT(refusal(R"({"type": "integer", "multipleOf": 9973})"), HasSubstr("states"));
  std::string nested = "true";
  for (int i = 0; i < 60; ++i) nested = R"({"items": )" + nested + "}";
  EXPECT_EQ(refusal(nested), "nothing");

  // Two readings of each level share what follows them.
  Compiled twice = compile_schema(R"({"$defs": {"a": {"type": "array", "maxItems": 3, "items": {"$ref": "#"}},
      "b": {"type": "array", "maxItems": 5, "items": {"$ref": "#"}}}, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]})");
  const size_t before = twice.terms->size();
  const grammar::Term deep = twice.terms->after(twice.start, std::string(60, '['));
  EXPECT_NE(deep, grammar::kNothing);
  EXPECT_LT(twice.terms->size() - before, 3000U);
  EXPECT_TRUE(twice.terms->nullable(twice.terms->after(deep, std::string(60, ']'))));
  EXPECT_FALSE(twice.accepts("[[],[],[],[],[],[]]"));
}

TEST(GrammarLimits, LongAnswersForgetOldStates) {
  Matcher matcher =
      matcher_of(R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array",
      "items": {"type": "string", "maxLength": 100000}}}})",
                 ParserStart::response, 1 << 20);
  const std::vector<TokenId> open = tokenizer().encode("[\"");
  for (const TokenId id : open) matcher.accept(id);
  const TokenId letter = tokenizer().encode("q").front();
  for (int i = 0; i < 60'000; ++i) matcher.accept(letter);
  EXPECT_TRUE(allows(matcher, "q"));
  EXPECT_TRUE(follows(std::move(matcher), "\", \"x\"]<|close|>response"));
}

}  // namespace
}  // namespace weft::engine_test
