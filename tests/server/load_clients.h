// Many clients of one server from one thread: some ask as they should, others leave, read slowly or send what is no request.
// What each answer has to be is known before: the server was asked for it when nothing else ran.
//
//     std::vector<Ask> asks = make_asks("k3-mini", 4);
//     ask_references(port, asks, result.faults);
//     const LoadResult result = run_load(port, asks, {.clients = 40, .seconds = 15});
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "server/load_answer.h"

namespace weft::load_test {

// A request whose answer is always the same, whatever else the server does.
struct Ask {
  std::string path;
  std::string body;
  bool wide = false;           // an answer of about a megabyte: for slow readers only
  bool as_the_last = false;    // has to be answered as the ask before it: one of the two is a stream
  std::vector<Said> wanted{};  // see ask_references
};

// `many` of each kind: chats, completions and responses, whole and streamed, with tools, with a schema, with two choices, drawn
// with a seed, with a long prompt.
[[nodiscard]] std::vector<Ask> make_asks(const std::string& model, int many);

// What went wrong: how often, and the first of it in words.
class Faults {
 public:
  void add(const std::string& text);
  [[nodiscard]] int64_t count() const { return count_; }
  [[nodiscard]] const std::vector<std::string>& texts() const { return texts_; }
  [[nodiscard]] std::string text() const;

 private:
  int64_t count_ = 0;
  std::vector<std::string> texts_;
};

// Asks each twice, one at a time, and keeps the answer. A second answer that differs from the first (whose prompt the server
// still remembers) is a fault, as is one that differs from that of the ask before it where it should not.
void ask_references(uint16_t port, std::vector<Ask>& asks, Faults& faults);

struct LoadResult {
  // "answered", "cancelled", "left", ... and the statuses of requests that were refused.
  std::map<std::string, int64_t> outcomes;
  // Of clients that read at full speed: from the first byte sent to the first text, and between texts of one choice.
  std::vector<double> first_text_ms;
  std::vector<double> between_texts_ms;
  int64_t texts = 0;   // events that brought text, of all clients
  double seconds = 0;  // up to the end of the last request
  Faults faults;
};

struct LoadOptions {
  int clients = 40;
  double seconds = 15.0;          // in which requests begin; those that are under way then go on to their ends
  double patience_seconds = 120;  // for one request; longer is a fault
  double long_stall_seconds = 0;  // of clients that read nothing until the server lets go of them; 0: there are none
  int64_t body_limit = 1 << 20;   // of the server
  uint64_t seed = 1;
  // Called once a second with what has come of it so far; may be null. False: no further requests begin.
  std::function<bool(const LoadResult& so_far)> each_second;
};

[[nodiscard]] LoadResult run_load(uint16_t port, const std::vector<Ask>& asks, const LoadOptions& options);

}  // namespace weft::load_test
