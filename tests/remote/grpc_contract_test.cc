// What every stream promises, over gRPC: either end as the first, with TLS and without.
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "pipeline/remote/grpc_transport.h"

#include "remote/stream_test_util.h"
#include "remote/test_certs.h"
#include "support/models.h"
#include "wire/stream_contract.h"

namespace weft::wire_test {
namespace {

using remote_test::Awaited;
using remote_test::TestAuthority;
using testing_support::TemporaryFolder;

// A server's end outside its handler, which returns when this goes.
class HeldStream final : public MessageStream {
 public:
  explicit HeldStream(std::unique_ptr<MessageStream> stream) : stream_(std::move(stream)) {}
  ~HeldStream() override {
    stream_.reset();
    gone_.set_value();
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  [[nodiscard]] std::future<void> gone() { return gone_.get_future(); }

  void write(const EncodedMessage& message) override { stream_->write(message); }
  [[nodiscard]] std::optional<ReceivedMessage> read() override { return stream_->read(); }
  void cancel(const std::string& reason) noexcept override { stream_->cancel(reason); }
  void finish() noexcept override { stream_->finish(); }
  [[nodiscard]] const std::string& peer() const override { return stream_->peer(); }

 private:
  std::unique_ptr<MessageStream> stream_;
  std::promise<void> gone_;
};

struct HeldServer {
  TemporaryFolder folder;
  Awaited<std::unique_ptr<MessageStream>> stream;
  std::unique_ptr<GrpcServer> server;
};

StreamPair connected(bool client_first, bool tls) {
  const auto held = std::make_shared<HeldServer>();
  TransportSecurity security;
  if (tls) security = TestAuthority(held->folder.path(), "ca").issue("node", {"DNS:node"});
  held->server = std::make_unique<GrpcServer>("unix:" + (held->folder.path() / "socket").string(), security,
                                              [held = held.get()](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
                                                auto kept = std::make_unique<HeldStream>(std::move(stream));
                                                const std::future<void> gone = kept->gone();
                                                held->stream.give(std::move(kept));
                                                gone.wait();
                                              });
  auto client = connect_grpc({held->server->address(), "node"}, security, 60.0);
  auto server = held->stream.take();
  if (client_first) return {std::move(client), std::move(server), held};
  return {std::move(server), std::move(client), held};
}

INSTANTIATE_TEST_SUITE_P(Grpc, StreamContract,
                         testing::Values(StreamFactory{"client_first", [] { return connected(true, false); }},
                                         StreamFactory{"server_first", [] { return connected(false, false); }},
                                         StreamFactory{"client_first_tls", [] { return connected(true, true); }}),
                         stream_name);

}  // namespace
}  // namespace weft::wire_test
