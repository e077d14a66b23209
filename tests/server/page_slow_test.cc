// The page in headless Chromium, served by the program as users start it.
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "app/program.h"
#include "base/json.h"

#include "browser.h"
#include "serve_program.h"

namespace weft::server_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kMultiply = "What is 17 * 23? Answer with the number only.";

class Page : public ::testing::Test {
 protected:
  void open(const std::vector<std::string>& more = {}) {
    serve_ = std::make_unique<Serve>(more);
    browser_.open(serve_->url() + "/");
    browser_.wait_for("document.readyState === 'complete'");
  }
  // Also known to the page.
  void open_ready() {
    open();
    browser_.wait_for("document.querySelector('#model-name').textContent === 'k3-mini'");
  }

  void TearDown() override {
    if (serve_ == nullptr) return;
    std::vector<std::string> urls;
    for (const Browser::Sent& sent : browser_.sent()) urls.push_back(sent.url);
    EXPECT_THAT(urls, Each(StartsWith(serve_->url() + "/")));
    EXPECT_THAT(browser_.complaints(), IsEmpty());
    app_test::expect_no_markers(browser_.evaluate("document.body.innerText").get<std::string>());
    browser_.open("about:blank");
    EXPECT_EQ(serve_->end(), 0);
  }

  void set_temperature_0() {
    browser_.click("#open-settings");
    browser_.click("#temperature");
    browser_.type("0");
    browser_.click("#close-settings");
  }
  void ask(const std::string& text) {
    browser_.click("#prompt");
    browser_.type(text);
    browser_.press_enter();
    wait_for_answer();
  }
  void wait_for_answer() {
    browser_.wait_for("document.querySelector('.turn:last-child').matches('.answer:not([aria-busy])')");
  }
  // Of the last answer.
  std::string last(const std::string& selector) { return browser_.text(".turn:last-child " + selector); }
  int64_t count(const std::string& selector) {
    return browser_.evaluate(fmt::format("document.querySelectorAll({}).length", Json(selector).dump())).get<int64_t>();
  }
  double number_at(const std::string& selector) { return std::stod(browser_.text(selector)); }
  // Bodies of the chat requests so far.
  std::vector<Json> requests() {
    std::vector<Json> made;
    for (const Browser::Sent& sent : browser_.sent()) {
      if (sent.url.ends_with("/v1/chat/completions")) made.push_back(parse_json(sent.body, "request"));
    }
    return made;
  }

  // From now on chat requests are answered by the test, with pieces of an event stream.
  void stand_in() {
    browser_.evaluate(R"((() => {
      const real = window.fetch;
      window.fetch = (path, options) => {
        if (path !== 'v1/chat/completions') return real(path, options);
        window.aborted = false;
        const body = new ReadableStream({start(stream) {
          window.stream = stream;
          options.signal.addEventListener('abort', () => {
            window.aborted = true;
            stream.error(new DOMException('stopped', 'AbortError'));
          });
        }});
        return Promise.resolve(new Response(body, {headers: {'Content-Type': 'text/event-stream'}}));
      };
      window.say = (text) => window.stream.enqueue(new TextEncoder().encode(text));
      window.delta = (delta) => window.say(`data: ${JSON.stringify({choices: [{index: 0, delta, finish_reason: null}]})}\n\n`);
      window.finish = () => { window.say('data: [DONE]\n\n'); window.stream.close(); };
    })())");
  }

  Browser browser_;
  std::unique_ptr<Serve> serve_;
};

