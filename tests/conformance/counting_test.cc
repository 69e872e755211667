#include <algorithm>
#include <array>
#include <cstring>

#include "conformance/conformance.h"

// P6 to P8: what a count proves, and that there is exactly one per write.

namespace fabric::test::counting_test {
namespace {

/// The sizes around which a write is split, sliced or packed differently.
std::vector<uint64_t> sizes_around_cuts(uint64_t stripe) {
  std::vector<uint64_t> sizes{0, 1, 2, 255, 256, 257};
  for (uint64_t n = 1; n <= kRailsMax + 1; ++n) {
    for (const uint64_t around : {n * stripe - 1, n * stripe, n * stripe + 1}) {
      sizes.push_back(around);
    }
  }
  for (const uint64_t large : {65'535, 65'536, 65'537, 300'001}) sizes.push_back(large);
  return sizes;
}

}  // namespace

// ---- P6 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P06EveryByteIsThereAtTheInstantTheCountIsMet) {
  for (const uint64_t size : sizes_around_cuts(kStripe)) {
    for (const Priority priority : {Priority::kNormal, Priority::kBulk}) {
      SCOPED_TRACE(std::to_string(size) + " bytes, " + to_string(priority));
      auto counter = *eb().make_counter();
      b().in.clear();
      EventRecorder& met = recorder();
      bool there = false;
      met.then = [&](const Event&) { there = arrived(100, size); };
      ASSERT_TRUE(counter.expect(1, met.notify()));
      Write request = write(100, size, counter.key());
      request.priority = priority;
      ASSERT_TRUE(ea().submit(request));
      const Event event = wait_completion(met);
      EXPECT_EQ(event.code, Errc::kOk);
      EXPECT_EQ(event.value, 1u);
      EXPECT_TRUE(there) << "the count came before its bytes";
      EXPECT_TRUE(untouched(0, 100));
      EXPECT_TRUE(untouched(100 + size, 1000)) << "bytes after the write were changed";
      met.then = {};
    }
  }
}

// Larger than what any layer takes at once: slices, packets, the budget of a copy.
TEST_P(Conformance, P06ALargeWriteIsWholeWhenItCounts) {
  constexpr uint64_t kLarge = 5 * kBytes + 1;
  auto source = make_memory(ea(), kLarge);
  auto target = make_memory(eb(), kLarge);
  source.fill(11);
  const auto region = *ea().import_region(ab().peer, *target.region.desc());
  for (const Priority priority : {Priority::kNormal, Priority::kUrgent, Priority::kBulk}) {
    for (const bool unsplit : {false, true}) {
      SCOPED_TRACE(std::string(to_string(priority)) + (unsplit ? ", unsplit" : ""));
      target.clear();
      auto counter = *eb().make_counter();
      EventRecorder& met = recorder();
      bool there = false;
      met.then = [&](const Event&) { there = target.bytes == source.bytes; };
      ASSERT_TRUE(counter.expect(1, met.notify()));
      ASSERT_TRUE(ea().submit(Write{.source = source.at(0),
                                    .target = region.at(0),
                                    .size_bytes = kLarge,
                                    .imm = counter.key(),
                                    .priority = priority,
                                    .unsplit = unsplit}));
      EXPECT_EQ(wait_completion(met).code, Errc::kOk);
      EXPECT_TRUE(there);
      wait_idle();
      EXPECT_EQ(counter.count(), 0u);
      met.then = {};
    }
  }
}

// Bulk writes go in slices where the last one covers the others; where writes overtake each other
// it does not, and the one byte at the end would come first.
TEST_P(Conformance, P06TheLastSliceOfABulkWriteProvesTheOthers) {
  constexpr uint32_t kWrites = 40;
  constexpr uint64_t kSize = 16'385, kStep = 20'000;
  Config sliced = usual_config();
  sliced.bulk_slice_bytes = 16'384;
  reopen(sliced);
  std::vector<Counter> counters;
  EventRecorder& met = recorder();
  uint32_t early = 0;
  met.then = [&](const Event& e) { early += !arrived(e.tag * kStep, kSize); };
  for (uint32_t i = 0; i < kWrites; ++i) {
    counters.push_back(*eb().make_counter());
    ASSERT_TRUE(counters[i].expect(1, met.notify(i)));
    Write request = write(i * kStep, kSize, counters[i].key());
    request.priority = Priority::kBulk;
    request.unsplit = i % 2 == 0;
    ASSERT_TRUE(ea().submit(request));
  }
  ASSERT_TRUE(until([&] { return met.count() == kWrites; }));
  EXPECT_EQ(early, 0u);
}

