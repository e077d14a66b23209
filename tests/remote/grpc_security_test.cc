// Who may talk to whom (distributed.md 8): certificates, tokens, plaintext.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <openssl/ssl.h>

#include "pipeline/remote/grpc_call.h"
#include "pipeline/remote/grpc_credentials.h"
#include "pipeline/remote/grpc_names.h"
#include "pipeline/remote/grpc_transport.h"
#include "pipeline/remote/tls_probe.h"

#include "remote/cable.h"
#include "remote/stream_test_util.h"
#include "remote/test_certs.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using testing_support::TemporaryFolder;

constexpr double kTimeout = 60.0;
constexpr TestValidity kPast{-7200, -3600};
constexpr TestValidity kFuture{3600, 7200};

fs::path write_token(const fs::path& file, const std::string& token, fs::perms mode = fs::perms::owner_read) {
  fs::remove(file);
  std::ofstream(file) << token;
  fs::permissions(file, mode);
  return file;
}

class GrpcSecurity : public testing::Test {
 protected:
  // Nothing when the two ends agree, and what connect_grpc() throws when they do not. Messages then cross both ways.
  [[nodiscard]] static Failure connect(const TransportSecurity& server_side, const TransportSecurity& client_side,
                                       const std::string& node = "stage-1", const std::string& address = "127.0.0.1:0") {
    const auto failure = guard([&] {
      GrpcServer server(address, server_side, echo);
      const auto stream = connect_grpc({server.address(), node}, client_side, kTimeout);
      for (const size_t size : {5U, 1U << 20U}) {
        stream->write(message_of(pattern(size, 3)));
        EXPECT_TRUE(text_of(*stream->read()) == pattern(size, 3));
      }
      stream->finish();
      EXPECT_FALSE(stream->read());
    });
    return failure.value_or(Failure{ErrorKind::internal, "agreed"});
  }

  [[nodiscard]] fs::path path(const std::string& name) const { return folder_.path() / name; }

  TemporaryFolder folder_;
  TestAuthority authority_{folder_.path(), "ca"};
  TestAuthority stranger_{folder_.path(), "stranger"};
  TransportSecurity stage_ = authority_.issue("stage-1", {"DNS:stage-1"});
  TransportSecurity coordinator_ = authority_.issue("coordinator", {"URI:weft:node/coordinator"});
};

TEST_F(GrpcSecurity, CertificatesThatAgreeCarryMessages) {
  EXPECT_EQ(connect(stage_, coordinator_).message, "agreed");
  EXPECT_EQ(connect(stage_, coordinator_, "stage-1", "localhost:0").message, "agreed");
  EXPECT_EQ(connect(stage_, coordinator_, "stage-1", "unix:" + path("socket").string()).message, "agreed");
}

TEST_F(GrpcSecurity, D12ACertificateNamesTheNodeOrItsHost) {
  const auto serve = [&](const std::string& name) { return connect(authority_.issue("x", {name}), coordinator_).message; };
  for (const char* name : {"DNS:stage-1", "DNS:Stage-1", "URI:weft:node/stage-1", "IP:127.0.0.1"})
    EXPECT_EQ(serve(name), "agreed") << name;
  for (const char* name : {"DNS:stage-2", "URI:weft:node/stage-2", "IP:127.0.0.2", "DNS:*", "email:stage-1@x"}) {
    EXPECT_THAT(serve(name), HasSubstr("names neither node 'stage-1' nor the host of 127.0.0.1:")) << name;
  }
  const Failure nameless = connect(authority_.issue("stage-1", {}), coordinator_);  // its common name does not count
  EXPECT_EQ(nameless.kind, ErrorKind::security);
  EXPECT_THAT(nameless.message, HasSubstr("it names nothing"));
}

