// Executors for the tests of engine/: one that writes what it is told, and one that keeps a log of another.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "pipeline/executor.h"

namespace weft::engine_test {

// Draws the ids of a script, whatever it is fed.
class ScriptedExecutor : public Executor {
 public:
  ScriptedExecutor(int64_t vocab, std::vector<int32_t> script) : vocab_(vocab), script_(script.begin(), script.end()) {}

  int64_t layer_count() const override { return 1; }
  int64_t vocab_size() const override { return vocab_; }
  ByteCount bytes_per_token() const override { return ByteCount(1000); }
  MemoryUse memory() override { return {}; }
  SequenceId create() override {
    const SequenceId id(++created_);
    fed[id];
    return id;
  }
  SequenceId fork(SequenceId) override { fail(ErrorKind::unsupported, "script", "no forks"); }
  void release(SequenceId sequence) override { fed.erase(sequence); }
  TokenCount consumed(SequenceId sequence) const override { return TokenCount(static_cast<int64_t>(fed.at(sequence).size())); }
  Ticket submit(Step step) override {
    Completion completion;
    completion.ticket = Ticket(++submitted_);
    for (const Rows& rows : step.rows) {
      std::vector<int32_t>& log = fed.at(rows.sequence);
      log.insert(log.end(), rows.ids.begin(), rows.ids.end());
      RowsResult& result = completion.results.emplace_back();
      if (!rows.sample) continue;
      last_request = *rows.sample;
      if (script_.empty()) {
        completion.failure = Failure{ErrorKind::unavailable, "[script] is at its end"};
        break;
      }
      result.sampled = ops::Sampled{script_.front(), 0.0F};
      script_.pop_front();
    }
    open_.push_back(std::move(completion));
    return open_.back().ticket;
  }
  Completion next() override {
    Completion completion = std::move(open_.front());
    open_.pop_front();
    return completion;
  }
  void save(SequenceId, const std::filesystem::path&) override {}
  SequenceId load(const std::filesystem::path&) override { return create(); }

  void then(const std::vector<int32_t>& ids) { script_.insert(script_.end(), ids.begin(), ids.end()); }

  std::map<SequenceId, std::vector<int32_t>> fed;
  SampleRequest last_request;

 private:
  int64_t vocab_;
  std::deque<int32_t> script_;
  std::deque<Completion> open_;
  int64_t created_ = 0;
  int64_t submitted_ = 0;
};

// Another executor's steps, with a log of the ids fed to each sequence and of the logits that ids were drawn from.
class LoggingExecutor : public Executor {
 public:
  explicit LoggingExecutor(Executor& inner) : inner_(inner) {}

  int64_t layer_count() const override { return inner_.layer_count(); }
  int64_t vocab_size() const override { return inner_.vocab_size(); }
  ByteCount bytes_per_token() const override { return inner_.bytes_per_token(); }
  MemoryUse memory() override { return inner_.memory(); }
  SequenceId create() override { return inner_.create(); }
  SequenceId fork(SequenceId sequence) override { return inner_.fork(sequence); }
  void release(SequenceId sequence) override { inner_.release(sequence); }
  TokenCount consumed(SequenceId sequence) const override { return inner_.consumed(sequence); }
  Ticket submit(Step step) override {
    std::vector<bool> drawn;
    for (Rows& rows : step.rows) {
      std::vector<int32_t>& log = fed[rows.sequence];
      log.insert(log.end(), rows.ids.begin(), rows.ids.end());
      drawn.push_back(rows.sample.has_value());
      if (rows.sample) rows.logits = Rows::Logits::last;
    }
    open_.push_back(drawn);
    ++steps;
    return inner_.submit(std::move(step));
  }
  Completion next() override {
    Completion completion = inner_.next();
    for (size_t i = 0; i < completion.results.size(); ++i) {
      if (!open_.front()[i]) continue;
      const auto row = completion.results[i].logits.view().as<float>();
      logits.emplace_back(row.begin(), row.end());
    }
    open_.pop_front();
    return completion;
  }
  void save(SequenceId sequence, const std::filesystem::path& path) override { inner_.save(sequence, path); }
  SequenceId load(const std::filesystem::path& path) override { return inner_.load(path); }

  std::map<SequenceId, std::vector<int32_t>> fed;
  std::vector<std::vector<float>> logits;  // of draws, in order
  int64_t steps = 0;

 private:
  Executor& inner_;
  std::deque<std::vector<bool>> open_;
};

}  // namespace weft::engine_test
