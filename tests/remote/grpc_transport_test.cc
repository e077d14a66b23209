#include "pipeline/remote/grpc_transport.h"

#include <set>
#include <thread>
#include <vector>

#include "remote/stream_test_util.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::TemporaryFolder;

constexpr double kTimeout = 60.0;

std::unique_ptr<MessageStream> connect_to(const GrpcServer& server) {
  return connect_grpc({server.address(), "stage-0"}, {}, kTimeout);
}

TEST(GrpcTransport, EchoesOverAllKindsOfAddresses) {
  const TemporaryFolder folder;
  for (const std::string& address : {std::string("127.0.0.1:0"), std::string("localhost:0"), std::string("[::1]:0"),
                                     "unix:" + (folder.path() / "socket").string()}) {
    SCOPED_TRACE(address);
    GrpcServer server(address, {}, echo);
    EXPECT_THAT(server.address(), Not(testing::EndsWith(":0")));
    const auto stream = connect_to(server);
    EXPECT_EQ(stream->peer(), server.address());
    stream->write(message_of("hello"));
    EXPECT_EQ(text_of(*stream->read()), "hello");
    stream->finish();
    EXPECT_FALSE(stream->read());
    EXPECT_FALSE(stream->read());
  }
}

TEST(GrpcTransport, MessagesOfAllSizesArriveWholeAndAligned) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = connect_to(server);
  for (const size_t size : {1U, 2U, 63U, 64U, 1023U, 1025U, 16384U, 65537U, 1U << 20U, (4U << 20U) + 128U, 32U << 20U}) {
    const std::string sent = pattern(size, static_cast<uint32_t>(size));
    stream->write(message_of(sent));
    const auto received = stream->read();
    ASSERT_TRUE(received);
    EXPECT_TRUE(text_of(*received) == sent) << size;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(received->bytes.data()) % 64, 0U) << size;
  }
}

TEST(GrpcTransport, AReceivedMessageOutlivesItsStream) {
  ReceivedMessage kept;
  {
    GrpcServer server("127.0.0.1:0", {}, echo);
    const auto stream = connect_to(server);
    stream->write(message_of("kept"));
    kept = *stream->read();
  }
  EXPECT_EQ(text_of(kept), "kept");
}

