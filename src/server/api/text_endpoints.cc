#include "server/api/text_endpoints.h"

#include "base/utf8.h"
#include "server/api/chat_call.h"
#include "server/api/request_fields.h"

namespace weft::api {
namespace {

using Kind = JsonValue::Kind;

Json piece_json(std::string_view bytes) {
  if (!find_ill_formed_utf8(bytes)) return std::string(bytes);
  Json made = Json::array();
  for (const char byte : bytes) made.push_back(static_cast<uint8_t>(byte));
  return made;
}

}  // namespace

Json tokenize_json(const JsonValue& root, const Service& service) {
  const RequestFields fields(root);
  const Tokenizer& tokenizer = service.model().format().tokenizer();
  const JsonValue* messages = fields.get("messages");
  const JsonValue* content = fields.get("content");
  if (content == nullptr) content = fields.get("prompt");  // as vLLM calls it
  if ((content == nullptr) == (messages == nullptr))
    throw bad_request("content: wanted content or messages, found " + std::string(content == nullptr ? "neither" : "both"),
                      "content");
  if (fields.boolean("add_special").value_or(false))
    throw bad_request("add_special: wanted false: this tokenizer adds no token", "add_special", "unsupported_value");
  std::vector<TokenId> ids;
  if (messages != nullptr) {
    ids = render_chat(root, service).ids;
  } else {
    if (!content->is(Kind::string)) fields.refuse("content", "a string", content);
    ids = tokenizer.encode(content->text, fields.boolean("parse_special").value_or(false));
  }
  const bool pieces = fields.boolean("with_pieces").value_or(false);
  Json tokens = Json::array();
  for (const TokenId id : ids) {
    if (pieces) {
      Json token;
      token["id"] = id;
      token["piece"] = piece_json(tokenizer.token_bytes(id));
      tokens.push_back(std::move(token));
    } else {
      tokens.push_back(id);
    }
  }
  Json made;
  made["tokens"] = std::move(tokens);
  made["count"] = ids.size();
  made["max_model_len"] = service.context();
  return made;
}

Json detokenize_json(const JsonValue& root, const Service& service) {
  const RequestFields fields(root);
  const Tokenizer& tokenizer = service.model().format().tokenizer();
  if (fields.get("tokens", Kind::array) == nullptr) fields.refuse("tokens", "an array of token ids", nullptr);
  std::vector<TokenId> ids;
  for (const int64_t id : fields.integers("tokens", 0, tokenizer.vocab_size() - 1)) ids.push_back(static_cast<TokenId>(id));
  Json made;
  made["content"] = tokenizer.decode(ids, ControlText::all);
  return made;
}

Json apply_template_json(const JsonValue& root, const Service& service) {
  std::string text;
  for (const Segment& segment : render_chat(root, service).segments) text += segment.bytes;
  Json made;
  made["prompt"] = std::move(text);
  return made;
}

}  // namespace weft::api
