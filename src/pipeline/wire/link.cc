#include "pipeline/wire/link.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

constexpr int64_t kMostCredits = int64_t{1} << 20;

std::string place(const MessageStream& stream) { return "link " + stream.peer(); }

Frame signal(FrameType type, uint64_t step) {
  Frame frame;
  frame.type = type;
  frame.step = step;
  return frame;
}

double seconds(Link::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Link::Link(std::unique_ptr<MessageStream> stream, const LinkOptions& options)
    : stream_(std::move(stream)),
      options_(options),
      decoder_(options.limits),
      last_heard_(Clock::now().time_since_epoch().count()),
      credits_(options.credits),
      accepted_(options.credits),
      progress_(Clock::now()) {
  if (options.credits < 0 || options.credits > kMostCredits)
    fail(ErrorKind::internal, place(*stream_), "credits: wanted 0 to {}, found {}", kMostCredits, options.credits);
  try {
    writer_ = std::thread([this] { write_all(); });
  } catch (const std::system_error& error) {
    fail(ErrorKind::unavailable, place(*stream_), "wanted a thread, found: {}", error.what());
  }
}

Link::~Link() {
  bool over = false;
  {
    const std::lock_guard lock(mutex_);
    over = finished_ && peer_finished_;
  }
  if (!over) cancel("this end was closed");
  writer_.join();
}

Link::Clock::duration Link::timeout() const {
  constexpr double kMost = 1e9;  // fits the clock
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(options_.send_timeout, 0.0, kMost)));
}

void Link::raise_lost() const {
  if (lost_) lost_->raise();
}

void Link::require_open() const {
  raise_lost();
  if (finishing_) fail(ErrorKind::internal, place(*stream_), "send: wanted a link that was not finished, found one that was");
}

void Link::lose(const Failure& failure) noexcept {
  std::deque<std::shared_ptr<Job>> dropped;  // freed without the lock
  {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
    lost_.emplace();
    lost_->kind = ErrorKind::stage_lost;
    // Without memory for it there is no reason, but everybody is woken.
    (void)guard([&] {
      lost_->message =
          failure.kind == ErrorKind::stage_lost ? failure.message : fmt::format("[{}] {}", place(*stream_), failure.message);
    });
    dropped.swap(jobs_);
  }
  work_.notify_all();
  changed_.notify_all();
  stream_->cancel(failure.message);
}

void Link::cancel(const std::string& reason) noexcept {
  Failure failure{ErrorKind::stage_lost, {}};
  (void)guard([&] { failure.message = fmt::format("[{}] {}", place(*stream_), reason); });
  lose(failure);
}

void Link::wait_for_credit(Lock& lock) {
  const auto start = Clock::now();
  const auto may_go_on = [&] { return lost_ || finishing_ || peer_finished_ || credits_ > 0; };
  const bool in_time = changed_.wait_until(lock, start + timeout(), may_go_on);
  counters_.credit_seconds += seconds(Clock::now() - start);
  require_open();
  if (credits_ > 0) {
    --credits_;
    return;
  }
  if (peer_finished_)
    fail(ErrorKind::stage_lost, place(*stream_), "credit: wanted one for a payload frame, found that the other end finished");
  if (!in_time)
    fail(ErrorKind::stage_timeout, place(*stream_), "credit: wanted one within {} s, found none", options_.send_timeout);
}

void Link::wait_until_written(Lock& lock, const std::shared_ptr<Job>& job) {
  const auto queued = Clock::now();
  for (;;) {
    const auto deadline = std::max(queued, progress_) + timeout();
    if (changed_.wait_until(lock, deadline,
                            [&] { return job->done || lost_ || std::max(queued, progress_) + timeout() > deadline; })) {
      if (job->done) return;
      raise_lost();
      continue;
    }
    const std::string message = fmt::format("[{}] send: wanted the stream to take a message within {} s, found that it did not",
                                            place(*stream_), options_.send_timeout);
    if (job->next == 0) {
      std::erase(jobs_, job);
      if (job->is_payload) ++credits_;
    } else {
      lock.unlock();
      lose({ErrorKind::stage_timeout, message});
      lock.lock();
    }
    Failure{ErrorKind::stage_timeout, message}.raise();
  }
}

void Link::send(const Frame& frame) {
  const auto job = std::make_shared<Job>();
  job->messages = encode_frame(frame, options_.limits, options_.checksum, compression_);
  job->is_payload = frame.type == FrameType::payload;
  if (job->is_payload)
    for (const EncodedMessage& message : job->messages) job->payload_bytes += message.payload_bytes();
  Lock lock(mutex_);
  require_open();
  if (job->is_payload) wait_for_credit(lock);
  jobs_.push_back(job);
  work_.notify_one();
  wait_until_written(lock, job);
}

void Link::grant(int64_t frames) {
  const std::lock_guard lock(mutex_);
  raise_lost();
  if (frames < 0 || frames > kMostCredits - std::min(kMostCredits, accepted_))
    fail(ErrorKind::internal, place(*stream_), "grant: wanted 0 to {} frames, found {}", kMostCredits - accepted_, frames);
  if (finishing_) return;
  accepted_ += frames;
  grants_due_ += frames;
  work_.notify_one();
}

