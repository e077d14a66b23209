#include "server/api/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/utf8.h"
#include "server/api/request_fields.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMostStops = 16;
constexpr size_t kLongestStop = 256;  // bytes
constexpr double kMostBias = 100.0;

std::vector<std::string> read_stop(const RequestFields& fields) {
  const JsonValue* value = fields.get("stop");
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  if (value->is(Kind::string)) {
    stops.push_back(value->text);
  } else if (value->is(Kind::array)) {
    for (const JsonValue& item : value->items) {
      if (!item.is(Kind::string)) fields.refuse("stop", "strings", &item);
      stops.push_back(item.text);
    }
  } else {
    fields.refuse("stop", "a string or an array of strings", value);
  }
  if (stops.size() > kMostStops)
    throw bad_request(fmt::format("stop: wanted at most {} strings, found {}", kMostStops, stops.size()), "stop");
  // What some clients send for "no stop".
  if (value->is(Kind::string) && value->text.empty()) return {};
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kLongestStop)
      throw bad_request(fmt::format("stop: wanted strings of 1 to {} bytes, found one of {}", kLongestStop, stop.size()),
                        "stop");
  }
  return stops;
}

std::vector<ops::LogitBias> read_bias(const RequestFields& fields, int64_t vocab) {
  const JsonValue* value = fields.get("logit_bias", Kind::object);
  if (value == nullptr) return {};
  std::map<int32_t, float> found;
  for (const auto& [key, bias] : value->members) {
    int32_t id = 0;
    const char* end = key.data() + key.size();
    const auto [at, error] = std::from_chars(key.data(), end, id);
    if (error != std::errc() || at != end || id < 0 || id >= vocab) {
      throw bad_request(fmt::format("logit_bias: wanted token ids from 0 to {}, found '{}'", vocab - 1, shortened(key)),
                        "logit_bias");
    }
    const std::optional<double> number = number_of(bias);
    if (!number || *number < -kMostBias || *number > kMostBias) {
      throw bad_request(fmt::format("logit_bias.{}: wanted a number from -100 to 100, found {}", id, shown(&bias)),
                        "logit_bias");
    }
    found[id] = static_cast<float>(*number);
  }
  std::vector<ops::LogitBias> made;
  for (const auto& [id, bias] : found) made.push_back({id, bias});
  return made;
}

TokenEndOptions read_end(const RequestFields& fields, int64_t vocab) {
  TokenEndOptions end;
  for (const int64_t id : fields.integers("stop_token_ids", 0, vocab - 1)) end.ids.push_back(static_cast<TokenId>(id));
  end.ignore = fields.boolean("ignore_eos").value_or(false);
  end.least = fields.integer("min_tokens", 0, INT64_MAX).value_or(0);
  return end;
}

}  // namespace

ops::SamplingParams GenerationFields::sampling_of(int64_t choice) const {
  ops::SamplingParams params = sampling;
  params.seed += static_cast<uint64_t>(choice);
  return params;
}

GenerationFields read_generation(const JsonValue& root, const Service& service) {
  const RequestFields fields(root);
  GenerationFields made;
  made.model = service.asked_model(root);
  const Model& model = service.model();
  const int64_t vocab = model.format().tokenizer().vocab_size();
  made.sampling = SamplingChoice::read(root, "request").or_else(service.options().defaults).or_else(model.defaults()).resolve();
  made.max_tokens = fields.integer("max_completion_tokens", 1, INT64_MAX);
  if (!made.max_tokens) made.max_tokens = fields.integer("max_tokens", 1, INT64_MAX);
  if (!made.max_tokens) made.max_tokens = service.options().default_max_tokens;
  made.bias = read_bias(fields, vocab);
  made.stop = read_stop(fields);
  made.end = read_end(fields, vocab);
  made.choices = fields.integer("n", 1, service.options().most_choices).value_or(1);
  made.stream = fields.boolean("stream").value_or(false);
  if (const JsonValue* options = fields.get("stream_options")) {
    if (!made.stream) throw bad_request("stream_options: wanted it beside stream: true only", "stream_options");
    const RequestFields inner(*options, "stream_options");
    made.include_usage = inner.boolean("include_usage").value_or(false);
    inner.check("include_obfuscation", Kind::boolean);
  }
  if (made.max_tokens && made.end.least > *made.max_tokens) {
    throw bad_request(fmt::format("min_tokens: wanted at most max_tokens ({}), found {}", *made.max_tokens, made.end.least),
                      "min_tokens");
  }
  return made;
}

}  // namespace weft::api
