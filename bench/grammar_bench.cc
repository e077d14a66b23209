// What holding answers to a grammar costs a token, beside the time of a decode step.
//
//     build/release/bench/weft_grammar_bench [FILE COMMIT]     the record as JSON into FILE, else a table
//
// Masks are measured with the vocabulary of models/k3-mini and with a generated one of the published size (163,584 ranks):
// answers drawn at random under their masks, each with empty caches at its beginning. What a mask leaves on the critical path
// is measured with k3-mini in an engine: the step of an answer that is held to a schema against that of one that is not, in
// turn.
#include <algorithm>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/bench/record.h"
#include "engine/bench/timing.h"
#include "engine/chat_session.h"
#include "engine/grammar/answer_rules.h"
#include "engine/model.h"
#include "text/toy_vocabulary.h"

namespace weft {
namespace {

constexpr int kRepeats = 5;
constexpr uint64_t kAnswers = 20;  // of each repeat
constexpr int64_t kBudget = 400;   // most tokens of each
constexpr double kMicro = 1e6;

struct Case {
  const char* name;
  const char* fields;  // of a request
};
constexpr Case kCases[] = {{"extraction", R"("response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema":
  {"type": "object", "properties": {
    "title": {"type": "string", "maxLength": 80}, "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    "authors": {"type": "array", "minItems": 1, "items": {"type": "object", "properties":
      {"name": {"type": "string"}, "email": {"type": ["string", "null"]}}, "required": ["name", "email"]}},
    "kind": {"enum": ["paper", "book", "thesis"]}, "score": {"type": "number", "minimum": 0, "maximum": 1},
    "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8}},
   "required": ["title", "year", "authors", "kind"], "additionalProperties": false}}})"},
                           {"any object", R"("response_format": {"type": "json_object"})"},
                           {"tools", R"("tool_choice": "required", "tools": [
  {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties":
    {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 50}}, "required": ["query"]}}},
  {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object", "properties":
    {"path": {"type": "string", "minLength": 1}, "text": {"type": "string"}, "mode": {"enum": ["new", "append"]}},
    "required": ["path", "text"]}}}])"}};

ChatRequest request_of(const char* fields) {
  return parse_chat_request(std::string(R"({"messages": [{"role": "user", "content": "Go"}], )") + fields + "}");
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1))];
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Microseconds of each token.
struct Times {
  std::vector<double> mask;
  std::vector<double> take;
};

void draw(const grammar::AnswerRules& rules, const grammar::Vocabulary& vocabulary, uint64_t seed, Times& times) {
  text_test::Numbers numbers(seed);
  std::vector<uint32_t> words(vocabulary.mask_words());
  grammar::Matcher matcher = rules.matcher(ParserStart::response, kBudget);
  for (int64_t left = kBudget; left > 0 && matcher.tokens_to_end() > 0; --left) {
    // A sixth of the tokens lead to the end soon, so that strings end as those of a model do.
    const int64_t budget = numbers.below(6) == 0 ? std::min(left, matcher.tokens_to_end() + 3) : left;
    const bench::Timer mask;
    matcher.fill_mask(words, budget);
    times.mask.push_back(kMicro * mask.seconds());
    std::vector<TokenId> ids;
    for (size_t word = 0; word < words.size(); ++word) {
      for (uint32_t bits = words[word]; bits != 0; bits &= bits - 1) {
        ids.push_back(static_cast<TokenId>(word * 32 + static_cast<size_t>(__builtin_ctz(bits))));
      }
    }
    const TokenId id = ids[numbers.below(ids.size())];
    const bench::Timer take;
    matcher.accept(id);
    times.take.push_back(kMicro * take.seconds());
  }
}

void measure_masks(const std::string& name, const std::shared_ptr<const grammar::Vocabulary>& vocabulary,
                   bench::Record& record) {
  for (const Case& one : kCases) {
    std::vector<std::string> notes;
    const grammar::AnswerRules rules = grammar::AnswerRules::of(request_of(one.fields), vocabulary, notes).value();
    bench::Figure compile{fmt::format("compile, {}, {}", one.name, name), "ms", {}, {}};
    bench::Figure mask{fmt::format("mask of a token, {}, {}", one.name, name), "us", {}, {}};
    bench::Figure take{fmt::format("taking a token, {}, {}", one.name, name), "us", {}, {}};
    Times all;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      const bench::Timer timer;
      (void)rules.matcher(ParserStart::response, kBudget);
      compile.samples.push_back(1e3 * timer.seconds());
      Times times;
      for (uint64_t seed = 0; seed < kAnswers; ++seed) draw(rules, *vocabulary, seed, times);
      mask.samples.push_back(mean(times.mask));
      take.samples.push_back(mean(times.take));
      all.mask.insert(all.mask.end(), times.mask.begin(), times.mask.end());
      all.take.insert(all.take.end(), times.take.begin(), times.take.end());
    }
    mask.more = {{"tokens", static_cast<double>(all.mask.size())},
                 {"median_us", quantile(all.mask, 0.5)},
                 {"p99_us", quantile(all.mask, 0.99)},
                 {"max_us", quantile(all.mask, 1.0)}};
    take.more = {{"p99_us", quantile(all.take, 0.99)}, {"max_us", quantile(all.take, 1.0)}};
    record.figures.insert(record.figures.end(), {compile, mask, take});
  }
}

// A turn that notes what its calls take.
class TimedTurn final : public TokenSink {
 public:
  TimedTurn(const Model& model, const ChatPrompt& prompt, const TurnOptions& options) : turn_(model, prompt, options) {}

