// A program of a host: its standard input is a pipe, its outputs are files that a test may read at any time.
//
//     Process chat(network, 0, {WEFT_PROGRAM, "chat", ...}, folder / "chat");
//     chat.write_line("What is 17 * 23?");
//     EXPECT_TRUE(chat.wait_for([&] { return chat.out().find("391") != std::string::npos; }, 30.0)) << chat.story();
//     EXPECT_EQ(chat.end(5.0), 0);
//
// A process that is still there at the end is killed.
#pragma once

#include <csignal>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "net/descriptor.h"
#include "net/network.h"

namespace weft::net_test {

class Process {
 public:
  // Outputs go to LOG.out and LOG.err, over what is there.
  Process(Network& network, int host, std::vector<std::string> words, const std::filesystem::path& log);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const;
  void write_line(const std::string& text);
  void close_input() { input_.close(); }

  [[nodiscard]] std::string out() const;
  [[nodiscard]] std::string err() const;
  [[nodiscard]] bool is_running();
  // The exit code, or 256 + the signal that ended it; nothing after that many seconds.
  [[nodiscard]] std::optional<int> wait(double seconds);
  // Until `holds` or that many seconds are over or the process ended.
  [[nodiscard]] bool wait_for(const std::function<bool()>& holds, double seconds);
  [[nodiscard]] bool wait_for_err(const std::string& text, double seconds);
  // Both outputs, for messages.
  [[nodiscard]] std::string story() const;

 private:
  std::filesystem::path log_;
  std::string words_;
  Descriptor input_;
  pid_t pid_ = -1;
  std::optional<int> code_;
};

}  // namespace weft::net_test
