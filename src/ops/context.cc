#include "ops/context.h"

namespace weft::ops {

std::string_view to_string(Backend backend) { return backend == Backend::reference ? "reference" : "cpu"; }
std::string_view to_string(Profile profile) { return profile == Profile::exact ? "exact" : "bf16"; }

}  // namespace weft::ops
