#include "text/kimi_tokenizer.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace weft {

Tokenizer load_kimi_tokenizer(const std::filesystem::path& folder) {
  return make_kimi_tokenizer({.tiktoken_model = read_tokenizer_file(folder, "tiktoken.model"),
                              .tokenizer_config = read_tokenizer_file(folder, "tokenizer_config.json"),
                              .config = read_tokenizer_file_if_there(folder, "config.json"),
                              .generation_config = read_tokenizer_file_if_there(folder, "generation_config.json")},
                             folder.string());
}

Tokenizer make_kimi_tokenizer(const KimiFiles& files, std::string_view place) {
  constexpr std::array<std::string_view, 3> kMarkers{"<|open|>", "<|close|>", "<|sep|>"};
  constexpr std::string_view kEndOfMessage = "<|end_of_msg|>";
  RankTable ranks = RankTable::parse(files.tiktoken_model, fmt::format("{}/tiktoken.model", place));
  const std::string config_place = fmt::format("{}/tokenizer_config.json", place);
  const Json config = parse_json(files.tokenizer_config, config_place, ErrorKind::bad_checkpoint);
  ControlTokens control(read_added_tokens(config, config_place), ranks.size(), kKimiControlTokens, config_place);

  const TokenId vocab_size = ranks.size() + control.count();
  const TokenId end_of_message = control.find(kEndOfMessage);
  if (end_of_message < 0)
    fail(ErrorKind::bad_checkpoint, config_place, "wanted the control token '{}', found none of that name", kEndOfMessage);
  std::vector<TokenId> stop_ids{end_of_message};
  if (const TokenId eos = control.find("[EOS]"); eos >= 0) stop_ids.push_back(eos);
  add_stop_ids(files.config, fmt::format("{}/config.json", place), vocab_size, stop_ids);
  add_stop_ids(files.generation_config, fmt::format("{}/generation_config.json", place), vocab_size, stop_ids);
  check_roles(control, kMarkers, config_place, stop_ids);

  Tokenizer tokenizer({std::move(ranks), std::move(control), TextRule::kimi, std::move(stop_ids)});
  check_spellings(tokenizer, kMarkers, config_place);
  check_spellings(tokenizer, std::array{kEndOfMessage}, config_place);
  return tokenizer;
}

}  // namespace weft
