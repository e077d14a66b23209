// The stream inside one process keeps the contract of streams.
#include "wire/stream_contract.h"

namespace weft::wire_test {
namespace {

StreamFactory in_process(std::string name, int64_t capacity) {
  return {std::move(name), [capacity] {
            auto [a, b] = in_process_streams(capacity);
            return StreamPair{nullptr, std::move(a), std::move(b)};
          }};
}

INSTANTIATE_TEST_SUITE_P(InProcess, StreamContract, testing::Values(in_process("one_message", 1), in_process("default", 64)),
                         stream_name);

TEST(InProcess, ACapacityOfNothingIsRefused) {
  EXPECT_THAT(message_of_error(ErrorKind::internal, [] { (void)in_process_streams(0); }),
              testing::HasSubstr("capacity: wanted at least 1 message, found 0"));
}

}  // namespace
}  // namespace weft::wire_test
