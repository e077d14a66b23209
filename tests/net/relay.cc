#include "net/relay.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <poll.h>
#include <utility>

#include <sys/eventfd.h>
#include <unistd.h>

namespace weft::net_test {
namespace {

constexpr size_t kMostBytes = 65536;  // of a packet
constexpr size_t kAddressAt = 16;     // of the destination, in the header of IPv4
constexpr size_t kHeaderBytes = 20;
constexpr int kMostPacketsAtOnce = 64;  // of one device, before what is due goes out

}  // namespace

Relay::Relay(const std::vector<Host>& hosts, Links& links) : links_(links), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  for (const Host& host : hosts) {
    in_addr address{};
    ::inet_pton(AF_INET, host.address.c_str(), &address);
    devices_.push_back(host.device);
    addresses_.push_back(address.s_addr);
  }
  thread_ = std::thread([this] { work(); });
}

Relay::~Relay() {
  const uint64_t one = 1;
  static_cast<void>(::write(stop_.number(), &one, sizeof(one)));
  thread_.join();
}

int Relay::host_of(uint32_t address) const {
  const auto found = std::ranges::find(addresses_, address);
  return found == addresses_.end() ? -1 : static_cast<int>(found - addresses_.begin());
}

void Relay::work() {
  std::vector<pollfd> ends;
  for (const int device : devices_) ends.push_back({device, POLLIN, 0});
  ends.push_back({stop_.number(), POLLIN, 0});
  for (;;) {
    timespec left{60, 0};
    if (!waiting_.empty()) {
      const auto nanoseconds = std::max<int64_t>(
          0, std::chrono::duration_cast<std::chrono::nanoseconds>(waiting_.front().due - Links::Clock::now()).count());
      left = {static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
    }
    if (::ppoll(ends.data(), ends.size(), &left, nullptr) > 0) {
      if (ends.back().revents != 0) return;
      for (size_t i = 0; i < devices_.size(); ++i) {
        if ((ends[i].revents & POLLIN) != 0) take(static_cast<int>(i));
      }
    }
    while (!waiting_.empty() && waiting_.front().due <= Links::Clock::now()) {
      std::ranges::pop_heap(waiting_, Later());
      const Packet packet = std::move(waiting_.back());
      waiting_.pop_back();
      deliver(packet);
    }
  }
}

void Relay::take(int host) {
  std::array<char, kMostBytes> buffer;  // NOLINT: read() fills what is used
  for (int i = 0; i < kMostPacketsAtOnce; ++i) {
    const ssize_t got = ::read(devices_[static_cast<size_t>(host)], buffer.data(), buffer.size());
    if (got <= 0) return;
    constexpr int kVersion4 = 4;
    if (static_cast<size_t>(got) < kHeaderBytes || (static_cast<unsigned char>(buffer[0]) >> 4) != kVersion4) continue;
    uint32_t address = 0;
    std::memcpy(&address, buffer.data() + kAddressAt, sizeof(address));
    const int to = host_of(address);
    if (to < 0) continue;
    const std::optional<Links::Clock::time_point> due = links_.pass(host, to);
    if (!due) continue;
    waiting_.push_back({*due, next_number_++, host, to, {buffer.data(), buffer.data() + got}});
    std::ranges::push_heap(waiting_, Later());
  }
}

void Relay::deliver(const Packet& packet) {
  if (links_.is_cut(packet.from, packet.to)) {
    links_.count_cut();
    return;
  }
  // A full queue loses it, as a real one would.
  static_cast<void>(::write(devices_[static_cast<size_t>(packet.to)], packet.bytes.data(), packet.bytes.size()));
}

}  // namespace weft::net_test