TEST_P(Conformance, P06TheGaugeNeverRunsAheadOfALoneWrite) {
  REQUIRE_CAP(every_step);
  auto counter = *eb().make_counter();
  uint64_t size = 0, taken = 0, steps_before = 0;
  bool early = false;
  auto hook = on_each_step([&] {
    const bool counted = counter.count() > taken;
    if (size > 0 && !counted) ++steps_before;
    if (counted && !arrived(0, size)) early = true;
  });
  for (const uint64_t next : sizes_around_cuts(kStripe)) {
    b().in.clear();
    size = next;
    ASSERT_TRUE(ea().submit(write(0, size, counter.key())));
    ASSERT_TRUE(until([&] { return counter.count() == taken + 1; }));
    EXPECT_FALSE(early) << size;
    ++taken;
  }
  EXPECT_GT(steps_before, 0u) << "the check never ran";
  hook.end();
  wait_idle();
  EXPECT_EQ(counter.count(), taken);
}

// A closed batch: n issued, n expected, from several senders, by every kind of wait.
TEST_P(Conformance, P06AClosedBatchIsCompleteHoweverItsEndIsReported) {
  constexpr uint32_t kWrites = 24;
  constexpr uint64_t kSize = 20'011;
  auto inbox = *eb().make_inbox(4);
  auto flag = *eb().make_flag();
  EventRecorder& calls = recorder();
  const auto nothing = [](Counter&) { return true; };
  const auto arm = [](Notify notify) {
    return [=](Counter& counter) { return counter.expect(kWrites, notify).has_value(); };
  };
  using CounterAction = std::function<bool(Counter&)>;
  const std::array<std::pair<CounterAction, CounterAction>, 5> ways{{
      {arm(calls.notify()), [&](Counter&) { return wait_completion(calls).code == Errc::kOk; }},
      {arm(Notify::inbox(inbox)), [&](Counter&) { return inbox.wait(kLong).has_value(); }},
      {arm(Notify::flag(flag)), [&](Counter&) { return until([&] { return flag.load() == 1; }); }},
      {nothing, [&](Counter& counter) { return counter.wait(kWrites, kLong).has_value(); }},
      {nothing, [&](Counter& counter) { return until([&] { return counter.try_take(kWrites); }); }},
  }};
  for (size_t i = 0; i < ways.size(); ++i) {
    SCOPED_TRACE(i);
    auto counter = *eb().make_counter();
    b().in.clear();
    ASSERT_TRUE(ways[i].first(counter));
    for (uint32_t w = 0; w < kWrites; ++w) {
      ASSERT_TRUE(ea().submit(write(w * kSize, kSize, counter.key())));
    }
    ASSERT_TRUE(ways[i].second(counter));
    EXPECT_TRUE(arrived(0, kWrites * kSize));
    wait_idle();
    EXPECT_EQ(counter.count(), 0u) << "taken";
    EXPECT_FALSE(counter.try_take(1));
  }
}

TEST_P(Conformance, P06CountsOfSeveralSendersMeetInOneCounter) {
  REQUIRE_CAP(two_engines);
  const RemoteHost cb = connect(c(), b());
  c().out.fill(99);
  auto counter = *eb().make_counter();
  constexpr uint32_t kWrites = 20;
  constexpr uint64_t kSize = 10'007;
  constexpr uint64_t kHalf = kBytes / 2;
  for (uint32_t i = 0; i < kWrites; ++i) {
    ASSERT_TRUE(ea().submit(write(i * kSize, kSize, counter.key())));
    ASSERT_TRUE(c().engine.submit(Write{.source = c().out.at(i * kSize),
                                        .target = cb.region.at(kHalf + i * kSize),
                                        .size_bytes = kSize,
                                        .imm = counter.key()}));
  }
  ASSERT_TRUE(counter.wait(2 * kWrites, kLong));
  EXPECT_TRUE(arrived(0, kWrites * kSize));
  EXPECT_EQ(std::memcmp(c().out.bytes.data(), b().in.bytes.data() + kHalf, kWrites * kSize), 0);
}

