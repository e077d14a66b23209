// What constrained decoding costs a token, with a generated vocabulary of the published size (163,584 ranks). Answers are drawn
// at random under their masks; the time of a token is that of its mask and of taking it. Each answer begins with empty caches.
// `build/release/bench/weft_grammar_bench --benchmark_repetitions=5`
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "engine/grammar/answer_rules.h"
#include "text/toy_vocabulary.h"

namespace weft {
namespace {

constexpr size_t kRanks = 163'584;

const KimiTokenizer& generated() {
  static const KimiTokenizer made = KimiTokenizer::from_files(text_test::toy_files(kRanks));
  return made;
}

const std::shared_ptr<const grammar::Vocabulary>& vocabulary() {
  static const auto made = std::make_shared<const grammar::Vocabulary>(generated());
  return made;
}

void build_vocabulary(benchmark::State& state) {
  (void)generated();
  for (auto step : state) benchmark::DoNotOptimize(grammar::Vocabulary(generated()).mask_words());
}
BENCHMARK(build_vocabulary)->Unit(benchmark::kMillisecond);

constexpr const char* kExtraction = R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema":
  {"type": "object", "properties": {
    "title": {"type": "string", "maxLength": 80}, "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    "authors": {"type": "array", "minItems": 1, "items": {"type": "object", "properties":
      {"name": {"type": "string"}, "email": {"type": ["string", "null"]}}, "required": ["name", "email"]}},
    "kind": {"enum": ["paper", "book", "thesis"]}, "score": {"type": "number", "minimum": 0, "maximum": 1},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8}},
   "required": ["title", "year", "authors", "kind"], "additionalProperties": false}}})";
constexpr const char* kAnyObject = R"("response_format": {"type": "json_object"})";
constexpr const char* kTools = R"("tool_choice": "required", "tools": [
  {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties":
    {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 50}}, "required": ["query"]}}},
  {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object", "properties":
    {"path": {"type": "string", "minLength": 1}, "text": {"type": "string"}, "mode": {"enum": ["new", "append"]}},
    "required": ["path", "text"]}}}])";

grammar::AnswerRules rules_of(const std::string& fields) {
  std::vector<std::string> notes;
  return grammar::AnswerRules::of(parse_chat_request(R"({"messages": [{"role": "user", "content": "Go"}], )" + fields + "}"),
                                  vocabulary(), notes)
      .value();
}

void compile(benchmark::State& state, const char* fields) {
  const grammar::AnswerRules rules = rules_of(fields);
  for (auto step : state) {
    auto matcher = rules.matcher(ParserStart::response, 1000);
    benchmark::DoNotOptimize(matcher);
  }
}
BENCHMARK_CAPTURE(compile, extraction, kExtraction)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compile, tools, kTools)->Unit(benchmark::kMillisecond);

double microseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

// Tokens of 20 answers of at most 400 tokens; each answer begins with empty caches.
void token(benchmark::State& state, const char* fields) {
  const grammar::AnswerRules rules = rules_of(fields);
  constexpr int64_t kBudget = 400;
  std::vector<uint32_t> words(vocabulary()->mask_words());
  const TokenId end = generated().markers().end_of_message;
  std::vector<double> times;
  for (auto step : state) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      text_test::Numbers numbers(seed);
      grammar::Matcher matcher = rules.matcher(ParserStart::response, kBudget);
      TokenId id = -1;
      for (int64_t left = kBudget; left > 0 && id != end; --left) {
        // A sixth of the tokens lead to the end soon, so that strings end as those of a model do.
        const int64_t budget = numbers.below(6) == 0 ? std::min(left, matcher.tokens_to_end() + 3) : left;
        const auto begun = std::chrono::steady_clock::now();
        matcher.fill_mask(words, budget);
        const auto filled = std::chrono::steady_clock::now();
        std::vector<TokenId> ids;
        for (size_t word = 0; word < words.size(); ++word) {
          for (uint32_t bits = words[word]; bits != 0; bits &= bits - 1) {
            ids.push_back(static_cast<TokenId>(word * 32 + static_cast<size_t>(__builtin_ctz(bits))));
          }
        }
        id = ids[numbers.below(ids.size())];
        const auto chosen = std::chrono::steady_clock::now();
        matcher.accept(id);
        times.push_back(microseconds(filled - begun + (std::chrono::steady_clock::now() - chosen)));
      }
    }
  }
  double sum = 0.0;
  for (const double time : times) sum += time;
  state.counters["mean_us"] = sum / static_cast<double>(times.size());
  state.counters["median_us"] = quantile(times, 0.5);
  state.counters["p99_us"] = quantile(times, 0.99);
  state.counters["max_us"] = quantile(times, 1.0);
  state.counters["tokens"] = static_cast<double>(times.size());
}
BENCHMARK_CAPTURE(token, extraction, kExtraction)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(token, any_object, kAnyObject)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK_CAPTURE(token, tools, kTools)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
