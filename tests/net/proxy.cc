#include "net/proxy.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <poll.h>
#include <sstream>
#include <string>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"

namespace weft::net_test {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 16;
constexpr size_t kMostHeld = size_t{4} << 20;  // of one direction
constexpr double kLossSeconds = 0.2;           // TCP's shortest wait before it sends again

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

int port_of(const sockaddr_in& address) { return ntohs(address.sin_port); }

// The other end sees a reset.
void reset(Descriptor& socket) {
  const linger now{1, 0};
  ::setsockopt(socket.number(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  socket.close();
}

// "socket:[N]" of the connection from one port of 127.0.0.1 to another, if this table has it; else empty.
std::string socket_in(const char* file, int from, int to) {
  std::ifstream table(file);
  std::string line;
  std::getline(table, line);
  const auto port_in = [](const std::string& text) { return std::stoi(text.substr(text.find(':') + 1), nullptr, 16); };
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::vector<std::string> word(10);  // sl local remote state queues timer retransmits user timeout inode
    for (std::string& one : word) words >> one;
    if (word[9].empty() || word[9] == "0" || port_in(word[1]) != from || port_in(word[2]) != to) continue;
    return "socket:[" + word[9] + "]";
  }
  return "";
}

// A socket of IPv6 may speak IPv4.
std::string socket_of(int from, int to) {
  const std::string found = socket_in("/proc/net/tcp", from, to);
  return found.empty() ? socket_in("/proc/net/tcp6", from, to) : found;
}

bool has_open(pid_t process, const std::string& target) {
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/" + std::to_string(process) + "/fd", error);
  for (; !error && files != std::filesystem::directory_iterator(); files.increment(error)) {
    std::error_code gone;
    if (std::filesystem::read_symlink(files->path(), gone) == target) return true;
  }
  return false;
}

}  // namespace

std::pair<Descriptor, int> listen_anywhere() {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  const bool good = ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                    ::listen(socket.number(), 64) == 0 &&
                    ::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (!good) fail(ErrorKind::unavailable, "proxy", "wanted a socket that listens, found none");
  return {std::move(socket), port_of(address)};
}

Proxy::Proxy(Links& links) : links_(links), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this] { work(); });
}

Proxy::~Proxy() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void Proxy::wake() {
  const uint64_t one = 1;
  static_cast<void>(::write(wake_.number(), &one, sizeof(one)));
}

void Proxy::add_port(int host, Descriptor front, int port) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  ::getsockname(front.number(), reinterpret_cast<sockaddr*>(&address), &size);
  {
    const std::lock_guard lock(mutex_);
    ports_.push_back({host, std::move(front), port_of(address), port});
  }
  wake();
}

void Proxy::add_process(int host, pid_t process) {
  const std::lock_guard lock(mutex_);
  processes_.emplace_back(process, host);
}

int Proxy::host_of_client(int port, int front_port) {
  const std::string target = socket_of(port, front_port);
  if (target.empty()) return -1;
  const std::lock_guard lock(mutex_);
  for (auto at = processes_.rbegin(); at != processes_.rend(); ++at) {
    if (has_open(at->first, target)) return at->second;
  }
  return -1;
}

void Proxy::work() {
  for (;;) {
    std::vector<const Port*> ports;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      for (const Port& port : ports_) ports.push_back(&port);
    }
    std::map<int, short> wanted = {{wake_.number(), POLLIN}};
    for (const Port* port : ports) wanted[port->front.number()] |= POLLIN;
    auto left = std::chrono::nanoseconds(std::chrono::seconds(60));
    for (const Connection& connection : connections_) {
      for (const Way* way : {&connection.there, &connection.back}) {
        if (links_.is_cut(way->from_host, way->to_host)) continue;
        if (!way->ended && way->held < kMostHeld) wanted[way->from] |= POLLIN;
        if (way->pieces.empty()) continue;
        if (way->is_full) {
          wanted[way->to] |= POLLOUT;
        } else {
          left = std::min<std::chrono::nanoseconds>(left, way->pieces.front().due - Links::Clock::now());
        }
      }
    }
    std::vector<pollfd> ends;
    for (const auto& [number, events] : wanted) ends.push_back({number, events, 0});
    const int64_t count = std::max<int64_t>(0, left.count());
    const timespec timeout{static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
    if (::ppoll(ends.data(), ends.size(), &timeout, nullptr) < 0) continue;
    std::map<int, short> found;
    for (const pollfd& end : ends) found[end.fd] = end.revents;
    if (found[wake_.number()] != 0) {
      uint64_t ignored = 0;
      static_cast<void>(::read(wake_.number(), &ignored, sizeof(ignored)));
    }
    for (Connection& connection : connections_) {
      for (Way* way : {&connection.there, &connection.back}) {
        if (links_.is_cut(way->from_host, way->to_host)) continue;
        const bool is_wanted = !way->ended && way->held < kMostHeld;
        if (is_wanted && (found[way->from] & (POLLIN | POLLHUP | POLLERR)) != 0) take(*way);
        if ((found[way->to] & (POLLOUT | POLLERR)) != 0) way->is_full = false;
        deliver(connection, *way);
      }
    }
    std::erase_if(connections_, [](Connection& connection) {
      if (connection.is_broken) {
        reset(connection.client);
        reset(connection.server);
      }
      return connection.is_broken || (connection.there.delivered && connection.back.delivered);
    });
    for (const Port* port : ports) {
      if (found[port->front.number()] != 0) accept(*port);
    }
  }
}

void Proxy::accept(const Port& port) {
  sockaddr_in peer{};
  socklen_t size = sizeof(peer);
  Connection made;
  made.client =
      Descriptor(::accept4(port.front.number(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!made.client.is_open()) return;
  const int host = host_of_client(port_of(peer), port.front_port);
  if (host < 0) return reset(made.client);  // it is gone already
  made.server = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in to = loopback(port.port);
  if (::connect(made.server.number(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) return reset(made.client);
  ::fcntl(made.server.number(), F_SETFL, O_NONBLOCK);
  const int on = 1;
  for (const Descriptor* socket : {&made.client, &made.server}) {
    ::setsockopt(socket->number(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  made.there = {.from = made.client.number(), .to = made.server.number(), .from_host = host, .to_host = port.host};
  made.back = {.from = made.server.number(), .to = made.client.number(), .from_host = port.host, .to_host = host};
  connections_.push_back(std::move(made));
}

void Proxy::take(Way& way) {
  Piece piece;
  piece.bytes.resize(kPieceBytes);
  const ssize_t got = ::read(way.from, piece.bytes.data(), piece.bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  piece.bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  way.ended = got <= 0;
  way.held += piece.bytes.size();
  piece.due = links_.pass_late(way.from_host, way.to_host, kLossSeconds);
  way.pieces.push_back(std::move(piece));
}

void Proxy::deliver(Connection& connection, Way& way) {
  while (!way.pieces.empty() && !way.is_full && way.pieces.front().due <= Links::Clock::now()) {
    Piece& piece = way.pieces.front();
    if (piece.bytes.empty()) {
      ::shutdown(way.to, SHUT_WR);
      way.delivered = true;
    }
    while (piece.sent < piece.bytes.size()) {
      const ssize_t sent = ::send(way.to, piece.bytes.data() + piece.sent, piece.bytes.size() - piece.sent, MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) {
        way.is_full = true;
        return;
      }
      if (sent < 0) {
        connection.is_broken = true;
        return;
      }
      piece.sent += static_cast<size_t>(sent);
    }
    way.held -= piece.bytes.size();
    way.pieces.pop_front();
  }
}

}  // namespace weft::net_test