TEST_F(Page, AnswersWithTheReasoningApart) {
  open_ready();
  set_temperature_0();
  ask(kMultiply);
  EXPECT_EQ(last(".content"), "391");
  EXPECT_THAT(last(".reasoning .text"), AllOf(HasSubstr("17 * 23"), HasSubstr("The answer is 391.")));
  EXPECT_EQ(browser_.evaluate("document.querySelector('.reasoning').open"), true);
  EXPECT_EQ(browser_.evaluate("document.querySelector('.content').contains(document.querySelector('.reasoning'))"), false);
  EXPECT_THAT(last(".usage"), AllOf(HasSubstr("prompt 100 tokens"), HasSubstr("generated "), HasSubstr("of them reasoning"),
                                    HasSubstr("tokens/s")));
  EXPECT_EQ(count(".error"), 0);

  // What was said goes back whole, so that its state serves again.
  const std::string reasoning = last(".reasoning .text");
  ask("Hello");
  const Json request = requests().at(1);
  EXPECT_EQ(request["messages"], Json::array({{{"role", "user"}, {"content", kMultiply}},
                                              {{"role", "assistant"}, {"content", "391"}, {"reasoning_content", reasoning}},
                                              {{"role", "user"}, {"content", "Hello"}}}));
  EXPECT_EQ(request["temperature"], 0);
  EXPECT_EQ(request["model"], "k3-mini");
  EXPECT_THAT(last(".usage"), Not(HasSubstr(" 0 reused")));
  EXPECT_EQ(count(".turn"), 4);

  browser_.click("#new-chat");
  EXPECT_EQ(count(".turn"), 0);
  ask(kMultiply);
  EXPECT_EQ(requests().at(2)["messages"].size(), 1U);
  EXPECT_EQ(last(".content"), "391");
}

