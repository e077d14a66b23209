// The wire against memcpy: a boundary of Kimi K3 (512 rows, 4 planes of 7168, BF16: 29.4 MB) becomes messages in memory, as a
// transport takes them, and a frame again. Rates are payload bytes per second on one core. Serialising is to run at half of
// memcpy's speed or more. `build/release/bench/weft_frame_bench --benchmark_repetitions=5`
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "pipeline/wire/crc32c.h"
#include "pipeline/wire/frame.h"

namespace weft {
namespace {

constexpr int64_t kRows = 512;
constexpr int64_t kWidth = 4L * 7168;

Frame boundary() {
  Tensor made = Tensor::uninitialized(DType::bf16, {kRows, kWidth});
  for (int64_t i = 0; i < made.bytes(); ++i) made.data()[i] = static_cast<std::byte>(i * 31);
  Frame frame;
  frame.type = FrameType::payload;
  frame.rows.resize(1);
  frame.tensors.push_back(FrameTensor::of(TensorKind::hidden, std::make_shared<const Tensor>(std::move(made))));
  return frame;
}

using Message = std::shared_ptr<std::vector<std::byte>>;

std::vector<Message> messages_of(const Frame& frame, Checksum checksum) {
  std::vector<Message> messages;
  for (const EncodedMessage& message : encode_frame(frame, {}, checksum)) {
    messages.push_back(std::make_shared<std::vector<std::byte>>(static_cast<size_t>(message.bytes())));
    message.copy_to(*messages.back());
  }
  return messages;
}

void copy_only(benchmark::State& state) {
  const Frame frame = boundary();
  const TensorView& view = frame.tensors[0].view;
  std::vector<std::byte> out(static_cast<size_t>(view.bytes()));
  for (auto step : state) {
    std::memcpy(out.data(), view.data, out.size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * view.bytes());
}
BENCHMARK(copy_only)->Unit(benchmark::kMillisecond);

void checksum_only(benchmark::State& state) {
  const Frame frame = boundary();
  const TensorView& view = frame.tensors[0].view;
  for (auto step : state)
    benchmark::DoNotOptimize(crc32c(std::span<const std::byte>(view.data, static_cast<size_t>(view.bytes()))));
  state.SetBytesProcessed(state.iterations() * view.bytes());
}
BENCHMARK(checksum_only)->Unit(benchmark::kMillisecond);

void encode(benchmark::State& state, Checksum checksum) {
  const Frame frame = boundary();
  const std::vector<Message> out = messages_of(frame, checksum);
  for (auto step : state) {
    const std::vector<EncodedMessage> messages = encode_frame(frame, {}, checksum);
    for (size_t i = 0; i < messages.size(); ++i) messages[i].copy_to(*out[i]);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * frame.payload_bytes());
}
BENCHMARK_CAPTURE(encode, checksum, Checksum::on)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, no_checksum, Checksum::off)->Unit(benchmark::kMillisecond);

void decode(benchmark::State& state, Checksum checksum) {
  const Frame frame = boundary();
  const std::vector<Message> messages = messages_of(frame, checksum);
  FrameDecoder decoder({});
  for (auto step : state) {
    std::optional<Frame> whole;
    for (const Message& message : messages) whole = decoder.add(*message, message);
    benchmark::DoNotOptimize(whole->tensors[0].view.data);
  }
  state.SetBytesProcessed(state.iterations() * frame.payload_bytes());
}
BENCHMARK_CAPTURE(decode, checksum, Checksum::on)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, no_checksum, Checksum::off)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace weft

BENCHMARK_MAIN();
