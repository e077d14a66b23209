// Streams over gRPC keep the contract of streams: the either end as the first one.
#include "remote/stream_test_util.h"
#include "support/models.h"
#include "wire/stream_contract.h"

namespace weft::wire_test {
namespace {

using remote_test::Awaited;

// The server's end, outside of its handler, which goes on until this is gone.
class Handed final : public MessageStream {
 public:
  Handed(std::unique_ptr<MessageStream> inner, std::shared_ptr<std::promise<void>> gone)
      : inner_(std::move(inner)), gone_(std::move(gone)) {}
  ~Handed() override {
    inner_.reset();
    gone_->set_value();
  }
  Handed(const Handed&) = delete;
  Handed& operator=(const Handed&) = delete;

  void write(const EncodedMessage& message) override { inner_->write(message); }
  [[nodiscard]] std::optional<ReceivedMessage> read() override { return inner_->read(); }
  void cancel(const std::string& reason) noexcept override { inner_->cancel(reason); }
  void finish() noexcept override { inner_->finish(); }
  [[nodiscard]] const std::string& peer() const override { return inner_->peer(); }

 private:
  std::unique_ptr<MessageStream> inner_;
  std::shared_ptr<std::promise<void>> gone_;
};

// A server for one call.
struct Server {
  testing_support::TemporaryFolder folder;  // of its socket
  Awaited<std::unique_ptr<MessageStream>> handed;
  std::unique_ptr<GrpcServer> server;  // first to go: its handler uses the others
};

StreamPair make_pair(bool unix_socket, bool client_first) {
  const auto made = std::make_shared<Server>();
  const std::string address = unix_socket ? "unix:" + (made->folder.path() / "socket").string() : "127.0.0.1:0";
  made->server = std::make_unique<GrpcServer>(address, TransportSecurity{},
                                              [server = made.get()](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
                                                const auto gone = std::make_shared<std::promise<void>>();
                                                std::future<void> ended = gone->get_future();
                                                server->handed.give(std::make_unique<Handed>(std::move(stream), gone));
                                                ended.wait();
                                              });
  std::unique_ptr<MessageStream> client = connect_grpc({made->server->address(), "stage-0"}, {}, 60.0);
  std::unique_ptr<MessageStream> server = made->handed.take();
  if (client_first) return {made, std::move(client), std::move(server)};
  return {made, std::move(server), std::move(client)};
}

StreamFactory grpc(std::string name, bool unix_socket, bool client_first) {
  return {std::move(name), [=] { return make_pair(unix_socket, client_first); }};
}

INSTANTIATE_TEST_SUITE_P(Grpc, StreamContract,
                         testing::Values(grpc("client", false, true), grpc("server", false, false),
                                         grpc("client_unix", true, true), grpc("server_unix", true, false)),
                         stream_name);

}  // namespace
}  // namespace weft::wire_test