TEST_F(Page, WithoutReasoning) {
  open_ready();
  set_temperature_0();
  browser_.click("#open-settings");
  browser_.click("#thinking");
  browser_.click("#system");
  browser_.type("Be brief.");
  browser_.click("#max-tokens");
  browser_.type("3");
  browser_.click("#close-settings");
  ask("Hello");
  EXPECT_EQ(browser_.evaluate("document.querySelector('.reasoning').hidden"), true);
  EXPECT_NE(last(".content"), "");
  EXPECT_THAT(last(".usage"), AllOf(HasSubstr("generated 3"), HasSubstr("cut at the most tokens")));
  const Json request = requests().at(0);
  EXPECT_EQ(request["messages"][0], (Json{{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(request["max_completion_tokens"], 3);
  EXPECT_FALSE(request.contains("tools"));
}

TEST_F(Page, ToolCallsAreCardsThatTheUserAnswers) {
  open_ready();
  set_temperature_0();
  ask("Hello");
  browser_.click("#new-chat");
  browser_.click("#open-settings");
  browser_.click("#tools");
  browser_.type("[{");
  browser_.wait_for("document.querySelector('#tools').getAttribute('aria-invalid') === 'true'");
  browser_.click("#example-tools");
  EXPECT_EQ(browser_.text("#tools-note"), "1 tool: get_weather");
  browser_.click("#close-settings");
  ask("What is the weather in Tokyo?");
  EXPECT_EQ(count(".call"), 1);
  EXPECT_EQ(last(".call .name"), "get_weather");
  EXPECT_EQ(last(".call .arguments"), R"({"city": "Tokyo"})");
  EXPECT_EQ(browser_.evaluate("document.querySelector('.content').hidden"), true);

  browser_.click(".call textarea");
  browser_.type(R"({"condition": "sunny", "temperature": 4})");
  browser_.click(".send-results");
  wait_for_answer();
  EXPECT_THAT(last(".content"), AllOf(HasSubstr("Tokyo"), HasSubstr("sunny")));
  const Json messages = requests().at(2)["messages"];
  ASSERT_EQ(messages.size(), 3U);
  const Json& call = messages[1]["tool_calls"][0];
  EXPECT_EQ(messages[1]["content"], nullptr);
  EXPECT_NE(messages[1]["reasoning_content"], "");
  EXPECT_EQ(call["function"], (Json{{"name", "get_weather"}, {"arguments", R"({"city": "Tokyo"})"}}));
  EXPECT_EQ(messages[2], (Json{{"role", "tool"},
                               {"tool_call_id", call["id"]},
                               {"name", "get_weather"},
                               {"content", R"({"condition": "sunny", "temperature": 4})"}}));
  EXPECT_EQ(count(".send-results"), 0);
}

TEST_F(Page, TheLiveViewHasNumbers) {
  open_ready();
  browser_.wait_for("!document.querySelector('#live-body').hidden");
  EXPECT_EQ(browser_.text("#state"), "ok");
  EXPECT_EQ(browser_.text("#model"), "k3-mini");
  EXPECT_EQ(browser_.text("#context"), "4,096 tokens");
  EXPECT_EQ(browser_.text("#profile"), "exact");
  EXPECT_EQ(number_at("#running"), 0);
  EXPECT_EQ(number_at("#waiting"), 0);
  EXPECT_GT(number_at("#weights"), 1);
  EXPECT_GT(number_at("#peak"), 1);
  EXPECT_THAT(browser_.text("#limit"), ::testing::ContainsRegex("of [0-9,.]+ tokens/s: [0-9.]+ GB/s at [0-9.]+ MiB a token"));
  EXPECT_EQ(count("#stages li"), 1);
  EXPECT_EQ(browser_.text("#stages .title"), "Stage 0 · layers 0-11");
  EXPECT_EQ(browser_.text("#stages .where"), "in this process");
  ask(kMultiply);
  browser_.wait_for("Number(document.querySelector('#rate').textContent) > 0");
  browser_.wait_for("Number.parseFloat(document.querySelector('#share').textContent) > 0");
  browser_.wait_for("Number(document.querySelector('#share-bar').getAttribute('aria-valuenow')) > 0");
}

TEST_F(Page, StagesOfOtherProcessesHaveARowEach) {
  open({"--pp-size", "3"});
  browser_.wait_for("document.querySelectorAll('#stages li').length === 3");
  EXPECT_THAT(browser_.text("#stages li:nth-child(2) .title"), HasSubstr("layers 4-7"));
  EXPECT_THAT(browser_.text("#stages li:nth-child(2) .where"), HasSubstr("ready · cpu"));
  EXPECT_THAT(browser_.text("#stages li:nth-child(3)"), AllOf(HasSubstr("Idle"), HasSubstr("Weights"), HasSubstr("Sent")));
  EXPECT_THAT(browser_.text("#share"), HasSubstr("%")) << "stages of one host share its memory";
}

// Nobody sees it: nobody asks.
TEST_F(Page, TheLiveViewRestsWhileItIsNotSeen) {
  browser_.before_scripts(R"((() => {
    const set = window.setTimeout, clear = window.clearTimeout;
    window.waiting = new Set();
    window.setTimeout = (call, ms) => {
      const id = set(() => { waiting.delete(id); call(); }, ms);
      if (ms >= 1000) waiting.add(id);
      return id;
    };
    window.clearTimeout = (id) => { waiting.delete(id); clear(id); };
    const ask = window.fetch;
    window.asked = 0;
    window.fetch = (...what) => { ++window.asked; return ask(...what); };
  })())");
  open_ready();
  // In one piece, so that no timer runs out meanwhile: {questions, timers} behind it.
  const auto after = [&](const std::string& act) {
    browser_.wait_for("waiting.size === 1");
    return browser_.evaluate(
        fmt::format("(() => {{ const before = asked; {}; return [asked - before, waiting.size]; }})()", act));
  };
  const auto become = [](std::string_view state) {
    return fmt::format(
        "Object.defineProperty(document, 'visibilityState', {{value: '{}', configurable: true}}); "
        "document.dispatchEvent(new Event('visibilitychange'))",
        state);
  };
  const Json rests = Json::array({0, 0});
  EXPECT_EQ(after("document.querySelector('#toggle-live').click()"), rests);
  EXPECT_EQ(browser_.evaluate("document.querySelector('#live').getClientRects().length"), 0);
  browser_.click("#toggle-live");
  EXPECT_EQ(after(become("hidden")), rests);
  browser_.evaluate(become("visible"));
  browser_.wait_for("waiting.size === 1");
}

TEST_F(Page, ErrorsAreShownAsTheServerSaysThem) {
  open_ready();
  browser_.click("#open-settings");
  browser_.click("#temperature");
  browser_.type("7");
  browser_.click("#close-settings");
  ask("Hello");
  EXPECT_THAT(browser_.text(".error .message"), HasSubstr("temperature"));
  EXPECT_EQ(browser_.text(".error .kind"), "400 · invalid_request_error");
  browser_.evaluate("document.querySelector('#temperature').value = '0'");
  browser_.click(".error button");
  browser_.wait_for("document.querySelector('.usage').textContent !== ''");
  EXPECT_EQ(count(".error"), 0);
  EXPECT_EQ(count(".turn"), 2);
  EXPECT_EQ(requests().at(1)["messages"].size(), 1U);
  EXPECT_EQ(browser_.take_complaints().size(), 1U);  // the console shows the 400
}

TEST_F(Page, AsksForTheKeyAndKeepsItInTheTab) {
  open({"--api-key", "secret"});
  browser_.wait_for("!document.querySelector('#key-form').hidden");
  EXPECT_EQ(browser_.text("#key-note"), "This server asks for a key.");
  EXPECT_EQ(browser_.text("#model-name"), "key wanted");
  ask("Hello");
  EXPECT_EQ(browser_.text(".error .message"), "the API key is missing or wrong");
  EXPECT_EQ(browser_.text(".error .kind"), "401 · authentication_error, invalid_api_key");

  browser_.click("#key");
  browser_.type("wrong");
  browser_.press_enter();
  browser_.wait_for("document.querySelector('#key-note').textContent === 'The server does not take this key.'");
  browser_.wait_for("!document.querySelector('#key-form').hidden");
  browser_.click("#key");
  browser_.type("secret");
  browser_.press_enter();
  browser_.wait_for("document.querySelector('#model-name').textContent === 'k3-mini'");
  EXPECT_EQ(browser_.evaluate("document.querySelector('#key-form').hidden"), true);
  browser_.click(".error button");
  browser_.wait_for("document.querySelector('.usage').textContent !== ''");
  EXPECT_EQ(count(".error"), 0);

  EXPECT_EQ(browser_.evaluate("sessionStorage.getItem('weft.key')"), "secret");
  EXPECT_EQ(browser_.evaluate("localStorage.length"), 0);
  EXPECT_EQ(browser_.evaluate("document.cookie"), "");
  EXPECT_EQ(browser_.evaluate("document.querySelector('#key').value"), "");
  EXPECT_THAT(browser_.take_complaints(), Each(HasSubstr("401")));
  // A page that is loaded again still has it.
  browser_.call("Page.reload");
  browser_.wait_for("document.querySelector('#model-name').textContent === 'k3-mini'");
}

TEST_F(Page, EventsMayBeCutAnywhere) {
  open_ready();
  const Json events = browser_.evaluate(R"((async () => {
    const {EventReader} = await import('/stream.js');
    const bytes = new TextEncoder().encode(
        ': keep-alive\n\ndata: {"a":"Zürich 你好 🙂"}\n\ndata:two\r\ndata: lines\r\n\r\n' +
        'data\n\nid: 1\nevent: x\n\ndata: [DONE]\n\ndata: cut');
    const whole = new EventReader().push(bytes);
    for (let size = 1; size <= 5; ++size) {
      const reader = new EventReader();
      const got = [];
      for (let at = 0; at < bytes.length; at += size) got.push(...reader.push(bytes.slice(at, at + size)));
      if (JSON.stringify(got) !== JSON.stringify(whole)) return [size, got];
    }
    for (let cut = 0; cut <= bytes.length; ++cut) {
      const reader = new EventReader();
      const got = [...reader.push(bytes.slice(0, cut)), ...reader.push(bytes.slice(cut))];
      if (JSON.stringify(got) !== JSON.stringify(whole)) return [cut, got];
    }
    return whole;
  })())");
  EXPECT_EQ(events, Json::array({R"({"a":"Zürich 你好 🙂"})", "two\nlines", "", "[DONE]"}));
}

