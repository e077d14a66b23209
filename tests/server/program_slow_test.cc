// weft serve as users run it: how it starts and ends, and what becomes of it when a stage dies.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include <sys/resource.h>
#include <sys/stat.h>

#include <gmock/gmock.h>

#include "base/json.h"

#include "http_client.h"
#include "serve_program.h"

namespace weft::server_test {
namespace {

using http_test::Answer;
using http_test::Client;
using ::testing::HasSubstr;
using ::testing::Not;

std::string chat(const std::string& more = "") {
  return R"({"model": "k3-mini", "temperature": 0, "messages": [{"role": "user",
      "content": "What is 17 * 23? Answer with the number only."}])" +
         more + "}";
}

std::string post(const std::string& path, const std::string& body) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", path,
                     body.size(), body);
}

Answer ask(const Serve& serve, const std::string& request) {
  Client client(serve.port());
  client.send(request);
  return client.read_answer();
}

int health(const Serve& serve) { return ask(serve, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n").status; }

TEST(ServeProgram, AnswersLogsAndEndsWell) {
  std::vector<std::string> loud;
  Serve serve({"--alias", "k3-mini", "--alias", "other/name"});
  EXPECT_EQ(health(serve), 200);
  const Answer answer = ask(serve, post("/v1/chat/completions", chat()));
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(parse_json(answer.body, "answer")["choices"][0]["message"]["content"], "391");
  EXPECT_THAT(ask(serve, "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n").body, HasSubstr("other/name"));
  EXPECT_EQ(serve.end(), 0);
}

TEST(ServeProgram, OneLineForEachRequest) {
  Serve serve({}, true);
  static_cast<void>(ask(serve, post("/v1/chat/completions", chat())));
  EXPECT_THAT(serve.next_line(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("POST /v1/chat/completions 200 in "),
                                       HasSubstr("prompt 100 tokens, generated 78")));
  static_cast<void>(ask(serve, "GET /%1b[31m HTTP/1.1\r\nHost: x\r\n\r\n"));
  std::string line = serve.next_line();
  EXPECT_THAT(line, HasSubstr(" 404 in "));
  EXPECT_THAT(line, Not(HasSubstr("\x1b"))) << "what a terminal would obey is escaped";
  static_cast<void>(ask(serve, "GET /x%0aGET%20/forged%20200 HTTP/1.1\r\nHost: x\r\n\r\n"));
  line = serve.next_line();
  EXPECT_THAT(line, AllOf(HasSubstr("127.0.0.1:"), HasSubstr("forged"), HasSubstr(" 404 in "))) << "one line";
  EXPECT_EQ(ask(serve, "no request\r\n\r\n").status, 400);
  EXPECT_THAT(serve.next_line(), AllOf(HasSubstr("127.0.0.1:"), HasSubstr(" - - 400 in "), HasSubstr("req_")));
  EXPECT_THAT(ask(serve, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").body, HasSubstr("status=\"400\""));
}

TEST(ServeProgram, AtTheEndNewRequestsAreRefusedAndOthersGoOn) {
  Serve serve({"--grace", "60"}, true);
  Client running(serve.port());
  running.send(post("/v1/chat/completions", chat(R"(, "stream": true, "ignore_eos": true, "max_tokens": 600)")));
  Client idle(serve.port());
  ASSERT_THAT(running.read_until("reasoning_content"), HasSubstr("200"));
  serve.signal(SIGTERM);
  while (!serve.next_line().starts_with("shutting down")) {
  }
  idle.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const Answer refused = idle.read_answer();
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("draining"));
  const std::string rest = running.read_until("data: [DONE]");
  EXPECT_THAT(rest, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(serve.wait(), 0);
}

TEST(ServeProgram, TheGraceTimeIsALimit) {
  Serve serve({"--grace", "0.2"}, true);
  Client running(serve.port());
  running.send(post("/v1/chat/completions", chat(R"(, "stream": true, "ignore_eos": true)")));
  ASSERT_THAT(running.read_until("reasoning_content"), HasSubstr("200"));
  serve.signal(SIGTERM);
  const std::string rest = running.read_until("data: [DONE]");
  EXPECT_THAT(rest, HasSubstr("\"code\":\"draining\""));
  EXPECT_THAT(rest, Not(HasSubstr("\"finish_reason\":\"")));
  EXPECT_EQ(serve.wait(), 0);
}

TEST(ServeProgram, MistakesAreNamedAtTheStart) {
  Serve serve;
  const auto run = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"serve", "-m", app_test::mini_dir()};
    words.insert(words.end(), more.begin(), more.end());
    return app_test::run(words);
  };
  const app_test::Outcome taken = run({"--port", std::to_string(serve.port())});
  EXPECT_NE(taken.code, 0);
  EXPECT_THAT(taken.err, HasSubstr("found: address in use"));
  EXPECT_THAT(run({"--api-key-file", "/nonexistent"}).err, HasSubstr("/nonexistent"));
  EXPECT_THAT(run({"--ssl-cert-file", "/nonexistent", "--ssl-key-file", "/nonexistent"}).err, HasSubstr("/nonexistent"));
  EXPECT_EQ(run({"--port", "70000"}).code, 2);
  EXPECT_EQ(run({"--host", "256.1.1.1"}).code, 2);
  // Sizes and numbers are named by their flags, however long they are.
  for (const std::string flag : {"--body-limit", "--keep-responses-memory", "--state-memory", "--memory"}) {
    for (const std::string value : {"0", "x"}) {
      const app_test::Outcome wrong = run({"--port", "0", flag, value});
      EXPECT_EQ(wrong.code, 2) << flag;
      EXPECT_THAT(wrong.err, HasSubstr(fmt::format("[command line] {}: wanted a size like 512GiB, found '{}'", flag, value)));
    }
  }
  EXPECT_THAT(run({"--port", "0", "--session", "/tmp", "--session-disk", "0"}).err, HasSubstr("--session-disk: wanted a size"));
  const std::string digits(300, '7');
  for (const std::string flag :
       {"--grace", "--queue-limit", "--time-limit", "--parallel", "--seed", "--port", "--connect-timeout", "--body-limit"}) {
    for (const std::string& value : {"-" + digits, digits + "x"}) {
      const app_test::Outcome wrong = run({flag, value});
      EXPECT_EQ(wrong.code, 2) << flag;
      EXPECT_THAT(wrong.err, HasSubstr(flag));
      EXPECT_LT(wrong.err.size(), 250U) << wrong.err;
    }
  }
}