TEST_P(Conformance, P06AnExpectationTakesWhatItWaitedForAndNoMore) {
  auto counter = *eb().make_counter();
  EventRecorder& met = recorder();
  ASSERT_TRUE(counter.expect(3, met.notify(1)));
  EXPECT_EQ(counter.expect(1, met.notify(2)).error().code, Errc::kBusy)
      << "only one expectation may be armed";
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ea().submit(write(0, 64, counter.key())));
  wait_idle();
  EXPECT_EQ(met.count(), 0u) << "met by two counts of three";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ea().submit(write(0, 64, counter.key())));
  wait_completion(met, 1);
  wait_idle();
  EXPECT_EQ(counter.count(), 2u);
  ASSERT_TRUE(counter.expect(2, met.notify(3))) << "met at once";
  EXPECT_EQ(wait_completion(met, 3).code, Errc::kOk);
  EXPECT_EQ(counter.count(), 0u);
  // One that gives up gives back what it had.
  const auto op = counter.expect(2, met.notify(4));
  ASSERT_TRUE(ea().submit(write(0, 64, counter.key())));
  wait_idle();
  ASSERT_TRUE(eb().cancel(*op));
  EXPECT_EQ(wait_completion(met, 4).code, Errc::kCancelled);
  EXPECT_EQ(counter.count(), 1u);
}

// Reaching a count permits reading. It permits overwriting where the network says so.
TEST_P(Conformance, P06PeerAndRailsSayWhetherACountIsFinal) {
  const bool final = GetParam().caps.final_counts;
  EXPECT_EQ(ea().peer_info(ab().peer)->count_is_final, final);
  const std::string network = ea().peer_info(ab().peer)->routes.at(0).network;
  for (const RailStats& rail : ea().rail_stats()) {
    if (rail.network != network) continue;
    EXPECT_EQ(rail.caps.count_is_final, final) << rail.device;
  }
}

// The owner overwrites the target in the callback of the count, as a decoder appends to the last
// page. Duplicates of the counted bytes may still be on their way.
TEST_P(Conformance, P06BytesLandAfterTheirCountOnlyWhereItIsNotFinal) {
  REQUIRE_CAP(duplicates);
  faults().duplicate(kA, kB, FaultInjector::Phase::kBegin);
  const bool final = ea().peer_info(ab().peer)->count_is_final;
  uint32_t landed_again = 0;
  for (const uint64_t size : {uint64_t{1}, uint64_t{4096}, uint64_t{40'000}, uint64_t{300'001}}) {
    for (uint32_t round = 0; round < 8; ++round) {
      auto counter = *eb().make_counter();
      b().in.clear();
      EventRecorder& met = recorder();
      EventRecorder& completed = recorder();
      bool whole = false;
      met.then = [&](const Event&) {
        whole = arrived(0, size);
        b().in.clear();  // the owner's own bytes: zeros
      };
      // From here on nothing of it can land: the owner may be told that the sender is quiet.
      completed.then = [&](const Event&) {
        landed_again += met.count() == 1 && !untouched(0, size);
        b().in.clear();
      };
      ASSERT_TRUE(counter.expect(1, met.notify()));
      Write request = write(0, size, counter.key());
      request.notify = completed.notify();
      ASSERT_TRUE(ea().submit(request));
      ASSERT_TRUE(until([&] { return met.count() == 1 && completed.count() == 1; }));
      EXPECT_EQ(completed.events[0].remote, Remote::kDelivered);
      EXPECT_TRUE(whole) << "reading at the count is always right";
      run_for(1ms);
      EXPECT_TRUE(untouched(0, size)) << "a byte landed after the sender's completion";
      EXPECT_EQ(counter.count(), 0u) << "a duplicate was counted";
      met.then = completed.then = {};
    }
  }
  faults().duplicate(kA, kB, FaultInjector::Phase::kEnd);
  if (final) {
    EXPECT_EQ(landed_again, 0u);
  } else {
    EXPECT_GT(landed_again, 0u) << "this network could say that its counts are final";
  }
}

// ---- P7 -----------------------------------------------------------------------------------------