TEST_F(Page, StopKeepsWhatWasWritten) {
  open_ready();
  stand_in();
  browser_.click("#prompt");
  browser_.type("Hello");
  browser_.press_enter();
  browser_.wait_for("window.stream");
  browser_.evaluate("delta({reasoning_content: 'Hm.'}); delta({content: 'Half an ans'})");
  browser_.evaluate("delta({tool_calls: [{index: 0, id: 'c', type: 'function', function: {name: 'f', arguments: '{\"a'}}]})");
  browser_.wait_for("document.querySelector('.call')");
  browser_.click("#stop");
  wait_for_answer();
  EXPECT_EQ(browser_.evaluate("window.aborted"), true);
  EXPECT_EQ(last(".content"), "Half an ans");
  EXPECT_EQ(last(".usage"), "stopped");
  EXPECT_EQ(count(".error"), 0);
  EXPECT_EQ(count(".send-results"), 0);
  EXPECT_EQ(browser_.evaluate("document.querySelector('#stop').hidden"), true);
}

// The server hears of it: a request that nobody waits for any more is not computed.
TEST_F(Page, StopEndsTheRequest) {
  open_ready();
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  browser_.click("#prompt");
  browser_.type(text);
  browser_.press_enter();
  const auto until_running = [&](int requests) {
    return browser_.evaluate(fmt::format(R"((async () => {{
      for (;;) {{
        const status = await (await fetch('status')).json();
        if (status.requests.running === {0}) return true;
        if ({0} > 0 && !document.querySelector('.answer[aria-busy]')) return false;
      }}
    }})())",
                                         requests));
  };
  EXPECT_EQ(until_running(1), true);
  browser_.click("#stop");
  wait_for_answer();
  EXPECT_EQ(last(".usage"), "stopped");
  EXPECT_EQ(until_running(0), true);
}

