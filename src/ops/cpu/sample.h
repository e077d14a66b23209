// The exponentials of ops::sample.
#pragma once

#include "ops/reference/sample.h"

namespace weft::ops::cpu {

reference::Weigh weigh;

}  // namespace weft::ops::cpu
