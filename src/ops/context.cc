#include "ops/context.h"

namespace weft::ops {

std::string_view to_string(Backend backend) {
  switch (backend) {
    case Backend::reference: return "reference";
    case Backend::cpu: return "cpu";
    case Backend::cuda: return "cuda";
  }
  return "unknown";
}
std::string_view to_string(Profile profile) { return profile == Profile::exact ? "exact" : "bf16"; }

}  // namespace weft::ops
