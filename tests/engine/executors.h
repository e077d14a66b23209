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
  int64_t stage_count() const override { return 1; }
  const std::string& fingerprint() const override { return fingerprint_; }
  ByteCount bytes_per_token() const override { return ByteCount(1000); }
  StateMemory state_memory() const override { return {{1000, 1000}, ByteCount(1), ByteCount(1)}; }
  const StateLedger& states() const override { return states_; }
  MemoryUse memory() override { return {}; }
  SequenceId create() override {
    const SequenceId id(++created_);
    states_.create(id);
    fed[id];
    return id;
  }
  SequenceId fork(SequenceId sequence) override {
    const SequenceId id(++created_);
    states_.fork(sequence, id);
    fed[id] = fed.at(sequence);
    return id;
  }
  void release(SequenceId sequence) override {
    states_.release(sequence);
    fed.erase(sequence);
  }
  TokenCount consumed(SequenceId sequence) const override { return states_.consumed(sequence); }
  Ticket submit(Step step) override {
    Completion completion;
    completion.ticket = Ticket(++submitted_);
    for (const Rows& rows : step.rows) {
      RowsResult& result = completion.results.emplace_back();
      std::vector<int32_t>& log = fed.at(rows.sequence);
      for (const int64_t offset : rows.checkpoints) {
        result.checkpoints.emplace_back(++created_);
        fed[result.checkpoints.back()] = log;
        fed[result.checkpoints.back()].insert(fed[result.checkpoints.back()].end(), rows.ids.begin(),
                                              rows.ids.begin() + offset);
      }
      states_.extend(rows.sequence, static_cast<int64_t>(rows.ids.size()), rows.checkpoints, result.checkpoints);
      log.insert(log.end(), rows.ids.begin(), rows.ids.end());
      answered = log;
      if (!rows.sample) continue;
      last_request = *rows.sample;
      if (script_.empty()) {
        completion.failure = Failure{ErrorKind::unavailable, "[script] is at its end"};
        break;
      }
      result.sampled = ops::Sampled{script_.front(), -0.5F};
      for (int64_t i = 0; i < rows.sample->top; ++i)
        result.top.push_back({static_cast<int32_t>(i), -1.0F - static_cast<float>(i)});
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
  SavedState snapshot(SequenceId, std::span<const int32_t>) override { return {}; }
  SequenceId restore(const StateFile&) override { return create(); }

  void then(const std::vector<int32_t>& ids) { script_.insert(script_.end(), ids.begin(), ids.end()); }

  std::map<SequenceId, std::vector<int32_t>> fed;  // by the live sequences
  std::vector<int32_t> answered;                   // all ids of the sequence that was fed last
  SampleRequest last_request;

 private:
  int64_t vocab_;
  std::string fingerprint_ = "script";
  StateLedger states_{true};
  std::deque<int32_t> script_;
  std::deque<Completion> open_;
  int64_t created_ = 0;
  int64_t submitted_ = 0;
};

// Another executor's steps, with a log of the ids that were fed and of the logits that ids were drawn from.
class LoggingExecutor : public Executor {
 public:
  explicit LoggingExecutor(Executor& inner) : inner_(inner) {}

  int64_t layer_count() const override { return inner_.layer_count(); }
  int64_t vocab_size() const override { return inner_.vocab_size(); }
  int64_t stage_count() const override { return inner_.stage_count(); }
  const std::string& fingerprint() const override { return inner_.fingerprint(); }
  StateMemory state_memory() const override { return inner_.state_memory(); }
  const StateLedger& states() const override { return inner_.states(); }
  ByteCount bytes_per_token() const override { return inner_.bytes_per_token(); }
  MemoryUse memory() override { return inner_.memory(); }
  SequenceId create() override { return inner_.create(); }
  SequenceId fork(SequenceId sequence) override { return inner_.fork(sequence); }
  void release(SequenceId sequence) override { inner_.release(sequence); }
  TokenCount consumed(SequenceId sequence) const override { return inner_.consumed(sequence); }
  Ticket submit(Step step) override {
    std::vector<bool> drawn;
    for (Rows& rows : step.rows) {
      fed.insert(fed.end(), rows.ids.begin(), rows.ids.end());
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
  SavedState snapshot(SequenceId sequence, std::span<const int32_t> ids) override { return inner_.snapshot(sequence, ids); }
  SequenceId restore(const StateFile& file) override { return inner_.restore(file); }

  std::vector<int32_t> fed;                // of all sequences, in order
  std::vector<std::vector<float>> logits;  // of draws, in order
  int64_t steps = 0;

 private:
  Executor& inner_;
  std::deque<std::vector<bool>> open_;
};

}  // namespace weft::engine_test
