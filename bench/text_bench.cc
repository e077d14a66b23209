// Loading and encoding with a generated vocabulary of the published size, the long pieces, and the parser. Rates are bytes of
// text per second on one core. `build/release/bench/weft_text_bench --benchmark_repetitions=5`
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "base/file.h"
#include "text/kimi_tokenizer.h"
#include "text/parser_streams.h"
#include "text/toy_vocabulary.h"
#include "text/xtml_parser.h"

namespace weft {
namespace {

const std::filesystem::path kSource = WEFT_BENCH_SOURCE;
constexpr size_t kRanks = 163'584;
constexpr size_t kTextBytes = 4 << 20;

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> made = text_test::toy_tokens(kRanks);
  return made;
}
const KimiFiles& files() {
  static const KimiFiles made{.tiktoken_model = text_test::model_file(tokens()),
                              .tokenizer_config = text_test::config_file(kRanks),
                              .config = {},
                              .generation_config = {}};
  return made;
}
const Tokenizer& generated() {
  static const Tokenizer made = make_kimi_tokenizer(files());
  return made;
}

void load(benchmark::State& state) {
  (void)files();
  for (auto step : state) benchmark::DoNotOptimize(make_kimi_tokenizer(files()).vocab_size());
}
BENCHMARK(load)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state, const std::string& text, const Tokenizer& tokenizer = generated()) {
  size_t ids = 0;
  for (auto step : state) ids = tokenizer.encode(text).size();
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
  state.counters["bytes_per_token"] = static_cast<double>(text.size()) / static_cast<double>(ids);
}

void encode_text(benchmark::State& state) { encode(state, text_test::toy_text(tokens(), kTextBytes, 5)); }
BENCHMARK(encode_text)->Unit(benchmark::kMillisecond);

// The project's own documents, as often as it takes: words that come again and again, few of them a token of either vocabulary.
std::string documents() {
  std::vector<std::filesystem::path> files{kSource / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "docs"))
    if (entry.path().extension() == ".md") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string once;
  for (const auto& file : files) once += read_text_file(file);
  std::string text;
  while (text.size() < 10'000'000) text += once;
  return text;
}

void encode_documents(benchmark::State& state) { encode(state, documents()); }
BENCHMARK(encode_documents)->Unit(benchmark::kMillisecond);

// A trained vocabulary, but a small one.
void encode_documents_small_vocabulary(benchmark::State& state) {
  static const Tokenizer small = load_kimi_tokenizer(kSource / "models/k3-mini");
  encode(state, documents(), small);
}
BENCHMARK(encode_documents_small_vocabulary)->Unit(benchmark::kMillisecond);

// No piece is a token: everything is merged from single bytes.
void encode_random_letters(benchmark::State& state) {
  text_test::Numbers numbers(9);
  std::string text;
  while (text.size() < kTextBytes) text += numbers.below(8) == 0 ? ' ' : static_cast<char>('a' + numbers.below(26));
  encode(state, text);
}
BENCHMARK(encode_random_letters)->Unit(benchmark::kMillisecond);

void encode_one_emoji(benchmark::State& state) {
  std::string text;
  while (text.size() < 1 << 20) text += "\xF0\x9F\x98\x80";
  encode(state, text);
}
BENCHMARK(encode_one_emoji)->Unit(benchmark::kMillisecond);

void encode_one_space(benchmark::State& state) { encode(state, std::string(1 << 20, ' ')); }
BENCHMARK(encode_one_space)->Unit(benchmark::kMillisecond);

void parse_ids(benchmark::State& state) {
  std::vector<Segment> segments = text_test::segments_of("⟨/think⟩⟨response⟩");
  segments.push_back({text_test::toy_text(tokens(), 1 << 20, 5), false});
  const auto ids = generated().encode(segments);
  for (auto step : state) {
    OutputParser parser = xtml_parser(generated(), {.start = ParserStart::think});
    for (const TokenId id : ids) {
      parser.feed_token(id);
      benchmark::DoNotOptimize(parser.take_events());
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ids.size()));
}
BENCHMARK(parse_ids)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
