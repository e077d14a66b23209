// The ledger counts what the states of a pool really hold.
#include "pipeline/state_ledger.h"

#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/sequence_state.h"

namespace weft {
namespace {

StateLayout small_layout() {
  StateLayout layout({LayerIndex(0), LayerIndex(2)});
  layout.add_slot_layer(LayerIndex(0), {{"S", {4}}});
  layout.add_page_layer(LayerIndex(1), {{"latent", 2}});
  return layout;
}

// The same events on states and on the ledger.
class Twins {
 public:
  SequenceId create() {
    const SequenceId id(next_++);
    states_.emplace(id, pool_);
    ledger.create(id);
    return id;
  }
  SequenceId fork(SequenceId sequence) {
    const SequenceId id(next_++);
    states_.emplace(id, states_.at(sequence).fork());
    ledger.fork(sequence, id);
    return id;
  }
  std::vector<SequenceId> extend(SequenceId sequence, int64_t rows, const std::vector<int64_t>& offsets = {}) {
    const auto inner = static_cast<int64_t>(std::ranges::count_if(offsets, [&](int64_t offset) { return offset < rows; }));
    const StateUse wanted = ledger.held() + ledger.needed(sequence, rows, inner);
    (void)states_.at(sequence).extend(0, rows, offsets);
    std::vector<SequenceId> ids;
    for (SequenceState& state : states_.at(sequence).commit()) {
      ids.emplace_back(next_++);
      states_.emplace(ids.back(), std::move(state));
    }
    ledger.extend(sequence, rows, offsets, ids);
    EXPECT_EQ(ledger.held(), wanted);
    return ids;
  }
  void release(SequenceId sequence) {
    states_.erase(sequence);
    ledger.release(sequence);
  }
  void check() {
    EXPECT_EQ(ledger.held(), (StateUse{pool_.slots_held(), pool_.pages_held()}));
    std::vector<SequenceId> all;
    for (const auto& [id, state] : states_) {
      EXPECT_EQ(ledger.consumed(id), state.consumed());
      all.push_back(id);
    }
    EXPECT_EQ(ledger.held_by(all), ledger.held());
  }

  StateLedger ledger{true};

 private:
  StatePool pool_{small_layout(), [] { return std::string("model"); }, {.slots = 100, .pages = 100}};
  std::map<SequenceId, SequenceState> states_;
  int64_t next_ = 1;
};

TEST(StateLedger, CountsWhatStatesHold) {
  Twins twins;
  const SequenceId a = twins.create();
  twins.check();
  const std::vector<SequenceId> kept = twins.extend(a, 70, {16, 64, 70});
  twins.check();
  EXPECT_EQ(twins.ledger.held(), (StateUse{3, 2}));  // the state behind the last row shares its slot
  const SequenceId b = twins.fork(kept[1]);
  twins.extend(b, 10);
  twins.check();
  EXPECT_EQ(twins.ledger.held(), (StateUse{4, 3}));
  twins.extend(a, 1);  // its partial page is shared with the state at 70
  twins.check();
  EXPECT_EQ(twins.ledger.held(), (StateUse{5, 4}));
  twins.release(kept[2]);
  twins.extend(a, 1);
  twins.check();
  EXPECT_EQ(twins.ledger.held(), (StateUse{4, 3}));
  for (const SequenceId id : {a, b, kept[0], kept[1]}) twins.release(id);
  EXPECT_EQ(twins.ledger.held(), StateUse{});
}

TEST(StateLedger, WithoutPages) {
  StateLedger ledger(false);
  ledger.create(SequenceId(1), TokenCount(100));
  EXPECT_EQ(ledger.held(), (StateUse{1, 0}));
  EXPECT_EQ(ledger.needed(SequenceId(1), 64, 2), (StateUse{2, 0}));
  EXPECT_EQ(ledger.whole(TokenCount(0)), StateUse{});
  EXPECT_THROW(ledger.release(SequenceId(2)), Error);
}

}  // namespace
}  // namespace weft
