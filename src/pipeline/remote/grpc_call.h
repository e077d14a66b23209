// One end of a call that carries messages both ways: the blocking side of MessageStream over gRPC's reactions, which never
// block.
//
//     call->write(message); call->read();      // the user's threads: wait on a condition
//     call->read_done(true);                   // gRPC's threads: change the state, wake the others
//
// One message is read ahead. A message without bytes is the end of a direction, so that an end in good order and a lost
// connection are never taken for each other, and a direction can end long before the other; frames have a header, none is
// empty.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include "base/guard.h"
#include "pipeline/wire/message_stream.h"

namespace weft {

// Most bytes of one message; chunks of frames are far smaller (FrameLimits).
inline constexpr int64_t kMessageLimit = int64_t{64} << 20;

class GrpcCall {
 public:
  using Clock = std::chrono::steady_clock;

  explicit GrpcCall(std::string peer) : peer_(std::move(peer)) {}
  virtual ~GrpcCall() = default;
  GrpcCall(const GrpcCall&) = delete;
  GrpcCall& operator=(const GrpcCall&) = delete;

  // As in MessageStream.
  void write(const EncodedMessage& message);
  [[nodiscard]] std::optional<ReceivedMessage> read() { return read_until(std::nullopt); }
  void cancel(const std::string& reason) noexcept;
  void finish() noexcept;
  [[nodiscard]] const std::string& peer() const { return peer_; }
  // As read(); throws stage_timeout when nothing has come by then.
  [[nodiscard]] std::optional<ReceivedMessage> read_until(std::optional<Clock::time_point> deadline);
  // The user's handle is gone. False when gRPC does not let go, so that the call must not be destroyed.
  [[nodiscard]] virtual bool drop() noexcept = 0;

 protected:
  using Lock = std::unique_lock<std::mutex>;

  // What gRPC is asked to do. Called without the mutex, and never after release().
  virtual void start_read() = 0;            // into in_
  virtual void start_write() = 0;           // of out_
  virtual void abort() = 0;                 // reads and writes that are under way end at once
  virtual void release() = 0;               // called once: the call may end, nothing more will be started
  virtual void both_ended(Lock& lock) = 0;  // this end's end is written or on its way, the other's has come
  virtual void input_over(Lock& lock) = 0;  // no read will succeed any more

  // gRPC's reactions.
  void read_done(bool ok);
  void write_done(bool ok);

  void lose(const std::string& reason);  // the first reason stays
  void close(Lock& lock);                // nothing more is started; the call may end
  void break_off(Lock& lock, const std::string& reason);
  void read_ahead(Lock& lock);
  // Runs `start` without the mutex, and keeps the call from being released meanwhile.
  template <class Start>
  void outside(Lock& lock, Start&& start) {
    ++starting_;
    lock.unlock();
    start();
    lock.lock();
    --starting_;
    settle(lock);
  }

  // Runs the body of a reaction: what it throws (no memory) ends the call.
  template <class Body>
  void react(Body&& body) noexcept {
    if (const auto failure = guard(body)) cancel(failure->message);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  grpc::ByteBuffer in_;   // of the read under way
  grpc::ByteBuffer out_;  // of the write under way
  // Guarded by mutex_.
  std::deque<grpc::ByteBuffer> queue_;  // read, not taken yet
  std::optional<std::string> lost_;
  bool cancelled_ = false;     // by this end: what is queued is void
  bool reading_ = false;       // a read is under way
  bool input_over_ = false;    // a read failed
  bool peer_ended_ = false;    // the other end's end has come
  bool writing_ = false;       // a write is under way
  bool write_failed_ = false;  // the call is over; the reason comes with the last read
  bool finished_ = false;      // finish() was called
  bool end_waits_ = false;     // the end is to be written after the write under way
  bool discarding_ = false;    // nobody reads any more
  bool closing_ = false;       // nothing more is to be started
  bool done_ = false;          // gRPC has let go of the call

 private:
  void settle(Lock& lock);
  void write_end(Lock& lock);
  [[noreturn]] void raise_lost() const;

  const std::string peer_;
  int starting_ = 0;       // threads inside outside()
  bool released_ = false;  // release() was called
};

// The end that a server's handler holds. It keeps itself until gRPC is done.
class GrpcServerCall final : public GrpcCall, public grpc::ServerGenericBidiReactor {
 public:
  // `ended` is called when gRPC has let go of the call.
  [[nodiscard]] static std::shared_ptr<GrpcServerCall> make(grpc::GenericCallbackServerContext* context, std::string peer,
                                                            std::function<void()> ended);

  void accept();  // tells the other end with the initial metadata, and begins to read
  // The handler has returned, or thrown: ends the call.
  void handler_ended(const std::optional<Failure>& failure) noexcept;
  [[nodiscard]] bool drop() noexcept override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  GrpcServerCall(grpc::GenericCallbackServerContext* context, std::string peer, std::function<void()> ended)
      : GrpcCall(std::move(peer)), context_(context), ended_(std::move(ended)) {}

  void start_read() override { StartRead(&in_); }
  void start_write() override { StartWrite(&out_); }
  void abort() override;
  void release() override;
  void both_ended(Lock& lock) override;
  void input_over(Lock& lock) override;

  grpc::GenericCallbackServerContext* context_;
  std::function<void()> ended_;
  std::shared_ptr<GrpcServerCall> self_;
  std::optional<grpc::Status> status_;  // guarded by mutex_: what the other end is told; the reason of the loss if not set
};

// The end that called. Its owner's thread destroys it, never one of gRPC's: the channel must not end on those.
class GrpcClientCall final : public GrpcCall, public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GrpcClientCall(std::string peer, std::shared_ptr<grpc::Channel> channel)
      : GrpcCall(std::move(peer)), channel_(std::move(channel)) {}

  [[nodiscard]] grpc::ClientContext& context() { return context_; }  // before start()
  void start();
  // Waits for the other end's acceptance. False when it did not come by then.
  [[nodiscard]] bool wait_answered(Clock::time_point deadline);
  [[nodiscard]] bool accepted();
  // Why there was no acceptance, once wait_answered() said that there was an answer.
  [[nodiscard]] grpc::Status status();
  // Ends the call and waits for gRPC. False when it does not let go.
  [[nodiscard]] bool end(const std::string& reason) noexcept;
  [[nodiscard]] bool drop() noexcept override;

  void OnReadInitialMetadataDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void start_read() override { StartRead(&in_); }
  void start_write() override { StartWrite(&out_); }
  void abort() override { context_.TryCancel(); }
  void release() override { RemoveHold(); }
  void both_ended(Lock& /*lock*/) override {}  // the server's status comes next
  void input_over(Lock& lock) override { close(lock); }

  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  bool started_ = false;
  bool accepted_ = false;  // guarded by mutex_
  grpc::Status status_;    // guarded by mutex_, of the call, once done_
};

// A call as a MessageStream.
class GrpcStream final : public MessageStream {
 public:
  explicit GrpcStream(std::shared_ptr<GrpcCall> call) : call_(std::move(call)) {}
  ~GrpcStream() override;
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  void write(const EncodedMessage& message) override { call_->write(message); }
  [[nodiscard]] std::optional<ReceivedMessage> read() override { return call_->read(); }
  void cancel(const std::string& reason) noexcept override { call_->cancel(reason); }
  void finish() noexcept override { call_->finish(); }
  [[nodiscard]] const std::string& peer() const override { return call_->peer(); }

 private:
  std::shared_ptr<GrpcCall> call_;
};

}  // namespace weft