// Each write has a counter key of its own, so that whatever order the counts come in is fine; where
// the network reorders, it is seen to happen.
TEST_P(Conformance, P07EachWriteProvesItselfInWhateverOrder) {
  constexpr uint32_t kWrites = 60;
  std::vector<Counter> counters;
  EventRecorder& met = recorder();
  std::vector<uint64_t> order;
  uint32_t wrong = 0;
  const auto size = [](uint64_t i) { return i % 2 == 0 ? 16'000u : 64u; };
  met.then = [&](const Event& e) {
    order.push_back(e.tag);
    wrong += !arrived(e.tag * 16'384, size(e.tag));
  };
  for (uint32_t i = 0; i < kWrites; ++i) {
    counters.push_back(*eb().make_counter());
    ASSERT_TRUE(counters[i].expect(1, met.notify(i)));
  }
  std::vector<Write> requests;
  for (uint32_t i = 0; i < kWrites; ++i) {
    requests.push_back(write(i * 16'384, size(i), counters[i].key()));
  }
  const auto taken = ea().submit(requests);
  ASSERT_TRUE(taken);
  ASSERT_EQ(*taken, kWrites);
  ASSERT_TRUE(until([&] { return order.size() == kWrites; }));
  EXPECT_EQ(wrong, 0u);
  if (GetParam().caps.overtaking) {
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()))
        << "no write overtook another: the test shows nothing";
  }
  wait_idle();
  EXPECT_EQ(order.size(), kWrites);
}

TEST_P(Conformance, P07MessagesOfAChannelArriveInTheOrderSent) {
  if (GetParam().caps.lossy_control) {
    reopen(usual_config(), {.drop_control = 0.1, .duplicate_control = 0.1, .reorder_control = 0.5});
  }
  EventRecorder& received = recorder();
  EventRecorder& completions = recorder();
  std::array<std::vector<uint64_t>, 2> got;
  received.then = [&](const Event& event) {
    uint64_t number = 0;
    std::memcpy(&number, received.messages.back().data(), sizeof number);
    got[event.value - 1].push_back(number);
  };
  const auto one = *eb().listen(1, received.notify());
  const auto two = *eb().listen(2, received.notify());
  constexpr uint64_t kMessages = 200;
  uint64_t cancelled = 0;
  for (uint64_t i = 0; i < kMessages; ++i) {
    std::vector<std::byte> bytes(sizeof i + (i % 10 == 0 ? 5000 : 0));
    std::memcpy(bytes.data(), &i, sizeof i);
    const auto op = ea().submit(Send{.peer = ab().peer,
                                     .channel = static_cast<uint16_t>(1 + i % 2),
                                     .bytes = bytes,
                                     .notify = completions.notify(i)});
    ASSERT_TRUE(op) << i;
    if (i % 9 == 4) cancelled += ea().cancel(*op).has_value();
    if (i % 30 == 0) run_for(50us);
  }
  ASSERT_TRUE(until([&] { return completions.count() == kMessages; }));
  wait_idle();
  EXPECT_GT(cancelled, 0u);
  for (const auto& numbers : got) {
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  }
  const uint64_t arrived = got[0].size() + got[1].size();
  EXPECT_GE(arrived, completions.count(Errc::kOk));
  EXPECT_GE(arrived + cancelled, kMessages) << "only what was cancelled may be missing";
}

// ---- P8 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P08OneWriteCountsOnceHoweverItIsCut) {
  auto counter = *eb().make_counter();
  uint64_t issued = 0;
  for (const uint64_t size : sizes_around_cuts(kStripe)) {
    for (const bool unsplit : {false, true}) {
      for (const Priority priority : {Priority::kNormal, Priority::kUrgent, Priority::kBulk}) {
        Write request = write(0, size, counter.key());
        request.unsplit = unsplit;
        request.priority = priority;
        ASSERT_TRUE(ea().submit(request));
        ++issued;
      }
    }
    ASSERT_TRUE(until([&] { return counter.count() >= issued; })) << size;
    wait_idle();
    ASSERT_EQ(counter.count(), issued) << size;
  }
  EXPECT_EQ(eb().stats().stale_imms, 0u);
}

TEST_P(Conformance, P08PagesTargetsAndSignalsCountOneEach) {
  auto counter = *eb().make_counter();
  constexpr uint64_t kPage = 1000;
  // Page i of the source to page 2i + 1 of the target, not in order.
  std::vector<uint32_t> from, to;
  for (uint32_t i = 0; i < 37; ++i) {
    from.push_back(i * 11 % 37);
    to.push_back(2 * from.back() + 1);
  }
  const Event paged = submit_and_wait(
      ea(), PagedWrite{.source = a().out.region.id(),
                       .source_pages = {.indices = from, .stride_bytes = kPage, .offset_bytes = 3},
                       .target = ab().region,
                       .target_pages = {.indices = to, .stride_bytes = 1100, .offset_bytes = 7},
                       .page_bytes = kPage,
                       .imm = counter.key()});
  EXPECT_EQ(paged.code, Errc::kOk);
  EXPECT_EQ(paged.value, 37 * kPage);
  ASSERT_TRUE(counter.wait(37, kLong));
  for (uint32_t i = 0; i < 37; ++i) {
    EXPECT_EQ(std::memcmp(a().out.bytes.data() + 3 + i * kPage,
                          b().in.bytes.data() + 7 + (2 * i + 1) * 1100, kPage),
              0)
        << i;
    EXPECT_TRUE(untouched(7 + 2 * i * 1100, 1100)) << "bytes between the pages were changed";
  }
  b().in.clear();
  std::vector<ScatterTarget> targets;
  for (uint32_t i = 0; i < 19; ++i) {
    targets.push_back({ab().region.at(i * 2000), (18 - i) * 1500, i * 77, counter.key()});
  }
  EXPECT_EQ(submit_and_wait(ea(), Scatter{.source = a().out.region.id(), .targets = targets}).code,
            Errc::kOk);
  ASSERT_TRUE(counter.wait(19, kLong));
  for (uint32_t i = 0; i < 19; ++i) {
    EXPECT_EQ(
        std::memcmp(a().out.bytes.data() + (18 - i) * 1500, b().in.bytes.data() + i * 2000, i * 77),
        0)
        << i;
    EXPECT_TRUE(untouched(i * 2000 + i * 77, 2000 - i * 77)) << i;
  }
  const auto group = *ea().make_group({&ab().peer, 1});
  const CounterKey key = counter.key();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(submit_and_wait(ea(), Signal{.group = group, .keys = {&key, 1}}).code, Errc::kOk);
  }
  ASSERT_TRUE(counter.wait(5, kLong));
  wait_idle();
  EXPECT_EQ(counter.count(), 0u);
}

