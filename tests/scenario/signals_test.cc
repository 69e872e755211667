#include <array>
#include <vector>

#include "harness/host.h"
#include "support/log_guard.h"

// Signals to many at once: who gets which key.

namespace fabric::test {
namespace {

// So many that the list of one is longer than any unit in which lists are kept.
TEST(Signals, SubmittedTogetherKeepTheirListsApart) {
  constexpr uint32_t kPeers = 9, kSignals = 3;
  sim::World world({.seed = test_seed()});
  Host sender = open_host(world, world.add_node(), 64);
  std::vector<Host> receivers;
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < kPeers; ++i) {
    receivers.push_back(open_host(world, world.add_node(), 64));
    peers.push_back(connect(sender, receivers.back()).peer);
  }
  for (const PeerId peer : peers) await_connected(world, sender, peer);
  const PeerGroup group = *sender.engine.make_group(peers);
  std::array<std::vector<Counter>, kSignals> counters;
  Batch batch = *sender.engine.make_batch();
  for (auto& of_signal : counters) {
    std::vector<CounterKey> keys;
    for (Host& receiver : receivers) {
      of_signal.push_back(*receiver.engine.make_counter());
      keys.push_back(of_signal.back().key());
    }
    ASSERT_TRUE(sender.engine.submit(Signal{.group = group, .keys = keys, .batch = batch}));
  }
  ASSERT_TRUE(sender.engine.wait(batch));
  EXPECT_EQ(batch.delivered(), kPeers * kSignals);
  world.run_for(1ms);
  for (const auto& of_signal : counters) {
    for (const Counter& counter : of_signal) EXPECT_EQ(counter.count(), 1u);
  }
}

}  // namespace
}  // namespace fabric::test