TEST_F(GrpcSecurity, NamesOfHosts) {
  const auto names = [](const std::string& name, const std::string& address) { return names_node({name}, {address, "id"}); };
  EXPECT_TRUE(names("a.example.com", "a.example.com:80"));
  EXPECT_TRUE(names("*.example.com", "a.example.com:80"));
  EXPECT_FALSE(names("*.example.com", "a.b.example.com:80"));
  EXPECT_FALSE(names("*.example.com", "example.com:80"));
  EXPECT_FALSE(names("*.com", "a.com:80"));
  EXPECT_FALSE(names("*", "a:80"));
  EXPECT_FALSE(names("*.0.0.1", "127.0.0.1:80"));
  EXPECT_TRUE(names("0:0:0:0:0:0:0:1", "[::1]:80"));
  EXPECT_FALSE(names("", "unix:/x"));
  EXPECT_FALSE(names_node({""}, {"host:80", ""}));
  EXPECT_FALSE(names_node({"weft:node/"}, {"host:80", ""}));
}

TEST_F(GrpcSecurity, TheHandlerLearnsWhoCalled) {
  const TransportSecurity many = authority_.issue("many", {"DNS:coordinator", "URI:weft:node/coordinator", "IP:127.0.0.1"});
  Awaited<GrpcPeer> caller;
  GrpcServer server("127.0.0.1:0", stage_, [&](const GrpcPeer& peer, std::unique_ptr<MessageStream> stream) {
    caller.give(peer);
    stream->finish();
  });
  EXPECT_FALSE(connect_grpc({server.address(), "stage-1"}, many, kTimeout)->read());
  const GrpcPeer peer = caller.take();
  EXPECT_THAT(peer.names, UnorderedElementsAre("coordinator", "weft:node/coordinator", "127.0.0.1"));
  EXPECT_TRUE(names_node(peer.names, {peer.address, "coordinator"}));
  EXPECT_FALSE(names_node(peer.names, {"10.0.0.1:1", "stage-2"}));
}

TEST_F(GrpcSecurity, D12AServerOfAnotherAuthorityIsRefused) {
  TransportSecurity server = stranger_.issue("stage-1", {"DNS:stage-1"});
  server.ca = authority_.file();  // it trusts the client; the client does not trust it
  const Failure refused = connect(server, coordinator_);
  EXPECT_EQ(refused.kind, ErrorKind::security);
  EXPECT_THAT(refused.message, HasSubstr("node 'stage-1' at 127.0.0.1:"));
  EXPECT_THAT(refused.message, HasSubstr("its certificate is refused: "));
}

TEST_F(GrpcSecurity, D12AClientOfAnotherAuthorityIsRefused) {
  TransportSecurity client = stranger_.issue("coordinator", {"DNS:coordinator"});
  client.ca = authority_.file();  // it trusts the server; the server does not trust it
  const Failure refused = connect(stage_, client);
  EXPECT_EQ(refused.kind, ErrorKind::security);
  EXPECT_THAT(refused.message, HasSubstr("it closed the connection after the handshake"));
}

