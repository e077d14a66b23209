// The server as users start it.
#pragma once

#include <string>
#include <vector>

#include "app/program.h"

#include "child_process.h"

namespace weft::server_test {

// `weft serve` with k3-mini, ready.
class Serve {
 public:
  // `loud`: with a line for each request. `before`: a program that starts it, with its arguments.
  explicit Serve(const std::vector<std::string>& more = {}, bool loud = false, std::vector<std::string> before = {})
      : process_(words(more, loud, std::move(before)), {{err_.writer(), 2}}) {
    err_.close_writer();
    for (std::string line; !line.starts_with("ready:");) {
      line = next_line();
      constexpr std::string_view kListens = "listens on ";
      if (line.starts_with(kListens)) url_ = line.substr(kListens.size());
    }
  }

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] uint16_t port() const { return static_cast<uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1))); }
  // The next line of its standard error.
  std::string next_line() { return err_.read_until('\n'); }
  [[nodiscard]] pid_t pid() const { return process_.id(); }
  void signal(int number) const { process_.signal(number); }
  int wait() { return process_.wait(); }  // the exit code
  // SIGTERM; the exit code.
  int end() {
    process_.signal(SIGTERM);
    return process_.wait();
  }

 private:
  static std::vector<std::string> words(const std::vector<std::string>& more, bool loud, std::vector<std::string> made) {
    made.insert(made.end(), {WEFT_PROGRAM, "serve", "-m", app_test::mini_dir(), "--port", "0"});
    if (!loud) made.push_back("--quiet");
    made.insert(made.end(), more.begin(), more.end());
    return made;
  }

  Pipe err_;
  ChildProcess process_;
  std::string url_;
};

}  // namespace weft::server_test
