// Many requests on one executor: admission by memory, continuous batching, stored states (docs/engine.md; marks like E1 refer
// to it).
//
//     Engine engine(executor, options);
//     RequestId id = engine.submit({.ids = prompt, .max_tokens = 20}, sink);   // sink receives tokens, then on_end()
//     while (engine.step()) {}                                                 // until nothing is left to do
//
// An Engine belongs to one thread, which calls step(); EngineThread is one that serves other threads. What a request generates
// depends on the request alone: not on its neighbours, the chunks of its prompt, or what was stored (ARCHITECTURE.md, Numbers).
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/prefix_store.h"
#include "engine/request.h"

namespace weft {

struct EngineOptions {
  int64_t max_context = 0;       // tokens of a sequence, >= 2
  int64_t prefill_chunk = 512;   // prompt rows of one step over all requests, >= 1
  int64_t max_running = 64;      // requests that hold memory, >= 1
  int64_t max_queue = 1024;      // requests that wait, >= 1
  ByteCount state_memory;        // of all sequence states, stored ones included; 0: a quarter of what is available
  bool keep_states = true;       // the prefix store
  int64_t keep_every = 0;        // tokens between stored states; 0: so that one whole context fills a quarter of state_memory
  bool keep_prompt_end = true;   // also store the state before the last token of each prompt
  std::filesystem::path folder;  // of stored states that left the memory; empty: they are dropped
  ByteCount disk = ByteCount(int64_t{16} << 30);  // most bytes in it
  int64_t micro_batch = 0;    // decode rows of one step on several stages; 0: so that each stage has one (distributed.md 6.4)
  bool by_round = false;      // several stages: all steps of a round end before the next begins (gpipe)
  int64_t max_in_flight = 0;  // steps that are open at once; 0: one on one stage, else a further one than stages
  std::optional<double> queue_seconds;    // a request that waits longer ends with timeout
  std::optional<double> request_seconds;  // likewise one that is not answered so long after it was asked
  TraceSink* trace = nullptr;             // of every step; in-process executors only; outlives the engine
};

class Engine {
 public:
  // Throws bad_input for options out of range, unavailable when state_memory holds no sequence. The executor outlives the
  // engine, which counts all of its sequences against state_memory.
  Engine(Executor& executor, const EngineOptions& options);
  ~Engine();  // cancels what is left and writes stored states to the folder
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Throws bad_input for a request that can never run: no ids, ids outside the vocabulary, no room in the context or in
  // state_memory, sampling parameters, what TokenSink::on_submit() throws; unavailable when the queue is full. Nothing is
  // computed yet.
  RequestId submit(GenerateRequest request, std::shared_ptr<TokenSink> sink);
  // Ends a request in any phase; its memory is free, or the store's, at once. An unknown or ended one is ignored.
  void cancel(RequestId id);
  void cancel_all() { end_all(RequestEnd::cancelled); }

  // Admits, submits what the stages have room for, and takes one completion. False: nothing was submitted or open, because no
  // request is left or all of them rest (TokenSink::ready). What goes wrong ends requests and is in their reports.
  bool step();

  // Gives up the memory of the stored state that was used least recently. False: none is in memory.
  bool evict() { return store_.evict(); }
  // Until no file is being written or read.
  void wait_for_files() const { store_.wait_for_files(); }

  // What ended all requests in the last step: the executor is of no use until a step succeeds. Stages that are lost for a while
  // are the executor's own trouble().
  [[nodiscard]] const std::optional<Failure>& broken() const { return broken_; }
  [[nodiscard]] bool idle() const { return queue_.empty() && running_.empty(); }
  [[nodiscard]] bool queue_full() const { return static_cast<int64_t>(queue_.size()) >= options_.max_queue; }
  [[nodiscard]] int64_t max_queue() const { return options_.max_queue; }
  [[nodiscard]] int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  [[nodiscard]] int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // Most tokens of a sequence: max_context, or what state_memory holds.
  [[nodiscard]] int64_t context_limit() const { return context_limit_; }
  [[nodiscard]] int64_t keep_every() const { return keep_every_; }
  [[nodiscard]] ByteCount state_memory() const { return state_memory_; }
  // Share of state_memory that sequences hold, stored ones included.
  [[nodiscard]] double state_share() const;
  [[nodiscard]] const PrefixStore& store() const { return store_; }

 private:
  using RequestPtr = std::shared_ptr<Request>;
  // Rows of a request in an open step.
  struct OpenRows {
    RequestPtr request;
    int64_t attempt = 0;
    int64_t start = 0;                 // position before them
    int64_t end = 0;                   // and behind them
    std::vector<int64_t> checkpoints;  // offsets

    [[nodiscard]] bool stale() const { return request->ended() || request->attempt() != attempt || request->queued(); }
  };
  struct OpenStep {
    Ticket ticket;
    std::vector<OpenRows> rows;
  };

  [[nodiscard]] bool advance();
  // Limits
  void expire();
  [[nodiscard]] bool fits(StateUse use) const;
  [[nodiscard]] bool make_room(const std::function<StateUse()>& needed);
  // Admission
  void admit();
  [[nodiscard]] bool fits_beside_running(const Request& request, SequenceId sequence) const;
  // What it takes to feed the rest of a request and what it generates first.
  [[nodiscard]] StateUse outstanding(const Request& request, SequenceId sequence) const;
  // Steps
  [[nodiscard]] bool submit_step();
  // The request's next rows once there is room for them and for what is `planned` in this step already; nothing if it has to
  // wait.
  [[nodiscard]] std::optional<Rows> plan_rows(Request& request, int64_t count, StateUse& planned);
  [[nodiscard]] std::vector<int64_t> checkpoints_in(const Request& request, int64_t start, int64_t end) const;
  // Sends the youngest request back to the queue. False: `request` has to wait, or was the youngest.
  [[nodiscard]] bool preempt_for(Request& request);
  void complete();
  void take_result(const OpenRows& rows, const RowsResult& result);
  void contain_failure(const OpenStep& step, const Failure& failure);
  // Ends
  void end_all(RequestEnd end, const std::optional<Failure>& failure = std::nullopt);
  void keep(std::span<const int32_t> ids, OwnedSequence sequence);
  void send_back(const RequestPtr& request, bool alone);
  void finish(const RequestPtr& request, RequestEnd end, const std::optional<Failure>& failure = std::nullopt);
  [[nodiscard]] int64_t position(const Request& request) const { return executor_.consumed(request.sequence()).value; }
  [[nodiscard]] int64_t remaining(const Request& request) const {
    return static_cast<int64_t>(request.ids().size()) - position(request);
  }

  Executor& executor_;
  EngineOptions options_;
  ByteCount state_memory_;
  int64_t context_limit_ = 0;
  int64_t keep_every_ = 0;
  PrefixStore store_;
  std::list<RequestPtr> queue_;    // in the order of arrival
  std::list<RequestPtr> running_;  // least recently served first
  std::deque<OpenStep> open_;
  std::optional<Failure> broken_;
  bool admission_waits_ = false;  // the first of the queue did not fit, and nothing has ended since
  bool waits_for_file_ = false;   // the first of the queue goes on from a file that is being read
  int64_t next_id_ = 1;
};

}  // namespace weft