TEST_F(Page, TextOfTheModelIsTextOnly) {
  open_ready();
  stand_in();
  browser_.click("#prompt");
  browser_.type("<b>bold</b> <img src=x onerror='window.bad = 1'>");
  browser_.press_enter();
  browser_.wait_for("window.stream");
  EXPECT_EQ(browser_.text(".user .text"), "<b>bold</b> <img src=x onerror='window.bad = 1'>");
  browser_.evaluate(R"((() => {
    const bad = '<img src=x onerror="window.bad = 1"><script>window.bad = 1</' + 'script>';
    delta({reasoning_content: bad});
    delta({content: bad});
    delta({tool_calls: [{index: 0, id: 'c', type: 'function', function: {name: bad, arguments: bad}}]});
    finish();
  })())");
  wait_for_answer();
  EXPECT_EQ(count(".log img, .log script, .log b"), 0);
  EXPECT_THAT(last(".content"), StartsWith("<img src=x"));
  EXPECT_THAT(last(".call .arguments"), HasSubstr("<img src=x"));
  EXPECT_EQ(browser_.evaluate("window.bad ?? null"), nullptr);
}

TEST_F(Page, CodeBetweenFencesIsCodeHoweverItIsCut) {
  open_ready();
  stand_in();
  const std::string text = "Look:\n```python\nprint('``' + \"`\")\n\n```\n\nDone `x`.\n``\n```";
  for (const size_t size : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size()}) {
    browser_.evaluate("window.stream = null");
    browser_.click("#new-chat");
    browser_.type("Write code.");
    browser_.press_enter();
    browser_.wait_for("window.stream");
    for (size_t at = 0; at < text.size(); at += size)
      browser_.evaluate(fmt::format("delta({{content: {}}})", Json(text.substr(at, size)).dump()));
    browser_.evaluate("finish()");
    wait_for_answer();
    EXPECT_EQ(browser_.evaluate("[...document.querySelectorAll('.content > *')].map((e) => [e.tagName, e.textContent])"),
              Json::array({{"DIV", "Look:\n"}, {"PRE", "print('``' + \"`\")\n\n"}, {"DIV", "Done `x`.\n``\n"}}))
        << size;
  }
}

TEST_F(Page, TheEndStaysInSightUnlessTheUserLooksElsewhere) {
  open_ready();
  stand_in();
  browser_.click("#prompt");
  browser_.type("Count.");
  browser_.press_enter();
  browser_.wait_for("window.stream");
  // Lines in every frame and between frames; how far the end is below the last line that is seen.
  const auto far_after_lines = [&] {
    return browser_
        .evaluate(R"((async () => {
          const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
          const soon = () => new Promise((resolve) => setTimeout(resolve));
          for (let i = 0; i < 40; ++i) {
            delta({content: 'line\n'.repeat(5)});
            await (i % 2 === 0 ? frame() : soon());
          }
          await frame();
          await frame();
          await frame();
          const log = document.querySelector('#log');
          return Math.round(log.scrollHeight - log.scrollTop - log.clientHeight);
        })())")
        .get<int>();
  };
  const auto wheel = [&](int pixels) {
    browser_.call("Input.dispatchMouseEvent",
                  {{"type", "mouseWheel"}, {"x", 400}, {"y", 300}, {"deltaX", 0}, {"deltaY", pixels}});
  };
  EXPECT_LE(far_after_lines(), 1);
  browser_.evaluate("window.top0 = document.querySelector('#log').scrollTop");
  wheel(-600);
  browser_.wait_for("document.querySelector('#log').scrollTop <= top0 - 600");
  EXPECT_GT(far_after_lines(), 1000);
  wheel(1000000);
  browser_.wait_for("document.querySelector('#log').scrollTop > top0");
  EXPECT_LE(far_after_lines(), 1);
  browser_.call("Emulation.setDeviceMetricsOverride",
                {{"width", 500}, {"height", 500}, {"deviceScaleFactor", 1}, {"mobile", false}});
  EXPECT_LE(far_after_lines(), 1);
}