TEST_P(Conformance, P08ASignalCountsOnceAtEveryPeerOfItsGroup) {
  REQUIRE_CAP(two_engines);
  const RemoteHost ac = connect(a(), c());
  auto at_b = *eb().make_counter();
  auto at_c = *c().engine.make_counter();
  const std::array<PeerId, 2> peers{ab().peer, ac.peer};
  const auto group = *ea().make_group(peers);
  const std::array<CounterKey, 2> keys{at_b.key(), at_c.key()};
  for (uint64_t i = 1; i <= 10; ++i) {
    EXPECT_EQ(submit_and_wait(ea(), Signal{.group = group, .keys = keys}).code, Errc::kOk);
    ASSERT_TRUE(until([&] { return at_b.count() >= i && at_c.count() >= i; }));
  }
  // The group saves look-ups for scatters; target i must be a region of member i.
  std::array<ScatterTarget, 2> targets{ScatterTarget{ab().region.at(0), 0, 500, at_b.key()},
                                       ScatterTarget{ac.region.at(0), 500, 500, at_c.key()}};
  const RegionId source = a().out.region.id();
  EXPECT_EQ(
      submit_and_wait(ea(), Scatter{.source = source, .targets = targets, .group = group}).code,
      Errc::kOk);
  std::swap(targets[0], targets[1]);
  EXPECT_EQ(ea().submit(Scatter{.source = source, .targets = targets, .group = group}).error().code,
            Errc::kInvalidArgument);
  wait_idle();
  EXPECT_EQ(at_b.count(), 11u);
  EXPECT_EQ(at_c.count(), 11u);
}