TEST(GrpcTransport, PartsFollowTheHeadAndLoseTheirOwnerAfterwards) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = connect_to(server);
  auto bytes = std::make_shared<const std::string>(pattern(100'000, 7));
  const std::weak_ptr<const std::string> watched = bytes;
  EncodedMessage message = message_of("head");
  message.parts.push_back(part_of(bytes, 1, 70'001));
  message.parts.push_back(part_of(bytes, 0, 0));
  message.parts.push_back(part_of(bytes, 5, 3));
  message.parts.push_back(part_of(bytes, 90'000, 5'000));
  const std::string wanted = "head" + bytes->substr(1, 70'001) + bytes->substr(5, 3) + bytes->substr(90'000, 5'000);
  stream->write(message);
  message = {};
  bytes.reset();
  EXPECT_TRUE(text_of(*stream->read()) == wanted);
  EXPECT_TRUE(watched.expired());
}

TEST(GrpcTransport, ManySmallMessagesKeepTheirOrderBothWaysAtOnce) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = connect_to(server);
  constexpr int kCount = 3000;
  std::thread writer([&] {
    for (int i = 0; i < kCount; ++i) stream->write(message_of("message " + std::to_string(i)));
    stream->finish();
  });
  int wrong = 0;
  int count = 0;
  while (const auto message = stream->read()) wrong += text_of(*message) != "message " + std::to_string(count++);
  writer.join();
  EXPECT_EQ(count, kCount);
  EXPECT_EQ(wrong, 0);
}

TEST(GrpcTransport, EachDirectionEndsForItself) {
  GrpcServer server("127.0.0.1:0", {}, [](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    stream->finish();  // long before the other end
    std::string all;
    while (const auto message = stream->read()) all += text_of(*message);
    if (all != "abc") fail(ErrorKind::internal, "test", "found '{}'", all);
  });
  const auto stream = connect_to(server);
  EXPECT_FALSE(stream->read());
  for (const char* text : {"a", "b", "c"}) stream->write(message_of(text));
  stream->finish();
  EXPECT_FALSE(stream->read());

  GrpcServer answers("127.0.0.1:0", {}, [](const GrpcPeer&, std::unique_ptr<MessageStream> end) {
    while (end->read()) {
    }
    for (const char* text : {"x", "y"}) end->write(message_of(text));
    end->finish();
  });
  const auto asks = connect_to(answers);
  asks->finish();
  EXPECT_EQ(text_of(*asks->read()), "x");
  EXPECT_EQ(text_of(*asks->read()), "y");
  EXPECT_FALSE(asks->read());
}

TEST(GrpcTransport, WhatWasWrittenBeforeFinishArrivesThoughTheWriterIsGone) {
  Awaited<int64_t> bytes;
  GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the client is gone by now, or waits for this end
    int64_t sum = 0;
    while (const auto message = stream->read()) sum += static_cast<int64_t>(message->bytes.size());
    bytes.give(sum);
  });
  {
    const auto stream = connect_to(server);
    for (int i = 0; i < 5; ++i) stream->write(message_of(pattern(10'000, 1)));
    stream->finish();
  }
  EXPECT_EQ(bytes.take(), 50'000);
}

TEST(GrpcTransport, WhatTheServerWroteArrivesThoughItsHandlerIsGone) {
  GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    for (int i = 0; i < 3; ++i) stream->write(message_of(pattern(10'000, 1)));
    stream->finish();
  });
  const auto stream = connect_to(server);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream->read()->bytes.size(), 10'000U);
  EXPECT_FALSE(stream->read());
  const Failure lost = failure_of([&] {
    for (;;) stream->write(message_of("too late"));
  });
  EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
  EXPECT_THAT(lost.message, HasSubstr("ended the call"));
  EXPECT_FALSE(stream->read());  // what ended in good order stays so
}

TEST(GrpcTransport, TwoStreamsHaveConnectionsOfTheirOwn) {
  std::mutex mutex;
  std::set<std::string> peers;
  GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
    {
      const std::lock_guard lock(mutex);
      peers.insert(peer.address);
    }
    if (text_of(*stream->read()) == "stuck") {
      (void)failure_of([&] {
        for (;;) stream->write(message_of(pattern(1U << 20U, 1)));  // nobody reads these
      });
      return;
    }
    for (int i = 0; i < 100; ++i) stream->write(message_of(text_of(*stream->read())));
    stream->finish();
  });
  const auto stuck = connect_to(server);
  const auto other = connect_to(server);
  stuck->write(message_of("stuck"));
  other->write(message_of("other"));
  for (int i = 0; i < 100; ++i) {
    other->write(message_of(pattern(50'000, static_cast<uint32_t>(i))));
    EXPECT_TRUE(text_of(*other->read()) == pattern(50'000, static_cast<uint32_t>(i)));
  }
  EXPECT_FALSE(other->read());
  stuck->cancel("enough");
  EXPECT_EQ(peers.size(), 2U);
  for (const std::string& peer : peers) EXPECT_THAT(peer, StartsWith("127.0.0.1:"));
}

TEST(GrpcTransport, MessagesOutsideTheLimitsAreRefusedAndTheStreamLives) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = connect_to(server);
  stream->write({});
  EXPECT_EQ(text_of(*stream->read()), "");
  const auto bytes = std::make_shared<const std::string>((64U << 20U) + 1, 'x');
  EncodedMessage largest;
  largest.parts.push_back(part_of(bytes, 0, bytes->size() - 1));
  stream->write(largest);
  EXPECT_EQ(stream->read()->bytes.size(), bytes->size() - 1);
  EncodedMessage large;
  large.parts.push_back(part_of(bytes, 0, bytes->size()));
  const Failure refused = failure_of([&] { stream->write(large); });
  EXPECT_EQ(refused.kind, ErrorKind::bad_input);
  EXPECT_THAT(refused.message, HasSubstr("wanted at most 67108864 bytes, found 67108865"));
  stream->write(message_of("small"));
  EXPECT_EQ(text_of(*stream->read()), "small");
  stream->finish();
  EXPECT_EQ(failure_of([&] { stream->write(message_of("late")); }).kind, ErrorKind::internal);
}

TEST(GrpcTransport, SaysWhyThereIsNoConnection) {
  std::string address;
  {
    const GrpcServer server("127.0.0.1:0", {}, echo);
    address = server.address();
  }
  const auto start = std::chrono::steady_clock::now();
  const Failure refused = failure_of([&] { (void)connect_grpc({address, "stage-3"}, {}, kTimeout); });
  EXPECT_EQ(refused.kind, ErrorKind::unreachable);
  EXPECT_THAT(refused.message, HasSubstr("node 'stage-3' at " + address));
  EXPECT_THAT(refused.message, HasSubstr("Connection refused"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));

  const Failure nobody = failure_of([&] { (void)connect_grpc({"unix:/nowhere/socket", "s"}, {}, kTimeout); });
  EXPECT_EQ(nobody.kind, ErrorKind::unreachable);
  EXPECT_THAT(nobody.message, HasSubstr("No such file"));
}

TEST(GrpcTransport, RefusesAnAddressInUse) {
  const TemporaryFolder folder;
  for (const std::string& wanted : {std::string("127.0.0.1:0"), "unix:" + (folder.path() / "socket").string()}) {
    GrpcServer server(wanted, {}, echo);
    const Failure refused = failure_of([&] { GrpcServer second(server.address(), {}, echo); });
    EXPECT_EQ(refused.kind, ErrorKind::unavailable);
    EXPECT_THAT(refused.message, HasSubstr(server.address()));
    EXPECT_THAT(refused.message, AnyOf(HasSubstr("Address already in use"), HasSubstr("another process does")));
    const auto stream = connect_to(server);  // the first one serves on
    stream->write(message_of("hello"));
    EXPECT_EQ(text_of(*stream->read()), "hello");
  }
  // A socket that a dead process left behind is no hindrance.
  const std::string left = "unix:" + (folder.path() / "left").string();
  for (int i = 0; i < 2; ++i) {
    GrpcServer server(left, {}, echo);
    connect_to(server)->finish();
  }
}

TEST(GrpcTransport, RefusesStreamsAboveTheLimitWithAReason) {
  GrpcServer server("127.0.0.1:0", {}, echo, 2);
  auto first = connect_to(server);
  const auto second = connect_to(server);
  const Failure refused = failure_of([&] { (void)connect_to(server); });
  EXPECT_EQ(refused.kind, ErrorKind::unreachable);
  EXPECT_THAT(refused.message, HasSubstr("2 streams are open"));
  first.reset();
  // The place is free once the server has seen the end of the first one.
  for (int attempt = 0;; ++attempt) {
    std::unique_ptr<MessageStream> third;
    if (!guard([&] { third = connect_to(server); })) break;
    ASSERT_LT(attempt, 200);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

TEST(GrpcTransport, RefusesAddressesThatAreNone) {
  TransportSecurity plain;
  plain.allow_insecure = true;
  for (const char* address : {"", "host", "host:", ":80", "host:0", "host:65536", "host:80x", "::1:80", "[::1]", "[::1]80",
                              "[host]:80", "xds:///x:80", "a b:80", "unix:", "http://host:80"}) {
    EXPECT_EQ(failure_of([&] { (void)connect_grpc({address, "s"}, plain, kTimeout); }).kind, ErrorKind::bad_input) << address;
  }
  const std::string path = "unix:/" + std::string(200, 'x');
  EXPECT_THAT(failure_of([&] { GrpcServer server(path, {}, echo); }).message, HasSubstr("longer than 107 bytes"));
}

}  // namespace
}  // namespace weft
