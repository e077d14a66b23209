// What takes its time: silence, idleness, certificates that change.
#include <chrono>
#include <ctime>
#include <thread>

#include "pipeline/remote/grpc_transport.h"

#include "remote/cable.h"
#include "remote/stream_test_util.h"
#include "remote/test_certs.h"
#include "support/models.h"

namespace weft {
namespace {

using namespace remote_test;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;
using testing_support::TemporaryFolder;

constexpr double kTimeout = 60.0;

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Pings go out every 10 s, and an answer is waited for 15 s.
TEST(GrpcSlow, AnEndThatFallsSilentIsLostAtBothSidesAndOneThatIsIdleIsNot) {
  Awaited<Clock::time_point> server_lost;
  GrpcServer server("127.0.0.1:0", {}, [&](const GrpcPeer&, std::unique_ptr<MessageStream> stream) {
    stream->write(message_of("ready"));
    const Failure lost = failure_of([&] { (void)stream->read(); });
    EXPECT_EQ(lost.kind, ErrorKind::stage_lost);
    server_lost.give(Clock::now());
  });
  GrpcServer idle_server("127.0.0.1:0", {}, echo);
  const auto idle = connect_grpc({idle_server.address(), "idle"}, {}, kTimeout);
  Cable cable(server.address());
  const auto client = connect_grpc({cable.address(), "silent"}, {}, kTimeout);
  EXPECT_EQ(text_of(*client->read()), "ready");
  cable.go_silent();
  const auto start = Clock::now();
  const double cpu = cpu_seconds();
  EXPECT_EQ(failure_of([&] { (void)client->read(); }).kind, ErrorKind::stage_lost);
  EXPECT_LT(Clock::now() - start, seconds(40));
  EXPECT_LT(server_lost.take() - start, seconds(40));
  std::this_thread::sleep_until(start + seconds(25));  // further pings of the idle one
  EXPECT_LT(cpu_seconds() - cpu, 0.05 * 25);
  idle->write(message_of("hello"));
  EXPECT_EQ(text_of(*idle->read()), "hello");
}

TEST(GrpcSlow, AServerTakesNewCertificatesWithoutARestart) {
  const TemporaryFolder folder;
  const TestAuthority authority(folder.path(), "ca");
  const TransportSecurity client = authority.issue("client", {"DNS:client"});
  const TransportSecurity stage = authority.issue("stage", {"DNS:stage-1"});
  GrpcServer server("127.0.0.1:0", stage, echo);
  const auto failure = [&] { return guard([&] { connect_grpc({server.address(), "stage-1"}, client, kTimeout)->finish(); }); };
  EXPECT_FALSE(failure());
  const auto replaced = [&](const TestValidity& validity, bool fails) {
    (void)authority.issue("stage", {"DNS:stage-1"}, validity);
    const auto deadline = Clock::now() + seconds(20);
    while (failure().has_value() != fails && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return failure();
  };
  const auto expired = replaced({-7200, -3600}, true);
  ASSERT_TRUE(expired);
  EXPECT_EQ(expired->kind, ErrorKind::security);
  EXPECT_THAT(expired->message, HasSubstr("its certificate is refused: certificate has expired"));
  EXPECT_FALSE(replaced({}, false));
}

}  // namespace
}  // namespace weft
