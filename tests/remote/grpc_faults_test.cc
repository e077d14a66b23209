// Streams that are cut: by either end, by the connection, by strangers.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>

#include "pipeline/remote/grpc_transport.h"

#include "remote/cable.h"
#include "remote/stream_test_util.h"

namespace weft {
namespace {

using namespace remote_test;
using testing::HasSubstr;

constexpr double kTimeout = 60.0;

std::unique_ptr<MessageStream> connect_to(const std::string& address) {
  return connect_grpc({address, "stage-0"}, {}, kTimeout);
}

void fill(MessageStream& stream) {
  for (;;) stream.write(message_of(pattern(1U << 20U, 1)));
}

void drain(MessageStream& stream) {
  while (stream.read()) {
  }
}

// A server whose streams the test holds. Its handlers wait until the test ends.
class HeldServer {
 public:
  HeldServer() {
    server_ = std::make_unique<GrpcServer>("127.0.0.1:0", TransportSecurity{},
                                           [this](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
                                             stream_.give(stream.get());
                                             ended_.get_future().wait();
                                           });
  }
  ~HeldServer() { end(); }
  HeldServer(const HeldServer&) = delete;
  HeldServer& operator=(const HeldServer&) = delete;

  [[nodiscard]] const std::string& address() const { return server_->address(); }
  [[nodiscard]] MessageStream& stream() { return *stream_.take(); }
  void end() {
    if (!server_) return;
    ended_.set_value();
    server_.reset();
  }

