// Flags of how frames travel between stages. What this program does not do is refused by name.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace weft {

struct LinkOptions;

struct WireFlags {
  std::string transport = "auto";
  std::string compress = "none";
  std::string max_frame;
  std::string checksum = "auto";

  void add(CLI::App& app);
  // Of links that TLS protects, or that stay on this host through a Unix socket: these need no checksum of their own. Throws
  // bad_input for a size that is none. (app/remote/wire_options.cc)
  [[nodiscard]] LinkOptions options(bool is_protected) const;
};

}  // namespace weft
