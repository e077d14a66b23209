// Links over streams of this process: credits, signs of life, ends in good and in bad order.
#include "pipeline/wire/link.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "wire/wire_test_util.h"

namespace weft {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using wire_test::expect_same;
using wire_test::message_of;
using wire_test::message_of_error;
using wire_test::pattern;

constexpr auto kLong = 20s;  // never reached by a sound link

struct Links {
  std::unique_ptr<Link> a;
  std::unique_ptr<Link> b;
};

Links make_links(const LinkOptions& options = {}, int64_t capacity = 64) {
  auto [a, b] = in_process_streams(capacity);
  return {std::make_unique<Link>(std::move(a), options), std::make_unique<Link>(std::move(b), options)};
}

Frame control(std::string text, uint64_t step = 0) {
  Frame frame;
  frame.step = step;
  frame.tensors.push_back(message_of(std::move(text)));
  return frame;
}

Frame payload(uint64_t step, int64_t bytes = 64) {
  Frame frame;
  frame.type = FrameType::payload;
  frame.step = step;
  frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, pattern(DType::u8, {bytes}, static_cast<uint32_t>(step))));
  return frame;
}

Frame ping(uint64_t number) {
  Frame frame;
  frame.type = FrameType::ping;
  frame.step = number;
  return frame;
}

template <class Body>
auto in_thread(Body body) {
  return std::async(std::launch::async, std::move(body));
}

template <class Future>
bool is_ready(Future& future, std::chrono::milliseconds within = kLong) {
  return future.wait_for(within) == std::future_status::ready;
}

// Reads until the other end has finished or is lost, and counts.
std::future<int64_t> drain(Link& link) {
  return in_thread([&link] {
    int64_t frames = 0;
    try {
      while (link.receive()) ++frames;
    } catch (const Error&) {
      return int64_t{-1};
    }
    return frames;
  });
}

// A stream whose other side is the test: what it read comes from the test, what was written goes there, and writes can be held.
class ScriptedStream final : public MessageStream {
 public:
  struct Script {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::vector<std::byte>> to_read;
    std::vector<std::vector<std::byte>> written;
    bool hold_writes = false;
    int writers = 0;  // that wait in write()
    int readers = 0;  // that wait in read()
    int pings = 0;    // to come, one after each pong
    bool ended = false;
    bool cancelled = false;
    std::string reason;

    void hold(bool held) {
      const std::lock_guard lock(mutex);
      hold_writes = held;
      changed.notify_all();
    }
    void give(const Frame& frame) {
      const std::lock_guard lock(mutex);
      for (auto& message : wire_test::encoded(frame)) to_read.push_back(std::move(message));
      changed.notify_all();
    }
    void give(std::vector<std::byte> message) {
      const std::lock_guard lock(mutex);
      to_read.push_back(std::move(message));
      changed.notify_all();
    }
    void end() {
      const std::lock_guard lock(mutex);
      ended = true;
      changed.notify_all();
    }
    void wait_for_writer() {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, kLong, [&] { return writers > 0; }));
    }
    // The types of the frames that were written, once there are `count` messages.
    std::vector<int> types(size_t count) {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(changed.wait_for(lock, kLong, [&] { return written.size() >= count; }));
      std::vector<int> found;
      for (const auto& message : written) found.push_back(wire_layout::get<uint16_t>(message.data() + wire_layout::kTypeAt));
      return found;
    }
  };

  explicit ScriptedStream(std::shared_ptr<Script> script) : script_(std::move(script)) {}

  void write(const EncodedMessage& message) override {
    std::unique_lock lock(script_->mutex);
    ++script_->writers;
    script_->changed.notify_all();
    script_->changed.wait(lock, [&] { return script_->cancelled || !script_->hold_writes; });
    --script_->writers;
    if (script_->cancelled) fail(ErrorKind::stage_lost, "scripted", "{}", script_->reason);
    script_->written.push_back(wire_test::bytes_of(message));
    const auto type = wire_layout::get<uint16_t>(script_->written.back().data() + wire_layout::kTypeAt);
    if (script_->pings > 0 && type == static_cast<uint16_t>(FrameType::pong)) {
      --script_->pings;
      script_->to_read.push_back(wire_test::encoded(ping(1)).front());
      script_->changed.notify_all();
      // Until the link has dealt with it.
      script_->changed.wait(lock, [&] { return script_->cancelled || (script_->to_read.empty() && script_->readers > 0); });
    }
    script_->changed.notify_all();
  }
  std::optional<ReceivedMessage> read() override {
    std::unique_lock lock(script_->mutex);
    ++script_->readers;
    script_->changed.notify_all();
    script_->changed.wait(lock, [&] { return script_->cancelled || script_->ended || !script_->to_read.empty(); });
    --script_->readers;
    if (script_->cancelled) fail(ErrorKind::stage_lost, "scripted", "{}", script_->reason);
    if (script_->to_read.empty()) return std::nullopt;
    const wire_test::Received message = wire_test::received(script_->to_read.front());
    script_->to_read.pop_front();
    return ReceivedMessage{message.bytes, message.memory};
  }
  void cancel(const std::string& reason) noexcept override {
    const std::lock_guard lock(script_->mutex);
    if (!script_->cancelled) script_->reason = reason;
    script_->cancelled = true;
    script_->changed.notify_all();
  }
  void finish() noexcept override {}
  const std::string& peer() const override {
    static const std::string name = "10.0.0.12:19001";
    return name;
  }

 private:
  std::shared_ptr<Script> script_;
};