// Sampled in every step: no count without a write that has begun to land, and what was whole a
// moment ago is counted. Unsplit writes are exact: no count without a write that is whole.
TEST_P(Conformance, P08AtEveryInstantTheCountLiesBetweenWholeAndBegun) {
  REQUIRE_CAP(every_step);
  constexpr uint64_t kSize = 40'000;
  constexpr uint32_t kWrites = 24;
  constexpr Nanos kMoment = 200us;  // longer than an engine takes to notice an arrival
  for (const bool unsplit : {false, true}) {
    SCOPED_TRACE(unsplit);
    b().in.clear();
    auto counter = *eb().make_counter();
    uint64_t samples = 0, above_begun = 0, above_whole = 0, below_whole = 0, partial = 0;
    std::vector<std::pair<Nanos, uint64_t>> wholes;
    auto hook = on_each_step([&] {
      const uint64_t count = counter.count();
      uint64_t begun = 0, complete = 0;
      for (uint32_t i = 0; i < kWrites; ++i) {
        begun += !untouched(i * kSize, kSize);
        complete += arrived(i * kSize, kSize);
      }
      ++samples;
      partial += begun > complete;
      above_begun += count > begun;
      above_whole += count > complete;
      wholes.emplace_back(eb().now(), complete);
      const auto old = std::find_if(wholes.rbegin(), wholes.rend(), [&](const auto& sample) {
        return sample.first + kMoment < eb().now();
      });
      below_whole += old != wholes.rend() && count < old->second;
    });
    for (uint32_t i = 0; i < kWrites; ++i) {
      Write request = write(i * kSize, kSize, counter.key());
      request.unsplit = unsplit;
      ASSERT_TRUE(ea().submit(request));
    }
    ASSERT_TRUE(until([&] { return counter.count() == kWrites; }));
    run_for(2 * kMoment);
    hook.end();
    EXPECT_EQ(counter.count(), kWrites) << "count and writes differ with nothing in flight";
    EXPECT_EQ(above_begun, 0u);
    EXPECT_EQ(below_whole, 0u);
    EXPECT_EQ(unsplit ? above_whole : 0u, 0u)
        << "an unsplit write counts only when all of it has landed";
    EXPECT_GT(samples, 3u);
    EXPECT_GT(partial, 0u) << "no write was ever seen half landed: the test shows nothing";
  }
}

TEST_P(Conformance, P08AGroupOfCountersNamesWhoIsMissing) {
  REQUIRE_CAP(two_engines);
  const RemoteHost cb = connect(c(), b());
  const PeerId from_a = *eb().connect(ea().address());
  const PeerId from_c = *eb().connect(c().engine.address());
  auto of_a = *eb().make_counter();
  auto of_c = *eb().make_counter();
  auto group = *eb().make_counter_group();
  ASSERT_TRUE(group.add(of_a, from_a, 2));
  ASSERT_TRUE(group.add(of_c, from_c));
  EXPECT_EQ(of_a.wait(1, 1ms).error().code, Errc::kBusy) << "a member waits with its group";
  EXPECT_EQ(group.add(of_a, from_a).error().code, Errc::kBusy);
  EventRecorder& met = recorder();
  for (uint64_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    ASSERT_TRUE(group.expect(3, met.notify(step)));
    EXPECT_EQ(group.missing(), (std::vector<PeerId>{from_a, from_c}));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(ea().submit(write(0, 30'000, of_a.key())));
    wait_idle();
    EXPECT_EQ(group.missing(), std::vector<PeerId>{from_c});
    EXPECT_EQ(met.count(step), 0u);
    ASSERT_TRUE(c().engine.submit(Write{.source = c().out.at(0),
                                        .target = cb.region.at(0),
                                        .size_bytes = 30'000,
                                        .imm = of_c.key()}));
    EXPECT_EQ(wait_completion(met, step).code, Errc::kOk);
    EXPECT_EQ(group.count(), 0u);
  }
  // Without the lost peer: its missing counts are added.
  ASSERT_TRUE(group.expect(3, met.notify(9)));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ea().submit(write(0, 10, of_a.key())));
  wait_idle();
  EXPECT_EQ(met.count(9), 0u);
  ASSERT_TRUE(group.mask(from_c));
  EXPECT_EQ(wait_completion(met, 9).code, Errc::kOk);
}

}  // namespace fabric::test::counting_test
