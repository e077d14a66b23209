// What the clients of a load test ask k3-mini, and the answers to it when nothing else runs.
#include <array>

#include <fmt/format.h>

#include "server/http_client.h"
#include "server/load_clients.h"

namespace weft::load_test {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletions = "/v1/completions";
constexpr const char* kResponses = "/v1/responses";
constexpr std::array<const char*, 8> kCities = {"Tokyo", "Paris", "Lima", "Cairo", "Oslo", "Madrid", "Berlin", "Rome"};
constexpr std::array<const char*, 8> kCountries = {"Chile", "France", "Japan", "Italy", "Egypt", "Peru", "Kenya", "Norway"};
constexpr std::array<const char*, 8> kTasks = {"reverses a string",          "adds two numbers",         "sorts a list",
                                               "counts the words of a text", "finds the largest number", "opens a file",
                                               "checks for a palindrome",    "computes a factorial"};
constexpr std::array<const char*, 8> kBeginnings = {"Once upon",       "The function returns", "def main(",
                                                    "In SQL, a table", "The result of",        "import os",
                                                    "A list is",       "To open a file"};

const Json kWeather = {{"name", "get_weather"},
                       {"description", "Get the current weather for a city."},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{"city", {{"type", "string"}, {"description", "City name"}}}}},
                         {"required", {"city"}}}}};
const Json kSchema = {
    {"type", "json_schema"},
    {"json_schema",
     {{"name", "a"},
      {"strict", true},
      {"schema",
       {{"type", "object"},
        {"properties", {{"name", {{"type", "string"}, {"maxLength", 20}}}, {"number", {{"type", "integer"}}}}},
        {"required", {"name", "number"}},
        {"additionalProperties", false}}}}}};

class Maker {
 public:
  explicit Maker(std::string model) : model_(std::move(model)) {}

  [[nodiscard]] Json chat(const std::string& text, int64_t most = 100) const {
    return {{"model", model_},
            {"messages", {{{"role", "user"}, {"content", text}}}},
            {"temperature", 0},
            {"max_completion_tokens", most}};
  }
  [[nodiscard]] Json base() const { return {{"model", model_}, {"temperature", 0}}; }

  void add(const char* path, const Json& body) { asks_.push_back({path, body.dump()}); }
  void add_stream(const char* path, Json body) {
    body["stream"] = true;
    add(path, body);
  }
  // Two asks with one answer.
  void add_both(const char* path, const Json& body) {
    add_stream(path, body);
    add(path, body);
    asks_.back().as_the_last = true;
  }
  void add_wide(const char* path, const Json& body) {
    add_stream(path, body);
    asks_.back().wide = true;
  }
  [[nodiscard]] std::vector<Ask> take() && { return std::move(asks_); }

 private:
  std::string model_;
  std::vector<Ask> asks_;
};

// Some thousand bytes that many prompts begin with.
std::string long_text() {
  std::string text = "You answer questions about a table of prices.\n";
  for (int i = 0; i < 60; ++i) text += fmt::format("Item {} costs {} dollars in town {}.\n", i, 3 * i + 7, kCities[i % 8]);
  return text;
}

Json with(Json body, const char* key, const Json& value) {
  body[key] = value;
  return body;
}

AnswerReader ask_alone(uint16_t port, const Ask& ask) {
  http_test::Client client(port);
  client.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  ask.path, ask.body.size(), ask.body));
  AnswerReader reader;
  reader.take(client.read_all(), nullptr);
  if (!reader.complete() || reader.status() != 200)
    throw std::runtime_error(
        fmt::format("status {}, {}: {}", reader.status(), reader.complete() ? "whole" : "cut", reader.body()));
  return reader;
}

}  // namespace