TEST_F(GrpcSecurity, D12AClientWithoutACertificateIsRefused) {
  const Failure refused = connect(stage_, {});
  EXPECT_EQ(refused.kind, ErrorKind::security);
  EXPECT_THAT(refused.message, HasSubstr("it wants TLS, and this end has no certificate"));
  GrpcServer server("127.0.0.1:0", stage_, echo);
  const TlsVerdict verdict = probe_tls(server.address(), {}, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  EXPECT_TRUE(verdict.speaks_tls);
  EXPECT_THAT(verdict.refused, HasSubstr("it closed the connection after the handshake"));
}

TEST_F(GrpcSecurity, AServerWithoutTlsIsRefusedByOneWithIt) {
  const Failure refused = connect({}, coordinator_);
  EXPECT_EQ(refused.kind, ErrorKind::security);
  EXPECT_THAT(refused.message, HasSubstr("it does not speak TLS"));
}

TEST_F(GrpcSecurity, D12AnExpiredCertificateIsRefusedByItsOwnerAndByOthers) {
  const TransportSecurity expired = authority_.issue("old", {"DNS:stage-1"}, kPast);
  for (const Failure& refused : {connect(expired, coordinator_), connect(stage_, expired)}) {
    EXPECT_EQ(refused.kind, ErrorKind::security);
    EXPECT_THAT(refused.message, HasSubstr("old.crt: the certificate expired on "));
  }
  GrpcServer server("127.0.0.1:0", stage_, echo);
  const TlsVerdict verdict = probe_tls(server.address(), expired, std::chrono::steady_clock::now() + std::chrono::seconds(10));
  EXPECT_THAT(verdict.refused, HasSubstr("it closed the connection after the handshake"));
}

TEST_F(GrpcSecurity, OldVersionsOfTlsAreRefused) {
  GrpcServer server("127.0.0.1:0", stage_, echo);
  const auto version = [&](int most) {
    const Descriptor socket{dial(server.address())};
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_set_security_level(context.get(), 0);
    SSL_CTX_set_min_proto_version(context.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context.get(), most);
    SSL_CTX_set_alpn_protos(context.get(), reinterpret_cast<const unsigned char*>("\2h2"), 3);
    SSL_CTX_use_certificate_file(context.get(), coordinator_.cert.c_str(), SSL_FILETYPE_PEM);
    SSL_CTX_use_PrivateKey_file(context.get(), coordinator_.key.c_str(), SSL_FILETYPE_PEM);
    const std::unique_ptr<SSL, decltype(&SSL_free)> ssl(SSL_new(context.get()), SSL_free);
    SSL_set_fd(ssl.get(), socket.number);
    return SSL_connect(ssl.get()) == 1 ? SSL_version(ssl.get()) : 0;
  };
  EXPECT_EQ(version(TLS1_1_VERSION), 0);
  EXPECT_EQ(version(TLS1_2_VERSION), TLS1_2_VERSION);
  EXPECT_EQ(version(TLS1_3_VERSION), TLS1_3_VERSION);
}

TEST_F(GrpcSecurity, AServerThatIsGoneIsUnreachableWithTlsToo) {
  std::string address;
  {
    const GrpcServer server("127.0.0.1:0", stage_, echo);
    address = server.address();
  }
  const Failure gone = failure_of([&] { (void)connect_grpc({address, "stage-1"}, coordinator_, kTimeout); });
  EXPECT_EQ(gone.kind, ErrorKind::unreachable);
  EXPECT_THAT(gone.message, HasSubstr("Connection refused"));
}

TEST_F(GrpcSecurity, D13PlaintextIsForLoopbackUnlessAllowed) {
  TransportSecurity plain;
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:80", "example.com:80", "1270.0.0.1:80", "127.example.com:80"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
    const Failure refused = failure_of([&] { plain.require_usable(address); });
    EXPECT_EQ(refused.kind, ErrorKind::security);
    EXPECT_THAT(refused.message, HasSubstr(address));
  }
  for (const char* address : {"127.0.0.1:80", "127.8.9.1:80", "[::1]:80", "[0:0::1]:80", "localhost:80", "unix:/x"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
    plain.require_usable(address);
  }
  EXPECT_EQ(failure_of([&] { GrpcServer server("0.0.0.0:0", plain, echo); }).kind, ErrorKind::security);
  EXPECT_EQ(failure_of([&] { (void)connect_grpc({"192.0.2.1:80", "x"}, plain, kTimeout); }).kind, ErrorKind::security);
  plain.allow_insecure = true;
  EXPECT_EQ(connect(plain, plain, "x", "0.0.0.0:0").message, "agreed");
  EXPECT_EQ(connect(stage_, coordinator_, "stage-1", "0.0.0.0:0").message, "agreed");
}

TEST_F(GrpcSecurity, FilesThatCannotBeUsedAreRefusedByName) {
  const auto refused = [](const TransportSecurity& security) {
    const Failure failure = failure_of([&] { security.require_usable("127.0.0.1:1"); });
    EXPECT_EQ(failure.kind, ErrorKind::security);
    return failure.message;
  };
  TransportSecurity one = stage_;
  one.key.clear();
  EXPECT_THAT(refused(one), HasSubstr("found no key"));
  one = stage_;
  one.cert.clear();
  EXPECT_THAT(refused(one), HasSubstr("found no certificate"));
  one = {};
  one.ca = stage_.ca;
  EXPECT_THAT(refused(one), HasSubstr("found no certificate"));
  one = stage_;
  one.ca = path("none.pem");
  EXPECT_THAT(refused(one), HasSubstr("none.pem"));
  one = stage_;
  one.key = coordinator_.key;
  EXPECT_THAT(refused(one), HasSubstr("coordinator.key: the key does not belong to the certificate"));
  one = stage_;
  one.cert = stage_.key;
  EXPECT_THAT(refused(one), HasSubstr("stage-1.key: wanted certificates in PEM"));
  one = stage_;
  one.key = stage_.cert;
  EXPECT_THAT(refused(one), HasSubstr("stage-1.crt: wanted a private key in PEM"));
  std::ofstream(path("rubbish")) << "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  one = stage_;
  one.ca = path("rubbish");
  EXPECT_THAT(refused(one), HasSubstr("rubbish: wanted certificates in PEM"));
  EXPECT_THAT(refused(authority_.issue("early", {}, kFuture)), HasSubstr("early.crt: the certificate is not valid before "));
  const TestAuthority past(folder_.path(), "past", kPast);
  EXPECT_THAT(refused(past.issue("x", {})), HasSubstr("past.pem: the certificate expired on "));
}

TEST_F(GrpcSecurity, KeysThatOthersMayReadAreRefused) {
  for (const auto more : {std::filesystem::perms::group_read, std::filesystem::perms::others_read}) {
    std::filesystem::permissions(stage_.key, more, std::filesystem::perm_options::add);
    const Failure refused = failure_of([&] { stage_.require_usable("127.0.0.1:0"); });
    EXPECT_EQ(refused.kind, ErrorKind::security);
    EXPECT_THAT(refused.message, testing::AllOf(HasSubstr(stage_.key.string()), HasSubstr("wanted mode 0600")));
    std::filesystem::permissions(stage_.key, more, std::filesystem::perm_options::remove);
  }
  EXPECT_NO_THROW(stage_.require_usable("127.0.0.1:0"));
}

TEST_F(GrpcSecurity, D12TokensAreAskedForOverTls) {
  const fs::path token = write_token(path("token"), std::string(32, 'a') + "\n");
  const fs::path same = write_token(path("same"), std::string(32, 'a'));
  const fs::path other = write_token(path("other"), std::string(33, 'a'));
  const auto with = [](TransportSecurity security, const fs::path& file) {
    security.token_file = file;
    return security;
  };
  EXPECT_EQ(connect(with(stage_, token), with(coordinator_, same)).message, "agreed");
  for (const Failure& refused :
       {connect(with(stage_, token), with(coordinator_, other)), connect(with(stage_, token), coordinator_)}) {
    EXPECT_EQ(refused.kind, ErrorKind::security);
    EXPECT_THAT(refused.message, AnyOf(HasSubstr("is not that of this cluster"), HasSubstr("wanted the token")));
    EXPECT_THAT(refused.message, Not(HasSubstr("aaaa")));
  }
}

TEST_F(GrpcSecurity, TokensAreProvenWithoutTls) {
  TransportSecurity server;
  server.token_file = write_token(path("token"), std::string(40, 'a'));
  TransportSecurity client = server;
  EXPECT_EQ(connect(server, client).message, "agreed");
  client.token_file = write_token(path("other"), std::string(40, 'b'));
  const Failure wrong = connect(server, client);
  EXPECT_EQ(wrong.kind, ErrorKind::security);
  EXPECT_THAT(wrong.message, HasSubstr("it does not have the token of this cluster"));
  const Failure none = connect(server, {});
  EXPECT_EQ(none.kind, ErrorKind::security);
  EXPECT_THAT(none.message, HasSubstr("wanted a nonce"));
  const Failure nobody = connect({}, client);  // a server that does not know the token
  EXPECT_EQ(nobody.kind, ErrorKind::security);
}

// A caller that goes its own way, unlike connect_grpc().
std::unique_ptr<GrpcStream> call(const std::string& address, const char* method, const std::string& nonce) {
  const auto channel = grpc::CreateChannel("dns:///" + address, grpc::InsecureChannelCredentials());
  const auto call = std::make_shared<GrpcClientCall>(address, channel);
  auto stream = std::make_unique<GrpcStream>(call);
  if (!nonce.empty()) call->context().AddMetadata(kNonceKey, nonce);
  grpc::GenericStub(channel).PrepareBidiStreamingCall(&call->context(), method, {}, call.get());
  call->start();
  return stream;
}

TEST_F(GrpcSecurity, ACallerThatProvesNothingReachesNoHandler) {
  TransportSecurity security;
  security.token_file = write_token(path("token"), std::string(40, 'a'));
  std::atomic<int> handled = 0;
  GrpcServer server("127.0.0.1:0", security, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    ++handled;
    stream->finish();
  });
  const auto refused = [&](const std::string& nonce, const std::string& proof) {
    const auto stream = call(server.address(), kStreamMethod, nonce);
    return failure_of([&] {
             if (!proof.empty()) stream->write(message_of(proof));
             (void)stream->read();
           })
        .message;
  };
  EXPECT_THAT(refused("", ""), HasSubstr("wanted a nonce"));
  EXPECT_THAT(refused("short", ""), HasSubstr("wanted a nonce"));
  EXPECT_THAT(refused(random_nonce(), std::string(32, 'x')), HasSubstr("the token is not that of this cluster"));
  // What the server said of itself proves nothing about the caller.
  const std::string nonce = random_nonce();
  const TokenChallenge guess(std::string(40, 'b'), nonce, nonce);
  EXPECT_THAT(refused(nonce, guess.server_proof()), HasSubstr("the token is not that of this cluster"));
  EXPECT_EQ(handled, 0);
}