struct Scripted {
  std::shared_ptr<ScriptedStream::Script> script = std::make_shared<ScriptedStream::Script>();
  std::unique_ptr<Link> link;

  explicit Scripted(const LinkOptions& options = {})
      : link(std::make_unique<Link>(std::make_unique<ScriptedStream>(script), options)) {}
};

TEST(Link, FramesComeInOrderAndInGoodOrderTheyEnd) {
  const Links links = make_links();
  auto sent = in_thread([&] {
    for (uint64_t step = 0; step < 100; ++step) links.a->send(control("text " + std::to_string(step), step));
    links.a->finish();
  });
  for (uint64_t step = 0; step < 100; ++step) {
    const auto frame = links.b->receive();
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(frame->step, step);
    EXPECT_EQ(std::string(frame->message()), "text " + std::to_string(step));
  }
  EXPECT_FALSE(links.b->receive().has_value());
  EXPECT_FALSE(links.b->receive().has_value());
  sent.get();
  links.b->send(control("still open this way"));
  links.b->finish();
  EXPECT_EQ(std::string(links.a->receive()->message()), "still open this way");
  EXPECT_FALSE(links.a->receive().has_value());
  EXPECT_EQ(links.a->peer(), "in-process");
}

TEST(Link, ChunkedFramesOfBothEndsPassEachOtherThroughAFullStream) {
  LinkOptions options;
  options.limits.chunk = 1024;
  const Links links = make_links(options, 1);  // far less than a frame
  const Frame frame = [] {
    Frame made = payload(3, 100'003);
    made.type = FrameType::control;
    return made;
  }();
  std::vector<std::future<void>> senders;
  for (Link* link : {links.a.get(), links.b.get()}) senders.push_back(in_thread([link, &frame] { link->send(frame); }));
  links.a->ping();
  links.b->ping();
  auto one = in_thread([&] { return links.a->receive(); });
  auto other = in_thread([&] { return links.b->receive(); });
  expect_same(*one.get(), frame);
  expect_same(*other.get(), frame);
  for (auto& sender : senders) sender.get();
}

TEST(Link, PayloadFramesWaitForCreditAndOthersDoNot) {
  const Links links = make_links({.limits = {}, .credits = 2});
  links.a->send(payload(1));
  links.a->send(payload(2));
  auto third = in_thread([&] { links.a->send(payload(3)); });
  EXPECT_FALSE(is_ready(third, 50ms));
  links.a->send(control("needs none"));
  auto reader = drain(*links.a);  // takes the credit frame
  EXPECT_EQ(links.b->receive()->step, 1U);
  EXPECT_EQ(links.b->receive()->step, 2U);
  EXPECT_EQ(std::string(links.b->receive()->message()), "needs none");
  EXPECT_FALSE(is_ready(third, 50ms));
  links.b->grant(1);
  ASSERT_TRUE(is_ready(third));
  EXPECT_EQ(links.b->receive()->step, 3U);
  auto fourth = in_thread([&] { links.a->send(payload(4)); });
  EXPECT_FALSE(is_ready(fourth, 50ms));
  links.b->grant(1);
  ASSERT_TRUE(is_ready(fourth));
  EXPECT_GT(links.a->counters().credit_seconds, 0.05);
  links.b->cancel("end of the test");
  reader.get();
}

TEST(Link, NoCreditInTimeIsATimeoutAndTheLinkGoesOn) {
  const Links links = make_links({.limits = {}, .credits = 1, .send_timeout = 0.05});
  links.a->send(payload(1));
  EXPECT_THAT(message_of_error(ErrorKind::stage_timeout, [&] { links.a->send(payload(2)); }),
              HasSubstr("[link in-process] credit: wanted one within 0.05 s, found none"));
  links.a->send(control("after"));
  EXPECT_EQ(links.b->receive()->step, 1U);
  EXPECT_EQ(std::string(links.b->receive()->message()), "after");
}

TEST(Link, AStreamThatTakesNothingIsATimeout) {
  Scripted scripted({.limits = {}, .credits = 1, .send_timeout = 0.1});
  scripted.script->hold(true);
  EXPECT_THAT(message_of_error(ErrorKind::stage_timeout, [&] { scripted.link->send(control("x")); }),
              HasSubstr("send: wanted the stream to take a message within 0.1 s"));
  // A part of the frame may be on its way: the link is of no further use.
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { scripted.link->ping(); }), HasSubstr("10.0.0.12:19001"));
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); }), HasSubstr("within 0.1 s"));
}

