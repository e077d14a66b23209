#include "pipeline/remote/grpc_call.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include <grpcpp/support/slice.h>

#include "base/log.h"
#include "pipeline/remote/grpc_names.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLinger{2000};  // for the other end to take what was written before finish()
constexpr seconds kLetGo{10};          // for gRPC to end a call that is cancelled: local work, no waiting for the other end
constexpr size_t kCopied = 1024;       // bytes up to which a copy is cheaper than an owner
constexpr std::align_val_t kAlignment{64};
constexpr std::byte kMore{0};  // behind the bytes of each message; what has not even that byte is the end

void drop_owner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

// The bytes as gRPC wants them. Large parts are not copied: the slice keeps their owner for as long as gRPC looks at them.
grpc::ByteBuffer to_buffer(const EncodedMessage& message) {
  std::vector<grpc::Slice> slices;
  slices.reserve(2 + message.parts.size());
  if (!message.head.empty()) slices.emplace_back(message.head.data(), message.head.size());
  for (const FrameTensor& part : message.parts) {
    const auto bytes = static_cast<size_t>(part.view.bytes());
    if (bytes == 0) continue;
    if (bytes <= kCopied || !part.owner) {
      slices.emplace_back(part.view.data, bytes);
    } else {
      auto owner = std::make_unique<std::shared_ptr<const void>>(part.owner);
      slices.emplace_back(const_cast<std::byte*>(part.view.data), bytes, drop_owner, owner.get());
      (void)owner.release();  // now the slice's
    }
  }
  slices.emplace_back(&kMore, 1);
  return {slices.data(), slices.size()};
}

// One copy to aligned memory: what comes from the network lies in many pieces, at any address.
ReceivedMessage to_message(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) fail(ErrorKind::internal, "grpc", "a message cannot be read");
  const size_t length = buffer.Length();
  const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(::operator new(length, kAlignment)),
                                          [](std::byte* bytes) { ::operator delete(bytes, kAlignment); });
  size_t filled = 0;
  for (const grpc::Slice& slice : slices) {
    std::memcpy(memory.get() + filled, slice.begin(), slice.size());
    filled += slice.size();
  }
  return {{memory.get(), length}, memory};
}

}  // namespace

void GrpcCall::raise_lost() const { fail(ErrorKind::stage_lost, "grpc", "stream to {}: {}", peer_, lost_.value_or("lost")); }

void GrpcCall::lose(const std::string& reason) {
  if (!lost_) lost_ = reason;
  changed_.notify_all();
}

void GrpcCall::settle(Lock& lock) {
  if (!closing_ || starting_ > 0 || released_) return;
  released_ = true;
  lock.unlock();
  release();
  lock.lock();
}

void GrpcCall::close(Lock& lock) {
  closing_ = true;
  settle(lock);
}

void GrpcCall::break_off(Lock& lock, const std::string& reason) {
  lose(reason);
  cancelled_ = true;
  queue_.clear();
  if (closing_) return;
  closing_ = true;
  outside(lock, [this] { abort(); });
}

void GrpcCall::read_ahead(Lock& lock) {
  if (reading_ || input_over_ || closing_) return;
  // After a write failed the call is over, and what is still to be read is what had come before.
  if (!queue_.empty() && !write_failed_) return;
  reading_ = true;
  outside(lock, [this] { start_read(); });
}

void GrpcCall::read_done(bool ok) {
  Lock lock(mutex_);
  reading_ = false;
  if (!ok) {
    input_over_ = true;
    input_over(lock);
    return;
  }
  if (!discarding_ && !cancelled_) {
    if (peer_ended_) {
      break_off(lock, "the other end sent a message after its end");
      return;
    }
    if (in_.Length() == 0) {
      peer_ended_ = true;
      if (finished_ && !end_waits_) both_ended(lock);
    } else {
      queue_.push_back(std::move(in_));
    }
    changed_.notify_all();
  }
  in_.Clear();
  read_ahead(lock);
}

void GrpcCall::write_done(bool ok) {
  Lock lock(mutex_);
  writing_ = false;
  out_.Clear();
  if (!ok) {
    write_failed_ = true;
    read_ahead(lock);
  } else if (end_waits_ && !closing_) {
    end_waits_ = false;
    write_end(lock);
    if (peer_ended_) both_ended(lock);
  }
  changed_.notify_all();
}

