# Writes OUT, a source that holds the bytes of the files FILES (semicolons between them, all in one folder) as the table that
# server/page/page.h declares. Run at build time by the rule in src/CMakeLists.txt.
set(arrays "")
set(rows "")
set(count 0)
foreach(file IN LISTS FILES)
  get_filename_component(name "${file}" NAME)
  if(name MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(name MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(name MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    message(FATAL_ERROR "${file}: wanted .html, .css, .js or .svg, found another kind of file")
  endif()
  set(path "/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  endif()
  file(READ "${file}" bytes HEX)
  if(bytes STREQUAL "")
    message(FATAL_ERROR "${file}: wanted a page file, found an empty one")
  endif()
  file(SHA256 "${file}" hash)
  string(SUBSTRING "${hash}" 0 32 hash)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "const unsigned char kBytes${count}[] = {${bytes}};\n")
  string(APPEND rows "      {\"${path}\", \"${type}\", \"\\\"${hash}\\\"\", text(kBytes${count}, sizeof kBytes${count})},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE "${OUT}" "#include \"server/page/page.h\"

namespace weft {
namespace {

${arrays}
std::string_view text(const unsigned char* bytes, size_t size) { return {reinterpret_cast<const char*>(bytes), size}; }

}  // namespace

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
${rows}  };
  return files;
}

}  // namespace weft
")
