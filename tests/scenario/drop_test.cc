#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Drop: one operation that masks, disconnects and fences a peer. And peers(kLostUnfenced), which
// lists who could still write.

namespace fabric::test::drop_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 64 << 10, kPage = 4096;
constexpr uint32_t kOwner = 0, kOther = 1;  // nodes; the third is an innocent member

Config drop_config(uint32_t node) {
  Config config = test_config();
  config.engine_id = 100 + node;
  config.peer_timeout = 1s;
  config.lost_timeout = 4s;
  config.drain_timeout = 1s;
  return config;
}

/// An owner with two groups, in each a member of both others. All write to each other.
struct DropSetup {
  explicit DropSetup(const sim::NicModel& model = sim::NicModel::connectx7(), bool grants = false)
      : world({.seed = test_seed()}) {
    for (const char* part : {"a path broke", "a path could not be opened"}) expect_log(part);
    for (uint32_t node = 0; node < 3; ++node) {
      hosts.push_back(open_host(world, world.add_node(1, model), kSize, drop_config(node)));
    }
    Engine& owner = hosts[kOwner].engine;
    sub.emplace(*owner.subscribe(seen.notify()));
    for (uint32_t node = 1; node < 3; ++node) {
      const PeerId there = *hosts[node].engine.connect(owner.address());
      await_connected(world, hosts[node], there);
      const PeerId here = *owner.connect(hosts[node].engine.address());
      peers.push_back(here);
      const MemoryRegion& memory = hosts[kOwner].memory;
      const auto desc = grants ? memory.grant(here)->desc : *memory.desc();
      in.push_back({there, *hosts[node].engine.import_region(there, desc)});
      out.push_back({here, *owner.import_region(here, *hosts[node].memory.desc())});
    }
    for (uint32_t bank = 0; bank < 2; ++bank) {
      groups.push_back(*owner.make_counter_group());
      for (const PeerId peer : peers) {
        members.push_back(*owner.make_counter());
        EXPECT_TRUE(groups[bank].add(members.back(), peer));
      }
    }
    write_in(0, 0);  // the paths are open
    write_in(1, 0);
    write_out(0);
    write_out(1);
    world.run_for(5ms);
    EXPECT_TRUE(groups[0].wait(1s));
  }
  Engine& owner() { return hosts[kOwner].engine; }
  PeerId other() const { return peers[0]; }
  void write_in(uint32_t from, uint32_t bank) {
    ASSERT_TRUE(hosts[from + 1].engine.submit(Write{.source = hosts[from + 1].memory.at(0),
                                                    .target = in[from].at(from * kPage),
                                                    .size_bytes = kPage,
                                                    .imm = members[2 * bank + from].key(),
                                                    .notify = ignored.notify()}));
  }
  void write_out(uint32_t to, uint64_t tag = 0) {
    ASSERT_TRUE(owner().submit(Write{.source = hosts[kOwner].memory.at(0),
                                     .target = out[to].at(0),
                                     .size_bytes = kPage,
                                     .timeout = 20s,
                                     .notify = ended.notify(tag)}));
  }
  OpId drop(uint64_t tag, Timeout timeout = 5s) {
    return *owner().submit(
        Drop{.peer = other(), .timeout = timeout, .notify = dropped.notify(tag)});
  }
  Event await(EventRecorder& recorder, uint64_t tag) {
    const bool came = world.run_until([&] { return recorder.find(tag) != nullptr; }, 60s);
    EXPECT_TRUE(came) << owner().dump();
    return came ? *recorder.find(tag) : Event{};
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

  EventRecorder ended, dropped, ignored, seen, waited;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<PeerId> peers{};
  std::vector<RemoteHost> in{}, out{};
  std::vector<Counter> members{};
  std::vector<CounterGroup> groups{};
  std::optional<Subscription> sub{};
};

TEST(Dropped, PeerIsMaskedInAllGroupsWhenSubmitReturns) {
  DropSetup setup;
  ASSERT_TRUE(setup.groups[0].expect(setup.waited.notify(1), 5s));
  setup.write_in(1, 0);
  setup.world.run_for(1ms);
  EXPECT_EQ(setup.waited.count(), 0u);
  setup.drop(7);
  for (CounterGroup& group : setup.groups) {
    EXPECT_EQ(group.mask(setup.other()).error().code, Errc::kNotFound) << "masked already";
    EXPECT_TRUE(group.lost().empty());
  }
  EXPECT_EQ(setup.await(setup.waited, 1).code, Errc::kOk) << "the armed one";
  EXPECT_EQ(setup.await(setup.dropped, 7).code, Errc::kOk);
  EXPECT_EQ(setup.groups[1].wait(1ms).error().code, Errc::kTimeout);
  setup.write_in(1, 1);
  EXPECT_TRUE(setup.groups[1].wait(1s)) << "the idle one, with the member that is left";
}

// The wait ended before the drop, and is reported after it.
TEST(Dropped, PeerIsStillNamedByTheWaitThatItsLossHasEnded) {
  DropSetup setup;
  // A session without paths: its counters are aborted at once.
  Host quiet = open_host(setup.world, setup.world.add_node(1), kSize, drop_config(9));
  const PeerId peer = *setup.owner().connect(quiet.engine.address());
  await_connected(setup.world, setup.hosts[kOwner], peer);
  Counter member = *setup.owner().make_counter();
  ASSERT_TRUE(setup.groups[0].add(member, peer));
  ASSERT_TRUE(setup.groups[0].expect(setup.waited.notify(1), 5s));
  ASSERT_TRUE(setup.owner().disconnect(peer));
  EXPECT_EQ(setup.groups[0].expect(Notify{}).error().code, Errc::kPeerLost);
  EXPECT_EQ(setup.waited.count(), 0u);
  ASSERT_TRUE(setup.owner().submit(Drop{.peer = peer, .notify = setup.dropped.notify(7)}));
  const Event event = setup.await(setup.waited, 1);
  EXPECT_EQ(event.code, Errc::kPeerLost);
  EXPECT_EQ(event.peer, peer);
}

TEST(Dropped, WritesToThePeerEndAtOnceAndItIsProvedQuiet) {
  DropSetup setup;
  setup.happens(Fault::stop(kOther));
  setup.happens(Fault::control_cut(kOther, kOwner));
  setup.happens(Fault::cut(kOwner, kOther));
  for (uint64_t tag = 1; tag <= 20; ++tag) setup.write_out(0, tag);
  setup.world.run_for(1ms);
  EXPECT_EQ(setup.ended.count(Errc::kPeerLost), 0u);
  const Nanos before = setup.world.now();
  const OpId op = setup.drop(7);
  const Event event = setup.await(setup.dropped, 7);
  EXPECT_EQ(event.code, Errc::kOk);
  EXPECT_EQ(event.op, op);
  EXPECT_EQ(event.peer, setup.other());
  EXPECT_LT(setup.world.now() - before, 100ms) << "it does not wait for the peer's answer";
  for (uint64_t tag = 1; tag <= 20; ++tag) {
    EXPECT_EQ(setup.await(setup.ended, tag).code, Errc::kPeerLost);
  }
  EXPECT_LT(setup.world.now() - before, 1100ms) << "long before their timeouts";
  EXPECT_EQ(setup.owner().peer_info(setup.other())->state, PeerState::kFenced);
  EXPECT_TRUE(setup.owner().peers(PeerFilter::kLostUnfenced).empty());
  setup.happens(Fault::heal(kOwner, kOther));
  setup.happens(Fault::resume(kOther));  // its engine can close
}

TEST(Dropped, PeerThatCannotBeProvedQuietTimesOutAndIsListedUntilTheProof) {
  sim::NicModel model = sim::NicModel::efa_200g();
  model.fence = FenceKind::kRekey;
  DropSetup setup(model);  // a descriptor for all: its keys are not the peer's alone
  setup.happens(Fault::crash(kOther));
  const OpId op = setup.drop(7, 300ms);
  const Event event = setup.await(setup.dropped, 7);
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_EQ(setup.owner().peers(PeerFilter::kLostUnfenced), std::vector<PeerId>{setup.other()});
  EXPECT_EQ(setup.owner().peers(), std::vector<PeerId>{setup.peers[1]});
  EXPECT_EQ(setup.seen.find(EventKind::kFenceProved), nullptr);
  // The proof: the memory that it could write is gone.
  ASSERT_TRUE(setup.owner().submit(
      Deregister{.region = setup.hosts[kOwner].memory.id(), .notify = setup.ignored.notify()}));
  ASSERT_TRUE(setup.world.run_until(
      [&] { return setup.seen.find(EventKind::kFenceProved) != nullptr; }, 60s));
  EXPECT_EQ(setup.seen.find(EventKind::kFenceProved)->op, op);
  EXPECT_TRUE(setup.owner().peers(PeerFilter::kLostUnfenced).empty());
}

TEST(Dropped, TwiceIsBusyOrProvedAgain) {
  DropSetup setup;
  setup.drop(7);
  setup.drop(8);
  EXPECT_EQ(setup.await(setup.dropped, 7).code, Errc::kOk);
  const Errc second = setup.await(setup.dropped, 8).code;
  EXPECT_TRUE(second == Errc::kBusy || second == Errc::kOk);
  setup.drop(9);
  EXPECT_EQ(setup.await(setup.dropped, 9).code, Errc::kOk) << "a lost peer is proved again";
}

TEST(Dropped, NamesTheArgumentThatIsWrong) {
  DropSetup setup;
  const auto refused = [&](PeerId peer) {
    return setup.owner().submit(Drop{.peer = peer}).error();
  };
  EXPECT_EQ(refused({}).code, Errc::kInvalidArgument);
  EXPECT_STREQ(refused({}).what, "peer");
  EXPECT_EQ(refused(PeerId(77, 1)).code, Errc::kNotFound);
  const PeerId self = *setup.owner().connect(setup.owner().address());
  ASSERT_TRUE(setup.owner().submit(Drop{.peer = self, .notify = setup.dropped.notify(7)}));
  EXPECT_EQ(setup.await(setup.dropped, 7).code, Errc::kUnsupported);
}

TEST(LostPeers, AreListedUntilTheyAreFenced) {
  DropSetup setup;
  EXPECT_TRUE(setup.owner().peers(PeerFilter::kLostUnfenced).empty());
  ASSERT_TRUE(setup.owner().disconnect(setup.other()));
  setup.happens(Fault::crash(2));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.owner().peers().empty(); }, 30s));
  auto lost = setup.owner().peers(PeerFilter::kLostUnfenced);
  std::ranges::sort(lost);
  auto all = setup.peers;
  std::ranges::sort(all);
  EXPECT_EQ(lost, all);
  for (const PeerId peer : setup.peers) {
    ASSERT_TRUE(
        setup.owner().submit(Fence{.peer = peer, .notify = setup.dropped.notify(peer.slot)}));
    EXPECT_EQ(setup.await(setup.dropped, peer.slot).code, Errc::kOk);
  }
  EXPECT_TRUE(setup.owner().peers(PeerFilter::kLostUnfenced).empty());
  // One that never answered could not write.
  const auto address = [&] {
    Host gone = open_host(setup.world, setup.world.add_node(1), kSize, drop_config(9));
    return gone.engine.address();
  }();
  ASSERT_TRUE(setup.owner().connect(address));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.owner().peers().empty(); }, 30s));
  EXPECT_TRUE(setup.owner().peers(PeerFilter::kLostUnfenced).empty());
}

}  // namespace
}  // namespace fabric::test::drop_test
