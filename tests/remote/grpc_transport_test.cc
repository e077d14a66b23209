#include "pipeline/remote/grpc_transport.h"

#include <future>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace weft {
namespace {

EncodedMessage message_of(const std::string& text) {
  EncodedMessage message;
  message.head.resize(text.size());
  std::memcpy(message.head.data(), text.data(), text.size());
  return message;
}

std::string text_of(const ReceivedMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

// Sends back what comes, until the other end has finished.
void echo(const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
  while (const auto message = stream->read()) stream->write(message_of(text_of(*message)));
  stream->finish();
}

TEST(GrpcTransport, Echoes) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = connect_grpc({server.address(), "stage-0"}, {}, 5.0);
  stream->write(message_of("hello"));
  EXPECT_EQ(text_of(*stream->read()), "hello");
  stream->finish();
  EXPECT_FALSE(stream->read());
}

}  // namespace
}  // namespace weft
