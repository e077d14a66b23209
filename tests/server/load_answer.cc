#include "server/load_answer.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include <fmt/format.h>

namespace weft::load_test {
namespace {

constexpr size_t kMostChoices = 16;
constexpr std::string_view kEndOfHead = "\r\n\r\n";

[[noreturn]] void wrong(const std::string& what, std::string_view found) {
  throw std::runtime_error(fmt::format("{}: {}", what, found.substr(0, 300)));
}

// Of a header, as the server writes its name.
std::string_view value_of(std::string_view head, std::string_view name) {
  const size_t at = head.find(fmt::format("\r\n{}: ", name));
  if (at == std::string_view::npos) return {};
  const size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

size_t number(std::string_view text, int base) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) wrong("no number of bytes", text);
  return value;
}

// Empty for null and for a key that is not there.
std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? std::string() : found->get<std::string>();
}

}  // namespace

void AnswerReader::take(std::string_view bytes, std::vector<size_t>* told) {
  told_ = told;
  if (complete_ && !bytes.empty()) wrong("bytes behind the answer", bytes);
  in_ += bytes;
  if (!head_read_) read_head();
  if (!head_read_ || complete_) return;
  if (chunked_) {
    read_chunks();
  } else {
    body_ += in_;
    in_.clear();
    if (body_.size() > length_) wrong("bytes behind the answer", std::string_view(body_).substr(length_));
    if (body_.size() == length_) {
      read_whole();
      complete_ = true;
    }
  }
}

void AnswerReader::read_head() {
  const size_t end = in_.find(kEndOfHead);
  if (end == std::string::npos) return;
  head_ = in_.substr(0, end + kEndOfHead.size());
  in_.erase(0, head_.size());
  if (!head_.starts_with("HTTP/1.1 ")) wrong("no answer of HTTP/1.1", head_);
  status_ = static_cast<int>(number(std::string_view(head_).substr(9, 3), 10));
  head_read_ = true;
  keeps_alive_ = value_of(head_, "Connection") != "close";
  chunked_ = value_of(head_, "Transfer-Encoding") == "chunked";
  streams_ = value_of(head_, "Content-Type").starts_with("text/event-stream");
  if (chunked_ != streams_) wrong("wanted a stream in chunks, or neither", head_);
  if (!chunked_) length_ = number(value_of(head_, "Content-Length"), 10);
}

void AnswerReader::read_chunks() {
  size_t at = 0;
  while (!complete_) {
    const size_t line = in_.find("\r\n", at);
    if (line == std::string::npos) break;
    const size_t bytes = number(std::string_view(in_).substr(at, line - at), 16);
    if (in_.size() < line + bytes + 4) break;
    if (in_.compare(line + 2 + bytes, 2, "\r\n") != 0) wrong("no end of a chunk", in_.substr(at));
    body_.append(in_, line + 2, bytes);
    at = line + bytes + 4;
    if (bytes == 0) end();
  }
  in_.erase(0, at);
  read_events();
  if (complete_ && !in_.empty()) wrong("bytes behind the answer", in_);
}

void AnswerReader::end() {
  read_events();
  if (!body_.empty()) wrong("an event without an end", body_);
  if (!done_) wrong("the stream ended without its last event, it said", said_.empty() ? "nothing" : said_[0].text);
  if (finished_.size() != said_.size()) wrong("a choice has no end", said_[0].text);
  complete_ = true;
}

void AnswerReader::read_events() {
  size_t at = 0;
  for (size_t end = body_.find("\n\n"); end != std::string::npos; end = body_.find("\n\n", at)) {
    read_event(std::string_view(body_).substr(at, end - at));
    at = end + 2;
  }
  body_.erase(0, at);
}

void AnswerReader::read_event(std::string_view event) {
  if (event == ": keep-alive") return;
  if (done_) wrong("an event behind the last one", event);
  constexpr std::string_view kName = "event: ";
  constexpr std::string_view kData = "data: ";
  if (event.starts_with(kName)) {
    response_ = true;
    event.remove_prefix(std::min(event.find('\n') + 1, event.size()));
  }
  if (!event.starts_with(kData) || event.find('\n') != std::string_view::npos) wrong("no event of one line", event);
  event.remove_prefix(kData.size());
  if (event == "[DONE]") {
    done_ = true;
    return;
  }
  const Json json = parse_json(event, "event");
  if (json.contains("error") && !json["error"].is_null()) wrong("an error in a stream", event);
  if (response_) {
    read_response_event(json);
  } else {
    read_chat_chunk(json);
  }
}

