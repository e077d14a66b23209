// What `weft status` and `weft doctor` share: whom to ask, and as whom.
#pragma once

#include <string>

#include "pipeline/remote/observe.h"

namespace CLI {
class App;
}

namespace weft {

struct ObserverFlags {
  std::string config;
  std::string node;
  bool insecure = false;
  bool json = false;

  void add(CLI::App& app);
  [[nodiscard]] ObserverOptions options() const;
};

}  // namespace weft