std::vector<Ask> make_asks(const std::string& model, int many) {
  Maker make(model);
  for (int i = 0; i < many; ++i) {
    const size_t which = static_cast<size_t>(i) % kCities.size();
    const std::string multiply = fmt::format("What is {} * {}? Answer with the number only.", 12 + 7 * i % 83, 23 + 5 * i % 71);
    const std::string capital = fmt::format("What is the capital of {}?", kCountries[which]);
    const std::string write = fmt::format("Write a Python function that {}.", kTasks[which]);
    const std::string weather = fmt::format("What is the weather in {}?", kCities[which]);

    make.add_both(kChat, make.chat(multiply));
    make.add_stream(kChat, with(make.chat(capital), "stream_options", {{"include_usage", true}}));
    make.add_stream(kChat, with(make.chat(write, 60), "thinking", {{"type", "disabled"}}));
    Json two = with(make.chat(write, 40), "n", 2);
    two["temperature"] = 1.0;
    two["seed"] = 100 + i;
    make.add_both(kChat, two);
    make.add_both(kChat, with(make.chat(weather), "tools", Json::array({{{"type", "function"}, {"function", kWeather}}})));
    make.add_stream(kChat, with(make.chat(fmt::format("Name thing {} as JSON.", i), 120), "response_format", kSchema));
    Json table = make.chat(fmt::format("What costs item {}?", 5 * i + 2), 30);
    table["messages"] = {{{"role", "system"}, {"content", long_text()}}, table["messages"][0]};
    make.add_stream(kChat, with(table, "thinking", {{"type", "disabled"}}));
    Json turns = make.chat("And now?", 40);
    turns["messages"] = {{{"role", "user"}, {"content", capital}},
                         {{"role", "assistant"}, {"content", fmt::format("I will tell you {}.", i)}},
                         {{"role", "user"}, {"content", multiply}}};
    make.add_stream(kChat, turns);

    Json text = with(with(make.base(), "prompt", kBeginnings[which]), "max_tokens", 30 + i);
    make.add_both(kCompletions, text);
    make.add_stream(kCompletions, with(text, "logprobs", 3));

    const Json response = with(make.base(), "max_output_tokens", 90);
    make.add_stream(kResponses, with(response, "input", capital));
    Json tool = kWeather;
    tool["type"] = "function";
    make.add_stream(kResponses, with(with(response, "input", weather), "tools", Json::array({tool})));
  }
  Json wide = make.chat("Write a Python function that sorts a list.", 250);
  wide["n"] = 2;
  wide["logprobs"] = true;
  wide["top_logprobs"] = 20;
  wide["ignore_eos"] = true;
  make.add_wide(kChat, wide);
  return std::move(make).take();
}

void Faults::add(const std::string& text) {
  constexpr size_t kMost = 20;
  ++count_;
  if (texts_.size() < kMost) texts_.push_back(text);
}

std::string Faults::text() const {
  std::string all;
  for (const std::string& one : texts_) all += one + "\n";
  if (count_ > static_cast<int64_t>(texts_.size())) all += fmt::format("... {} in all\n", count_);
  return all;
}

void ask_references(uint16_t port, std::vector<Ask>& asks, Faults& faults) {
  for (size_t i = 0; i < asks.size(); ++i) {
    Ask& ask = asks[i];
    try {
      ask.wanted = ask_alone(port, ask).said();
      const std::vector<Said> again = ask_alone(port, ask).said();
      if (again != ask.wanted) faults.add(fmt::format("{}: the same request has two answers: {}", ask.path, ask.body));
      if (ask.as_the_last && asks[i - 1].wanted != ask.wanted)
        faults.add(fmt::format("{}: the stream says something else than the whole answer: {}", ask.path, ask.body));
      if (ask.wanted.empty() || ask.wanted[0].text.empty()) faults.add(fmt::format("{}: no answer: {}", ask.path, ask.body));
    } catch (const std::exception& error) {
      faults.add(fmt::format("{}: {}: {}", ask.path, ask.body, error.what()));
    }
  }
}

}  // namespace weft::load_test
