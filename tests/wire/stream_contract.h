// What every MessageStream promises (pipeline/wire/message_stream.h), as tests for any transport:
//
//     INSTANTIATE_TEST_SUITE_P(InProcess, StreamContract, testing::Values(StreamFactory{"in_process", [] { return ...; }}),
//                              stream_name);
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "pipeline/wire/link.h"

#include "wire/wire_test_util.h"

namespace weft::wire_test {

// Two ends of one stream, and what must live longer (a server, which waits for the end that it handed out).
struct StreamPair {
  std::shared_ptr<void> keep;
  std::unique_ptr<MessageStream> a;
  std::unique_ptr<MessageStream> b;
};

struct StreamFactory {
  std::string name;
  std::function<StreamPair()> make;
};

inline std::string stream_name(const testing::TestParamInfo<StreamFactory>& info) { return info.param.name; }

class StreamContract : public testing::TestWithParam<StreamFactory> {
 protected:
  static constexpr std::chrono::seconds kLong{60};  // no sound stream takes that long

  // Bytes as a message: a head and parts, none of them aligned.
  static EncodedMessage message(const std::string& text) {
    EncodedMessage made;
    const size_t head = text.size() / 3;
    for (const char c : text.substr(0, head)) made.head.push_back(static_cast<std::byte>(c));
    const auto rest = std::make_shared<const std::string>(text.substr(head));
    const FrameTensor whole = FrameTensor::message(rest);
    for (int64_t at = 0; at < whole.view.bytes();) {
      const int64_t count = std::min<int64_t>(1 + at, whole.view.bytes() - at);
      made.parts.push_back({TensorKind::message, {DType::u8, {count}, whole.view.data + at}, rest});
      at += count;
    }
    return made;
  }
  static std::string text_of(const ReceivedMessage& message) {
    return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
  }
  static std::string text(size_t bytes) {
    std::string made(bytes, '\0');
    uint32_t state = 17;
    for (char& c : made) {
      state = state * 1664525U + 1013904223U;
      c = static_cast<char>(state >> 24U);
    }
    return made;
  }
  template <class Body>
  static auto in_thread(Body body) {
    return std::async(std::launch::async, std::move(body));
  }
  template <class Future>
  static bool is_ready(Future& future) {
    return future.wait_for(kLong) == std::future_status::ready;
  }
};

TEST_P(StreamContract, MessagesComeWholeAndInOrderBothWays) {
  StreamPair pair = GetParam().make();
  for (const bool forth : {true, false}) {
    MessageStream& from = forth ? *pair.a : *pair.b;
    MessageStream& to = forth ? *pair.b : *pair.a;
    auto writer = in_thread([&] {
      for (size_t i = 0; i < 200; ++i) from.write(message(text(i * 37 + 1)));
    });
    for (size_t i = 0; i < 200; ++i) {
      const auto found = to.read();
      ASSERT_TRUE(found.has_value());
      EXPECT_TRUE(text_of(*found) == text(i * 37 + 1)) << i;
    }
    writer.get();
  }
}

TEST_P(StreamContract, AMessageOfAChunkWithItsHeaderPasses) {
  StreamPair pair = GetParam().make();
  const std::string large = text((size_t{4} << 20U) + 4096);
  EncodedMessage made;
  const auto shared = std::make_shared<const std::string>(large);
  made.parts.push_back(FrameTensor::message(shared));
  auto writer = in_thread([&] { pair.a->write(made); });
  const auto found = pair.b->read();
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(text_of(*found) == large);
  writer.get();
}

TEST_P(StreamContract, AMessageLivesAsLongAsItsOwner) {
  StreamPair pair = GetParam().make();
  auto writer = in_thread([&] {
    for (size_t i = 0; i < 3; ++i) pair.a->write(message(text(1000 + i)));
    pair.a->finish();
  });
  std::vector<ReceivedMessage> kept;
  while (auto found = pair.b->read()) kept.push_back(*found);
  writer.get();
  pair.a.reset();
  pair.b.reset();
  ASSERT_EQ(kept.size(), 3U);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(text_of(kept[i]) == text(1000 + i));
}

TEST_P(StreamContract, AfterFinishComesWhatWasWrittenAndThenNothing) {
  StreamPair pair = GetParam().make();
  auto writer = in_thread([&] {
    for (size_t i = 0; i < 5; ++i) pair.a->write(message(text(50 + i)));
    pair.a->finish();
  });
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(text_of(pair.b->read().value()) == text(50 + i));
  EXPECT_FALSE(pair.b->read().has_value());
  writer.get();
  // The other direction is open still.
  auto answer = in_thread([&] {
    pair.b->write(message("answer"));
    pair.b->finish();
  });
  EXPECT_EQ(text_of(pair.a->read().value()), "answer");
  EXPECT_FALSE(pair.a->read().has_value());
  answer.get();
}

TEST_P(StreamContract, CancelWakesBothEndsAndKeepsItsReason) {
  StreamPair pair = GetParam().make();
  auto own = in_thread([&] { return message_of_error(ErrorKind::stage_lost, [&] { (void)pair.a->read(); }); });
  auto other = in_thread([&] { return message_of_error(ErrorKind::stage_lost, [&] { (void)pair.b->read(); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  pair.a->cancel("the reason given");
  ASSERT_TRUE(is_ready(own));
  ASSERT_TRUE(is_ready(other));
  EXPECT_THAT(own.get(), testing::HasSubstr("the reason given"));
  EXPECT_FALSE(other.get().empty());
  pair.a->cancel("a later one");
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { (void)pair.a->read(); }), testing::HasSubstr("the reason given"));
  EXPECT_THAT(message_of_error(ErrorKind::stage_lost, [&] { pair.a->write(message("x")); }),
              testing::HasSubstr("the reason given"));
  message_of_error(ErrorKind::stage_lost, [&] { pair.b->write(message("x")); });
}

TEST_P(StreamContract, CancelWakesAWriterThatWaitsForRoom) {
  StreamPair pair = GetParam().make();
  constexpr int64_t kMost = 256;  // MiB
  std::atomic<int64_t> written = 0;
  const EncodedMessage large = message(text(size_t{1} << 20U));
  auto writer = in_thread([&] {
    return message_of_error(ErrorKind::stage_lost, [&] {
      while (written <= kMost) {  // nobody reads: a bounded stream stops it
        pair.a->write(large);
        ++written;
      }
    });
  });
  int64_t before = -1;
  const auto limit = std::chrono::steady_clock::now() + kLong;
  while (written != before && std::chrono::steady_clock::now() < limit) {
    before = written;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_LE(written, kMost) << "MiB are held: the stream is not bounded";
  pair.a->cancel("enough");
  ASSERT_TRUE(is_ready(writer));
  EXPECT_THAT(writer.get(), testing::HasSubstr("enough"));
}

TEST_P(StreamContract, ADestroyedEndIsLostForTheOther) {
  StreamPair pair = GetParam().make();
  auto other = in_thread([&] { return message_of_error(ErrorKind::stage_lost, [&] { (void)pair.b->read(); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  pair.a.reset();
  ASSERT_TRUE(is_ready(other));
  EXPECT_FALSE(other.get().empty());
}

TEST_P(StreamContract, BothFinishedIsGoodOrderWhoeverGoesFirst) {
  StreamPair pair = GetParam().make();
  pair.a->finish();
  pair.b->finish();
  EXPECT_FALSE(pair.a->read().has_value());
  pair.a.reset();
  EXPECT_FALSE(pair.b->read().has_value());
}

TEST_P(StreamContract, WritingAfterFinishIsAMistake) {
  StreamPair pair = GetParam().make();
  pair.a->finish();
  EXPECT_THAT(message_of_error(ErrorKind::internal, [&] { pair.a->write(message("x")); }), testing::HasSubstr("finished"));
}

TEST_P(StreamContract, PeersHaveNames) {
  StreamPair pair = GetParam().make();
  EXPECT_FALSE(pair.a->peer().empty());
  EXPECT_FALSE(pair.b->peer().empty());
}

TEST_P(StreamContract, LinksCarryFramesOfManyChunksBothWaysAtOnce) {
  StreamPair pair = GetParam().make();
  LinkOptions options;
  options.limits.chunk = 100'000;
  Link a(std::move(pair.a), options);
  Link b(std::move(pair.b), options);
  Frame frame;
  frame.type = FrameType::payload;
  frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, pattern(DType::bf16, {512, 4, 1000})));
  const auto send = [&](Link& link) {
    return in_thread([&] {
      for (int i = 0; i < 5; ++i) link.send(frame);
    });
  };
  const auto receive = [&](Link& link) {
    return in_thread([&] {
      int found = 0;
      while (const auto next = link.receive()) {
        expect_same(*next, frame);
        ++found;
        link.grant(1);
        link.ping();
      }
      return found;
    });
  };
  auto one = send(a);
  auto two = send(b);
  auto three = receive(a);
  auto four = receive(b);
  // An end that finished would grant nothing more, and the other still wants credits.
  one.get();
  two.get();
  a.finish();
  b.finish();
  EXPECT_EQ(three.get(), 5);
  EXPECT_EQ(four.get(), 5);
}

}  // namespace weft::wire_test
