// Whom a worker takes a caller for, by the names of its certificate.
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/guard.h"
#include "pipeline/remote/identity.h"
#include "pipeline/remote/messages.h"
#include "pipeline/remote/worker.h"
#include "pipeline/wire/message_stream.h"

#include "support/models.h"

namespace weft {
namespace {

using testing::HasSubstr;

// What the worker says of an observer `node` whose certificate has these names; nothing: it answers. The observer is told the
// same.
std::optional<Failure> refusal(const std::string& node, const std::vector<std::string>& names) {
  WorkerOptions options;
  options.cluster = "test";
  options.node = "stage-0";
  options.model_dir = testing_support::k3_mini();
  Worker worker(options);
  auto [here, there] = in_process_streams();
  std::optional<Failure> refused;
  std::thread server(
      [&, stream = std::move(there)]() mutable { refused = guard([&] { worker.serve(std::move(stream), names); }); });
  {
    Link link(std::move(here), LinkOptions{});
    wire::Hello hello = local_hello("test");
    hello.set_role(wire::Hello::OBSERVER);
    hello.set_cluster("test");
    hello.set_node(node);
    hello.set_to_node("stage-0");
    const std::optional<Failure> told = guard([&] { exchange_hello(link, hello, 10.0); });
    static_cast<void>(guard([&] {
      link.finish();
      while (link.receive()) {
      }
    }));
    server.join();
    EXPECT_EQ(told.has_value(), refused.has_value());
    if (told && refused) {
      EXPECT_EQ(told->kind, refused->kind);
      EXPECT_THAT(told->message, HasSubstr("wanted a certificate that names node '" + node + "'"));
    }
  }
  return refused;
}

TEST(WorkerNames, ACertificateNamesTheNodeAsTheTransportReadsIt) {
  EXPECT_FALSE(refusal("stage-1", {}));  // no certificate
  EXPECT_FALSE(refusal("stage-1", {"other", "stage-1"}));
  EXPECT_FALSE(refusal("Stage-1", {"stage-1"}));            // DNS names have no case
  EXPECT_FALSE(refusal("stage 1", {"weft:node/stage 1"}));  // an id that is no DNS name
  for (const std::string node : {"stage-1", ""}) {
    const std::optional<Failure> refused = refusal(node, {"stage-2", "10.0.0.1", "weft:node/stage-2"});
    ASSERT_TRUE(refused) << node;
    EXPECT_EQ(refused->kind, ErrorKind::security);
    EXPECT_THAT(refused->message, HasSubstr("names node '" + node + "'"));
  }
}

}  // namespace
}  // namespace weft
