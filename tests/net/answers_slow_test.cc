// Three hosts answer as one process does.
#include <filesystem>
#include <fstream>
#include <string>

#include <sys/wait.h>

#include <gtest/gtest.h>

#include "app/program.h"

#include "net/three_hosts.h"

namespace weft::net_test {
namespace {

constexpr double kRunSeconds = 240.0;

constexpr const char* kQuestion = "What is 17 * 23? Answer with the number only.";
constexpr const char* kRetry = "Write a Python retry wrapper with exponential backoff.";

// The Python code between the fences of an answer.
std::string fenced_python(const std::string& text) {
  constexpr std::string_view kBegin = "```python\n";
  const size_t begin = text.find(kBegin);
  const size_t end = text.find("```", begin + kBegin.size());
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

// Runs an answer's retry wrapper: a function that fails twice and then works, with the waits taken down; then one that always
// fails.
constexpr const char* kHarness = R"(
import sys
import time

waits = []
time.sleep = waits.append

scope = {}
exec(compile(open(sys.argv[1]).read(), "answer", "exec"), scope)
retry = scope["retry"]

calls = []

@retry()
def works_at_last(value):
    calls.append(value)
    if len(calls) < 3:
        raise ValueError("failure %d" % len(calls))
    return "result of %s" % value

assert works_at_last("x") == "result of x"
assert calls == ["x"] * 3, calls
assert len(waits) == 2 and 0 < waits[0] < waits[1], waits

errors = []

@retry()
def never_works():
    errors.append(KeyError("failure %d" % len(errors)))
    raise errors[-1]

try:
    never_works()
except KeyError as error:
    assert error is errors[-1] and len(errors) > 1, errors
else:
    raise AssertionError("no error")
print("the wrapper works")
)";

void expect_python_works(const std::string& answer, const std::filesystem::path& folder) {
  const std::string code = fenced_python(answer);
  ASSERT_NE(code, "") << answer;
  std::ofstream(folder / "answer.py") << code;
  std::ofstream(folder / "harness.py") << kHarness;
  const std::string command = "python3 '" + (folder / "harness.py").string() + "' '" + (folder / "answer.py").string() +
                              "' > '" + (folder / "python.txt").string() + "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream said(folder / "python.txt");
  const std::string text{std::istreambuf_iterator<char>(said), std::istreambuf_iterator<char>()};
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text << code;
  EXPECT_EQ(text, "the wrapper works\n");
}

void answer_on(NetworkKind kind) {
  ThreeHosts hosts(kind);
  hosts.start_stages();
  const auto sum = hosts.coordinator("generate", {"-p", kQuestion});
  ASSERT_EQ(sum->wait(kRunSeconds), 0) << sum->story() << hosts.story();
  EXPECT_EQ(sum->out(), "391");

  const app_test::Outcome one =
      app_test::run({"generate", "-m", testing_support::k3_mini().string(), "-p", kRetry, "--temperature", "0"});
  ASSERT_EQ(one.code, 0) << one.err;
  const auto retry = hosts.coordinator("generate", {"-p", kRetry});
  ASSERT_EQ(retry->wait(kRunSeconds), 0) << retry->story() << hosts.story();
  EXPECT_EQ(retry->out(), one.out);
  expect_python_works(retry->out(), hosts.folder());

  const NetworkCounters counters = hosts.network().counters();
  EXPECT_GT(counters.carried, 500);
  EXPECT_GT(counters.lost, 0);
  hosts.stop_stages();
}

TEST(ThreeHosts, AnswerAsOneProcess) { answer_on(NetworkKind::best); }

TEST(ThreeHosts, AnswerThroughProxies) { answer_on(NetworkKind::proxies); }

}  // namespace
}  // namespace weft::net_test