void GrpcCall::write_end(Lock& lock) {
  writing_ = true;
  out_ = grpc::ByteBuffer(static_cast<const grpc::Slice*>(nullptr), 0);
  outside(lock, [this] { start_write(); });
}

void GrpcCall::write(const EncodedMessage& message) {
  const int64_t bytes = message.bytes();
  if (bytes > kMessageLimit)
    fail(ErrorKind::bad_input, "grpc", "message to {}: wanted at most {} bytes, found {}", peer_, kMessageLimit, bytes);
  grpc::ByteBuffer buffer = to_buffer(message);
  Lock lock(mutex_);
  if (finished_)
    fail(ErrorKind::internal, "grpc", "stream to {}: wanted a stream that was not finished, found one that was", peer_);
  const auto free = [this] { return lost_ || (!writing_ && !write_failed_ && !closing_); };
  changed_.wait(lock, free);
  if (lost_) raise_lost();
  writing_ = true;
  out_ = buffer;
  outside(lock, [this] { start_write(); });
  changed_.wait(lock, free);
  if (lost_) raise_lost();
}

std::optional<ReceivedMessage> GrpcCall::read_until(std::optional<Clock::time_point> deadline) {
  Lock lock(mutex_);
  const auto ready = [this] { return cancelled_ || !queue_.empty() || peer_ended_ || lost_; };
  if (!deadline) {
    changed_.wait(lock, ready);
  } else if (!changed_.wait_until(lock, *deadline, ready)) {
    fail(ErrorKind::stage_timeout, "grpc", "stream to {}: no message came in time", peer_);
  }
  if (cancelled_) raise_lost();
  if (!queue_.empty()) {
    const grpc::ByteBuffer buffer = queue_.front();
    queue_.pop_front();
    read_ahead(lock);
    lock.unlock();
    ReceivedMessage message;
    const auto failure = guard([&] {
      message = to_message(buffer);
      const auto last = static_cast<int>(message.bytes.back());
      if (last != 0) fail(ErrorKind::stage_lost, "grpc", "wanted a message with a 0 behind it, found {}", last);
    });
    if (!failure) {
      message.bytes = message.bytes.first(message.bytes.size() - 1);
      return message;
    }
    lock.lock();
    break_off(lock, failure->message);  // never goes on without a message
    raise_lost();
  }
  if (peer_ended_) return std::nullopt;
  raise_lost();
}

void GrpcCall::cancel(const std::string& reason) noexcept {
  Lock lock(mutex_);
  if (finished_ && peer_ended_) return;  // both directions have ended in good order: what is queued may be read
  break_off(lock, reason);
}

void GrpcCall::finish() noexcept {
  Lock lock(mutex_);
  if (finished_ || lost_ || closing_) return;
  finished_ = true;
  if (writing_) {
    end_waits_ = true;
  } else if (!write_failed_) {
    write_end(lock);
    if (peer_ended_) both_ended(lock);
  }
}

// --- the server's end -------------------------------------------------------------------------------------------------------

std::shared_ptr<GrpcServerCall> GrpcServerCall::make(grpc::GenericCallbackServerContext* context, std::string peer,
                                                     std::function<void()> ended) {
  std::shared_ptr<GrpcServerCall> call(new GrpcServerCall(context, std::move(peer), std::move(ended)));
  call->self_ = call;
  return call;
}

void GrpcServerCall::accept() {
  Lock lock(mutex_);
  context_->AddInitialMetadata(kAcceptedKey, "1");
  outside(lock, [this] { StartSendInitialMetadata(); });
  read_ahead(lock);
}

void GrpcServerCall::handler_ended(const std::optional<Failure>& failure) noexcept {
  Lock lock(mutex_);
  if (closing_) return;
  if (failure) {
    const bool refused = failure->kind == ErrorKind::security;
    status_ = refusal(refused ? grpc::StatusCode::UNAUTHENTICATED : grpc::StatusCode::ABORTED, failure->message);
  } else if (finished_) {
    status_ = grpc::Status::OK;
  } else {
    status_ = refusal(grpc::StatusCode::ABORTED, "the other end left the stream without finishing it");
  }
  lose("the handler of the call has returned");
  if (!failure) return close(lock);  // what was written arrives first
  closing_ = true;
  outside(lock, [this] { abort(); });
}

