// A tab of headless Chromium, steered through the DevTools protocol over pipes (--remote-debugging-pipe: JSON, a zero byte
// behind each message, on the file descriptors 3 and 4 of the browser).
#pragma once

#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/json.h"

#include "child_process.h"
#include "support/models.h"

namespace weft::server_test {

class Browser {
 public:
  struct Sent {
    std::string url;
    std::string body;
  };

  Browser() : process_(words(folder_.path()), {{null_.get(), 2}, {to_.reader(), 3}, {from_.writer(), 4}}) {
    std::signal(SIGPIPE, SIG_IGN);  // a browser that is gone is an exception
    to_.close_reader();
    from_.close_writer();
    const Json target = call("Target.createTarget", {{"url", "about:blank"}});
    session_ = call("Target.attachToTarget", {{"targetId", target["targetId"]}, {"flatten", true}})["sessionId"];
    for (const char* domain : {"Page.enable", "Runtime.enable", "Log.enable", "Network.enable"}) call(domain);
    // A tab in the background would have no focus.
    call("Emulation.setFocusEmulationEnabled", {{"enabled", true}});
  }

  // Its folder is free of it when it has closed its pipe.
  ~Browser() {
    try {
      call("Browser.close");
      for (;;) from_.read_until('\0');
    } catch (const std::exception&) {
      return;
    }
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // Of the tab, once it is there. Throws when the browser refuses.
  Json call(const std::string& method, Json parameters = Json::object()) {
    const int64_t id = ++calls_;
    Json message = {{"id", id}, {"method", method}, {"params", std::move(parameters)}};
    if (!session_.empty()) message["sessionId"] = session_;
    std::string text = message.dump();
    text += '\0';
    to_.write(text);
    for (;;) {
      Json heard = parse_json(from_.read_until('\0'), "browser");
      if (heard.contains("method")) {
        note(heard);
      } else if (heard["id"] == id) {
        if (heard.contains("error")) throw std::runtime_error(method + ": " + heard["error"].dump());
        return heard["result"];
      }
    }
  }

  void open(const std::string& url) {
    const Json went = call("Page.navigate", {{"url", url}});
    if (went.contains("errorText")) throw std::runtime_error(url + ": " + went["errorText"].get<std::string>());
  }
  // Runs before the scripts of each page that is opened from now on.
  void before_scripts(const std::string& script) { call("Page.addScriptToEvaluateOnNewDocument", {{"source", script}}); }

  // The value of an expression in the page; of a promise, what it becomes.
  Json evaluate(const std::string& expression) {
    const Json made =
        call("Runtime.evaluate",
             {{"expression", expression}, {"awaitPromise", true}, {"returnByValue", true}, {"userGesture", true}});
    if (made.contains("exceptionDetails")) throw std::runtime_error(expression + ": " + made["exceptionDetails"].dump());
    return made["result"].contains("value") ? made["result"]["value"] : Json(nullptr);
  }
  std::string text(const std::string& selector) {
    return evaluate(fmt::format("document.querySelector({}).textContent", Json(selector).dump())).get<std::string>();
  }

  // Until `expression` holds.
  void wait_for(const std::string& expression) {
    const double most = std::chrono::duration<double, std::milli>(kPatience).count() / 2;
    const Json held = evaluate(fmt::format(R"(new Promise((resolve) => {{
      const end = performance.now() + {};
      const look = () => {{
        let holds = false;
        try {{ holds = Boolean({}); }} catch {{ /* not there yet */ }}
        if (holds || performance.now() > end) resolve(holds); else setTimeout(look, 10);
      }};
      look();
    }}))",
                                           most, expression));
    if (held != true) {
      throw std::runtime_error(
          fmt::format("waited in vain for {}; the page says: {}", expression, evaluate("document.body.innerText").dump()));
    }
  }

  // As a user does it: a press of the mouse in the middle of what is there, and keys to what has the focus.
  void click(const std::string& selector) {
    wait_for(fmt::format("document.querySelector({}).getClientRects().length", Json(selector).dump()));
    const Json at = evaluate(fmt::format(R"((() => {{
      const one = document.querySelector({});
      one.scrollIntoView({{block: 'nearest'}});
      const {{x, y, width, height}} = one.getBoundingClientRect();
      return [x + width / 2, y + height / 2];
    }})())",
                                         Json(selector).dump()));
    for (const char* type : {"mousePressed", "mouseReleased"}) {
      call("Input.dispatchMouseEvent", {{"type", type}, {"x", at[0]}, {"y", at[1]}, {"button", "left"}, {"clickCount", 1}});
    }
  }
  void type(const std::string& text) { call("Input.insertText", {{"text", text}}); }
  void press(const std::string& key, int code, const std::string& text = "") {
    for (const char* kind : {"keyDown", "keyUp"}) {
      Json event = {{"type", kind}, {"key", key}, {"code", key}, {"windowsVirtualKeyCode", code}};
      if (!text.empty() && std::string_view(kind) == "keyDown") event["text"] = text;
      call("Input.dispatchKeyEvent", event);
    }
  }
  void press_enter() { press("Enter", 13, "\r"); }
  void press_tab() { press("Tab", 9); }

  // Everything that the tab asked for, other than what stands in its address itself (data:).
  [[nodiscard]] const std::vector<Sent>& sent() const { return sent_; }
  // Errors that the console shows: exceptions, what the policy of the page forbade, answers that are errors.
  [[nodiscard]] const std::vector<std::string>& complaints() const { return complaints_; }
  std::vector<std::string> take_complaints() { return std::exchange(complaints_, {}); }

 private:
  class Null {
   public:
    Null() : file_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {}
    ~Null() { ::close(file_); }
    Null(const Null&) = delete;
    Null& operator=(const Null&) = delete;
    [[nodiscard]] int get() const { return file_; }

   private:
    int file_;
  };

  static std::vector<std::string> words(const std::filesystem::path& folder) {
    return {"chromium", "--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + folder.string(),
            // Only this project's own page is shown, often in a container, which lacks what the sandbox needs.
            "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
            "--disable-component-update", "--disable-extensions", "--disable-sync", "--disable-breakpad", "--no-first-run",
            "--window-size=1280,800", "about:blank"};
  }

  void note(const Json& event) {
    const std::string method = event["method"];
    const Json& what = event["params"];
    if (method == "Network.requestWillBeSent") {
      const Json& request = what["request"];
      const std::string url = request["url"];
      if (!url.starts_with("data:")) sent_.push_back({url, request.value("postData", "")});
    } else if (method == "Runtime.exceptionThrown") {
      complaints_.push_back(what["exceptionDetails"].dump());
    } else if (method == "Log.entryAdded" && what["entry"]["level"] == "error") {
      complaints_.push_back(what["entry"].dump());
    } else if (method == "Runtime.consoleAPICalled" && what["type"] == "error") {
      complaints_.push_back(what["args"].dump());
    }
  }

  testing_support::TemporaryFolder folder_;
  Null null_;
  Pipe to_;
  Pipe from_;
  ChildProcess process_;
  std::string session_;
  int64_t calls_ = 0;
  std::vector<Sent> sent_;
  std::vector<std::string> complaints_;
};

}  // namespace weft::server_test
