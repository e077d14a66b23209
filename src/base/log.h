// Diagnostics to standard error; results go to standard output and never through here.
#pragma once

#include <utility>

#include <fmt/format.h>

namespace weft::log {

enum class Level { debug, info, warning, error };

void set_level(Level level);  // default: warning
void write(Level level, std::string_view text);

template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace weft::log
