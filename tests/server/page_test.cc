// The files of the page, and how the router gives them out. What they do in a browser: page_slow_test.cc.
#include "server/page/page.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <string>

#include <gmock/gmock.h>

#include "server/api/router.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string header(const http::Response& response, std::string_view name) {
  const std::string* const value = http::find_header(response.headers, name);
  return value == nullptr ? "" : *value;
}

http::Request get(std::string_view path, std::vector<http::Header> headers = {}) {
  http::Request request;
  request.method = "GET";
  request.path = path;
  request.headers = std::move(headers);
  return request;
}

// Keeps the answer.
class Asked final : public http::Exchange {
 public:
  explicit Asked(http::Request request) : request_(std::move(request)) {}
  [[nodiscard]] const http::Request& request() const override { return request_; }
  void respond(http::Response given) override { response = std::move(given); }
  void start(http::Response, http::StreamOptions) override { FAIL() << "a page file is no stream"; }
  void write(std::string_view) override {}
  void finish() override {}
  void note(std::string) override {}
  [[nodiscard]] bool full() const override { return false; }
  [[nodiscard]] bool gone() const override { return false; }
  void on_gone(std::function<void()>) override {}
  void on_room(std::function<void()>) override {}

  http::Response response;

 private:
  http::Request request_;
};

// What the program holds is what stands in the folder.
TEST(PageFiles, AreTheFilesOfTheFolder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(WEFT_SOURCE_DIR) + "/src/server/page")) {
    const std::string name = entry.path().filename();
    if (entry.path().extension() == ".cc" || entry.path().extension() == ".h") continue;
    names.insert(name);
    const PageFile* const file = find_page_file(name == "index.html" ? "/" : "/" + name);
    ASSERT_NE(file, nullptr) << name;
    std::ifstream stream(entry.path(), std::ios::binary);
    EXPECT_EQ(file->bytes, std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>())) << name;
  }
  EXPECT_EQ(page_files().size(), names.size());
  EXPECT_EQ(find_page_file("/index.html"), nullptr);
  EXPECT_EQ(find_page_file(""), nullptr);
  EXPECT_EQ(find_page_file("/page.h"), nullptr);
}

TEST(PageFiles, NameNoOtherOrigin) {
  const std::string space = "http://www.w3.org/2000/svg";  // a name, which nobody loads
  for (const PageFile& file : page_files()) {
    std::string text(file.bytes);
    if (file.path == "/icon.svg") text.erase(text.find(space), space.size());
    for (const char* word : {"://", "url(", "@import", "\"//", "'//", "=//", "data:", "innerHTML", "outerHTML",
                             "insertAdjacentHTML", "document.write", "eval(", "localStorage", "document.cookie", " style=\"",
                             "<style", "onclick", "onload", "onerror"}) {
      EXPECT_EQ(text.find(word), std::string::npos) << file.path << ": " << word;
    }
  }
  // All scripts of the first file are files of their own.
  const std::string html(find_page_file("/")->bytes);
  const std::regex script("<script[^>]*>([^<]*)</script>");
  for (std::sregex_iterator at(html.begin(), html.end(), script); at != std::sregex_iterator(); ++at) EXPECT_EQ((*at)[1], "");
}

TEST(PageResponse, LetsNothingElseIn) {
  const http::Response page = page_response(*find_page_file("/"), get("/"));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(header(page, "Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(header(page, "Cache-Control"), "no-cache");
  EXPECT_EQ(header(page, "X-Content-Type-Options"), "nosniff");
  EXPECT_THAT(header(page, "Content-Security-Policy"), ::testing::StartsWith("default-src 'none';"));
  EXPECT_THAT(header(page, "Content-Security-Policy"), ::testing::Not(HasSubstr("unsafe")));
  EXPECT_THAT(page.body, ::testing::StartsWith("<!doctype html>"));
  EXPECT_EQ(header(page_response(*find_page_file("/page.js"), get("/page.js")), "Content-Type"),
            "text/javascript; charset=utf-8");
  EXPECT_EQ(header(page_response(*find_page_file("/icon.svg"), get("/icon.svg")), "Content-Type"), "image/svg+xml");
}

TEST(PageResponse, SparesWhoHasIt) {
  const PageFile& file = *find_page_file("/page.css");
  const std::string etag = header(page_response(file, get(file.path)), "ETag");
  EXPECT_THAT(etag, ::testing::MatchesRegex("\"[0-9a-f]+\""));
  EXPECT_NE(etag, header(page_response(*find_page_file("/page.js"), get("/page.js")), "ETag"));
  for (const std::string& list : {etag, "W/" + etag, "\"a\", " + etag, "\"a\" ,W/" + etag + " , \"b\"", std::string("*")}) {
    const http::Response response = page_response(file, get(file.path, {{"If-None-Match", list}}));
    EXPECT_EQ(response.status, 304) << list;
    EXPECT_EQ(response.body, "");
    EXPECT_EQ(header(response, "ETag"), etag);
  }
  for (const std::string& list : {std::string(), std::string(","), std::string("\"a\""), etag.substr(1), etag + "x"})
    EXPECT_EQ(page_response(file, get(file.path, {{"If-None-Match", list}})).status, 200) << list;
}

// A page that asks for the key has to come without one; it comes while the model is being loaded too.
TEST(PageRoutes, ArePublicAndNeedNoModel) {
  ServerMetrics metrics;
  api::RouterOptions options;
  options.keys = {"secret"};
  api::Router router(std::move(options), metrics);
  for (const PageFile& file : page_files()) {
    EXPECT_FALSE(router.admit(get(file.path)).has_value()) << file.path;
    const auto asked = std::make_shared<Asked>(get(file.path));
    router.handle(asked);
    EXPECT_EQ(asked->response.body, file.bytes);
  }
  for (const char* path : {"/status", "/index.html", "/page.h", "/v1/models"}) {
    const std::optional<http::Response> refused = router.admit(get(path));
    ASSERT_TRUE(refused.has_value()) << path;
    EXPECT_EQ(refused->status, 401) << path;
  }
  http::Request post = get("/");
  post.method = "POST";
  ASSERT_TRUE(router.admit(post).has_value());
}

}  // namespace
}  // namespace weft
