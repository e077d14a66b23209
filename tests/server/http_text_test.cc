// Targets and heads as text.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "server/http/text.h"

namespace weft::http {
namespace {

TEST(HttpText, Targets) {
  struct Case {
    std::string target;
    std::string path;  // "": none
    std::string query;
  };
  for (const Case& one : {Case{"/", "/", ""},
                          {"/v1/models?limit=3", "/v1/models", "limit=3"},
                          {"/a%2Fb%2fc", "/a/b/c", ""},
                          {"/%25zz?%zz", "/%zz", "%zz"},
                          {"/?", "/", ""},
                          {"/a?b?c", "/a", "b?c"},
                          {"*", "*", ""},
                          {"http://host:80/a?b", "/a", "b"},
                          {"HTTPS://host", "/", ""},
                          {"http://host?b", "/", "b"},
                          {"http://", "/", ""},
                          {"", "", ""},
                          {"a", "", ""},
                          {"?b", "", ""},
                          {"host:80", "", ""},
                          {"/%", "", ""},
                          {"/%2", "", ""},
                          {"/%g0", "", ""},
                          {"/%0g", "", ""},
                          {"/a%00", "", ""}}) {
    SCOPED_TRACE(one.target);
    const std::optional<Target> target = parse_target(one.target);
    ASSERT_EQ(target.has_value(), !one.path.empty());
    if (!target) continue;
    EXPECT_EQ(target->path, one.path);
    EXPECT_EQ(target->query, one.query);
  }
}

TEST(HttpText, Dates) {
  EXPECT_EQ(http_date(784111777), "Sun, 06 Nov 1994 08:49:37 GMT");  // the example of RFC 9110, 5.6.7
  EXPECT_EQ(http_date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
}

TEST(HttpText, Heads) {
  AnswerHead head;
  head.length = 5;
  EXPECT_EQ(answer_head({.status = 200, .headers = {{"X-A", "b"}, {"DATE", "x"}}, .body = "ignored"}, head),
            "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nX-A: b\r\nContent-Length: 5\r\n\r\n");
  head = {.framing = Framing::chunked, .length = 0, .keep_alive = false, .http_1_0 = false, .now = 0};
  EXPECT_EQ(answer_head({.status = 299, .headers = {}, .body = ""}, head),
            "HTTP/1.1 299 \r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
  std::string chunks;
  append_chunk(chunks, std::string(26, 'x'));
  EXPECT_EQ(chunks, "1a\r\n" + std::string(26, 'x') + "\r\n");
}

}  // namespace
}  // namespace weft::http
