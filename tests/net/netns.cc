#include "net/netns.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weft::net_test {
namespace {

constexpr size_t kMostDescriptors = 3;

// What a child says of a step that failed.
struct Complaint {
  std::array<char, 160> text{};
  void say(const char* what) { std::snprintf(text.data(), text.size(), "%s: %s", what, std::strerror(errno)); }
};

// One message: a text, empty when all is well, and descriptors.
void send_all(int socket, const Complaint& complaint, const std::vector<int>& descriptors) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
  iovec part{const_cast<char*>(complaint.text.data()), complaint.text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
  }
  static_cast<void>(::sendmsg(socket, &message, MSG_NOSIGNAL));
}

std::vector<Descriptor> receive_all(int socket, std::string& why) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
  Complaint complaint;
  iovec part{complaint.text.data(), complaint.text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<Descriptor> received;
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) {
    why = "the child ended";
    return received;
  }
  why = complaint.text.data();
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> numbers((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(numbers.data(), CMSG_DATA(header), numbers.size() * sizeof(int));
    for (const int number : numbers) received.emplace_back(number);
  }
  return received;
}

// Runs `body` in a child, which sends what it opens.
std::vector<Descriptor> ask_child(const std::function<std::vector<int>(Complaint&)>& body, std::string& why) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    why = "no socket pair";
    return {};
  }
  const Descriptor mine(ends[0]);
  Descriptor its(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    Complaint complaint;
    const std::vector<int> opened = body(complaint);
    send_all(its.number(), complaint, opened);
    ::_exit(0);
  }
  its.close();
  if (child < 0) {
    why = "no process";
    return {};
  }
  std::vector<Descriptor> received = receive_all(mine.number(), why);
  ::waitpid(child, nullptr, 0);
  return received;
}

bool write_text(const char* path, const char* text) {
  const Descriptor file(::open(path, O_WRONLY | O_CLOEXEC));
  return file.is_open() && ::write(file.number(), text, std::strlen(text)) == static_cast<ssize_t>(std::strlen(text));
}

bool unshare_as_user(Complaint& complaint) {
  const unsigned user = ::getuid();
  const unsigned group = ::getgid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    complaint.say("a user namespace");
    return false;
  }
  std::array<char, 64> users{};
  std::array<char, 64> groups{};
  std::snprintf(users.data(), users.size(), "0 %u 1", user);
  std::snprintf(groups.data(), groups.size(), "0 %u 1", group);
  if (write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/uid_map", users.data()) &&
      write_text("/proc/self/gid_map", groups.data())) {
    return true;
  }
  complaint.say("users of a user namespace");
  return false;
}

ifreq request_of(const char* device) {
  ifreq request{};
  std::snprintf(static_cast<char*>(request.ifr_name), sizeof(request.ifr_name), "%s", device);
  return request;
}

void set_address(sockaddr& to, const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, text, &address.sin_addr);
  std::memcpy(&to, &address, sizeof(to));
}

bool bring_up(int socket, const char* device, const char* address) {
  if (address != nullptr) {
    ifreq request = request_of(device);
    set_address(request.ifr_addr, address);
    if (::ioctl(socket, SIOCSIFADDR, &request) != 0) return false;
    request = request_of(device);
    set_address(request.ifr_netmask, "255.255.255.0");
    if (::ioctl(socket, SIOCSIFNETMASK, &request) != 0) return false;
  }
  ifreq request = request_of(device);
  request.ifr_flags = IFF_UP;
  return ::ioctl(socket, SIOCSIFFLAGS, &request) == 0;
}

// In the child, whose descriptors end with it.
std::vector<int> make_namespace(const char* address, Complaint& complaint) {
  bool is_user = false;
  if (::unshare(CLONE_NEWNET) != 0) {
    if (!unshare_as_user(complaint)) return {};
    is_user = true;
  }
  const int tun = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (tun < 0) {
    complaint.say("/dev/net/tun");
    return {};
  }
  constexpr const char* kDevice = "weft0";
  ifreq request = request_of(kDevice);
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (::ioctl(tun, TUNSETIFF, &request) != 0) {
    complaint.say("a TUN device");
    return {};
  }
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (!bring_up(socket, "lo", nullptr) || !bring_up(socket, kDevice, address)) {
    complaint.say("the TUN device's address");
    return {};
  }
  const int net = ::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (!is_user) return {tun, net};
  return {tun, net, ::open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC)};
}

}  // namespace

std::optional<Namespace> Namespace::open(const std::string& address, std::string& why) {
  std::vector<Descriptor> got =
      ask_child([&](Complaint& complaint) { return make_namespace(address.c_str(), complaint); }, why);
  if (got.size() < 2) return std::nullopt;
  Namespace made(std::move(got[0]), std::move(got[1]), got.size() > 2 ? std::move(got[2]) : Descriptor());
  return made;
}

bool Namespace::enter() const {
  if (user_.is_open() && ::setns(user_.number(), CLONE_NEWUSER) != 0) return false;
  return ::setns(net_.number(), CLONE_NEWNET) == 0;
}

Descriptor Namespace::datagram_socket(const std::string& address, int port) const {
  std::string why;
  std::vector<Descriptor> got = ask_child(
      [&](Complaint& complaint) -> std::vector<int> {
        if (!enter()) {
          complaint.say("the namespace");
          return {};
        }
        const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_port = htons(static_cast<uint16_t>(port));
        ::inet_pton(AF_INET, address.c_str(), &at.sin_addr);
        if (::bind(socket, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) {
          complaint.say("the socket's address");
          return {};
        }
        return {socket};
      },
      why);
  return got.empty() ? Descriptor() : std::move(got.front());
}

}  // namespace weft::net_test
