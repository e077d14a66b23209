// A `weft chat` of the coordinator's host: what it says to one message after the other.
//
//     Conversation chat(hosts);
//     chat.say("What is 17 * 23?");
//     EXPECT_TRUE(chat.wait_for_answer(60.0)) << chat.story();
//     chat.answer();                                           // what standard output has of it
#pragma once

#include <memory>
#include <string>

#include <fmt/format.h>

#include "net/three_hosts.h"

namespace weft::net_test {

class Conversation {
 public:
  explicit Conversation(const ThreeHosts& hosts, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"-n", "400"};
    words.insert(words.end(), more.begin(), more.end());
    chat_ = hosts.coordinator("chat", words);
  }

  void say(const std::string& line) {
    out_ = chat_->out().size();
    err_ = chat_->err().size();
    chat_->write_line(line);
  }
  // Of the last message.
  [[nodiscard]] std::string answer() const { return chat_->out().substr(out_); }
  [[nodiscard]] std::string notes() const { return chat_->err().substr(err_); }

  [[nodiscard]] bool wait_for_first_words(double seconds) {
    return chat_->wait_for([&] { return !answer().empty(); }, seconds);
  }
  [[nodiscard]] bool wait_for_answer(double seconds) {
    return chat_->wait_for([&] { return is_over() || has_failed(); }, seconds) && is_over();
  }
  [[nodiscard]] bool wait_for_error(double seconds) {
    return chat_->wait_for([&] { return has_failed(); }, seconds);
  }
  [[nodiscard]] bool wait_for_end(double seconds) {
    return chat_->wait_for([&] { return is_over() || has_failed(); }, seconds);
  }
  // Also before the last message.
  [[nodiscard]] bool wait_for_note(const std::string& text, double seconds) { return chat_->wait_for_err(text, seconds); }
  [[nodiscard]] bool is_over() const { return notes().find("stop: prompt ") != std::string::npos; }
  [[nodiscard]] bool has_failed() const { return !error().empty(); }
  // The line "error: ..." of the last message.
  [[nodiscard]] std::string error() const {
    const std::string all = fmt::format("\n{}", notes());
    const size_t before = all.find("\nerror: ");
    return before == std::string::npos ? "" : all.substr(before + 1, all.find('\n', before + 1) - before - 1);
  }

  [[nodiscard]] Process& process() { return *chat_; }
  [[nodiscard]] std::string story() const { return chat_->story(); }

 private:
  std::unique_ptr<Process> chat_;
  size_t out_ = 0;
  size_t err_ = 0;
};

}  // namespace weft::net_test
