#include "base/loopback.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Loopback, ByItsSpelling) {
  for (const char* host : {"127.0.0.1", "127.8.9.1", "::1", "[::1]", "0:0::1", "localhost", "LocalHost"})
    EXPECT_TRUE(is_loopback_host(host)) << host;
  for (const char* host : {"", "0.0.0.0", "::", "[::]", "[]", "192.0.2.1", "1270.0.0.1", "127.1", "127.example.com",
                           "[127.0.0.1]", "localhost.", "localhost.example.com", "example.com", "::1%lo"})
    EXPECT_FALSE(is_loopback_host(host)) << host;
}

}  // namespace
}  // namespace weft