TEST(Link, AFrameThatWasNotBegunIsTakenBackWithItsCredit) {
  Scripted scripted({.limits = {}, .credits = 1, .send_timeout = 0.1});
  scripted.script->hold(true);
  scripted.link->ping();
  scripted.script->wait_for_writer();  // the ping
  EXPECT_THAT(message_of_error(ErrorKind::stage_timeout, [&] { scripted.link->send(payload(1)); }),
              HasSubstr("send: wanted the stream to take a message within 0.1 s"));
  scripted.script->hold(false);
  scripted.link->send(payload(2));
  EXPECT_THAT(scripted.script->types(2), testing::ElementsAre(7, 2));
  EXPECT_EQ(scripted.link->counters().frames_sent, 2);
}

TEST(Link, WhoWaitsBehindAFrameThatIsStuckLosesTheLinkToo) {
  Scripted scripted({.limits = {}, .credits = 2, .send_timeout = 0.3});
  scripted.script->hold(true);
  auto stuck = in_thread([&] { return message_of_error(ErrorKind::stage_timeout, [&] { scripted.link->send(payload(1)); }); });
  scripted.script->wait_for_writer();
  std::this_thread::sleep_for(50ms);  // it gives up later than the first
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { scripted.link->send(payload(2)); }), HasSubstr("within 0.3 s"));
  EXPECT_THAT(stuck.get(), HasSubstr("within 0.3 s"));
}