  [[nodiscard]] GenerateRequest request(const ChatPrompt& prompt) const { return turn_.request(prompt.ids); }
  [[nodiscard]] bool over() const { return turn_.over(); }

  void on_submit(int64_t budget) override { turn_.on_submit(budget); }
  void constrain(SampleRequest& draw, int64_t tokens_left) override {
    const bench::Timer timer;
    turn_.constrain(draw, tokens_left);
    begin.push_back(kMicro * timer.seconds());
  }
  void on_prompt(int64_t done, int64_t total) override { turn_.on_prompt(done, total); }
  bool on_token(const ops::Sampled& token) override {
    const bench::Timer timer;
    const bool stop = turn_.on_token(token);
    take.push_back(kMicro * timer.seconds());
    return stop;
  }
  void on_end(const RequestReport& report) override { turn_.on_end(report); }

  std::vector<double> begin;  // microseconds of each draw
  std::vector<double> take;

 private:
  Turn turn_;
};

struct StepTimes {
  std::vector<double> step;  // microseconds, prompt excluded
  std::vector<double> begin;
  std::vector<double> take;
};

// Answers of `requests` side by side.
void answer(const Model& model, const ChatRequest& request, int64_t requests, StepTimes& times) {
  EngineOptions engine_options;
  engine_options.max_context = model.max_context();
  engine_options.keep_states = false;
  Engine engine(model.executor(), engine_options);
  const ChatPrompt prompt = model.format().render(request);
  std::vector<std::string> notes;
  const std::optional<grammar::AnswerRules> rules = grammar::AnswerRules::of(request, model.vocabulary(), notes);
  std::vector<std::shared_ptr<TimedTurn>> turns;
  for (int64_t i = 0; i < requests; ++i) {
    TurnOptions options;
    options.max_tokens = 64;
    options.sampling.seed = static_cast<uint64_t>(i);
    if (rules) options.rules = &*rules;
    turns.push_back(std::make_shared<TimedTurn>(model, prompt, options));
    (void)engine.submit(turns.back()->request(prompt), turns.back());
  }
  const auto generating = [&] { return std::ranges::all_of(turns, [](const auto& turn) { return !turn->take.empty(); }); };
  const auto all_run = [&] {
    return std::ranges::none_of(turns, &TimedTurn::over, [](const auto& turn) -> auto& { return *turn; });
  };
  for (;;) {
    const bool counts = generating() && all_run();
    const bench::Timer timer;
    if (!engine.step()) break;
    if (counts) times.step.push_back(kMicro * timer.seconds());
  }
  for (const auto& turn : turns) {
    times.begin.insert(times.begin.end(), turn->begin.begin(), turn->begin.end());
    times.take.insert(times.take.end(), turn->take.begin(), turn->take.end());
  }
}

void measure_steps(bench::Record& record) {
  ModelOptions options;
  options.dir = std::string(WEFT_BENCH_SOURCE) + "/models/k3-mini";
  const std::unique_ptr<Model> model = Model::load(options);
  record.facts["threads_of_the_model"] = model->threads();
  const ChatRequest free = parse_chat_request(R"({"messages": [{"role": "user", "content": "Go"}], "thinking": false})");
  ChatRequest held = request_of(kCases[0].fields);
  held.thinking = false;
  for (const int64_t requests : {1, 8}) {
    bench::Figure without{fmt::format("step of k3-mini, {} free answers", requests), "us", {}, {}};
    bench::Figure with{fmt::format("step of k3-mini, {} answers held to the schema of extraction", requests), "us", {}, {}};
    StepTimes all;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      StepTimes free_times;
      StepTimes held_times;
      for (int answers = 0; answers < 3; ++answers) {
        answer(*model, free, requests, free_times);
        answer(*model, held, requests, held_times);
      }
      without.samples.push_back(quantile(free_times.step, 0.5));
      with.samples.push_back(quantile(held_times.step, 0.5));
      all.begin.insert(all.begin.end(), held_times.begin.begin(), held_times.begin.end());
      all.take.insert(all.take.end(), held_times.take.begin(), held_times.take.end());
    }
    with.more = {{"more_than_free_us", with.value() - without.value()},
                 {"of_it_beginning_masks_us", static_cast<double>(requests) * quantile(all.begin, 0.5)},
                 {"of_it_taking_tokens_us", static_cast<double>(requests) * quantile(all.take, 0.5)}};
    record.figures.insert(record.figures.end(), {without, with});
  }
}

int run(int count, char** words) {
  bench::Record record{"grammar", {}, {{"answers_of_a_repeat", kAnswers}, {"most_tokens", kBudget}}, {}};
  const ChatFormat mini = ChatFormat::load(std::string(WEFT_BENCH_SOURCE) + "/models/k3-mini");
  measure_masks("5,888 ranks", std::make_shared<const grammar::Vocabulary>(mini.tokenizer(), ChatStyle::xtml), record);
  const Tokenizer generated = make_kimi_tokenizer(text_test::toy_files(163'584));
  const bench::Timer timer;
  const auto large = std::make_shared<const grammar::Vocabulary>(generated, ChatStyle::xtml);
  record.facts["vocabulary_of_163584_ranks_seconds"] = timer.seconds();
  measure_masks("163,584 ranks", large, record);
  measure_steps(record);
  if (count != 3) {
    std::cout << record.to_text();
    return 0;
  }
  std::ofstream(words[1]) << record.to_json(words[2], fmt::format("weft_grammar_bench {} {}", words[1], words[2])).dump(1)
                          << "\n";
  return 0;
}

}  // namespace
}  // namespace weft

int main(int count, char** words) { return weft::run(count, words); }
