// Frames between two ends: chunks, checksums, credits and signs of life over a MessageStream.
//
//     Link link(std::move(stream), options);
//     link.send(frame);                          // any thread; a payload frame waits for credit
//     while (auto frame = link.receive()) ...    // one thread: ping, pong and credit frames are dealt with inside
//     link.grant(1);                             // that payload frame was used up: the other end may send another
//
// Contract: receive() answers pings at once, so an end whose reader waits in receive() is alive to the other. A stream that is
// lost, cancelled, or carries what is no frame throws stage_lost from every waiting and later call, with the first reason.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "pipeline/wire/message_stream.h"

namespace weft {

struct LinkOptions {
  FrameLimits limits;
  Checksum checksum = Checksum::on;
  int64_t credits = 2;           // payload frames that each end accepts before the first grant()
  double send_timeout = 30.0;    // seconds that send() waits for credit
};

struct LinkCounters {
  int64_t frames_sent = 0;
  int64_t frames_received = 0;
  int64_t bytes_sent = 0;  // whole messages, headers included
  int64_t bytes_received = 0;
  int64_t payload_bytes_sent = 0;  // of payload frames alone
  double send_seconds = 0.0;       // inside MessageStream::write
  double credit_seconds = 0.0;     // waited for credit
};

class Link {
 public:
  using Clock = std::chrono::steady_clock;

  Link(std::unique_ptr<MessageStream> stream, const LinkOptions& options);
  ~Link();  // cancels; no call may be running
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // From any thread; frames of one thread keep their order. Throws stage_timeout when a payload frame gets no credit within
  // send_timeout, bad_input for a frame above the limits, stage_lost.
  void send(const Frame& frame);
  // The next frame that is no ping, pong or credit; nothing when the other end finished in good order. One thread at a time.
  [[nodiscard]] std::optional<Frame> receive();
  void grant(int64_t frames);

  void ping() { send_ping(); }
  [[nodiscard]] Clock::time_point last_heard() const { return Clock::time_point(Clock::duration(last_heard_.load())); }
  // Seconds between the last ping() and its pong.
  [[nodiscard]] std::optional<double> round_trip() const;

  // Ends the link: every waiting and later call throws stage_lost with `reason`.
  void cancel(const std::string& reason) noexcept;
  void finish() noexcept;

  [[nodiscard]] const std::string& peer() const;
  [[nodiscard]] LinkCounters counters() const;

 private:
  void send_ping();

  std::unique_ptr<MessageStream> stream_;
  LinkOptions options_;
  FrameDecoder decoder_;
  std::atomic<Clock::rep> last_heard_;
  // Helper's choice of further members.
};

}  // namespace weft