TEST(Link, PingIsAnsweredByTheReaderAndTimed) {
  const Links links = make_links();
  EXPECT_FALSE(links.a->round_trip().has_value());
  const auto before = links.a->last_heard();
  std::this_thread::sleep_for(2ms);
  auto reader = drain(*links.b);
  auto own = drain(*links.a);
  links.a->ping();
  const auto limit = std::chrono::steady_clock::now() + kLong;
  while (!links.a->round_trip() && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(links.a->round_trip().has_value());
  EXPECT_GT(*links.a->round_trip(), 0.0);
  EXPECT_LT(*links.a->round_trip(), 20.0);
  EXPECT_GT(links.a->last_heard(), before);
  links.a->finish();
  links.b->finish();
  EXPECT_EQ(reader.get(), 0);  // signals are no frames for the caller
  EXPECT_EQ(own.get(), 0);
}

TEST(Link, PongAndCreditGoBetweenTheChunksOfAFrame) {
  LinkOptions options;
  options.limits.chunk = 64;
  Scripted scripted(options);
  scripted.script->hold(true);
  Frame large = payload(1, 640);
  large.type = FrameType::control;
  auto sender = in_thread([&] { scripted.link->send(large); });
  scripted.script->wait_for_writer();  // the first chunk
  scripted.script->give(ping(9));
  scripted.script->give(control("then"));
  EXPECT_EQ(std::string(scripted.link->receive()->message()), "then");
  scripted.link->grant(2);
  scripted.script->hold(false);
  ASSERT_TRUE(is_ready(sender));
  EXPECT_THAT(scripted.script->types(12), testing::ElementsAre(9, 5, 9, 8, 9, 9, 9, 9, 9, 9, 9, 9));
}

TEST(Link, AFloodOfPingsKeepsNoFrameBack) {
  constexpr int kPings = 1000;
  Scripted scripted;
  scripted.script->pings = kPings;  // a pong is never written without the next being due
  scripted.script->hold(true);
  auto reader = drain(*scripted.link);
  scripted.script->give(ping(1));
  scripted.script->wait_for_writer();  // the first pong
  auto sender = in_thread([&] { scripted.link->send(control("x")); });
  std::this_thread::sleep_for(20ms);
  scripted.script->hold(false);
  ASSERT_TRUE(is_ready(sender));
  const std::vector<int> types = scripted.script->types(kPings + 2);
  EXPECT_LT(std::find(types.begin(), types.end(), 9) - types.begin(), 100);
  scripted.script->end();
  EXPECT_EQ(reader.get(), 0);
}

TEST(Link, CancelEndsEveryWaitingAndLaterCallOfBothEndsWithTheFirstReason) {
  const Links links = make_links({.limits = {}, .credits = 0});
  const auto lost = [](auto body) { return in_thread([body] { return message_of_error(ErrorKind::stage_lost, body); }); };
  std::vector<std::future<std::string>> own;
  own.push_back(lost([&] { links.a->send(payload(1)); }));
  own.push_back(lost([&] { (void)links.a->receive(); }));
  auto other = lost([&] { (void)links.b->receive(); });
  std::this_thread::sleep_for(20ms);
  links.a->cancel("the plan changed");
  links.a->cancel("a later reason");
  own.push_back(lost([&] { links.a->send(control("x")); }));
  own.push_back(lost([&] { (void)links.a->receive(); }));
  own.push_back(lost([&] { links.a->grant(1); }));
  own.push_back(lost([&] { links.a->ping(); }));
  for (auto& call : own) {
    ASSERT_TRUE(is_ready(call));
    EXPECT_EQ(call.get(), "[link in-process] the plan changed");
  }
  ASSERT_TRUE(is_ready(other));
  EXPECT_THAT(other.get(), HasSubstr("the plan changed"));
  links.a->finish();  // does not wait
}

TEST(Link, ADestroyedEndIsALostOne) {
  Links links = make_links();
  auto waiting = in_thread([&] { return message_of_error(ErrorKind::stage_lost, [&] { (void)links.b->receive(); }); });
  links.a.reset();
  ASSERT_TRUE(is_ready(waiting));
  EXPECT_THAT(waiting.get(), HasSubstr("this end was closed"));
}

TEST(Link, WhatIsNoFrameLosesTheStream) {
  Scripted scripted;
  scripted.script->give(std::vector<std::byte>(64, std::byte{'X'}));
  const std::string message = message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); });
  EXPECT_EQ(message, "[link 10.0.0.12:19001] [frame] magic: wanted 'PPW1', found 'XXXX'");
  EXPECT_EQ(message_of_error(ErrorKind::stage_lost, [&] { scripted.link->send(control("x")); }), message);
  const std::lock_guard lock(scripted.script->mutex);
  EXPECT_TRUE(scripted.script->cancelled);  // the other end sees it too
}

TEST(Link, TheEndInsideAFrameIsNoGoodOrder) {
  Scripted scripted;
  FrameLimits small;
  small.chunk = 64;
  scripted.script->give(wire_test::encoded(payload(1, 200), small).front());
  scripted.script->end();
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); }),
              HasSubstr("wanted the next chunk of a frame, found the end of the stream"));
}

TEST(Link, APayloadWithoutCreditIsRefused) {
  Scripted scripted({.limits = {}, .credits = 1});
  scripted.script->give(payload(1));
  scripted.script->give(payload(2));
  EXPECT_EQ(scripted.link->receive()->step, 1U);
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); }),
              HasSubstr("payload: wanted no frame without credit, found one"));
}