void GrpcServerCall::both_ended(Lock& lock) {
  if (closing_) return;
  status_ = grpc::Status::OK;  // the client need not wait for the handler to return
  lose("both ends have finished");
  close(lock);
}

bool GrpcServerCall::drop() noexcept {
  Lock lock(mutex_);
  discarding_ = true;
  queue_.clear();
  read_ahead(lock);
  // While an exception leaves the handler, its text is still to come, by handler_ended().
  if (!finished_ && std::uncaught_exceptions() == 0) break_off(lock, "the other end left the stream without finishing it");
  return true;
}

void GrpcServerCall::abort() {
  bool blocked = false;
  {
    const Lock lock(mutex_);
    blocked = writing_;
  }
  // Only a write that waits for the other end needs force, which would also lose the reason.
  if (blocked) context_->TryCancel();
}

void GrpcServerCall::release() {
  grpc::Status status;
  {
    const Lock lock(mutex_);
    status = status_ ? *status_ : refusal(grpc::StatusCode::ABORTED, lost_.value_or("lost"));
  }
  Finish(std::move(status));
}

void GrpcServerCall::input_over(Lock& lock) {
  lose("the other end ended the call, or the connection was lost");
  close(lock);
}

void GrpcServerCall::OnReadDone(bool ok) {
  react([&] { read_done(ok); });
}
void GrpcServerCall::OnWriteDone(bool ok) {
  react([&] { write_done(ok); });
}
void GrpcServerCall::OnCancel() {
  react([&] {
    Lock lock(mutex_);
    input_over(lock);
  });
}

void GrpcServerCall::OnDone() {
  std::function<void()> ended;
  std::shared_ptr<GrpcServerCall> self;
  {
    const Lock lock(mutex_);
    done_ = true;
    lose("the call has ended");
    self = std::move(self_);
    ended = std::move(ended_);
  }
  ended();
}

// --- the client's end -------------------------------------------------------------------------------------------------------

void GrpcClientCall::start() {
  {
    const Lock lock(mutex_);
    started_ = true;
    reading_ = true;
  }
  AddHold();
  StartRead(&in_);
  StartCall();
}

bool GrpcClientCall::wait_answered(Clock::time_point deadline) {
  Lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return accepted_ || done_; });
}

bool GrpcClientCall::accepted() {
  const Lock lock(mutex_);
  return accepted_;
}

grpc::Status GrpcClientCall::status() {
  const Lock lock(mutex_);
  return status_;
}

bool GrpcClientCall::end(const std::string& reason) noexcept {
  if (!started_) return true;
  Lock lock(mutex_);
  break_off(lock, reason);
  const bool over = changed_.wait_for(lock, kLetGo, [this] { return done_; });
  if (!over) log::write(log::Level::error, "gRPC does not let go of a call that was cancelled; its memory is kept");
  return over;
}

bool GrpcClientCall::drop() noexcept {
  {
    Lock lock(mutex_);
    if (finished_ && !cancelled_) {
      discarding_ = true;
      queue_.clear();
      read_ahead(lock);
      changed_.wait_for(lock, kLinger, [this] { return done_; });
    }
  }
  return end("this end left the stream");
}

void GrpcClientCall::OnReadInitialMetadataDone(bool ok) {
  react([&] {
    const Lock lock(mutex_);
    accepted_ = ok && context_.GetServerInitialMetadata().contains(kAcceptedKey);
    changed_.notify_all();
  });
}

void GrpcClientCall::OnReadDone(bool ok) {
  react([&] { read_done(ok); });
}
void GrpcClientCall::OnWriteDone(bool ok) {
  react([&] { write_done(ok); });
}

void GrpcClientCall::OnDone(const grpc::Status& status) {
  const Lock lock(mutex_);
  done_ = true;
  (void)guard([&] {
    status_ = status;
    lose(status.ok() ? "the other end ended the call" : status.error_message());
  });
  changed_.notify_all();
}

// --- MessageStream ----------------------------------------------------------------------------------------------------------

GrpcStream::~GrpcStream() {
  if (!call_->drop()) (void)new std::shared_ptr<GrpcCall>(std::move(call_));
}

}  // namespace weft