void Link::send_ping() {
  const std::lock_guard lock(mutex_);
  raise_lost();
  if (finishing_) return;
  ping_due_ = ++ping_number_;
  pinged_ = Clock::now();
  work_.notify_one();
}

std::optional<double> Link::round_trip() const {
  const std::lock_guard lock(mutex_);
  return round_trip_;
}

LinkCounters Link::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

const std::string& Link::peer() const { return stream_->peer(); }

void Link::finish() noexcept {
  {
    Lock lock(mutex_);
    finishing_ = true;
    work_.notify_one();
    changed_.notify_all();  // who waits for credit
    const auto begun = Clock::now();
    for (bool in_time = true; in_time;) {
      const auto deadline = std::max(begun, progress_) + timeout();
      in_time = changed_.wait_until(lock, deadline,
                                    [&] { return finished_ || lost_ || std::max(begun, progress_) + timeout() > deadline; });
      if (finished_ || lost_) return;
    }
  }
  cancel("finish: the stream took no message in time");
}

bool Link::has_signal() const { return ping_due_ || pong_due_ || grants_due_ > 0; }

EncodedMessage Link::next_signal() {
  Frame frame;
  if (grants_due_ > 0) {
    frame = signal(FrameType::credit, static_cast<uint64_t>(std::exchange(grants_due_, 0)));
  } else if (pong_due_) {
    frame = signal(FrameType::pong, *std::exchange(pong_due_, std::nullopt));
  } else {
    frame = signal(FrameType::ping, *std::exchange(ping_due_, std::nullopt));
  }
  return std::move(encode_frame(frame, options_.limits, Checksum::off).front());
}

void Link::write_all() noexcept {
  Lock lock(mutex_);
  bool signalled = false;  // the last message was a signal: a flood of pings keeps no frame back
  for (;;) {
    work_.wait(lock, [&] { return lost_ || has_signal() || !jobs_.empty() || finishing_; });
    if (lost_) return;
    std::shared_ptr<Job> job;
    EncodedMessage made;
    const EncodedMessage* message = &made;
    std::optional<Failure> failure;
    signalled = has_signal() && !(signalled && !jobs_.empty());
    if (signalled) {
      failure = guard([&] { made = next_signal(); });
    } else if (!jobs_.empty()) {
      job = jobs_.front();
      message = &job->messages[job->next++];
    } else {
      lock.unlock();
      stream_->finish();
      lock.lock();
      finished_ = true;
      changed_.notify_all();
      return;
    }
    lock.unlock();
    const auto start = Clock::now();
    if (!failure) failure = guard([&] { stream_->write(*message); });
    if (failure) {
      lose(*failure);
      return;
    }
    lock.lock();
    progress_ = Clock::now();
    counters_.send_seconds += seconds(progress_ - start);
    counters_.bytes_sent += message->bytes();
    if (job == nullptr || job->next == job->messages.size()) ++counters_.frames_sent;
    if (job != nullptr && job->next == job->messages.size()) {
      counters_.payload_bytes_sent += job->payload_bytes;
      job->done = true;
      if (!lost_) jobs_.pop_front();
    }
    changed_.notify_all();
  }
}

std::optional<Frame> Link::receive() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      raise_lost();
      if (peer_finished_) return std::nullopt;
    }
    std::optional<ReceivedMessage> message;
    std::optional<Frame> frame;
    std::optional<Failure> failure = guard([&] {
      message = stream_->read();
      if (message) {
        last_heard_ = Clock::now().time_since_epoch().count();
        frame = decoder_.add(message->bytes, message->owner);
      } else if (decoder_.incomplete()) {
        fail(ErrorKind::stage_lost, place(*stream_), "wanted the next chunk of a frame, found the end of the stream");
      }
      {
        const std::lock_guard lock(mutex_);
        counters_.ignored = decoder_.ignored();
        if (message) counters_.bytes_received += static_cast<int64_t>(message->bytes.size());
        if (frame) ++counters_.frames_received;
        if (!message) peer_finished_ = true;
      }
      if (!message) changed_.notify_all();
      if (frame) frame = keep(std::move(*frame));
    });
    if (failure) {
      lose(*failure);
      const std::lock_guard lock(mutex_);
      raise_lost();
    }
    if (frame) return frame;
  }
}

std::optional<Frame> Link::keep(Frame frame) {
  const std::lock_guard lock(mutex_);
  switch (frame.type) {
    case FrameType::ping:
      if (!finishing_) pong_due_ = frame.step;
      work_.notify_one();
      return std::nullopt;
    case FrameType::pong:
      if (frame.step == ping_number_) round_trip_ = seconds(Clock::now() - pinged_);
      return std::nullopt;
    case FrameType::credit:
      if (frame.step == 0 || frame.step > static_cast<uint64_t>(kMostCredits - credits_))
        fail(ErrorKind::bad_input, "frame", "credit: wanted 1 to {} frames, found {}", kMostCredits - credits_, frame.step);
      credits_ += static_cast<int64_t>(frame.step);
      changed_.notify_all();
      return std::nullopt;
    case FrameType::payload:
      if (accepted_ == 0) fail(ErrorKind::bad_input, "frame", "payload: wanted no frame without credit, found one");
      --accepted_;
      return frame;
    default: return frame;
  }
}

}  // namespace weft
