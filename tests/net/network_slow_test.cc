// The test network itself: what tests of the program rely on.
#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <optional>
#include <poll.h>
#include <thread>

#include <netinet/in.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "net/links.h"
#include "net/netns.h"
#include "net/proxy.h"
#include "net/relay.h"

namespace weft::net_test {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kPort = 7000;

sockaddr_in at(const char* address, int port) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, address, &made.sin_addr);
  return made;
}

void send_number(int socket, const char* address, int number) {
  const sockaddr_in to = at(address, kPort);
  ASSERT_EQ(::sendto(socket, &number, sizeof(number), 0, reinterpret_cast<const sockaddr*>(&to), sizeof(to)),
            static_cast<ssize_t>(sizeof(number)));
}

std::optional<int> receive_number(int socket, int milliseconds) {
  pollfd end{socket, POLLIN, 0};
  int number = 0;
  if (::poll(&end, 1, milliseconds) != 1 || ::recv(socket, &number, sizeof(number), MSG_DONTWAIT) <= 0) return std::nullopt;
  return number;
}

// Two namespaces and a socket in each; without namespaces, there is no relay to be tried.
TEST(Relay, DelaysLosesAndCutsPackets) {
  std::string why;
  std::optional<Namespace> a = Namespace::open("10.77.0.1", why);
  std::optional<Namespace> b = a ? Namespace::open("10.77.0.2", why) : std::nullopt;
  if (!b) {
    EXPECT_NE(why, "");
    std::printf("no namespaces: %s\n", why.c_str());
    return;
  }
  Links links({.delay = 0.030, .loss = 0.0, .is_cut = false});
  const Relay relay({{a->tun(), "10.77.0.1"}, {b->tun(), "10.77.0.2"}}, links);
  const Descriptor from = a->datagram_socket("10.77.0.1", kPort);
  const Descriptor to = b->datagram_socket("10.77.0.2", kPort);
  ASSERT_TRUE(from.is_open() && to.is_open());

  const Clock::time_point sent = Clock::now();
  for (int i = 0; i < 50; ++i) send_number(from.number(), "10.77.0.2", i);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(receive_number(to.number(), 5000), i);  // in order, none lost
  EXPECT_GE(Seconds(Clock::now() - sent).count(), 0.030);

  links.set(0, 1, {.delay = 0.0, .loss = 0.0, .is_cut = true});
  send_number(from.number(), "10.77.0.2", 100);
  send_number(to.number(), "10.77.0.1", 100);
  EXPECT_EQ(receive_number(to.number(), 100), std::nullopt);
  EXPECT_EQ(receive_number(from.number(), 0), std::nullopt);
  EXPECT_GE(links.counters().cut, 2);

  links.set(0, 1, {.delay = 0.0, .loss = 0.25, .is_cut = false});
  const NetworkCounters before = links.counters();
  int arrived = 0;
  for (int i = 0; i < 400; ++i) {
    send_number(from.number(), "10.77.0.2", i);
    if (receive_number(to.number(), 20)) ++arrived;
  }
  // 100 of 400 are lost on average, with a deviation of 9.
  EXPECT_GT(arrived, 250);
  EXPECT_LT(arrived, 350);
  EXPECT_GE(links.counters().lost - before.lost, 400 - arrived - 5);
}

TEST(Proxy, DelaysAndHoldsBytesBack) {
  Links links({.delay = 0.030, .loss = 0.0, .is_cut = false});
  Proxy proxy(links);
  auto [server, port] = listen_anywhere();
  auto [front, front_port] = listen_anywhere();
  proxy.add_port(1, std::move(front), port);
  proxy.add_process(0, ::getpid());

  const Descriptor client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = at("127.0.0.1", front_port);
  ASSERT_EQ(::connect(client.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  pollfd end{server.number(), POLLIN, 0};
  ASSERT_EQ(::poll(&end, 1, 5000), 1);
  Descriptor accepted(::accept4(server.number(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.is_open());

  const Clock::time_point sent = Clock::now();
  int number = 1;
  ASSERT_EQ(::send(client.number(), &number, sizeof(number), 0), static_cast<ssize_t>(sizeof(number)));
  EXPECT_EQ(receive_number(accepted.number(), 5000), 1);
  EXPECT_GE(Seconds(Clock::now() - sent).count(), 0.030);

  links.set(0, 1, {.delay = 0.0, .loss = 0.0, .is_cut = true});
  proxy.wake();
  number = 2;
  ASSERT_EQ(::send(accepted.number(), &number, sizeof(number), 0), static_cast<ssize_t>(sizeof(number)));
  EXPECT_EQ(receive_number(client.number(), 200), std::nullopt);
  links.set(0, 1, {.delay = 0.0, .loss = 0.0, .is_cut = false});
  proxy.wake();
  EXPECT_EQ(receive_number(client.number(), 5000), 2);

  accepted.close();
  std::array<char, 1> byte{};
  pollfd gone{client.number(), POLLIN, 0};
  EXPECT_EQ(::poll(&gone, 1, 5000), 1);
  EXPECT_LE(::recv(client.number(), byte.data(), byte.size(), MSG_DONTWAIT), 0);  // the end came through
}

}  // namespace
}  // namespace weft::net_test
