// The largest payloads.
#include <cstring>
#include <future>

#include <sys/resource.h>

#include "pipeline/wire/link.h"

#include "wire/wire_test_util.h"

namespace weft {
namespace {

std::shared_ptr<const Tensor> large(int64_t bytes) {
  Tensor made = Tensor::uninitialized(DType::u8, {bytes});
  uint64_t state = 99;
  for (int64_t at = 0; at < bytes; at += 8) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::memcpy(made.data() + at, &state, static_cast<size_t>(std::min<int64_t>(8, bytes - at)));
  }
  return std::make_shared<const Tensor>(std::move(made));
}

TEST(FrameSlow, D8PayloadsUpTo600MBPassALink) {
  for (const int64_t bytes : {(int64_t{4} << 20) - 1, int64_t{4} << 20, (int64_t{4} << 20) + 1, int64_t{600'000'000}}) {
    Frame frame;
    frame.type = FrameType::payload;
    frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, large(bytes)));
    auto [near, far] = in_process_streams(4);
    Link sender(std::move(near), {});
    Link receiver(std::move(far), {});
    auto sent = std::async(std::launch::async, [&] { sender.send(frame); });
    const std::optional<Frame> found = receiver.receive();
    sent.get();
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->tensors.size(), 1U);
    ASSERT_EQ(found->tensors[0].view.bytes(), bytes);
    EXPECT_EQ(std::memcmp(found->tensors[0].view.data, frame.tensors[0].view.data, static_cast<size_t>(bytes)), 0);
  }
  // Each end holds the payload once, and the stream a few chunks.
  rusage usage{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &usage), 0);
  EXPECT_LT(usage.ru_maxrss, 1'900'000);  // KiB
}

TEST(FrameSlow, D8APayloadAboveTheFrameLimitIsRefusedBeforeAnythingIsSent) {
  Frame frame;
  frame.type = FrameType::payload;
  FrameTensor tensor;  // nothing reads it
  tensor.view = {DType::u8, {int64_t{1} << 30}, nullptr};
  frame.tensors.push_back(tensor);
  EXPECT_THAT(wire_test::message_of_error(ErrorKind::bad_input, [&] { (void)encode_frame(frame, {}, Checksum::on); }),
              testing::HasSubstr("frame: wanted at most 1073741720, found 1073741824"));
}

}  // namespace
}  // namespace weft
