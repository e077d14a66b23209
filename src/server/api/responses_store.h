// Responses by their ids, in memory (prompt_and_api.md 6.10): for requests that go on from one, and for those that ask for one
// again. The least recently used ones leave; those in progress stay.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace weft::api {

class Run;

// What one response adds to a conversation: arrays of items as JSON text.
struct ResponseItems {
  std::string input;
  std::string output;
};

// Of a conversation's responses in order; they share what they have in common.
using ResponseHistory = std::vector<std::shared_ptr<const ResponseItems>>;

struct StoredResponse {
  std::string id;
  std::string body;         // the response object
  ResponseHistory history;  // before it
  std::shared_ptr<const ResponseItems> items;
  bool running = false;
  std::weak_ptr<Run> run;  // of a running one: what answers it
};

struct ResponsesStoreOptions {
  int64_t most_responses = 1024;
  int64_t most_bytes = 64 << 20;  // of bodies and items; what several responses share counts once
};

// All members may be called from any thread.
class ResponsesStore {
 public:
  explicit ResponsesStore(ResponsesStoreOptions options) : options_(options) {}

  // False: none is found any more once it has ended.
  [[nodiscard]] bool keeps() const { return options_.most_responses > 0; }
  void add(std::shared_ptr<const StoredResponse> response);
  // In place of the one with the same id, if that is still there.
  void replace(std::shared_ptr<const StoredResponse> response);
  // Now the most recently used one; nullptr: there is none.
  [[nodiscard]] std::shared_ptr<const StoredResponse> find(std::string_view id);
  // False: there was none.
  bool remove(std::string_view id);

  [[nodiscard]] int64_t responses() const;
  [[nodiscard]] int64_t bytes() const;

 private:
  using List = std::list<std::shared_ptr<const StoredResponse>>;

  void insert(std::shared_ptr<const StoredResponse> response);
  void erase(List::iterator at);
  void count(const std::shared_ptr<const ResponseItems>& items);
  void uncount(const std::shared_ptr<const ResponseItems>& items);
  void shrink();

  ResponsesStoreOptions options_;
  mutable std::mutex mutex_;
  List list_;  // guarded by mutex_, as what follows; most recently used first
  std::map<std::string, List::iterator, std::less<>> by_id_;
  std::map<const ResponseItems*, int64_t> holders_;  // responses that hold the items
  int64_t bytes_ = 0;
};

}  // namespace weft::api
