#include "server/page/page.h"

#include <algorithm>
#include <string>

namespace weft {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// A list of tags as RFC 9110 13.1.2 compares them: weakly, and '*' stands for all. Tags of these files hold no comma.
bool lists_tag(std::string_view list, std::string_view etag) {
  for (;;) {
    const size_t comma = list.find(',');
    std::string_view tag = trimmed(list.substr(0, comma));
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == etag || tag == "*") return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  const std::span<const PageFile> files = page_files();
  const auto found = std::ranges::find(files, path, &PageFile::path);
  return found == files.end() ? nullptr : &*found;
}

http::Response page_response(const PageFile& file, const http::Request& request) {
  http::Response response{.status = 200,
                          .headers = {{"Cache-Control", "no-cache"},
                                      {"ETag", std::string(file.etag)},
                                      {"Content-Security-Policy", std::string(kPolicy)},
                                      {"X-Content-Type-Options", "nosniff"},
                                      {"Referrer-Policy", "no-referrer"}},
                          .body = {}};
  const std::string* const known = request.header("if-none-match");
  if (known != nullptr && lists_tag(*known, file.etag)) {
    response.status = 304;
    return response;
  }
  response.headers.push_back({"Content-Type", std::string(file.content_type)});
  response.body = file.bytes;
  return response;
}

}  // namespace weft
