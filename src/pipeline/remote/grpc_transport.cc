#include "pipeline/remote/grpc_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
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
#include "base/plural.h"
#include "base/utf8.h"
#include "pipeline/remote/grpc_address.h"
#include "pipeline/remote/grpc_call.h"
#include "pipeline/remote/grpc_credentials.h"
#include "pipeline/remote/grpc_log.h"
#include "pipeline/remote/grpc_names.h"
#include "pipeline/remote/tls_files.h"
#include "pipeline/remote/tls_probe.h"

namespace weft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kKeepaliveMs = 10'000;
// gRPC makes it the socket's TCP_USER_TIMEOUT too, which ends a connection whose bytes are not acknowledged that long, pings or
// not. Above the 6 s of heartbeats, which then decide.
constexpr int kKeepaliveTimeoutMs = 15'000;
constexpr int kMinPingIntervalMs = 5'000;
constexpr int kHandshakeMs = 10'000;
constexpr int kIdleConnectionMs = 30'000;  // a connection without a call: none of ours
constexpr seconds kCloseServer{2};         // for the last statuses to leave
constexpr seconds kProof{10};              // for a client to prove that it has the token
constexpr seconds kProbe{3};               // to find out why a connection failed
constexpr milliseconds kLook{50};          // between looks at whether a connection is still wanted
constexpr milliseconds kLeastProbe{500};   // though the time to connect is over
constexpr double kLongestWait = 1e6;       // seconds

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

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

std::optional<std::string> value_of(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

std::string_view text_of(const ReceivedMessage& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

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
  arguments.SetMaxReceiveMessageSize(static_cast<int>(kMessageLimit) + 1);
  arguments.SetMaxSendMessageSize(-1);
  return arguments;
}

// gRPC would take the socket of a living server away from it.
void require_unused(const ParsedAddress& address) {
  const TlsVerdict verdict = probe_tls(address.text(), {}, GrpcCall::Clock::now());
  if (verdict.connected) fail(ErrorKind::unavailable, "grpc", "cannot listen on {}: another process does", address.text());
}

// Why a call was not accepted. gRPC tells of a refused handshake as of any lost connection: a second one is asked.
[[noreturn]] void raise_refused(const NodeAddress& to, const TransportSecurity& security, const NameCheck& check,
                                const grpc::Status& status, GrpcCall::Clock::time_point deadline) {
  const std::string who = fmt::format("node '{}' at {}", to.node, to.address);
  if (const std::string name = check.refused(); !name.empty()) fail(ErrorKind::security, "grpc", "{}: {}", who, name);
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::UNAUTHENTICATED || code == grpc::StatusCode::PERMISSION_DENIED)
    fail(ErrorKind::security, "grpc", "{} refused this end: {}", who, status.error_message());
  if (code == grpc::StatusCode::UNAVAILABLE) {
    const auto now = GrpcCall::Clock::now();
    const TlsVerdict verdict = probe_tls(to.address, security, std::clamp(deadline, now + kLeastProbe, now + kProbe));
    if (security.tls() && !verdict.refused.empty()) fail(ErrorKind::security, "grpc", "{}: {}", who, verdict.refused);
    if (!security.tls() && verdict.speaks_tls)
      fail(ErrorKind::security, "grpc", "{}: it wants TLS, and this end has no certificate", who);
  }
  fail(ErrorKind::unreachable, "grpc", "{}: {}", who, status.error_message());
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
    if (!security.token_file.empty()) token = read_token(security.token_file);
    route_grpc_log();
    if (parsed.unix_socket) require_unused(parsed);
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleConnectionMs);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMessageLimit) + 1);
    builder.SetMaxSendMessageSize(-1);
    builder.RegisterCallbackGenericService(this);
    int port = 0;
    builder.AddListeningPort(parsed.text(), server_credentials(security), &port);
    const GrpcLogCapture log;
    server = builder.BuildAndStart();
    if (!server || port <= 0) fail(ErrorKind::unavailable, "grpc", "cannot listen on {}: {}", parsed.text(), log.text());
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
        warn_sparingly(fmt::format("call from {} refused: {}", peer, refused.status.error_message()));
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
    for (const grpc::string_ref& name : context->auth_context()->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME))
      caller.names.emplace_back(name.data(), name.size());
    const std::optional<TokenChallenge> challenge = check_token(context);

    const std::lock_guard lock(mutex);
    std::erase_if(sessions, [](Session& session) {
      if (!session.over) return false;
      session.thread.join();
      return true;
    });
    if (closing) refuse(grpc::StatusCode::UNAVAILABLE, "the server is closing");
    if (*open >= connections)
      refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, counted(connections, "stream") + " are open: no more are accepted");
    Session& session = sessions.emplace_back();
    try {
      session.call = GrpcServerCall::make(context, peer, [count = open] { --*count; });
      session.thread = std::thread([this, &session, caller, challenge] { serve(session, caller, challenge); });
    } catch (...) {
      sessions.pop_back();
      throw;
    }
    ++*open;
    session.call->accept();
    return session.call.get();
  }

  // Over TLS the token is compared; else the other end has still to prove that it has it.
  std::optional<TokenChallenge> check_token(grpc::GenericCallbackServerContext* context) const {
    if (token.empty()) return std::nullopt;
    constexpr auto kCode = grpc::StatusCode::UNAUTHENTICATED;
    const Metadata& sent = context->client_metadata();
    if (security.tls()) {
      const auto found = value_of(sent, kTokenKey);
      if (!found) refuse(kCode, "wanted the token of the cluster, found none");
      if (!same_secret(*found, token)) refuse(kCode, "the token is not that of this cluster");
      return std::nullopt;
    }
    const auto nonce = value_of(sent, kNonceKey);
    if (!nonce || nonce->size() != TokenChallenge::kBytes)
      refuse(kCode, "wanted a nonce for the token of the cluster, found none");
    const std::string own = random_nonce();
    TokenChallenge challenge(token, *nonce, own);
    context->AddInitialMetadata(kNonceKey, own);
    context->AddInitialMetadata(kProofKey, challenge.server_proof());
    return challenge;
  }

  // The thread of a call.
  void serve(Session& session, const GrpcPeer& caller, const std::optional<TokenChallenge>& challenge) noexcept {
    const auto refused = guard([&] {
      if (!challenge) return;
      const auto proof = session.call->read_until(GrpcCall::Clock::now() + kProof);
      if (!proof || !same_secret(text_of(*proof), challenge->client_proof()))
        fail(ErrorKind::security, "grpc", "the token is not that of this cluster");
    });
    if (refused) warn_sparingly(fmt::format("call from {} refused: {}", caller.address, refused->message));
    const auto failed = refused ? refused : guard([&] { handler(caller, std::make_unique<GrpcStream>(session.call)); });
    session.call->handler_ended(failed);
    session.over = true;
  }

  const TransportSecurity security;
  const GrpcServer::Handler handler;
  const int64_t connections;
  std::string token;  // empty: none is asked for
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

