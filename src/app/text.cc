// weft text: the text side of a checkpoint, JSON in, JSON out.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/terminal.h"
#include "text/text_json.h"

namespace weft {
namespace {

using Work = std::string (*)(const ChatFormat&, std::string_view);

struct Flags {
  std::string dir;
  std::string input = "-";
};

ExitCode run(const Flags& flags, Work work) {
  const ChatFormat format = while_loading([&] { return ChatFormat::load(flags.dir); });
  write_output(work(format, read_input(flags.input)) + "\n");
  return kExitSuccess;
}

void add(CLI::App& app, Command& command, const char* name, const char* what, const char* footer, Work work) {
  auto flags = std::make_shared<Flags>();
  CLI::App* sub = app.add_subcommand(name, what);
  sub->footer(footer);
  sub->add_option("-m,--model", flags->dir, "Folder with the tokenizer's files")->required()->type_name("DIR");
  sub->add_option("--input", flags->input, "JSON ('-': standard input)")->type_name("FILE")->capture_default_str();
  sub->callback([flags, work, &command] { command.run = [flags, work] { return run(*flags, work); }; });
}

}  // namespace

void add_text(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("text", "Tokens, prompts and answers as JSON");
  sub->require_subcommand(1);
  sub->footer(R"(Examples:
  echo '{"text": "Hello"}' | weft text encode -m models/k3-mini
  echo '{"ids": [40, 845, 299]}' | weft text decode -m models/k3-mini
  echo '{"messages": [{"role": "user", "content": "Hi"}]}' | weft text render -m models/k3-mini)");
  add(*sub, command, "encode", "Text to token ids",
      R"(Input: {"text": "...", "allow_special": false} or {"segments": [["text", is_control], ...]}
Output: {"ids": [...], "count": n}

Example:
  echo '{"text": "Hello"}' | weft text encode -m models/k3-mini)",
      text_encode_json);
  add(*sub, command, "decode", "Token ids to text", R"(Input: {"ids": [...], "control": "none"}, or what encode wrote
Output: {"text": "..."}
"control" is what stands for a control token:
  "none"       nothing (the default)
  "unflagged"  its name where its special flag is false, else nothing (skip_special_tokens of other programs)
  "all"        its name

Example:
  echo '{"ids": [40, 845, 299]}' | weft text decode -m models/k3-mini)",
      text_decode_json);
  add(*sub, command, "render", "A chat request to its prompt",
      R"(Input: a chat request, {"messages": [...], "tools": [...], ...}
Output: {"text", "segments", "ids", "count", "start", "notes"}

Example:
  echo '{"messages": [{"role": "user", "content": "Hi"}]}' | weft text render -m models/k3-mini)",
      text_render_json);
  add(*sub, command, "parse", "What a model wrote to reasoning, content and tool calls",
      R"(Input: {"ids": [...]} or {"text": "..."}, with "start": "think" | "response" | "start", "end": "stop" | "length",
  "discard_calls": false, "pieces": n (the text is fed n bytes at a time)
Output: {"reasoning_content", "content", "tool_calls", "finish_reason", "complete", "events", "counters"}

Example:
  echo '{"text": "<|open|>response<|sep|>391<|close|>response<|sep|>"}' | weft text parse -m models/k3-mini)",
      text_parse_json);
}

}  // namespace weft
