// What the configuration says about packed weights.
#include <map>
#include <regex>

#include "base/error.h"
#include "formats/packed.h"

namespace weft {
namespace {

constexpr std::string_view kKey = "quantization_config";

constexpr size_t kMaxShown = 200;     // characters of a foreign value that a message repeats
constexpr size_t kMaxPattern = 1000;  // characters: the compiler of patterns recurses once a nested group

std::string shown(const Json* value) {
  if (value == nullptr) return "nothing";
  std::string text = value->dump(-1, ' ', true);
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

const Json* member(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

class ConfigChecker {
 public:
  ConfigChecker(std::string_view place, bool has_zero_points) : place_(place), has_zero_points_(has_zero_points) {}

  QuantizationRules check(const Json& config) {
    if (!config.is_object()) bad(std::string(kKey), "an object", &config);
    want(config, "", "quant_method", "compressed-tensors");
    want(config, "", "format", kMxfp4Format);
    want_absent(config, "", "kv_cache_scheme");
    const Json* groups = member(config, "config_groups");
    if (groups == nullptr || !groups->is_object() || groups->empty())
      bad(path("", "config_groups"), "an object with at least one group", groups);
    QuantizationRules rules;
    for (const auto& [name, group] : groups->items()) check_group("config_groups." + name, group, rules);
    if (const Json* ignore = member(config, "ignore"); ignore != nullptr && !ignore->is_null()) {
      if (!ignore->is_array()) bad(path("", "ignore"), "a list of strings", ignore);
      for (const Json& entry : *ignore) {
        if (!entry.is_string()) bad(path("", "ignore"), "a list of strings", ignore);
        rules.ignore.push_back(entry.get<std::string>());
      }
    }
    return rules;
  }

 private:
  static std::string path(const std::string& group, const std::string& key) {
    return group.empty() ? fmt::format("{}.{}", kKey, key) : fmt::format("{}.{}.{}", kKey, group, key);
  }

  [[noreturn]] void bad(const std::string& key, std::string_view wanted, const Json* found) const {
    fail(ErrorKind::bad_checkpoint, place_, "{}: wanted {}, found {}", key, wanted, shown(found));
  }

  void want(const Json& object, const std::string& group, const std::string& key, const Json& wanted) const {
    const Json* found = member(object, key);
    // Numbers compare by value in this library, and 4.0 is not what a writer of 4 meant.
    if (found == nullptr || found->type_name() != std::string_view(wanted.type_name()) || *found != wanted ||
        found->is_number_float())
      bad(path(group, key), wanted.dump(), found);
  }

  void want_absent(const Json& object, const std::string& group, const std::string& key) const {
    const Json* found = member(object, key);
    if (found != nullptr && !found->is_null()) bad(path(group, key), "null or no such key", found);
  }

  void check_group(const std::string& name, const Json& group, QuantizationRules& rules) const {
    if (!group.is_object()) bad(fmt::format("{}.{}", kKey, name), "an object", &group);
    if (const Json* format = member(group, "format"); format != nullptr && *format != Json(kMxfp4Format))
      bad(path(name, "format"), fmt::format("\"{}\" or no such key", kMxfp4Format), format);
    const Json* targets = member(group, "targets");
    if (targets == nullptr || !targets->is_array() || targets->empty())
      bad(path(name, "targets"), "a list of at least one string", targets);
    for (const Json& target : *targets) {
      if (!target.is_string()) bad(path(name, "targets"), "a list of at least one string", targets);
      rules.targets.push_back(target.get<std::string>());
    }
    want_absent(group, name, "input_activations");
    want_absent(group, name, "output_activations");
    const Json* weights = member(group, "weights");
    if (weights == nullptr || !weights->is_object()) bad(path(name, "weights"), "an object", weights);
    const std::string inside = name + ".weights";
    want(*weights, inside, "num_bits", 4);
    want(*weights, inside, "type", "float");
    want(*weights, inside, "strategy", "group");
    want(*weights, inside, "group_size", 32);
    want(*weights, inside, "symmetric", true);
    want(*weights, inside, "dynamic", false);
    want(*weights, inside, "scale_dtype", "torch.uint8");
    want_absent(*weights, inside, "actorder");
    want_absent(*weights, inside, "block_structure");
    // The compressed-tensors preset states a zp_dtype although a symmetric format stores no zero point.
    if (has_zero_points_) {
      want_absent(*weights, inside, "zp_dtype");
    } else if (const Json* type = member(*weights, "zp_dtype"); type != nullptr && !type->is_null() && !type->is_string()) {
      bad(path(inside, "zp_dtype"), "a dtype's name, null or no such key", type);
    }
  }

  std::string_view place_;
  bool has_zero_points_;
};

// One entry of `targets` or `ignore`.
class Pattern {
 public:
  Pattern(const std::string& text, std::string_view place) : text_(text) {
    if (!text.starts_with("re:")) return;
    if (text.size() > kMaxPattern) {
      fail(ErrorKind::unsupported, place, "{}: wanted patterns of at most {} characters, found {}", kKey, kMaxPattern,
           text.size());
    }
    // A counted repetition multiplies the states of the matcher, which recurses over them.
    if (text.find('{') != std::string::npos)
      fail(ErrorKind::unsupported, place, "{}: the pattern '{}' is not understood: counted repetition", kKey, text);
    auto flags = std::regex::ECMAScript | std::regex::optimize;
#ifdef __GLIBCXX__
    // The default matcher of libstdc++ recurses once a character and backtracks without bound; names and patterns are foreign.
    flags |= std::regex_constants::__polynomial;
#endif
    try {
      regex_.emplace(text.substr(3), flags);
    } catch (const std::regex_error& error) {
      fail(ErrorKind::unsupported, place, "{}: the pattern '{}' is not understood: {}", kKey, text, error.what());
    }
  }

  // Python's re.match: anchored at the start only. `Linear` is the class that is_linear stands for.
  [[nodiscard]] bool matches(std::string_view module) const {
    if (!regex_) return text_ == "Linear" || text_ == module;
    return std::regex_search(module.begin(), module.end(), *regex_, std::regex_constants::match_continuous);
  }

  // A pattern without a digit cannot tell digits apart.
  [[nodiscard]] bool tells_digits() const {
    return text_ != "Linear" && (!regex_ || std::ranges::any_of(text_, [](char c) { return c >= '0' && c <= '9'; }));
  }

 private:
  std::string text_;
  std::optional<std::regex> regex_;
};

}  // namespace

const Json* find_quantization_config(const Json& config, std::string_view place) {
  const Json* top = config.is_object() ? member(config, std::string(kKey)) : nullptr;
  const Json* text = config.is_object() ? member(config, "text_config") : nullptr;
  const Json* inner = text != nullptr && text->is_object() ? member(*text, std::string(kKey)) : nullptr;
  if (top != nullptr && top->is_null()) top = nullptr;
  if (inner != nullptr && inner->is_null()) inner = nullptr;
  // Conversions of MLX state theirs at the top, beside what the original was.
  if (top != nullptr && member(config, "quantization") != nullptr) return top;
  if (top != nullptr && inner != nullptr && *top != *inner)
    fail(ErrorKind::bad_checkpoint, place, "{0}: wanted equal values at the top level and in text_config, found two", kKey);
  return inner != nullptr ? inner : top;
}

QuantizationRules check_quantization_config(const Json& quantization_config, std::string_view place, bool has_zero_points) {
  return ConfigChecker(place, has_zero_points).check(quantization_config);
}

void check_packed_policy(const PackedNames& names, const QuantizationRules& rules, std::string_view place,
                         const std::function<bool(std::string_view module)>& is_linear) {
  std::vector<Pattern> targets;
  std::vector<Pattern> ignore;
  for (const std::string& text : rules.targets) targets.emplace_back(text, place);
  for (const std::string& text : rules.ignore) ignore.emplace_back(text, place);
  const auto any = [](const std::vector<Pattern>& patterns, const auto& predicate) {
    return std::ranges::any_of(patterns, predicate);
  };
  // Where no pattern tells digits apart, all experts of all layers share a few templates, and only those are matched.
  const auto tells = [](const Pattern& pattern) { return pattern.tells_digits(); };
  const bool by_template = !any(targets, tells) && !any(ignore, tells);
  std::map<std::string, bool> known;
  for (const std::string_view name : names.packed) {
    const std::string module(name.substr(0, name.size() - kPackedSuffix.size()));
    bool eligible = is_linear(module);
    if (eligible) {
      std::string key = module;
      if (by_template) std::ranges::replace_if(key, [](char c) { return c >= '0' && c <= '9'; }, '0');
      const auto [entry, is_new] = known.try_emplace(std::move(key), false);
      if (is_new) {
        const auto matches = [&](const Pattern& pattern) { return pattern.matches(module); };
        entry->second = any(targets, matches) && !any(ignore, matches);
      }
      eligible = entry->second;
    }
    if (!eligible) {
      fail(ErrorKind::bad_checkpoint, place, "tensor '{}' is packed, but lies outside the packed-weight policy of {}", name,
           kKey);
    }
  }
}

void check_packed_against_config(const PackedNames& names, const Json& config, std::string_view place,
                                 const std::function<bool(std::string_view module)>& is_linear) {
  const Json* quantization = find_quantization_config(config, place);
  if (quantization == nullptr) {
    if (names.packed.empty()) return;
    fail(ErrorKind::bad_checkpoint, place, "wanted '{}' for {} packed tensors, the first of them '{}', found no such key", kKey,
         names.packed.size(), names.packed.front());
  }
  const QuantizationRules rules = check_quantization_config(*quantization, place, names.has_zero_points);
  check_packed_policy(names, rules, place, is_linear);
}

}  // namespace weft