void AnswerReader::read_chat_chunk(const Json& chunk) {
  const auto& id = chunk.at("id").get_ref<const std::string&>();
  if (id_.empty()) id_ = id;
  if (id != id_) wrong(fmt::format("a chunk of another answer than {}", id_), id);
  for (const Json& choice : chunk.at("choices")) {
    const auto index = choice.at("index").get<size_t>();
    if (std::ranges::count(finished_, index) != 0) wrong("a chunk behind the end of its choice", choice.dump());
    if (choice.contains("delta")) {
      const Json& delta = choice["delta"];
      say(index, "reasoning", text_at(delta, "reasoning_content"));
      say(index, "content", text_at(delta, "content"));
      if (delta.contains("tool_calls")) {
        for (const Json& one : delta["tool_calls"]) {
          const Json& function = one.at("function");
          if (function.contains("name")) call(index, function["name"]);
          say(index, "call", text_at(function, "arguments"));
        }
      }
    } else {
      say(index, "content", choice.at("text").get_ref<const std::string&>());
    }
    if (choice.contains("logprobs") && choice["logprobs"].is_object()) {
      const Json& logprobs = choice["logprobs"];
      for (const Json& token : logprobs.contains("content") ? logprobs["content"] : logprobs.at("token_logprobs"))
        at(index).logprobs += token.dump() + "\n";
    }
    if (!choice.at("finish_reason").is_null()) finish(index, choice["finish_reason"]);
  }
}

void AnswerReader::read_response_event(const Json& event) {
  if (event.at("sequence_number").get<int64_t>() != next_number_++) wrong("a number is missing", event.dump());
  const auto& type = event.at("type").get_ref<const std::string&>();
  if (type == "response.reasoning_text.delta") {
    say(0, "reasoning", event.at("delta").get_ref<const std::string&>());
  } else if (type == "response.output_text.delta") {
    say(0, "content", event.at("delta").get_ref<const std::string&>());
  } else if (type == "response.output_item.added" && event.at("item").at("type") == "function_call") {
    call(0, event["item"].at("name"));
  } else if (type == "response.function_call_arguments.delta") {
    say(0, "call", event.at("delta").get_ref<const std::string&>());
  } else if (type == "response.completed" || type == "response.incomplete") {
    finish(0, type);
    done_ = true;
  } else if (type == "response.failed" || type == "error") {
    wrong("an error in a stream", event.dump());
  }
}

void AnswerReader::read_whole() {
  if (status_ != 200 || value_of(head_, "Content-Type") != "application/json") return;
  const Json json = parse_json(body_, "answer");
  if (!json.contains("choices")) return;
  for (const Json& choice : json["choices"]) {
    const auto index = choice.at("index").get<size_t>();
    if (choice.contains("message")) {
      const Json& message = choice["message"];
      say(index, "reasoning", text_at(message, "reasoning_content"));
      say(index, "content", text_at(message, "content"));
      if (message.contains("tool_calls")) {
        for (const Json& one : message["tool_calls"]) {
          call(index, one.at("function").at("name"));
          say(index, "call", one["function"].at("arguments").get_ref<const std::string&>());
        }
      }
    } else {
      say(index, "content", choice.at("text").get_ref<const std::string&>());
    }
    finish(index, choice.at("finish_reason"));
  }
}

Said& AnswerReader::at(size_t choice) {
  if (choice >= kMostChoices) wrong("a choice that was not asked for", std::to_string(choice));
  if (said_.size() <= choice) said_.resize(choice + 1);
  return said_[choice];
}

void AnswerReader::say(size_t choice, std::string_view part, std::string_view text) {
  Said& said = at(choice);
  if (text.empty()) return;
  if (said.part != part) said.text += fmt::format("\n[{}] ", part);
  said.part = part;
  said.text += text;
  ++texts_;
  if (told_ != nullptr) told_->push_back(choice);
}

void AnswerReader::call(size_t choice, const std::string& name) {
  Said& said = at(choice);
  said.text += fmt::format("\n[call {}] ", name);
  said.part = "call";
}

void AnswerReader::finish(size_t choice, const std::string& reason) {
  at(choice).text += fmt::format("\n[end {}]", reason);
  if (std::ranges::count(finished_, choice) != 0) wrong("two ends of a choice", reason);
  finished_.push_back(choice);
}

}  // namespace weft::load_test
