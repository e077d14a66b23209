// What the program's exit code says (distributed.md 7.5, ruling R9). The one table: `weft help exit-codes` prints it.
#pragma once

#include <array>
#include <string_view>

#include "base/error.h"

namespace weft {

enum ExitCode : int {
  kExitSuccess = 0,
  kExitOther = 1,
  kExitUsage = 2,
  kExitPlan = 3,
  kExitModel = 4,
  kExitUnreachable = 5,
  kExitStageLost = 6,
  kExitTimeout = 7,
  kExitHandshake = 8,
  kExitSecurity = 9,
  kExitInterrupted = 130,
};

struct ExitCodeText {
  ExitCode code;
  std::string_view meaning;
};

inline constexpr std::array<ExitCodeText, 11> kExitCodes = {{
    {kExitSuccess, "success"},
    {kExitOther, "any other failure"},
    {kExitUsage, "usage or configuration: a flag, a request or an input file is wrong"},
    {kExitPlan, "plan impossible: the model does not fit as asked"},
    {kExitModel, "model or loading: the checkpoint is wrong or not one that this program reads"},
    {kExitUnreachable, "a stage was unreachable at start"},
    {kExitStageLost, "a stage was lost"},
    {kExitTimeout, "timeout"},
    {kExitHandshake, "handshake between stages failed"},
    {kExitSecurity, "security: certificate or token refused"},
    {kExitInterrupted, "interrupted (Ctrl-C)"},
}};

// `loading`: while a model is opened, where what is not supported is the checkpoint's matter.
[[nodiscard]] constexpr ExitCode exit_code_of(ErrorKind kind, bool loading) {
  switch (kind) {
    case ErrorKind::bad_input: return kExitUsage;
    case ErrorKind::bad_checkpoint: return kExitModel;
    case ErrorKind::unsupported: return loading ? kExitModel : kExitUsage;
    case ErrorKind::plan_impossible: return kExitPlan;
    case ErrorKind::unavailable: return loading ? kExitModel : kExitOther;
    case ErrorKind::unreachable: return kExitUnreachable;
    case ErrorKind::stage_lost: return kExitStageLost;
    case ErrorKind::stage_timeout: return kExitTimeout;
    case ErrorKind::handshake: return kExitHandshake;
    case ErrorKind::security: return kExitSecurity;
    case ErrorKind::internal: return kExitOther;
  }
  return kExitOther;
}

}  // namespace weft
