// The messages of a stream are bytes from outside: decoding ends with frames or a weft::Error, every frame lies inside its
// memory, and encoding it again gives what passes.
//
// Byte 0: bit 0 asks for right checksums in the header and for none of the payload, so that the fuzzer gets behind them; bits 1
// and 2 choose the limits, bits 3 to 5 the alignment. Then messages, each behind its length (2 bytes).
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "pipeline/wire/crc32c.h"
#include "pipeline/wire/frame.h"
#include "pipeline/wire/wire_layout.h"

namespace {

using namespace weft::wire_layout;

void require(bool holds) {
  if (!holds) std::abort();
}

weft::FrameLimits limits_of(uint8_t choice) {
  weft::FrameLimits limits;
  limits.frame = int64_t{1} << 20;
  if (choice == 1) limits = {.frame = 4096, .chunk = 64, .header = 1024, .tensors = 4, .rows = 4};
  if (choice == 2) limits.chunk = 16;
  if (choice == 3) limits.frame = 100;
  return limits;
}

void sign(std::span<std::byte> message) {
  if (message.size() < kHeaderBytes) return;
  std::byte* const at = message.data();
  put(at + kFlagsAt, static_cast<uint16_t>(get<uint16_t>(at + kFlagsAt) & ~kFlagChecksum));
  put(at + kPayloadChecksumAt, uint32_t{0});
  put(at + kHeaderChecksumAt, uint32_t{0});
  const size_t length = std::min<size_t>(get<uint32_t>(at + kHeaderLengthAt), message.size());
  put(at + kHeaderChecksumAt, weft::crc32c(message.first(length)));
}

uint32_t sum_of(const weft::FrameTensor& tensor) {
  require(reinterpret_cast<uintptr_t>(tensor.view.data) % kAlignment == 0 || tensor.view.bytes() == 0);
  return weft::crc32c({tensor.view.data, static_cast<size_t>(tensor.view.bytes())});  // reads every byte
}

void check_same(const weft::Frame& a, const weft::Frame& b) {
  require(a.type == b.type && a.epoch == b.epoch && a.source == b.source && a.destination == b.destination);
  require(a.step == b.step && a.micro_batch == b.micro_batch && a.rows == b.rows && a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const weft::FrameTensor& x = a.tensors[i];
    const weft::FrameTensor& y = b.tensors[i];
    require(x.kind == y.kind && x.view.dtype == y.view.dtype && x.view.shape == y.view.shape && sum_of(x) == sum_of(y));
  }
}

// Encodes it again, in small chunks, and expects it back.
void pass_again(const weft::Frame& frame, weft::Compression compression) {
  weft::FrameLimits limits;
  limits.chunk = 24;
  if (frame.payload_bytes() > 4096) limits.chunk = 4096;
  weft::FrameDecoder decoder(limits);
  std::optional<weft::Frame> whole;
  for (const weft::EncodedMessage& message : weft::encode_frame(frame, limits, weft::Checksum::on, compression)) {
    require(!whole);
    const auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(message.bytes()));
    message.copy_to(*bytes);
    whole = decoder.add(*bytes, bytes);
  }
  require(whole.has_value() && !decoder.incomplete());
  check_same(*whole, frame);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const uint8_t choice = data[0];
  weft::FrameDecoder decoder(limits_of(choice >> 1U & 3U));
  const size_t shift = choice >> 3U & 7U;
  size_t at = 1;
  try {
    while (size - at >= 2) {
      const size_t length =
          std::min<size_t>(static_cast<size_t>(data[at]) | static_cast<size_t>(data[at + 1]) << 8U, size - at - 2);
      at += 2;
      // Memory of exactly this size, so that the sanitizer sees a byte too far.
      const std::shared_ptr<std::byte[]> memory(new std::byte[length + shift]);
      if (length > 0) std::memcpy(memory.get() + shift, data + at, length);
      at += length;
      const std::span<std::byte> message(memory.get() + shift, length);
      if ((choice & 1U) != 0) sign(message);
      if (const auto frame = decoder.add(message, memory)) {
        for (const weft::FrameTensor& tensor : frame->tensors) (void)sum_of(tensor);
        pass_again(*frame, weft::Compression::none);
        pass_again(*frame, weft::Compression::lz4);
      }
    }
  } catch (const weft::Error&) {
    return 0;
  }
  return 0;
}
