#include "server/load_server.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <unistd.h>

#include <fmt/format.h>

#include "base/guard.h"
#include "server/http_client.h"

namespace weft::load_test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReady{90};

std::vector<std::string> words(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<std::string> made = {program, "serve"};
  made.insert(made.end(), arguments.begin(), arguments.end());
  made.insert(made.end(), {"--port", "0", "--quiet"});
  return made;
}

// The process that started this one; 0 when it is gone.
int parent_of(int process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
  }
  return 0;
}

double resident_bytes(int process) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return 1024.0 * std::stod(line.substr(6));
  }
  throw std::runtime_error(fmt::format("process {} has ended", process));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

LoadServer::LoadServer(const std::string& program, const std::vector<std::string>& arguments) {
  process_ = std::make_unique<server_test::ChildProcess>(words(program, arguments),
                                                         std::vector<std::pair<int, int>>{{err_.writer(), 2}});
  err_.close_writer();
  reader_ = std::thread([this] { (void)guard([this] { read_words(); }); });
  std::unique_lock lock(mutex_);
  constexpr std::string_view kListens = "listens on http://127.0.0.1:";
  const bool ready = changed_.wait_for(lock, kReady, [this] { return over_ || said_.find("\nready:") != std::string::npos; });
  const size_t at = said_.find(kListens);
  if (!ready || over_ || at == std::string::npos) {
    const std::string why = said_;
    lock.unlock();
    process_.reset();
    reader_.join();
    throw std::runtime_error("the server is not ready; it said: " + why);
  }
  const std::string_view digits = std::string_view(said_).substr(at + kListens.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), port_);
}

LoadServer::~LoadServer() {
  process_.reset();  // the last writer of the pipe
  reader_.join();
}

void LoadServer::read_words() {
  std::array<char, 4096> space{};
  for (;;) {
    const ssize_t got = ::read(err_.reader(), space.data(), space.size());
    if (got < 0 && errno == EINTR) continue;
    const std::scoped_lock lock(mutex_);
    if (got <= 0) over_ = true;
    if (got > 0) said_.append(space.data(), static_cast<size_t>(got));
    changed_.notify_all();
    if (got <= 0) return;
  }
}

std::string LoadServer::said() const {
  const std::scoped_lock lock(mutex_);
  return said_;
}

std::vector<int> LoadServer::processes() const {
  std::vector<int> found = {process_->id()};
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (!std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; }) || parent_of(std::stoi(name)) != found[0])
      continue;
    std::error_code gone;  // not a sanitizer's symbolizer
    if (std::filesystem::equivalent(entry.path() / "exe", fmt::format("/proc/{}/exe", found[0]), gone))
      found.push_back(std::stoi(name));
  }
  std::sort(found.begin() + 1, found.end());
  return found;
}

int LoadServer::end() {
  process_->signal(SIGTERM);
  return process_->wait();
}

double processor_seconds(const std::vector<int>& processes) {
  double ticks = 0;
  for (const int process : processes) {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string text;
    std::getline(file, text);
    std::istringstream fields(text.substr(std::min(text.rfind(')') + 1, text.size())));
    std::string field;
    // Behind the name: 11 fields, then the time in the program and in the system.
    for (int i = 0; i < 11; ++i) fields >> field;
    double in_program = 0;
    double in_system = 0;
    if (fields >> in_program >> in_system) ticks += in_program + in_system;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void MemoryWatch::look() {
  for (size_t i = 0; i < processes_.size(); ++i) bytes_[i].push_back(resident_bytes(processes_[i]));
}

MemoryWatch::Trend MemoryWatch::trend(size_t process, size_t skip) const {
  const std::vector<double>& all = bytes_.at(process);
  if (all.size() < skip + 4) return {};
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(skip);
  const auto quarter = (all.end() - begin) / 4;
  return {.first = median({begin, begin + quarter}),
          .last = median({all.end() - quarter, all.end()}),
          .most = *std::max_element(begin, all.end())};
}

std::string get_page(uint16_t port, const std::string& path) {
  http_test::Client client(port);
  client.send(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", path));
  const http_test::Answer answer = client.read_answer();
  if (answer.status != 200 || !answer.complete) throw std::runtime_error(fmt::format("{}: status {}", path, answer.status));
  return answer.body;
}

Metrics read_metrics(uint16_t port) {
  Metrics metrics;
  std::istringstream lines(get_page(port, "/metrics"));
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.rfind(' ');
    if (line.starts_with("#") || space == std::string::npos) continue;
    metrics[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return metrics;
}

bool wait_until_idle(uint16_t port, double seconds) {
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  while (Clock::now() < deadline) {
    const Metrics metrics = read_metrics(port);
    if (metrics.at("weft_requests_running") == 0 && metrics.at("weft_requests_waiting") == 0 &&
        metrics.at("weft_connections") <= 1) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

std::vector<std::string> failures_in(const Metrics& metrics) {
  std::vector<std::string> found;
  for (const auto& [name, value] : metrics) {
    const bool server_error = name.find("status=\"5") != std::string::npos;
    if ((server_error || name.find("end=\"failed\"") != std::string::npos) && value > 0)
      found.push_back(fmt::format("{} {}", name, value));
  }
  return found;
}

}  // namespace weft::load_test