TEST(Link, CreditsOfNoSenseAreRefused) {
  for (const uint64_t count : {uint64_t{0}, uint64_t{1} << 20U, UINT64_MAX}) {
    Scripted scripted({.limits = {}, .credits = 1});
    Frame credit;
    credit.type = FrameType::credit;
    credit.step = count;
    scripted.script->give(credit);
    scripted.script->end();
    EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); }),
                HasSubstr("credit: wanted 1 to 1048575 frames, found " + std::to_string(count)));
  }
}

TEST(Link, WhoWaitsForCreditLearnsThatTheOtherEndFinished) {
  const Links links = make_links({.limits = {}, .credits = 0});
  auto sender = in_thread([&] { return message_of_error(ErrorKind::stage_lost, [&] { links.a->send(payload(1)); }); });
  std::this_thread::sleep_for(50ms);
  links.b->finish();
  EXPECT_FALSE(links.a->receive().has_value());
  ASSERT_TRUE(is_ready(sender));
  EXPECT_THAT(sender.get(), HasSubstr("found that the other end finished"));
}

TEST(Link, NothingIsSentAfterFinish) {
  const Links links = make_links();
  links.a->finish();
  links.a->finish();
  EXPECT_THAT(message_of_error(ErrorKind::internal, [&] { links.a->send(control("x")); }), HasSubstr("not finished"));
  links.a->ping();
  links.a->grant(1);
  EXPECT_FALSE(links.b->receive().has_value());
}

TEST(Link, FinishWaitsForAStreamThatTakesNothingNoLongerThanSend) {
  Scripted scripted({.limits = {}, .credits = 2, .send_timeout = 0.1});
  scripted.script->hold(true);
  scripted.link->ping();
  scripted.link->finish();
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)scripted.link->receive(); }), HasSubstr("finish"));
}

TEST(Link, AFrameAboveTheLimitsIsTheSendersMistakeOnly) {
  LinkOptions options;
  options.limits.frame = 1024;
  const Links links = make_links(options);
  EXPECT_THAT(message_of_error(ErrorKind::bad_input, [&] { links.a->send(payload(1, 2048)); }), HasSubstr("wanted at most"));
  links.a->send(payload(2, 512));
  EXPECT_EQ(links.b->receive()->step, 2U);
}

TEST(Link, CountersCountMessagesWholeAndPayloadsAlone) {
  LinkOptions options;
  options.limits.chunk = 64;
  const Links links = make_links(options);
  links.a->send(payload(1, 100));  // 2 messages: 64 + (32 + 8) + 64 and 64 + 36
  links.a->send(control("12345678"));
  (void)links.b->receive();
  (void)links.b->receive();
  const LinkCounters sent = links.a->counters();
  EXPECT_EQ(sent.frames_sent, 2);
  EXPECT_EQ(sent.bytes_sent, (64 + 40 + 64) + (64 + 36) + (64 + 40 + 8));
  EXPECT_EQ(sent.payload_bytes_sent, 100);
  EXPECT_GE(sent.send_seconds, 0.0);
  const LinkCounters found = links.b->counters();
  EXPECT_EQ(found.frames_received, 2);
  EXPECT_EQ(found.bytes_received, sent.bytes_sent);
}

TEST(Link, ManyThreadsSendThroughOneLink) {
  const Links links = make_links({.limits = {}, .credits = 1}, 2);
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kFrames = 50;
  auto credits = drain(*links.a);
  std::vector<std::future<void>> senders;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    senders.push_back(in_thread([&links, thread] {
      for (uint64_t i = 0; i < kFrames; ++i) links.a->send(payload(thread * kFrames + i));
    }));
  }
  std::vector<uint64_t> next(kThreads, 0);
  for (uint64_t i = 0; i < kThreads * kFrames; ++i) {
    const auto frame = links.b->receive();
    ASSERT_TRUE(frame.has_value());
    EXPECT_EQ(frame->step % kFrames, next[frame->step / kFrames]++);
    links.b->grant(1);
  }
  for (auto& sender : senders) sender.get();
  links.a->finish();
  links.b->finish();
  EXPECT_FALSE(links.b->receive().has_value());
  EXPECT_EQ(credits.get(), 0);
}

}  // namespace
}  // namespace weft
