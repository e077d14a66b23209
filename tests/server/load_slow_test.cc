// `weft serve` under load, as bench/serve_load.cc has it for longer: no answer is wrong or another client's, nothing is stuck,
// nothing is left.
#include <gmock/gmock.h>

#include "app/program.h"

#include "load_clients.h"
#include "load_server.h"

namespace weft::load_test {
namespace {

using ::testing::IsEmpty;

struct Case {
  std::vector<std::string> server;  // further arguments
  size_t processes = 1;
  int clients = 1;
  int many = 1;
  double seconds = 1;
};

// Of the load.
LoadResult run_case(const Case& given) {
  std::vector<std::string> arguments = {
      "-m", app_test::mini_dir(), "--state-memory", "64MiB", "--body-limit", "1MiB", "--keep-responses", "16"};
  arguments.insert(arguments.end(), given.server.begin(), given.server.end());
  LoadServer server(WEFT_PROGRAM, arguments);
  EXPECT_EQ(server.processes().size(), given.processes);

  std::vector<Ask> asks = make_asks("k3-mini", given.many);
  Faults before;
  ask_references(server.port(), asks, before);
  EXPECT_EQ(before.count(), 0) << before.text();

  LoadOptions options;
  options.clients = given.clients;
  options.seconds = given.seconds;
  LoadResult result = run_load(server.port(), asks, options);
  EXPECT_EQ(result.faults.count(), 0) << result.faults.text();
  EXPECT_TRUE(wait_until_idle(server.port(), 90)) << get_page(server.port(), "/metrics");
  EXPECT_THAT(failures_in(read_metrics(server.port())), IsEmpty());
  EXPECT_EQ(Json::parse(get_page(server.port(), "/health"))["status"], "ok");
  EXPECT_EQ(server.processes().size(), given.processes);
  // The answers are the same once all that is over.
  Faults behind;
  std::vector<Ask> again = make_asks("k3-mini", 1);
  ask_references(server.port(), again, behind);
  EXPECT_EQ(behind.count(), 0) << behind.text();
  for (size_t i = 0; i < again.size() - 1; ++i) {
    if (again[i].body == asks[i].body) {
      EXPECT_EQ(again[i].wanted, asks[i].wanted) << again[i].body;
    }
  }
  EXPECT_EQ(server.end(), 0) << server.said();
  return result;
}

TEST(ServeLoad, FortyClientsOfWhichSomeFindTheQueueFull) {
  const LoadResult result =
      run_case({.server = {"--parallel", "12", "--max-queue", "20"}, .clients = 40, .many = 2, .seconds = 15});
  for (const char* outcome : {"answered", "cancelled", "status 400", "status 429"}) {
    EXPECT_TRUE(result.outcomes.contains(outcome)) << outcome;
  }
  EXPECT_FALSE(result.first_text_ms.empty());
  EXPECT_FALSE(result.between_texts_ms.empty());
}

#ifdef WEFT_WITH_GRPC
TEST(ServeLoad, EightClientsOverThreeStages) {
  const LoadResult result = run_case({.server = {"--pp-size", "3"}, .processes = 4, .clients = 8, .many = 1, .seconds = 10});
  for (const char* outcome : {"answered", "cancelled"}) EXPECT_TRUE(result.outcomes.contains(outcome)) << outcome;
}
#endif

}  // namespace
}  // namespace weft::load_test