// Threads of this user: the limit of them counts all.
int64_t threads_of_this_user() {
  int64_t threads = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    struct stat info{};
    if (::stat(entry.path().c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    std::error_code gone;
    for (auto task = std::filesystem::directory_iterator(entry.path() / "task", gone);
         !gone && task != std::filesystem::directory_iterator(); task.increment(gone)) {
      ++threads;
    }
  }
  return threads;
}

TEST(ServeProgram, ConnectionsAreNotThreads) {
  constexpr int64_t kThreads = 32;
  constexpr int kConnections = 2000;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_GT(files.rlim_cur, 2U * kConnections) << "the hard limit of open files is too low";
  // The limit does not hold for root.
  const bool root = ::geteuid() == 0;
  std::vector<std::string> before;
  if (root) before = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  before.insert(before.end(), {"prlimit", fmt::format("--nproc={}", kThreads + (root ? 0 : threads_of_this_user()))});
  Serve serve({}, false, before);
  std::vector<std::unique_ptr<Client>> connections;
  for (int i = 0; i < kConnections; ++i) connections.push_back(std::make_unique<Client>(serve.port()));
  for (int i = 0; i < kConnections; i += 40) {
    connections[static_cast<size_t>(i)]->send(post("/v1/chat/completions", chat(R"(, "stream": true, "max_tokens": 5)")));
  }
  for (int i = 0; i < kConnections; i += 40) {
    EXPECT_EQ(connections[static_cast<size_t>(i)]->read_answer().status, 200) << i;
  }
  EXPECT_EQ(health(serve), 200);
  connections.clear();
  EXPECT_EQ(serve.end(), 0);
}

// The folder that holds what the processes of a local pipeline share, from the command line of one of them.
std::filesystem::path folder_of(pid_t stage) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", stage));
  for (std::string word; std::getline(file, word, '\0');) {
    if (word == "--distributed-config" && std::getline(file, word, '\0')) return std::filesystem::path(word).parent_path();
  }
  return {};
}

// The stages of a server, which are children of one of its threads, in the order of their start.
std::vector<pid_t> stages_of(pid_t parent) {
  std::vector<pid_t> made;
  for (const auto& task : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", parent))) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) {
      if (!folder_of(pid).empty()) made.push_back(pid);
    }
  }
  std::ranges::sort(made);
  return made;
}

