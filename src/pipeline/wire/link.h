// Frames between two ends: chunks, checksums, credits and signs of life over a MessageStream.
//
//     Link link(std::move(stream), options);
//     link.send(frame);                          // any thread; a payload frame waits for credit
//     while (auto frame = link.receive()) ...    // one thread: ping, pong and credit frames are dealt with inside
//     link.grant(1);                             // that payload frame was used up: the other end may send another
//
// Contract: receive() answers pings at once, so an end whose reader waits in receive() is alive to the other. A stream that is
// lost, cancelled, or carries what is no frame throws stage_lost from every waiting and later call, with the first reason.
//
// A thread of the link writes to the stream. Hence receive(), grant() and ping() never wait for the other end to read: two ends
// that send large frames to each other would else wait for each other's pongs for ever. Pings, pongs and credits go between the
// chunks of a frame.
//
// To end in good order: finish(), then receive() until it returns nothing, then destroy.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/guard.h"
#include "pipeline/wire/message_stream.h"

namespace weft {

struct LinkOptions {
  FrameLimits limits;
  Checksum checksum = Checksum::on;
  Compression compression = Compression::none;  // of payload frames that go out, where the other end reads it: compress()
  int64_t credits = 2;                          // payload frames that each end accepts before the first grant()
  double send_timeout = 30.0;  // seconds that send() waits for credit, and for the stream to take the next message
};

struct LinkCounters {
  int64_t frames_sent = 0;
  int64_t frames_received = 0;
  int64_t bytes_sent = 0;  // whole messages, headers included
  int64_t bytes_received = 0;
  int64_t payload_bytes_sent = 0;  // of payload frames alone, as they travel
  double send_seconds = 0.0;       // inside MessageStream::write
  double credit_seconds = 0.0;     // waited for credit
  int64_t ignored = 0;             // messages of types that only a newer minor version has
};

class Link {
 public:
  using Clock = std::chrono::steady_clock;

  // Throws unavailable when there is no thread to be had.
  Link(std::unique_ptr<MessageStream> stream, const LinkOptions& options);
  ~Link();  // cancels; no call may be running
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // From any thread; frames of one thread keep their order. Returns when the stream has taken the frame. Throws stage_timeout
  // when a payload frame gets no credit within send_timeout, or the stream takes no message that long (the link is lost then,
  // if a part of the frame was sent); bad_input for a frame above the limits; stage_lost; internal after finish().
  void send(const Frame& frame);
  // The next frame that is no ping, pong or credit; nothing when the other end finished in good order. One thread at a time.
  [[nodiscard]] std::optional<Frame> receive();
  // The other end may send `frames` further payload frames. After finish() it does nothing, as ping() does.
  void grant(int64_t frames);

  // Payload frames from now on; none before the first call. The other end must have said that it reads it.
  void compress(Compression compression) { compression_ = compression; }

  void ping() { send_ping(); }
  [[nodiscard]] Clock::time_point last_heard() const { return Clock::time_point(Clock::duration(last_heard_.load())); }
  // Seconds between a ping() and its pong: the last pair.
  [[nodiscard]] std::optional<double> round_trip() const;

  // Ends the link: every waiting and later call throws stage_lost with `reason`.
  void cancel(const std::string& reason) noexcept;
  // No more will be sent; the other end's receive() returns nothing after what was. Waits until the stream has taken all of it,
  // but no longer than send() does.
  void finish() noexcept;

  [[nodiscard]] const std::string& peer() const;
  [[nodiscard]] LinkCounters counters() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // A frame on its way to the stream.
  struct Job {
    std::vector<EncodedMessage> messages;
    size_t next = 0;  // message
    bool is_payload = false;
    int64_t payload_bytes = 0;
    bool done = false;
  };

  void send_ping();
  void write_all() noexcept;
  [[nodiscard]] bool has_signal() const;
  [[nodiscard]] EncodedMessage next_signal();
  void wait_for_credit(Lock& lock);
  void wait_until_written(Lock& lock, const std::shared_ptr<Job>& job);
  void require_open() const;
  void raise_lost() const;
  // Keeps the first reason, wakes everybody and ends the stream.
  void lose(const Failure& failure) noexcept;
  [[nodiscard]] std::optional<Frame> keep(Frame frame);
  [[nodiscard]] Clock::duration timeout() const;

  std::unique_ptr<MessageStream> stream_;
  LinkOptions options_;
  FrameDecoder decoder_;  // of the thread in receive()
  std::atomic<Clock::rep> last_heard_;
  std::atomic<Compression> compression_ = Compression::none;

  mutable std::mutex mutex_;         // guards what follows
  std::condition_variable work_;     // for the writer
  std::condition_variable changed_;  // for send() and finish()
  std::deque<std::shared_ptr<Job>> jobs_;
  std::optional<uint64_t> ping_due_;  // their numbers; one that was not yet sent is replaced by the next
  std::optional<uint64_t> pong_due_;
  int64_t grants_due_ = 0;
  int64_t credits_ = 0;   // payload frames that the other end accepts now
  int64_t accepted_ = 0;  // payload frames that this end accepts now
  uint64_t ping_number_ = 0;
  Clock::time_point pinged_;
  std::optional<double> round_trip_;
  Clock::time_point progress_;  // the stream last took a message
  LinkCounters counters_;
  std::optional<Failure> lost_;
  bool finishing_ = false;
  bool finished_ = false;  // the stream was told
  bool peer_finished_ = false;

  std::thread writer_;
};

}  // namespace weft
