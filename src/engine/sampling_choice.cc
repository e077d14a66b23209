#include "engine/sampling_choice.h"

#include <charconv>
#include <random>
#include <string>

#include "base/file.h"
#include "base/guard.h"
#include "base/utf8.h"

namespace weft {
namespace {

using Kind = JsonValue::Kind;

class Reader {
 public:
  Reader(const JsonValue& object, std::string_view place, ErrorKind kind) : object_(object), place_(place), kind_(kind) {
    if (!object.is(Kind::object)) fail(kind, place, "wanted an object, found {}", describe(object.kind));
  }

  template <class Number>
  void read(std::string_view key, std::optional<Number>& out) const {
    const JsonValue* value = object_.find(key);
    if (value == nullptr || value->is(Kind::null)) return;
    const std::string_view wanted = std::is_floating_point_v<Number> ? "a number" : "an integer";
    if (!value->is(Kind::number)) fail(kind_, place_, "{}: wanted {}, found {}", key, wanted, describe(value->kind));
    Number number{};
    const char* end = value->text.data() + value->text.size();
    const auto [at, error] = std::from_chars(value->text.data(), end, number);
    if (error != std::errc() || at != end) fail(kind_, place_, "{}: wanted {}, found {}", key, wanted, shortened(value->text));
    out = number;
  }

 private:
  const JsonValue& object_;
  std::string_view place_;
  ErrorKind kind_;
};

double in_range(std::string_view name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail(ErrorKind::bad_input, "sampling", "{}: wanted a number from {} to {}, found {}", name, low, high, value);
  }
  return value;
}

uint64_t random_seed() {
  std::random_device source;
  const uint64_t high = source();
  return ((high << 32U) | source()) & ((1ULL << 53U) - 1);
}

}  // namespace

SamplingChoice SamplingChoice::read(const JsonValue& object, std::string_view place, ErrorKind kind) {
  const Reader reader(object, place, kind);
  SamplingChoice choice;
  reader.read("temperature", choice.temperature);
  reader.read("top_p", choice.top_p);
  reader.read("top_k", choice.top_k);
  reader.read("min_p", choice.min_p);
  reader.read("repetition_penalty", choice.repetition_penalty);
  reader.read("frequency_penalty", choice.frequency_penalty);
  reader.read("presence_penalty", choice.presence_penalty);
  std::optional<int64_t> seed;
  reader.read("seed", seed);
  if (seed) choice.seed = static_cast<uint64_t>(*seed);
  return choice;
}

SamplingChoice SamplingChoice::or_else(const SamplingChoice& next) const {
  const auto first = [](const auto& a, const auto& b) { return a ? a : b; };
  return {.temperature = first(temperature, next.temperature),
          .top_p = first(top_p, next.top_p),
          .top_k = first(top_k, next.top_k),
          .min_p = first(min_p, next.min_p),
          .repetition_penalty = first(repetition_penalty, next.repetition_penalty),
          .frequency_penalty = first(frequency_penalty, next.frequency_penalty),
          .presence_penalty = first(presence_penalty, next.presence_penalty),
          .seed = first(seed, next.seed)};
}

ops::SamplingParams SamplingChoice::resolve() const {
  ops::SamplingParams params;
  params.temperature = static_cast<float>(in_range("temperature", temperature.value_or(1.0), 0.0, 2.0));
  params.top_p = static_cast<float>(in_range("top_p", top_p.value_or(1.0), 0.0, 1.0));
  params.top_k = top_k.value_or(0);
  if (params.top_k < -1) {
    fail(ErrorKind::bad_input, "sampling", "top_k: wanted a count, or 0 or -1 for off, found {}", params.top_k);
  }
  if (params.top_k == -1) params.top_k = 0;
  if (params.top_p == 0.0F) {
    params.top_p = 1.0F;
    params.top_k = 1;
  }
  params.min_p = static_cast<float>(in_range("min_p", min_p.value_or(0.0), 0.0, 1.0));
  const double repetition = repetition_penalty.value_or(1.0);
  if (!(repetition > 0.0 && repetition <= 1e6)) {
    fail(ErrorKind::bad_input, "sampling", "repetition_penalty: wanted a number above 0, found {}", repetition);
  }
  params.repetition_penalty = static_cast<float>(repetition);
  params.frequency_penalty = static_cast<float>(in_range("frequency_penalty", frequency_penalty.value_or(0.0), -2.0, 2.0));
  params.presence_penalty = static_cast<float>(in_range("presence_penalty", presence_penalty.value_or(0.0), -2.0, 2.0));
  params.seed = seed ? *seed : random_seed();
  params.validate();
  return params;
}

SamplingChoice read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  const std::string place = path.string();
  JsonValue config;
  try {
    config = parse_json_value(read_text_file(path, ErrorKind::bad_checkpoint), place);
  } catch (const Error&) {
    // The reader of requests calls bad JSON the user's fault; here it is the checkpoint's.
    Failure failure = current_failure();
    failure.kind = ErrorKind::bad_checkpoint;
    failure.raise();
  }
  SamplingChoice choice = SamplingChoice::read(config, place, ErrorKind::bad_checkpoint);
  try {
    static_cast<void>(choice.resolve());
  } catch (const Error& error) {
    fail(ErrorKind::bad_checkpoint, place, "{}", error.what());
  }
  choice.seed.reset();
  const JsonValue* sampled = config.find("do_sample");
  if (sampled != nullptr && sampled->is(Kind::boolean) && !sampled->boolean) choice.temperature = 0.0;
  return choice;
}

}  // namespace weft