TEST_F(Page, AnErrorInTheMiddleOfAnAnswer) {
  open_ready();
  stand_in();
  browser_.click("#prompt");
  browser_.type("Hello");
  browser_.press_enter();
  browser_.wait_for("window.stream");
  browser_.evaluate(R"(delta({content: 'Half'}); say('data: {"error":{"message":"stage 1 is gone","type":"unavailable_error",'
                       + '"param":null,"code":"stage_unavailable"}}\n\ndata: [DONE]\n\n'); stream.close())");
  wait_for_answer();
  EXPECT_EQ(last(".content"), "Half");
  EXPECT_EQ(browser_.text(".error .message"), "stage 1 is gone");
  EXPECT_THAT(browser_.text(".error .kind"), HasSubstr("unavailable_error, stage_unavailable"));
  browser_.evaluate("window.stream = null");
  browser_.click(".error button");
  browser_.wait_for("window.stream");
  browser_.evaluate("delta({content: 'Ha'}); stream.close()");
  wait_for_answer();
  EXPECT_EQ(browser_.text(".error .message"), "The connection ended before the answer did.");
}

TEST_F(Page, LongArgumentsGetLinesAndKeepTheirNumbers) {
  open_ready();
  EXPECT_EQ(browser_.evaluate(R"(import('/chat.js').then(({indented}) => indented(
                '{"id": 12345678901234567890, "x": 1e2, "list": [], "more": [{"a": "b, {c}: \\" d"}], "none": { } }')))"),
            R"({
  "id": 12345678901234567890,
  "x": 1e2,
  "list": [],
  "more": [
    {
      "a": "b, {c}: \" d"
    }
  ],
  "none": {}
})");
}

TEST_F(Page, NarrowScreensAndTheKeyboard) {
  browser_.call("Emulation.setDeviceMetricsOverride",
                {{"width", 340}, {"height", 640}, {"deviceScaleFactor", 1}, {"mobile", false}});
  open_ready();
  // The prompt has the focus from the start; the panel is there when it is asked for.
  EXPECT_EQ(browser_.evaluate("document.activeElement.id"), "prompt");
  EXPECT_EQ(browser_.evaluate("document.querySelector('#live').hidden"), true);
  browser_.type("Hello");
  browser_.press_enter();
  wait_for_answer();
  const std::string overflow = "document.scrollingElement.scrollWidth - innerWidth";
  EXPECT_EQ(browser_.evaluate(overflow), 0);
  std::vector<std::string> reached;
  browser_.evaluate("document.activeElement.blur(); document.querySelector('#log').focus()");
  browser_.evaluate("document.querySelector('#new-chat').focus()");
  for (int i = 0; i < 3; ++i) {
    browser_.press_tab();
    reached.push_back(browser_.evaluate("document.activeElement.id").get<std::string>());
  }
  EXPECT_THAT(reached, ::testing::ElementsAre("open-settings", "open-key", "toggle-live"));
  browser_.press_enter();
  browser_.wait_for("!document.querySelector('#live').hidden && !document.querySelector('#live-body').hidden");
  EXPECT_EQ(browser_.evaluate(overflow), 0);
  EXPECT_EQ(browser_.evaluate("document.querySelector('#live').getBoundingClientRect().width"), 340);
  browser_.press_enter();
  browser_.wait_for("document.querySelector('#live').hidden");
}

}  // namespace
}  // namespace weft::server_test
