#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/chat_session.h"
#include "engine/model.h"

namespace weft::engine_test {

inline std::filesystem::path mini_dir() { return std::filesystem::path(WEFT_SOURCE_DIR) / "models/k3-mini"; }

inline Model& mini() {
  static const std::unique_ptr<Model> model = [] {
    ModelOptions options;
    options.dir = mini_dir();
    options.threads = 1;
    return Model::load(options);
  }();
  return *model;
}

inline EngineOptions engine_options(const Model& model = mini()) {
  EngineOptions options;
  options.max_context = model.max_context();
  options.state_memory = ByteCount(256 << 20);
  return options;
}

inline const ChatFormat& format() { return mini().format(); }

inline ChatRequest ask(const std::string& text) {
  ChatRequest request = parse_chat_request(R"({"messages": [{"role": "user", "content": ""}]})");
  request.messages[0].content = {text};
  return request;
}

inline AnswerOptions greedy() {
  AnswerOptions options;
  options.turn.sampling.temperature = 0.0F;
  return options;
}

// Ids of a text in which the control tokens are spelled out.
inline std::vector<TokenId> ids_of(const std::string& text) { return format().tokenizer().encode(text, true); }

inline std::string text_of(const std::vector<TokenId>& ids) { return format().tokenizer().decode(ids, ControlText::all); }

// The whole conversation rendered anew, without a generation prompt.
inline ChatPrompt rendered_anew(ChatRequest request, const std::vector<ChatMessage>& messages) {
  request.messages = messages;
  request.add_generation_prompt = false;
  return format().render(request);
}

inline std::string joined(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.bytes;
  return text;
}

}  // namespace weft::engine_test