 private:
  Awaited<MessageStream*> stream_;
  std::promise<void> ended_;
  std::unique_ptr<GrpcServer> server_;
};

// Runs `work` on a thread of its own, lets it block, cancels `own`, and gives what `work` threw.
template <class Work>
Failure cancelled_while(MessageStream& own, Work&& work) {
  Failure failure;
  std::thread thread([&] { failure = failure_of(work); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  own.cancel("had enough");
  thread.join();
  return failure;
}

TEST(GrpcFaults, CancelFreesAClientThatReads) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  const Failure own = cancelled_while(*client, [&] { drain(*client); });
  EXPECT_EQ(own.kind, ErrorKind::stage_lost);
  EXPECT_THAT(own.message, HasSubstr("had enough"));
  EXPECT_EQ(failure_of([&] { drain(other); }).kind, ErrorKind::stage_lost);
  EXPECT_EQ(failure_of([&] { fill(other); }).kind, ErrorKind::stage_lost);
  EXPECT_THAT(failure_of([&] { client->write(message_of("x")); }).message, HasSubstr("had enough"));
}

TEST(GrpcFaults, CancelFreesAClientThatWrites) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  EXPECT_THAT(cancelled_while(*client, [&] { fill(*client); }).message, HasSubstr("had enough"));
  EXPECT_EQ(failure_of([&] { drain(other); }).kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, CancelFreesAServerThatReadsAndTheClientLearnsWhy) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  EXPECT_THAT(cancelled_while(other, [&] { drain(other); }).message, HasSubstr("had enough"));
  const Failure lost = failure_of([&] { drain(*client); });
  EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
  EXPECT_THAT(lost.message, HasSubstr("had enough"));
  EXPECT_THAT(failure_of([&] { fill(*client); }).message, HasSubstr("had enough"));
}

TEST(GrpcFaults, CancelFreesAServerThatWrites) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  EXPECT_THAT(cancelled_while(other, [&] { fill(other); }).message, HasSubstr("had enough"));
  EXPECT_EQ(failure_of([&] { drain(*client); }).kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, CancelByOneEndFreesTheOtherThatWaits) {
  for (const bool by_client : {true, false}) {
    for (const bool reads : {true, false}) {
      HeldServer server;
      const auto client = connect_to(server.address());
      MessageStream& other = server.stream();
      MessageStream& waits = by_client ? other : *client;
      MessageStream& cancels = by_client ? *client : other;
      EXPECT_EQ(cancelled_while(cancels, [&] { reads ? drain(waits) : fill(waits); }).kind, ErrorKind::stage_lost)
          << by_client << reads;
    }
  }
}

TEST(GrpcFaults, CancelByAServerThatWritesFreesAClientThatOnlyWrites) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  Failure lost;
  std::thread writer([&] { lost = failure_of([&] { fill(*client); }); });
  EXPECT_THAT(cancelled_while(other, [&] { fill(other); }).message, HasSubstr("had enough"));
  writer.join();
  EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, AfterCancelNothingIsReadThoughItHasCome) {
  HeldServer server;
  const auto client = connect_to(server.address());
  MessageStream& other = server.stream();
  for (int i = 0; i < 3; ++i) {
    client->write(message_of("from the client"));
    other.write(message_of("from the server"));
  }
  EXPECT_EQ(text_of(*client->read()), "from the server");
  EXPECT_EQ(text_of(*other.read()), "from the client");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the next ones are read ahead
  client->cancel("had enough");
  EXPECT_THAT(failure_of([&] { (void)client->read(); }).message, HasSubstr("had enough"));
  other.cancel("so had I");
  EXPECT_EQ(failure_of([&] { (void)other.read(); }).kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, ADestroyedClientIsALostOne) {
  HeldServer server;
  auto client = connect_to(server.address());
  client->write(message_of("last"));
  MessageStream& other = server.stream();
  EXPECT_EQ(text_of(*other.read()), "last");
  client.reset();
  EXPECT_EQ(failure_of([&] { drain(other); }).kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, ADestroyedServerEndsItsStreamsAndTheirHandlers) {
  std::atomic<int> ended = 0;
  auto server = std::make_unique<GrpcServer>("127.0.0.1:0", TransportSecurity{},
                                             [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
                                               const auto failure = failure_of([&] { drain(*stream); });
                                               if (failure.kind == ErrorKind::stage_lost) ++ended;
                                               failure.raise();
                                             });
  std::vector<std::unique_ptr<MessageStream>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(connect_to(server->address()));
  server.reset();
  EXPECT_EQ(ended, 5);
  for (const auto& client : clients) {
    const Failure lost = failure_of([&] { drain(*client); });
    EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
    EXPECT_THAT(lost.message, HasSubstr("the server is closing"));
  }
}

TEST(GrpcFaults, WhatAHandlerThrowsReachesTheOtherEnd) {
  GrpcServer server("127.0.0.1:0", {}, [](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    const std::string text = text_of(*stream->read());
    if (text == "standard") throw std::runtime_error("of the library");
    if (text == "number") throw 7;  // NOLINT(hicpp-exception-baseclass): handlers may throw anything
    if (text == "long") fail(ErrorKind::internal, "worker", "{}", std::string(100'000, 'x'));
    fail(ErrorKind::unavailable, "worker", "layer 7: no memory for '{}'", text);
  });
  const auto failure = [&](const std::string& text) {
    const auto stream = connect_to(server.address());
    const Failure lost = failure_of([&] {
      stream->write(message_of(text));
      drain(*stream);
    });
    EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
    return lost.message;
  };
  EXPECT_THAT(failure("x"), HasSubstr("[worker] layer 7: no memory for 'x'"));
  EXPECT_THAT(failure("standard"), HasSubstr("of the library"));
  EXPECT_THAT(failure("number"), HasSubstr("stream to "));
  EXPECT_THAT(failure("long"), HasSubstr("bytes more)"));
}

TEST(GrpcFaults, AHandlerThatLeavesWithoutFinishIsALostStream) {
  for (const bool early : {true, false}) {
    GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
      stream->write(message_of("first"));
      if (early) stream.reset();
    });
    const auto stream = connect_to(server.address());
    EXPECT_EQ(text_of(*stream->read()), "first");
    const Failure lost = failure_of([&] { (void)stream->read(); });
    EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
    EXPECT_THAT(lost.message, HasSubstr("without finishing"));
  }
}

TEST(GrpcFaults, AStreamThatOutlivesItsHandlerIsLost) {
  std::unique_ptr<MessageStream> kept;
  Awaited<int> taken;
  GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    kept = std::move(stream);
    taken.give(1);
  });
  const auto client = connect_to(server.address());
  (void)taken.take();
  const Failure lost = failure_of([&] { drain(*kept); });
  EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
  EXPECT_THAT(lost.message, HasSubstr("handler of the call has returned"));
  kept.reset();
}

// --- the network ------------------------------------------------------------------------------------------------------------

TEST(GrpcFaults, ACutConnectionIsALossAtBothEnds) {
  HeldServer server;
  Cable cable(server.address());
  const auto client = connect_to(cable.address());
  MessageStream& other = server.stream();
  client->write(message_of("before"));
  EXPECT_EQ(text_of(*other.read()), "before");
  cable.cut();
  EXPECT_EQ(failure_of([&] { drain(*client); }).kind, ErrorKind::stage_lost);
  EXPECT_EQ(failure_of([&] { drain(other); }).kind, ErrorKind::stage_lost);
  EXPECT_EQ(failure_of([&] { fill(*client); }).kind, ErrorKind::stage_lost);
  EXPECT_EQ(failure_of([&] { fill(other); }).kind, ErrorKind::stage_lost);
}

TEST(GrpcFaults, AnEndIsNoLossThoughTheConnectionIsCutAfterwards) {
  HeldServer server;
  Cable cable(server.address());
  const auto client = connect_to(cable.address());
  MessageStream& other = server.stream();
  client->write(message_of("last"));
  client->finish();
  EXPECT_EQ(text_of(*other.read()), "last");
  EXPECT_FALSE(other.read());
  cable.cut();
  EXPECT_EQ(failure_of([&] { fill(other); }).kind, ErrorKind::stage_lost);
  EXPECT_FALSE(other.read());
}

TEST(GrpcFaults, ASilentServerIsUnreachableInTime) {
  const auto [socket, port] = listening();
  const Descriptor owner{socket};
  const auto start = std::chrono::steady_clock::now();
  const Failure silent = failure_of([&] { (void)connect_grpc({"127.0.0.1:" + std::to_string(port), "stage-0"}, {}, 0.3); });
  EXPECT_EQ(silent.kind, ErrorKind::unreachable);
  EXPECT_THAT(silent.message, HasSubstr("within 0.3 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(GrpcFaults, RandomBytesAtThePortHarmNobody) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto before = connect_to(server.address());
  std::mt19937 random(11);
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (int i = 0; i < 1000; ++i) {
    const Descriptor socket{dial(server.address())};
    std::string bytes(random() % 400U, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 3 == 1) bytes = preface + bytes;
    if (i % 3 == 2) bytes = preface.substr(0, random() % preface.size());
    (void)::send(socket.number, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  for (MessageStream* stream : {before.get(), connect_to(server.address()).release()}) {
    const std::unique_ptr<MessageStream> owner(stream == before.get() ? nullptr : stream);
    stream->write(message_of("still here"));
    EXPECT_EQ(text_of(*stream->read()), "still here");
  }
}

}  // namespace
}  // namespace weft