TEST(ServeProgram, AHangupEndsItInOrder) {
  Serve serve({"--pp-size", "2", "--grace", "60"}, true);
  const std::vector<pid_t> stages = stages_of(serve.pid());
  ASSERT_EQ(stages.size(), 2U);
  const std::filesystem::path folder = folder_of(stages[0]);
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder;
  Client running(serve.port());
  running.send(post("/v1/chat/completions", chat(R"(, "stream": true, "ignore_eos": true, "max_tokens": 200)")));
  ASSERT_THAT(running.read_until("reasoning_content"), HasSubstr("200"));
  serve.signal(SIGHUP);
  while (!serve.next_line().starts_with("shutting down")) {
  }
  serve.signal(SIGHUP);  // as a terminal that closes sends it
  EXPECT_THAT(running.read_until("data: [DONE]"), HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_EQ(serve.wait(), 0);
  for (const pid_t stage : stages) EXPECT_EQ(::kill(stage, 0), -1) << "a stage goes on";
  EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

// A stage that hangs is not waited for: its silence would be noticed after ten minutes here.
TEST(ServeProgram, TheGraceTimeIsALimitWithAFrozenStageToo) {
  Serve serve({"--pp-size", "2", "--grace", "0.2", "--heartbeat-interval", "100"}, true);
  const std::vector<pid_t> stages = stages_of(serve.pid());
  ASSERT_EQ(stages.size(), 2U);
  Client running(serve.port());
  running.send(post("/v1/chat/completions", chat(R"(, "stream": true, "ignore_eos": true)")));
  ASSERT_THAT(running.read_until("reasoning_content"), HasSubstr("200"));
  ::kill(stages[1], SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  serve.signal(SIGTERM);
  EXPECT_THAT(running.read_until("data: [DONE]"), HasSubstr("\"error\""));
  EXPECT_EQ(serve.wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(25)) << "the step's own limit is 30 s";
  for (const pid_t stage : stages) EXPECT_EQ(::kill(stage, 0), -1) << "a stage goes on";
}

TEST(ServeProgram, BelowNohupAHangupIsNothing) {
  Serve serve({}, false, {"nohup"});
  serve.signal(SIGHUP);
  EXPECT_EQ(health(serve), 200);
  EXPECT_EQ(serve.end(), 0);
}

TEST(ServeProgram, AStageThatDiesFailsItsRequestsAndComesBack) {
  Serve serve({"--pp-size", "2", "--heartbeat-interval", "0.2"});
  EXPECT_EQ(health(serve), 200);
  const Answer answer = ask(serve, post("/v1/chat/completions", chat()));
  EXPECT_EQ(parse_json(answer.body, "answer")["choices"][0]["message"]["content"], "391");
  const std::string status = ask(serve, "GET /status HTTP/1.1\r\nHost: x\r\n\r\n").body;
  EXPECT_THAT(status, HasSubstr("\"stage\":1"));
  EXPECT_GT(parse_json(status, "answer")["limit"]["tokens_per_second"], 0) << "stages of one host share its memory";
  const std::vector<pid_t> stages = stages_of(serve.pid());
  ASSERT_EQ(stages.size(), 2U);
  Client running(serve.port());
  running.send(post("/v1/chat/completions", chat(R"(, "stream": true, "ignore_eos": true)")));
  ASSERT_THAT(running.read_until("reasoning_content"), HasSubstr("200"));
  ::kill(stages[1], SIGKILL);
  const std::string rest = running.read_until("data: [DONE]");
  EXPECT_THAT(rest, HasSubstr("data: {\"error\":"));
  EXPECT_THAT(rest, HasSubstr("stage 1"));
  EXPECT_THAT(rest, Not(HasSubstr("unix:"))) << "paths are the host's own";
  // Meanwhile requests are refused; then the worker is there again.
  const auto patience = std::chrono::steady_clock::now() + kPatience;
  Answer again = ask(serve, post("/v1/chat/completions", chat()));
  while (again.status != 200 && std::chrono::steady_clock::now() < patience) {
    EXPECT_EQ(again.status, 503) << again.body;
    EXPECT_THAT(again.body, Not(HasSubstr("unix:")));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    again = ask(serve, post("/v1/chat/completions", chat()));
  }
  ASSERT_EQ(again.status, 200) << again.body;
  EXPECT_EQ(parse_json(again.body, "answer")["choices"][0]["message"]["content"], "391");
  EXPECT_EQ(health(serve), 200);
  EXPECT_EQ(stages_of(serve.pid()).size(), 2U);
  EXPECT_EQ(serve.end(), 0);
}

}  // namespace
}  // namespace weft::server_test
