#include "app/wire_flags.h"

#include <CLI/CLI.hpp>

namespace weft {

void WireFlags::add(CLI::App& app) {
  app.add_option("--transport", transport, "Between stages: auto or grpc")
      ->check(CLI::IsMember({"auto", "grpc"}))
      ->capture_default_str();
  app.add_option(
         "--activation-compress", compress,
         "Boundaries on the wire: none, or lz4 where that makes one smaller (lossless; dense numbers seldom get smaller)")
      ->check(CLI::IsMember({"none", "lz4"}))
      ->capture_default_str();
  app.add_option("--max-frame", max_frame, "Largest frame, as in 1GiB (default 1GiB)")->type_name("SIZE");
  app.add_option("--payload-checksum", checksum,
                 "CRC32C of payloads: on, off, or auto: where neither TLS nor the host protects them")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
}

}  // namespace weft
