// The page that `weft serve` shows at "/": the files of this folder, built into the program (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

#include "server/http/exchange.h"

namespace weft {

struct PageFile {
  std::string_view path;  // "/" is index.html; every other file stands at its name: "/page.css"
  std::string_view content_type;
  std::string_view etag;  // of the bytes, with its quotes
  std::string_view bytes;
};

[[nodiscard]] std::span<const PageFile> page_files();
// nullptr: there is none at that path.
[[nodiscard]] const PageFile* find_page_file(std::string_view path);

// 200 with the file, or 304 when the client has these bytes already (If-None-Match). Browsers ask again each time, so that a
// page never meets another version's server; they load nothing from elsewhere, run no script but these files, and show the page
// in no other page's frame.
[[nodiscard]] http::Response page_response(const PageFile& file, const http::Request& request);

}  // namespace weft
