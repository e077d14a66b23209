#include "engine/grammar/formats.h"

#include <algorithm>
#include <array>
#include <utility>

namespace weft::grammar {
namespace {

#define WEFT_DATE                                                                                                          \
  "([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))" \
  "|([1-9][0-9](0[48]|[2468][048]|[13579][26])|(1[26]|[2468][048]|[3579][26])00)-02-29)"
#define WEFT_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define WEFT_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define WEFT_HOST WEFT_LABEL "(\\." WEFT_LABEL "){0,4}"
#define WEFT_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kFormats{
    {{"date", "^" WEFT_DATE "$"},
     {"time", "^" WEFT_TIME "$"},
     {"date-time", "^" WEFT_DATE "T" WEFT_TIME "$"},
     {"uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"},
     {"ipv4", "^" WEFT_OCTET "(\\." WEFT_OCTET "){3}$"},
     {"hostname", "^" WEFT_HOST "$"},
     {"email", "^[A-Za-z0-9_%+-]{1,32}(\\.[A-Za-z0-9_%+-]{1,15}){0,2}@" WEFT_LABEL "(\\." WEFT_LABEL "){1,3}$"},
     {"uri", "^[a-z][a-z0-9+.-]{0,15}:\\/\\/" WEFT_HOST "(:[1-9][0-9]{0,3})?(\\/[A-Za-z0-9._~!$&'()*+,;=:@\\/-]*)?"
             "(\\?[A-Za-z0-9._~!$&'()*+,;=:@\\/?-]*)?(#[A-Za-z0-9._~!$&'()*+,;=:@\\/?-]*)?$"}}};

#undef WEFT_DATE
#undef WEFT_TIME
#undef WEFT_LABEL
#undef WEFT_HOST
#undef WEFT_OCTET

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format) {
  const auto* found = std::ranges::find(kFormats, format, &std::pair<std::string_view, std::string_view>::first);
  return found == kFormats.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace weft::grammar
