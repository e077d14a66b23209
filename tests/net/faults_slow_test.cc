// What becomes of requests when stages die, freeze, are cut off or are slow, between three hosts (docs/distributed.md,
// "Failure").
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/program.h"

#include "net/conversation.h"
#include "net/three_hosts.h"

namespace weft::net_test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using Clock = std::chrono::steady_clock;

// Twice the three heartbeats of a second that may be missed.
constexpr double kSilenceSeconds = 6.0;
// What may come on top: the way to the coordinator, and a busy machine.
constexpr double kSlack = 6.0;
constexpr double kAnswerSeconds = 240.0;
// Stages that are there again: the longest pause between two tries is 10 s, and a try may take 5 s.
constexpr double kReturnSeconds = 60.0;

constexpr const char* kQuestion = "What is 17 * 23? Answer with the number only.";
constexpr const char* kLong = "Write a Python retry wrapper with exponential backoff.";

constexpr LinkFaults kCut{.delay = kUsualFaults.delay, .loss = kUsualFaults.loss, .is_cut = true};

std::string one_process_answer() {
  const app_test::Outcome outcome =
      app_test::run({"generate", "-m", testing_support::k3_mini().string(), "-p", kLong, "--temperature", "0"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.out;
}

double since(Clock::time_point then) { return std::chrono::duration<double>(Clock::now() - then).count(); }

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

class NetworkFaults : public testing::Test {
 protected:
  explicit NetworkFaults(const std::string& cluster_lines = "") : hosts_(NetworkKind::best, cluster_lines) {
    hosts_.start_stages();
  }

  // A chat that is in the middle of a long answer.
  std::unique_ptr<Conversation> talking(const std::vector<std::string>& more = {}) {
    auto chat = std::make_unique<Conversation>(hosts_, more);
    chat->say(kLong);
    EXPECT_TRUE(chat->wait_for_first_words(kAnswerSeconds)) << chat->story() << hosts_.story();
    EXPECT_FALSE(chat->is_over());
    return chat;
  }

  // The answer that comes to the question of one that begins anew.
  void expect_right_answer(Conversation& chat) {
    chat.say("/reset");
    chat.say(kQuestion);
    EXPECT_TRUE(chat.wait_for_answer(kAnswerSeconds)) << chat.story() << hosts_.story();
    EXPECT_EQ(chat.answer(), "391\n");
  }

  // The stages serve again, and the coordinator ends with the code of the last failure.
  void expect_return(Conversation& chat, int code) {
    EXPECT_TRUE(chat.wait_for_note("all stages are connected again", kReturnSeconds)) << chat.story() << hosts_.story();
    expect_right_answer(chat);
    expect_end(chat, code);
  }

  void expect_end(Conversation& chat, int code) {
    chat.process().close_input();
    EXPECT_EQ(chat.process().wait(10.0), code) << chat.story();
    hosts_.stop_stages();
  }

  ThreeHosts hosts_;
};

// F1, F2: each stage in turn. The text so far, then one line with stage and cause; the stage comes back for the next request.
TEST_F(NetworkFaults, F2AKilledStageEndsTheRequest) {
  const std::string one = one_process_answer();
  for (int s = 0; s < 3; ++s) {
    const auto run = hosts_.coordinator("generate", {"-p", kLong, "-n", "400"});
    ASSERT_TRUE(run->wait_for([&] { return !run->out().empty(); }, kAnswerSeconds)) << run->story() << hosts_.story();
    hosts_.stage(s).signal(SIGKILL);
    const Clock::time_point killed = Clock::now();
    EXPECT_EQ(run->wait(kAnswerSeconds), 6) << run->story();
    EXPECT_LT(since(killed), kSilenceSeconds + kSlack);
    EXPECT_THAT(last_line(run->err()), StartsWith("error: [pipeline] " + hosts_.name(s) + ": "));
    EXPECT_THAT(one, StartsWith(run->out()));
    EXPECT_LT(run->out().size(), one.size());
    hosts_.start_stage(s);
  }
  const auto run = hosts_.coordinator("generate", {"-p", kQuestion});
  EXPECT_EQ(run->wait(kAnswerSeconds), 0) << run->story();
  EXPECT_EQ(run->out(), "391");
  hosts_.stop_stages();
}

TEST_F(NetworkFaults, ACoordinatorOutlivesAKilledStage) {
  const std::unique_ptr<Conversation> chat = talking();
  hosts_.stage(1).signal(SIGKILL);
  const Clock::time_point killed = Clock::now();
  ASSERT_TRUE(chat->wait_for_error(kAnswerSeconds)) << chat->story();
  EXPECT_LT(since(killed), kSilenceSeconds + kSlack);
  EXPECT_THAT(chat->error(), HasSubstr(hosts_.name(1) + ": "));
  // While it is gone, requests are refused at once, with the reason.
  const Clock::time_point asked = Clock::now();
  chat->say(kQuestion);
  ASSERT_TRUE(chat->wait_for_error(kAnswerSeconds)) << chat->story();
  EXPECT_LT(since(asked), kSlack);
  EXPECT_THAT(chat->error(), HasSubstr(hosts_.name(1) + ": "));
  EXPECT_TRUE(chat->process().is_running());
  hosts_.start_stage(1);
  expect_return(*chat, 6);
}

// F3: silence for longer than heartbeats allow.
TEST_F(NetworkFaults, F3F4AFrozenStageIsLostAndComesBack) {
  const std::unique_ptr<Conversation> chat = talking();
  hosts_.stage(1).signal(SIGSTOP);
  const Clock::time_point frozen = Clock::now();
  EXPECT_TRUE(chat->wait_for_error(kAnswerSeconds)) << chat->story();
  EXPECT_LT(since(frozen), kSilenceSeconds + kSlack);
  EXPECT_THAT(chat->error(), HasSubstr(hosts_.name(1) + ": "));
  EXPECT_THAT(chat->error(), HasSubstr("no sign of life"));
  sleep(std::max(0.0, 10.0 - since(frozen)));
  hosts_.stage(1).signal(SIGCONT);
  expect_return(*chat, 6);
}

// F4, and a deadline that comes before the heartbeats': the stage does not finish a step in time. It never comes back.
TEST_F(NetworkFaults, AStageThatIsLateEndsTheRequest) {
  const auto run = hosts_.coordinator("generate", {"-p", kLong, "-n", "400", "--stage-timeout", "2"});
  ASSERT_TRUE(run->wait_for([&] { return !run->out().empty(); }, kAnswerSeconds)) << run->story() << hosts_.story();
  hosts_.stage(1).signal(SIGSTOP);
  const Clock::time_point frozen = Clock::now();
  EXPECT_EQ(run->wait(kAnswerSeconds), 7) << run->story();
  EXPECT_LT(since(frozen), 2.0 + kSlack);
  EXPECT_THAT(last_line(run->err()), StartsWith("error: [pipeline] " + hosts_.name(1) + ": wanted step "));
  hosts_.stage(1).signal(SIGKILL);
  hosts_.start_stage(1);
  const auto next = hosts_.coordinator("generate", {"-p", kQuestion});
  EXPECT_EQ(next->wait(kAnswerSeconds), 0) << next->story() << hosts_.story();
  EXPECT_EQ(next->out(), "391");
  hosts_.stop_stages();
}

// 5 s are less than heartbeats allow and more than the first retransmissions bridge: what TCP had to send waits for the next
// one.
TEST_F(NetworkFaults, ALinkIsCutForFiveSeconds) {
  const std::string one = one_process_answer();
  const std::unique_ptr<Conversation> chat = talking();
  const Clock::time_point began = Clock::now();
  hosts_.network().set(1, 2, kCut);
  sleep(5.0);
  hosts_.network().set(1, 2, kUsualFaults);
  ASSERT_TRUE(chat->wait_for_end(kAnswerSeconds)) << chat->story() << hosts_.story();
  if (chat->has_failed()) {
    std::printf("after %.1f s: %s\n", since(began), chat->error().c_str());
    EXPECT_LT(since(began), kSilenceSeconds + kSlack);
    EXPECT_THAT(chat->error(), AnyOf(HasSubstr(hosts_.name(1) + ": "), HasSubstr(hosts_.name(2) + ": ")));
    expect_return(*chat, 6);
  } else {
    EXPECT_EQ(chat->answer(), one + "\n");
    expect_right_answer(*chat);
    expect_end(*chat, 0);
  }
}

// Twice ten heartbeats of a second.
class PatientNetworkFaults : public NetworkFaults {
 protected:
  PatientNetworkFaults() : NetworkFaults("heartbeat_misses = 10") {}
};

// The file's heartbeats decide, not the transport's own probes.
TEST_F(PatientNetworkFaults, ALinkIsCutForFiveSecondsUnnoticed) {
  const std::string one = one_process_answer();
  const std::unique_ptr<Conversation> chat = talking();
  hosts_.network().set(1, 2, kCut);
  sleep(5.0);
  hosts_.network().set(1, 2, kUsualFaults);
  EXPECT_TRUE(chat->wait_for_answer(kAnswerSeconds)) << chat->story() << hosts_.story();
  EXPECT_EQ(chat->answer(), one + "\n");
  expect_end(*chat, 0);
}

TEST_F(NetworkFaults, AStageIsCutOffFromTheNext) {
  const std::unique_ptr<Conversation> chat = talking();
  const Clock::time_point began = Clock::now();
  hosts_.network().set(1, 2, kCut);
  EXPECT_TRUE(chat->wait_for_error(kAnswerSeconds)) << chat->story();
  EXPECT_LT(since(began), kSilenceSeconds + kSlack);
  // Both ends see it; who tells first is chance.
  EXPECT_THAT(chat->error(), AnyOf(HasSubstr(hosts_.name(1) + ": "), HasSubstr(hosts_.name(2) + ": ")));
  // The heartbeats' silence, or that of the transport's own probes.
  EXPECT_THAT(chat->error(), AnyOf(HasSubstr("no sign of life"), HasSubstr("the connection was lost")));
  sleep(std::max(0.0, 15.0 - since(began)));
  EXPECT_TRUE(chat->process().is_running());
  hosts_.network().set(1, 2, kUsualFaults);
  expect_return(*chat, 6);
}

TEST_F(NetworkFaults, AStageIsCutOffFromTheCoordinator) {
  const std::unique_ptr<Conversation> chat = talking();
  const Clock::time_point began = Clock::now();
  hosts_.network().set(0, 2, kCut);
  EXPECT_TRUE(chat->wait_for_error(kAnswerSeconds)) << chat->story();
  EXPECT_LT(since(began), kSilenceSeconds + kSlack);
  // The stage that is cut off ends its session, which stage 1 may tell before the coordinator has missed the heartbeats.
  EXPECT_THAT(chat->error(), HasSubstr(hosts_.name(2) + ": "));
  std::printf("%s\n", chat->error().c_str());
  sleep(std::max(0.0, 15.0 - since(began)));
  EXPECT_TRUE(chat->process().is_running());
  hosts_.network().set(0, 2, kUsualFaults);
  expect_return(*chat, 6);
}

// Slow is not lost: no request fails.
TEST_F(NetworkFaults, F5AStageBehindASlowLink) {
  const LinkFaults slow{.delay = 0.300, .loss = kUsualFaults.loss, .is_cut = false};
  hosts_.network().set(0, 2, slow);
  hosts_.network().set(1, 2, slow);
  Conversation chat(hosts_);
  expect_right_answer(chat);
  expect_end(chat, 0);
}

TEST_F(NetworkFaults, AStageThatStumbles) {
  std::atomic<bool> is_over = false;
  std::thread stumble([&] {
    while (!is_over) {
      hosts_.stage(1).signal(SIGSTOP);
      sleep(0.2);
      hosts_.stage(1).signal(SIGCONT);
      sleep(0.2);
    }
  });
  Conversation chat(hosts_);
  expect_right_answer(chat);
  is_over = true;
  stumble.join();
  expect_end(chat, 0);
}

// F9: the stages keep their weights and drop its sequences.
TEST_F(NetworkFaults, F9ACoordinatorIsKilledAndStartedAgain) {
  {
    const std::unique_ptr<Conversation> chat = talking();
    chat->process().signal(SIGKILL);
    EXPECT_EQ(chat->process().wait(10.0), 256 + SIGKILL);
  }
  Conversation chat(hosts_);
  expect_right_answer(chat);
  for (int s = 0; s < 3; ++s) EXPECT_THAT(chat.story(), HasSubstr(hosts_.name(s) + ": layers ")) << s;
  EXPECT_THAT(chat.story(), HasSubstr("are there still"));
  expect_end(chat, 0);
}

}  // namespace
}  // namespace weft::net_test