std::unique_ptr<MessageStream> connect_grpc(const NodeAddress& to, const TransportSecurity& security, double timeout,
                                            const std::function<bool()>& give_up) {
  using Clock = GrpcCall::Clock;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(std::clamp(timeout, 0.0, kLongestWait)));
  const ParsedAddress parsed = parse_address(to.address, false);
  security.require_usable(to.address);
  route_grpc_log();
  const auto check = std::make_shared<NameCheck>();
  const auto channel =
      grpc::CreateCustomChannel(parsed.target(), channel_credentials(security, to, check), channel_arguments());
  const auto call = std::make_shared<GrpcClientCall>(to.address, channel);
  auto stream = std::make_unique<GrpcStream>(call);  // ends the call whatever happens
  const std::string token = security.token_file.empty() ? "" : read_token(security.token_file);
  const std::string nonce = random_nonce();
  if (!token.empty()) call->context().AddMetadata(security.tls() ? kTokenKey : kNonceKey, security.tls() ? token : nonce);
  grpc::GenericStub(channel).PrepareBidiStreamingCall(&call->context(), kStreamMethod, {}, call.get());
  call->start();
  bool answered = false;
  while (!answered && Clock::now() < deadline) {
    answered = call->wait_answered(give_up ? std::min(deadline, Clock::now() + kLook) : deadline);
    if (give_up && give_up()) fail(ErrorKind::unavailable, "grpc", "node '{}' at {}: given up", to.node, to.address);
  }
  if (!answered && !call->wait_answered(deadline))
    fail(ErrorKind::unreachable, "grpc", "node '{}' at {}: no answer within {} s", to.node, to.address, timeout);
  if (!call->accepted()) raise_refused(to, security, *check, call->status(), deadline);
  if (!token.empty() && !security.tls()) {
    const Metadata& sent = call->context().GetServerInitialMetadata();
    const TokenChallenge challenge(token, nonce, value_of(sent, kNonceKey).value_or(""));
    if (!same_secret(value_of(sent, kProofKey).value_or(""), challenge.server_proof()))
      fail(ErrorKind::security, "grpc", "node '{}' at {}: it does not have the token of this cluster", to.node, to.address);
    const std::string proof = challenge.client_proof();
    EncodedMessage message;
    message.head.resize(proof.size());
    std::memcpy(message.head.data(), proof.data(), proof.size());
    stream->write(message);
  }
  return stream;
}

}  // namespace weft
