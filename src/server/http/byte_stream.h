// Bytes both ways with one client: TCP, TLS, or memory. Its members and the calls that it makes belong to one strand.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace weft::http {

class ByteStream {
 public:
  // False: an error, or the end of what the client sends.
  using Done = std::function<void(bool good, size_t bytes)>;

  ByteStream() = default;
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Each calls `done` once, later, close() or not; until then the memory stays. At most one read and one write at a time.
  virtual void open(Done done) = 0;  // before anything else: a handshake, or nothing
  virtual void read_some(std::span<char> space, Done done) = 0;
  virtual void write_some(std::span<const char> bytes, Done done) = 0;

  // Tells the client that nothing more comes. Reading goes on.
  virtual void end_writing() = 0;
  // The same spoils bytes that the client still sends (TLS: they are an error behind its own end).
  [[nodiscard]] virtual bool end_spoils_reading() const = 0;
  virtual void close() = 0;  // what is under way fails
};

}  // namespace weft::http
