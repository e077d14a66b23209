#include "pipeline/remote/grpc_transport.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include <grpc/grpc.h>
#include <grpcpp/channel.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "base/guard.h"
#include "base/log.h"
#include "base/plural.h"
#include "base/utf8.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/grpc_call.h"
#include "pipeline/remote/grpc_names.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kKeepaliveMs = 10'000;
constexpr int kKeepaliveTimeoutMs = 5'000;
constexpr int kMinPingIntervalMs = 5'000;
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleConnectionMs = 30'000;  // a connection without a call: none of ours
constexpr seconds kCloseServer{2};         // for the last statuses to leave

// A call that is refused before it has a stream.
class Refusal final : public grpc::ServerGenericBidiReactor {
 public:
  explicit Refusal(const grpc::Status& status) { Finish(status); }
  void OnDone() override { delete this; }
};

// What a call is refused with.
struct Refused {
  grpc::Status status;
};

[[noreturn]] void refuse(grpc::StatusCode code, const std::string& reason) { throw Refused{refusal(code, reason)}; }

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection for each stream
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // no environment variable decides where a stream leads
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageLimit));
  arguments.SetMaxSendMessageSize(-1);
  return arguments;
}

}  // namespace

struct GrpcServer::Impl final : public grpc::CallbackGenericService {
  struct Session {
    std::shared_ptr<GrpcServerCall> call;
    std::thread thread;
    std::atomic<bool> over = false;
  };

  Impl(const std::string& wanted, const TransportSecurity& wanted_security, GrpcServer::Handler wanted_handler,
       int64_t wanted_connections)
      : security(wanted_security), handler(std::move(wanted_handler)), connections(wanted_connections) {
    const ParsedAddress parsed = parse_address(wanted, true);
    security.require_usable(wanted);
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageLimit));
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterCallbackGenericService(this);
    int port = 0;
    builder.AddListeningPort(parsed.text(), grpc::InsecureServerCredentials(), &port);
    server = builder.BuildAndStart();
    if (!server || (!parsed.unix_socket && port <= 0))
      fail(ErrorKind::unavailable, "grpc", "cannot listen on {}", parsed.text());
    address = parsed.with_port(port);
  }

  ~Impl() override {
    std::list<Session> ending;
    {
      const std::lock_guard lock(mutex);
      closing = true;
      ending.swap(sessions);
    }
    for (Session& session : ending) session.call->cancel("the server is closing");
    if (server) server->Shutdown(std::chrono::system_clock::now() + kCloseServer);
    for (Session& session : ending) session.thread.join();
    server.reset();
  }

  // Called by gRPC for each call that comes.
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override {
    grpc::ServerGenericBidiReactor* reactor = nullptr;
    const auto failure = guard([&] {
      const std::string peer = peer_of(*context);
      try {
        reactor = begin(context, peer);
      } catch (const Refused& refused) {
        log::warning("call from {} refused: {}", peer, refused.status.error_message());
        reactor = new Refusal(refused.status);
      }
    });
    if (!failure) return reactor;
    const auto unable = guard([&] { reactor = new Refusal(refusal(grpc::StatusCode::UNAVAILABLE, failure->message)); });
    return unable ? nullptr : reactor;  // without a reactor gRPC itself refuses
  }

  [[nodiscard]] std::string peer_of(const grpc::GenericCallbackServerContext& context) const {
    const std::string peer = readable_peer(context.peer());
    return peer == "unix:" ? address : peer;
  }

  grpc::ServerGenericBidiReactor* begin(grpc::GenericCallbackServerContext* context, const std::string& peer) {
    if (context->method() != kStreamMethod)
      refuse(grpc::StatusCode::UNIMPLEMENTED,
             fmt::format("wanted a call of {}, found {}", kStreamMethod, printable(context->method())));
    GrpcPeer caller;
    caller.address = peer;
    const std::lock_guard lock(mutex);
    std::erase_if(sessions, [](Session& session) {
      if (!session.over) return false;
      session.thread.join();
      return true;
    });
    if (closing) refuse(grpc::StatusCode::UNAVAILABLE, "the server is closing");
    if (*open >= connections)
      refuse(grpc::StatusCode::RESOURCE_EXHAUSTED,
             fmt::format("{} are open, no more are accepted", counted(connections, "stream")));
    Session& session = sessions.emplace_back();
    try {
      session.call = GrpcServerCall::make(context, peer, [count = open] { --*count; });
      session.thread = std::thread([this, &session, caller] {
        const auto failure = guard([&] { handler(caller, std::make_unique<GrpcStream>(session.call)); });
        session.call->handler_ended(failure);
        if (failure) log::debug("stream from {} ended: {}", caller.address, failure->message);
        session.over = true;
      });
    } catch (...) {
      sessions.pop_back();
      throw;
    }
    ++*open;
    session.call->accept();
    return session.call.get();
  }

  const TransportSecurity security;
  const GrpcServer::Handler handler;
  const int64_t connections;
  std::string address;
  const std::shared_ptr<std::atomic<int64_t>> open = std::make_shared<std::atomic<int64_t>>(0);  // calls that gRPC holds
  std::mutex mutex;
  std::list<Session> sessions;  // guarded by mutex
  bool closing = false;         // guarded by mutex
  std::unique_ptr<grpc::Server> server;
};

GrpcServer::GrpcServer(const std::string& address, const TransportSecurity& security, Handler handler, int64_t connections)
    : impl_(std::make_unique<Impl>(address, security, std::move(handler), connections)) {}
GrpcServer::~GrpcServer() = default;
const std::string& GrpcServer::address() const { return impl_->address; }

std::unique_ptr<MessageStream> connect_grpc(const NodeAddress& to, const TransportSecurity& security, double timeout) {
  const auto deadline = GrpcClientCall::Clock::now() +
                        std::chrono::duration_cast<GrpcClientCall::Clock::duration>(std::chrono::duration<double>(timeout));
  const ParsedAddress parsed = parse_address(to.address, false);
  security.require_usable(to.address);
  const auto channel = grpc::CreateCustomChannel(parsed.target(), grpc::InsecureChannelCredentials(), channel_arguments());
  const auto call = std::make_shared<GrpcClientCall>(to.address, channel);
  auto stream = std::make_unique<GrpcStream>(call);  // ends the call whatever happens
  grpc::GenericStub(channel).PrepareBidiStreamingCall(&call->context(), kStreamMethod, {}, call.get());
  call->start();
  if (!call->wait_answered(deadline))
    fail(ErrorKind::unreachable, "grpc", "node '{}' at {}: no answer within {} s", to.node, to.address, timeout);
  if (!call->accepted())
    fail(ErrorKind::unreachable, "grpc", "node '{}' at {}: {}", to.node, to.address, call->status().error_message());
  return stream;
}

}  // namespace weft