TEST_F(GrpcSecurity, ProofsDependOnTheTokenTheNoncesAndTheRole) {
  const TokenChallenge one("token", "client", "server");
  EXPECT_EQ(one.client_proof().size(), TokenChallenge::kBytes);
  EXPECT_EQ(one.client_proof(), TokenChallenge("token", "client", "server").client_proof());
  EXPECT_NE(one.client_proof(), one.server_proof());
  EXPECT_NE(one.client_proof(), TokenChallenge("tokem", "client", "server").client_proof());
  EXPECT_NE(one.client_proof(), TokenChallenge("token", "cliemt", "server").client_proof());
  EXPECT_NE(one.client_proof(), TokenChallenge("token", "client", "servet").client_proof());
  EXPECT_NE(random_nonce(), random_nonce());
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abc", "abd"));
  EXPECT_FALSE(same_secret("abc", "abcd"));
}

TEST_F(GrpcSecurity, OtherMethodsAreRefusedByName) {
  GrpcServer server("127.0.0.1:0", {}, echo);
  const auto stream = call(server.address(), "/grpc.health.v1.Health/Check", "");
  EXPECT_THAT(failure_of([&] { (void)stream->read(); }).message,
              HasSubstr("wanted a call of /weft.Stage/Stream, found /grpc.health"));
}

TEST_F(GrpcSecurity, TokenFilesThatCannotBeUsedAreRefusedByName) {
  const auto refused = [](const fs::path& file) {
    TransportSecurity security;
    security.token_file = file;
    const Failure failure = failure_of([&] { security.require_usable("127.0.0.1:1"); });
    EXPECT_EQ(failure.kind, ErrorKind::security);
    EXPECT_THAT(failure.message, HasSubstr(file.filename().string()));
    return failure.message;
  };
  EXPECT_THAT(refused(path("none")), HasSubstr("No such file"));
  EXPECT_THAT(refused(folder_.path()), HasSubstr("wanted a regular file"));
  EXPECT_THAT(refused(write_token(path("short"), std::string(31, 'a') + "\n")), HasSubstr("found 31"));
  EXPECT_THAT(refused(write_token(path("long"), std::string(5000, 'a'))), HasSubstr("found at least "));
  const auto open = fs::perms::owner_read | fs::perms::others_read;
  EXPECT_THAT(refused(write_token(path("open"), std::string(40, 'a'), open)), HasSubstr("found 0404"));
}

}  // namespace
}  // namespace weft
