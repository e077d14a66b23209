// Whether this program was built with a sanitizer, whose own memory is many times what the program takes.
#pragma once

#ifndef __has_feature
#define __has_feature(feature) 0  // gcc 12
#endif

namespace weft::testing_support {

#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
inline constexpr bool kSanitizer = kAddressSanitizer || kThreadSanitizer;

}  // namespace weft::testing_support
