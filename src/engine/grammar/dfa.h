// A deterministic automaton over bytes. Each of its states can still reach acceptance, so a mask made of it leads into no dead
// end.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace weft::grammar {

inline constexpr size_t kMaxDfaStates = 8192;  // of one automaton; 8 MiB

// The lowest byte from the space upwards that `test` takes, or the lowest of the others; there is one.
template <class Test>
[[nodiscard]] uint8_t printable_byte(const Test& test) {
  constexpr size_t kSpace = 0x20;
  size_t byte = kSpace;
  while (!test(byte)) byte = (byte + 1) % 256;
  return static_cast<uint8_t>(byte);
}

class Dfa {
 public:
  using Row = std::array<int32_t, 256>;  // the next state by byte, or -1

  // State 0 is the start. Transitions that cannot reach acceptance are removed.
  Dfa(std::vector<Row> rows, std::vector<bool> accepting);

  // False when nothing is accepted.
  [[nodiscard]] bool any() const { return distance_.front() != kNever; }
  [[nodiscard]] int32_t next(int32_t state, uint8_t byte) const { return rows_[static_cast<size_t>(state)][byte]; }
  [[nodiscard]] bool accepting(int32_t state) const { return distance_[static_cast<size_t>(state)] == 0; }
  // Bytes of the shortest way to acceptance.
  [[nodiscard]] int32_t distance(int32_t state) const { return distance_[static_cast<size_t>(state)]; }
  // A byte that begins a shortest way; the state must not accept.
  [[nodiscard]] uint8_t shortest_byte(int32_t state) const;
  [[nodiscard]] size_t size() const { return rows_.size(); }

 private:
  static constexpr int32_t kNever = INT32_MAX;
  void measure();

  std::vector<Row> rows_;
  std::vector<int32_t> distance_;
};

// The automaton of a machine given by its step: step(state, byte) is an optional state, accepts(state) a bool; states are
// ordered by <. Throws unsupported, with `what` as the thing that is too large, beyond kMaxDfaStates.
template <class State, class Step, class Accepts>
[[nodiscard]] Dfa explore(const State& start, std::string_view what, const Step& step, const Accepts& accepts) {
  std::map<State, int32_t> known{{start, 0}};
  std::vector<State> states{start};
  std::vector<Dfa::Row> rows;
  std::vector<bool> accepting;
  for (size_t at = 0; at < states.size(); ++at) {
    accepting.push_back(accepts(states[at]));
    Dfa::Row& row = rows.emplace_back();
    for (int byte = 0; byte < 256; ++byte) {
      row[static_cast<size_t>(byte)] = -1;
      const std::optional<State> next = step(states[at], static_cast<uint8_t>(byte));
      if (!next) continue;
      const auto [found, fresh] = known.emplace(*next, static_cast<int32_t>(states.size()));
      if (fresh) states.push_back(*next);
      row[static_cast<size_t>(byte)] = found->second;
    }
    if (states.size() > kMaxDfaStates) {
      fail(ErrorKind::unsupported, "grammar", "{}: wanted an automaton of at most {} states, found more", what, kMaxDfaStates);
    }
  }
  return Dfa(std::move(rows), std::move(accepting));
}

}  // namespace weft::grammar
