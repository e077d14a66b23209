#include "server/api/responses_output.h"

#include "server/api/service.h"

namespace weft::api {
namespace {

void append(Json& list, const Json& more) { list.insert(list.end(), more.begin(), more.end()); }

}  // namespace

void ResponseOutput::add_logprobs(const Json& tokens) { append(waiting_, tokens); }

void ResponseOutput::add(const ChatEvent& event) {
  switch (event.kind) {
    case ChatEvent::Kind::reasoning: return add_text(Kind::reasoning, event.text);
    case ChatEvent::Kind::content:
      if (event.recovered && open_ && open_->kind == Kind::reasoning) open_->withdrawn = true;
      return add_text(Kind::message, event.text);
    case ChatEvent::Kind::call_start:
      close("completed");
      return open({.kind = Kind::call, .id = random_id("fc_"), .text = {}, .name = event.text, .call_id = event.call_id});
    case ChatEvent::Kind::call_arguments:
      if (!open_ || open_->kind != Kind::call) return;
      open_->text += event.text;
      return emit("response.function_call_arguments.delta", {{"item_id", open_->id}, {"delta", event.text}});
    case ChatEvent::Kind::call_end:
      if (open_) open_->whole = true;
      return close("completed");
    case ChatEvent::Kind::finish: return;
  }
}

void ResponseOutput::add_text(Kind kind, const std::string& text) {
  if (!open_ || open_->kind != kind) {
    close("completed");
    open({.kind = kind, .id = random_id(kind == Kind::reasoning ? "rs_" : "msg_"), .text = {}, .name = {}, .call_id = {}});
  }
  open_->text += text;
  Json fields{{"item_id", open_->id}, {"content_index", 0}, {"delta", text}};
  if (kind == Kind::reasoning) return emit("response.reasoning_text.delta", std::move(fields));
  fields["logprobs"] = std::exchange(waiting_, Json::array());
  append(open_->logprobs, fields["logprobs"]);
  emit("response.output_text.delta", std::move(fields));
}

void ResponseOutput::open(Item item) {
  open_ = std::move(item);
  emit("response.output_item.added", {{"item", item_json("in_progress")}});
  if (open_->kind != Kind::call)
    emit("response.content_part.added", {{"item_id", open_->id}, {"content_index", 0}, {"part", part_json()}});
}

void ResponseOutput::close(std::string_view status) {
  if (!open_) return;
  if (open_->kind == Kind::call) {
    emit("response.function_call_arguments.done", {{"item_id", open_->id}, {"name", open_->name}, {"arguments", open_->text}});
  } else {
    Json done{{"item_id", open_->id}, {"content_index", 0}, {"text", open_->text}};
    if (open_->kind == Kind::message) {
      append(open_->logprobs, std::exchange(waiting_, Json::array()));
      done["logprobs"] = open_->logprobs;
    }
    emit(open_->kind == Kind::message ? "response.output_text.done" : "response.reasoning_text.done", std::move(done));
    emit("response.content_part.done", {{"item_id", open_->id}, {"content_index", 0}, {"part", part_json()}});
  }
  const bool abandoned = open_->kind == Kind::call && !open_->whole;
  Json item = item_json(abandoned ? "incomplete" : status);
  emit("response.output_item.done", {{"item", item}});
  items_.push_back(std::move(item));
  open_.reset();
}

void ResponseOutput::emit(std::string_view type, Json fields) {
  if (!emit_) return;
  fields["output_index"] = items_.size();
  emit_(type, fields);
}

Json ResponseOutput::part_json() const {
  if (open_->kind == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", open_->text}};
  return {{"type", "output_text"}, {"text", open_->text}, {"annotations", Json::array()}, {"logprobs", open_->logprobs}};
}

Json ResponseOutput::item_json(std::string_view status) const {
  Json item;
  item["id"] = open_->id;
  const bool begins = status == "in_progress";
  switch (open_->kind) {
    case Kind::reasoning:
      item["type"] = "reasoning";
      item["summary"] = Json::array();
      item["content"] = Json::array();
      if (!begins && !open_->withdrawn) item["content"].push_back(part_json());
      break;
    case Kind::message:
      item["type"] = "message";
      item["role"] = "assistant";
      item["content"] = Json::array();
      if (!begins) item["content"].push_back(part_json());
      break;
    case Kind::call:
      item["type"] = "function_call";
      item["call_id"] = open_->call_id;
      item["name"] = open_->name;
      item["arguments"] = open_->text;
      break;
  }
  item["status"] = status;
  return item;
}

}  // namespace weft::api
