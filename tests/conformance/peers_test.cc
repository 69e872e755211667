#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "conformance/conformance.h"
#include "support/log_guard.h"

// P15 to P17: peers come and go, others notice, hardware is mixed. Peers that stall or die without
// a goodbye are in peers_faults_test.cc.

namespace fabric::test {
// ---- P15 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P15ManyEnginesLiveInOneProcessAndOnOneHost) {
  constexpr uint32_t kEngines = 6;
  std::vector<std::unique_ptr<DuplexHost>> hosts;
  std::set<std::string> addresses;
  for (uint32_t i = 0; i < kEngines; ++i) {
    hosts.push_back(make_host(GetParam().caps.two_engines ? i % 3 : 0, config()));
    addresses.insert(hosts[i]->engine.address_text());
  }
  EXPECT_EQ(addresses.size(), kEngines);
  for (uint32_t i = 0; i < kEngines; ++i) {
    DuplexHost& from = *hosts[i];
    DuplexHost& to = *hosts[(i + 1) % kEngines];
    from.out.fill(100 + i);
    const RemoteHost there = connect(from, to);
    auto counter = *to.engine.make_counter();
    ASSERT_TRUE(from.engine.submit(Write{.source = from.out.at(0),
                                         .target = there.region.at(0),
                                         .size_bytes = 200'000,
                                         .imm = counter.key()}));
    ASSERT_TRUE(counter.wait(1, kLong)) << i;
    EXPECT_EQ(std::memcmp(from.out.bytes.data(), to.in.bytes.data(), 200'000), 0);
  }
  EXPECT_EQ(ea().peers().size(), 1u) << "another peer was affected";
}

TEST_P(Conformance, P15ARestartedPeerIsANewOneAndTheOldHandlesFail) {
  REQUIRE_CAP(two_engines);
  const auto old_desc = *b().in.region.desc();
  const auto old_address = eb().address();
  const auto old = *ea().peer_info(ab().peer);
  auto old_counter = std::make_optional(*eb().make_counter());
  const CounterKey old_key = old_counter->key();
  EventRecorder& completions = recorder();
  Write request = write(0, 100'000, old_key);
  request.notify = completions.notify();
  ASSERT_TRUE(ea().submit(request));
  ASSERT_TRUE(eb().close());
  ASSERT_TRUE(until([&] { return ea().peers().empty(); }));
  wait_completion(completions);
  EXPECT_EQ(ea().submit(write(0, 8)).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().import_region(ab().peer, old_desc).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().submit(Send{.peer = ab().peer}).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().disconnect(ab().peer).error().code, Errc::kPeerLost);

  const auto reborn = make_host(1, config());
  const RemoteHost there = connect(a(), *reborn);
  EXPECT_NE(there.peer, ab().peer);
  EXPECT_GT(ea().peer_info(there.peer)->incarnation, old.incarnation);
  EXPECT_FALSE(ea().import_region(there.peer, old_desc))
      << "the descriptor is of another incarnation";
  EXPECT_EQ(ea().submit(write(0, 8)).error().code, Errc::kPeerLost) << "the old handle";
  auto counter = *reborn->engine.make_counter();
  EXPECT_EQ(submit_and_wait(ea(), Write{.source = a().out.at(0),
                                        .target = there.region.at(0),
                                        .size_bytes = 50'000,
                                        .imm = old_key})
                .code,
            Errc::kOk);
  wait_idle();
  EXPECT_EQ(counter.count(), 0u) << "a counter key of another incarnation counted";
  EXPECT_EQ(reborn->engine.stats().stale_imms > 0, true);
  EXPECT_EQ(std::memcmp(reborn->in.bytes.data(), a().out.bytes.data(), 50'000), 0);
  // The old address leads nowhere, and does not affect the new incarnation.
  const auto stale_peer = ea().connect(old_address);
  ASSERT_TRUE(stale_peer);
  const Event event = submit_and_wait(ea(), Send{.peer = *stale_peer, .timeout = 2s});
  EXPECT_NE(event.code, Errc::kOk);
  EXPECT_EQ(ea().peer_info(there.peer)->state, PeerState::kConnected);
}

TEST_P(Conformance, P15ADisconnectedPeerComesBackWithoutARestart) {
  REQUIRE_CAP(two_engines);
  RemoteHost there = ab();
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    auto counter = *eb().make_counter();
    b().in.clear();
    ASSERT_TRUE(ea().submit(Write{.source = a().out.at(0),
                                  .target = there.region.at(0),
                                  .size_bytes = 70'000,
                                  .imm = counter.key()}));
    ASSERT_TRUE(counter.wait(1, kLong));
    EXPECT_TRUE(arrived(0, 70'000));
    const PeerId old = there.peer;
    // Either side may end it.
    if (round % 2 == 0) {
      ASSERT_TRUE(ea().disconnect(old));
    } else {
      ASSERT_TRUE(eb().disconnect(*eb().connect(ea().address())));
    }
    ASSERT_TRUE(until([&] { return ea().peers().empty() && eb().peers().empty(); }));
    there = connect(a(), b());
    EXPECT_NE(there.peer, old);
    EXPECT_EQ(ea().peer_info(old)->state, PeerState::kLost);
  }
}

TEST_P(Conformance, P15ConnectingIsIdempotentAndMayComeFromBothSidesAtOnce) {
  EXPECT_EQ(*ea().connect(eb().address()), ab().peer);
  EXPECT_EQ(*ea().connect(eb().address_text()), ab().peer);
  if (!GetParam().caps.two_engines) return;
  const PeerId there = *c().engine.connect(eb().address());
  const PeerId back = *eb().connect(c().engine.address());
  ASSERT_TRUE(until([&] {
    return c().engine.peer_info(there)->state == PeerState::kConnected &&
           eb().peer_info(back)->state == PeerState::kConnected;
  }));
  wait_idle();
  EXPECT_EQ(c().engine.peers(), std::vector<PeerId>{there});
  EXPECT_EQ(eb().peers().size(), 2u);
}

// ---- P16 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P16EachChangeOfAPeerIsOneEventOnEachSide) {
  REQUIRE_CAP(two_engines);
  EventRecorder& at_b = recorder();
  EventRecorder& at_c = recorder();
  const auto listen_b = *eb().subscribe(at_b.notify());
  const auto listen_c = *c().engine.subscribe(at_c.notify());
  const PeerId of_a = *eb().connect(ea().address());
  const PeerId there = *c().engine.connect(eb().address());
  ASSERT_TRUE(until([&] { return at_b.count(EventKind::kPeer) == 2; }));
  const PeerId back = at_b.events.back().peer;
  wait_idle();
  EXPECT_EQ(at_b.states(of_a), std::vector<PeerState>{PeerState::kConnected})
      << "a subscription must begin with the connected peers";
  EXPECT_EQ(at_b.states(back), std::vector<PeerState>{PeerState::kConnected});
  EXPECT_EQ(at_c.states(there),
            (std::vector<PeerState>{PeerState::kConnecting, PeerState::kConnected}));
  ASSERT_TRUE(c().engine.disconnect(there));
  wait_idle();
  EXPECT_EQ(at_b.states(back), (std::vector<PeerState>{PeerState::kConnected, PeerState::kLost}));
  EXPECT_EQ(at_c.states(there).back(), PeerState::kLost);
  EXPECT_EQ(at_c.count(), 3u);
  EXPECT_EQ(at_b.count(), 3u) << "an event about peer a was reported";
}

TEST_P(Conformance, P16AWaitThatNamesItsPeerEndsWhenThePeerDisconnects) {
  REQUIRE_CAP(two_engines);
  const PeerId of_a = *eb().connect(ea().address());
  const RemoteHost cb = connect(c(), b());
  const PeerId of_c = *eb().connect(c().engine.address());
  auto bound = *eb().make_counter();
  auto free = *eb().make_counter();
  auto member = *eb().make_counter();
  auto group = *eb().make_counter_group();
  ASSERT_TRUE(bound.bind(of_a));
  ASSERT_TRUE(bound.bind(of_c));
  ASSERT_TRUE(group.add(member, of_a));
  EventRecorder& completions = recorder();
  ASSERT_TRUE(bound.expect(1, completions.notify(1), 100s));
  ASSERT_TRUE(free.expect(1, completions.notify(2), 100s));
  ASSERT_TRUE(group.expect(1, completions.notify(3), 100s));
  wait_idle();
  EXPECT_EQ(completions.count(), 0u);
  const Nanos start = eb().now();
  ASSERT_TRUE(ea().disconnect(ab().peer));
  for (const uint64_t tag : {1, 3}) {
    const Event event = wait_completion(completions, tag);
    EXPECT_EQ(event.code, Errc::kPeerLost);
    EXPECT_EQ(event.peer, of_a) << "the event must name the peer";
  }
  EXPECT_LE(eb().now() - start, 1s);
  wait_idle();
  EXPECT_EQ(completions.count(2), 0u) << "a wait that did not name the peer goes on";
  EXPECT_EQ(bound.expect(1, completions.notify(4)).error().code, Errc::kPeerLost);
  EXPECT_EQ(bound.wait(1, 1ms).error().code, Errc::kPeerLost);
  EXPECT_EQ(free.bind(of_a).error().code, Errc::kPeerLost);
  EXPECT_EQ(wait_completion(completions, 2).code, Errc::kPeerLost)
      << "bound after the loss: the wait must end at once";
  EXPECT_EQ(cb.peer, *c().engine.connect(eb().address()));
}

TEST_P(Conformance, P16WhatIsInFlightToAPeerThatDisconnectsEndsWithIt) {
  REQUIRE_CAP(two_engines);
  const uint64_t name = 3;
  CounterKey key;
  EventRecorder& completions = recorder();
  const auto listener = *eb().listen(1, recorder().notify());
  for (int i = 0; i < 40; ++i) {
    Write request = write(0, 10'000);
    request.notify = completions.notify();
    ASSERT_TRUE(ea().submit(request));
    ASSERT_TRUE(ea().submit(Send{.peer = ab().peer, .channel = 1, .notify = completions.notify()}));
  }
  ASSERT_TRUE(ea().submit(Resolve{
      .peer = ab().peer, .names = {&name, 1}, .out = {&key, 1}, .notify = completions.notify()}));
  const Nanos start = ea().now();
  ASSERT_TRUE(eb().close());
  ASSERT_TRUE(until([&] { return completions.count() == 81; }));
  EXPECT_LE(ea().now() - start, config().default_timeout)
      << "the operations waited for their deadlines";
  uint32_t lost = 0;
  for (const Event& event : completions.events) {
    lost += event.code == Errc::kPeerLost;
    // A region that is closed with its engine is no access error.
    EXPECT_TRUE(event.code == Errc::kOk || event.code == Errc::kPeerLost) << to_string(event.code);
  }
  EXPECT_GT(lost, 0u);
  wait_idle();
  EXPECT_EQ(completions.count(), 81u);
  EXPECT_EQ(ea().stats().ops_in_flight, 0u);
}

// ---- P17 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P17EverySideUsesAllItsRailsWhateverTheOtherHas) {
  REQUIRE_CAP(two_engines);
  const auto here = *ea().peer_info(ab().peer);
  const PeerId of_a = *eb().connect(ea().address());
  const auto there = *eb().peer_info(of_a);
  EXPECT_EQ(here.rails_here, there.rails_there);
  EXPECT_EQ(here.rails_there, there.rails_here);
  EXPECT_EQ(here.engine_id, ea().peer_info(*ea().connect(eb().address()))->engine_id);
  auto counter = *eb().make_counter();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ea().submit(write(0, 300'000, counter.key())));
  ASSERT_TRUE(counter.wait(4, kLong));
  wait_idle();
  EXPECT_TRUE(arrived(0, 300'000));
  const uint32_t work_requests = 4 * here.rails_here;
  uint64_t sent = 0, taken = 0, rails_used = 0, rails_hit = 0;
  for (const auto& rail : ea().rail_stats()) {
    sent += rail.tx.imms;
    rails_used += rail.tx.bytes > 0;
  }
  for (const auto& rail : eb().rail_stats()) {
    taken += rail.rx.imms;
    rails_hit += rail.rx.imms > 0;
  }
  EXPECT_EQ(rails_used, here.rails_here);
  EXPECT_EQ(rails_hit, std::min(here.rails_here, here.rails_there)) << "rails pair by index";
  EXPECT_EQ(sent, work_requests);
  EXPECT_EQ(taken, work_requests);
  EXPECT_EQ(counter.count(), 0u);
  // And the other way round.
  const RemoteHost ba = connect(b(), a());
  b().out.fill(8);
  auto back = *ea().make_counter();
  ASSERT_TRUE(eb().submit(Write{.source = b().out.at(0),
                                .target = ba.region.at(0),
                                .size_bytes = 300'000,
                                .imm = back.key()}));
  ASSERT_TRUE(back.wait(1, kLong));
  EXPECT_EQ(std::memcmp(b().out.bytes.data(), a().in.bytes.data(), 300'000), 0);
}

TEST_P(Conformance, P17TheRouteIsChosenInOrderAndReportsWhy) {
  REQUIRE_CAP(two_engines);
  REQUIRE_CAP(second_network);
  reopen(usual_config(), {.second_network = true});
  const auto route_to = [&](Engine& engine, PeerId peer) {
    const auto info = engine.peer_info(peer);
    EXPECT_EQ(info->routes.size(), 1u) << "only host memory is registered";
    return info->routes.at(0);
  };
  const auto usual = route_to(ea(), ab().peer);
  EXPECT_NE(usual.network, "second") << "the first configured network reaches it";
  EXPECT_EQ(usual.why, "");
  const auto sent_on = [&](Engine& engine, bool second) {
    uint64_t bytes = 0;
    for (const auto& rail : engine.rail_stats()) {
      if ((rail.network == "second") == second) bytes += rail.tx.bytes;
    }
    return bytes;
  };
  EXPECT_EQ(submit_and_wait(ea(), write(0, 500'000)).code, Errc::kOk);
  EXPECT_EQ(sent_on(ea(), false), 500'000u);
  EXPECT_EQ(sent_on(ea(), true), 0u) << "one write never mixes networks";
  // By the caller's wish, for this peer only.
  const PeerId by_second = *c().engine.connect(eb().address(), {.networks = {"second"}});
  ASSERT_TRUE(
      until([&] { return c().engine.peer_info(by_second)->state == PeerState::kConnected; }));
  const auto chosen = route_to(c().engine, by_second);
  EXPECT_EQ(chosen.network, "second");
  EXPECT_NE(chosen.why.find(usual.network), std::string::npos)
      << "why not the first: " << chosen.why;
  const auto region = *c().engine.import_region(by_second, *b().in.region.desc());
  c().out.fill(4);
  EXPECT_EQ(
      submit_and_wait(c().engine,
                      Write{.source = c().out.at(0), .target = region.at(0), .size_bytes = 500'000})
          .code,
      Errc::kOk);
  EXPECT_EQ(sent_on(c().engine, true), 500'000u);
  EXPECT_EQ(sent_on(c().engine, false), 0u);
  wait_idle();
  EXPECT_EQ(std::memcmp(c().out.bytes.data(), b().in.bytes.data(), 500'000), 0);
  EXPECT_EQ(c().engine.connect(ea().address(), {.networks = {"third"}}).error().code,
            Errc::kUnsupported);
  // A scatter reaches each target by its own route.
  const PeerId c_to_a = *c().engine.connect(ea().address());
  const auto at_a = *c().engine.import_region(c_to_a, *a().in.region.desc());
  const std::array<ScatterTarget, 2> targets{ScatterTarget{region.at(0), 0, 1000, {}},
                                             ScatterTarget{at_a.at(0), 0, 1000, {}}};
  EXPECT_EQ(
      submit_and_wait(c().engine, Scatter{.source = c().out.region.id(), .targets = targets}).code,
      Errc::kOk);
  EXPECT_EQ(sent_on(c().engine, true), 501'000u);
  EXPECT_EQ(sent_on(c().engine, false), 1000u);
}

TEST_P(Conformance, P17AnEnginesOwnAddressIsServedByACopy) {
  const PeerId self = *ea().connect(ea().address());
  const auto info = *ea().peer_info(self);
  EXPECT_EQ(info.state, PeerState::kConnected);
  EXPECT_EQ(info.routes.at(0).network, "self");
  const auto region = *ea().import_region(self, *a().in.region.desc());
  auto counter = *ea().make_counter();
  a().in.clear();
  ASSERT_TRUE(ea().submit(Write{.source = a().out.at(0),
                                .target = region.at(0),
                                .size_bytes = kBytes,
                                .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1, kLong));
  EXPECT_EQ(a().in.bytes, a().out.bytes);
  for (const auto& rail : ea().rail_stats()) {
    EXPECT_EQ(rail.network == "self" ? 0u : rail.tx.bytes, 0u);
  }
}

}  // namespace fabric::test
