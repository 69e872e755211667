#include <algorithm>
#include <array>
#include <cstring>

#include "conformance/conformance.h"
#include "conformance/kinds.h"

// P1 to P5: operations complete once, in time, and report their fate. What only a fault can show
// (a NIC that dies under a posted write, a peer that stops in the middle) is in
// completion_faults_test.cc.

namespace fabric::test::completion_test {
namespace {

/// A sweep of the time between a submit and what happens to it: from before the first turn (the
/// negative one) to after the end, on every network.
constexpr std::array<Nanos, 15> kDelays{-1ns, 0ns,  100ns, 1us,  2us,  4us,   6us, 8us,
                                        10us, 13us, 16us,  20us, 30us, 100us, 1ms};

}  // namespace

// ---- P1 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P01EveryKindEndsOnceByCallbackInboxFlagAndBatch) {
  Kinds kinds(a(), b(), ab());
  EventRecorder& calls = recorder();
  auto inbox = *ea().make_inbox(64);
  uint64_t tag = 0, rounds = 0;
  std::vector<Event> polled(64);
  for (const auto& kind : kinds.all()) {
    SCOPED_TRACE(kind.name);
    auto flag = *ea().make_flag();
    auto batch = *ea().make_batch();
    ++tag;
    const auto by_call = kind.submit(calls.notify(tag), {});
    const auto by_inbox = kind.submit(Notify::inbox(inbox, tag), {});
    const auto by_flag = kind.submit(Notify::flag(flag, 9), {});
    const auto by_batch = kind.submit({}, batch);
    ASSERT_TRUE(by_call && by_inbox && by_flag && by_batch);
    EXPECT_EQ(batch.pending(), 1u);
    ASSERT_TRUE(ea().wait(batch));
    wait_completion(calls, tag);
    ASSERT_TRUE(until([&] { return flag.load() == 9; }));
    ASSERT_TRUE(inbox.wait(kLong));
    wait_idle();
    rounds += 4;

    ASSERT_EQ(calls.count(tag), 1u);
    const Event& event = *calls.find(tag);
    EXPECT_EQ(event.kind, EventKind::kDone);
    EXPECT_EQ(event.code, Errc::kOk);
    EXPECT_EQ(event.remote, Remote::kDelivered);
    EXPECT_EQ(event.op, *by_call);
    EXPECT_EQ(event.value, kind.value);
    EXPECT_EQ(event.parts_failed, 0u);
    ASSERT_EQ(inbox.poll(polled), 1u);
    EXPECT_EQ(polled[0].op, *by_inbox);
    EXPECT_EQ(polled[0].tag, tag);
    EXPECT_EQ(polled[0].code, Errc::kOk);
    EXPECT_EQ(batch.pending(), 0u);
    EXPECT_EQ(batch.delivered(), kind.parts);
    EXPECT_EQ(batch.failed() + batch.unknown(), 0u);
  }
  EXPECT_EQ(calls.count(), kinds.all().size());
  EXPECT_EQ(ea().stats().ops_in_flight, 0u);
  EXPECT_EQ(kinds.counter().count(), 4 * Kinds::kCounts);
  EXPECT_EQ(kinds.messages(), 4u);
  EXPECT_TRUE(kinds.resolved());
  EXPECT_EQ(rounds, 36u);
}

TEST_P(Conformance, P01ABatchAndANotifyBothGetTheSameCompletionOnce) {
  EventRecorder& completions = recorder();
  EventRecorder& sealed = recorder();
  auto batch = *eb().make_batch();  // of the wrong engine where there are two
  Write request = write(0, 5000);
  request.notify = completions.notify(1);
  if (GetParam().caps.two_engines) {
    request.batch = batch;
    EXPECT_EQ(ea().submit(request).error().code, Errc::kNotFound);
  }
  auto own = *ea().make_batch();
  request.batch = own;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(ea().submit(request));
  ASSERT_TRUE(own.seal(sealed.notify(2)));
  EXPECT_EQ(ea().submit(request).error().code, Errc::kCancelled) << "sealed";
  wait_completion(sealed, 2);
  wait_idle();
  EXPECT_EQ(completions.count(1), 5u);
  EXPECT_EQ(sealed.count(), 1u);
  EXPECT_EQ(sealed.events[0].value, 5u);
  EXPECT_EQ(own.delivered(), 5u);
  ASSERT_TRUE(own.reset());
  EXPECT_EQ(own.delivered(), 0u);
  ASSERT_TRUE(ea().submit(request));
  ASSERT_TRUE(ea().wait(own));
  wait_idle();
  EXPECT_EQ(completions.count(1), 6u);
  EXPECT_EQ(sealed.count(), 1u) << "a seal reports once";
}

TEST_P(Conformance, P01AnUnhandledFailureReachesTheSubscribers) {
  EventRecorder& reported = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  auto flag = *ea().make_flag();
  auto batch = *ea().make_batch();
  const std::byte word[4] = {};
  Send send{.peer = ab().peer, .channel = 999, .bytes = word};  // without a listener
  const auto silent = ea().submit(send);
  send.notify = Notify::flag(flag);
  const auto flagged = ea().submit(send);
  send.notify = {};
  send.batch = batch;
  ASSERT_TRUE(silent && flagged && ea().submit(send));
  EXPECT_EQ(ea().wait(batch).error().code, Errc::kUnsupported);
  wait_idle();
  EXPECT_EQ(flag.load(), 0u);
  EXPECT_EQ(batch.failed(), 1u);
  ASSERT_EQ(reported.count(EventKind::kUnhandled), 2u) << "the batch handles its own failure";
  std::vector<OpId> unhandled;
  for (const Event& event : reported.events) {
    if (event.kind != EventKind::kUnhandled) continue;
    unhandled.push_back(event.op);
    EXPECT_EQ(event.code, Errc::kUnsupported);
    EXPECT_EQ(event.remote, Remote::kNotDelivered);
    EXPECT_EQ(event.peer, ab().peer);
  }
  std::sort(unhandled.begin(), unhandled.end());
  EXPECT_EQ(unhandled, (std::vector<OpId>{*silent, *flagged}));
}

TEST_P(Conformance, P01TheEventsOfADestroyedInboxReachTheSubscribers) {
  EventRecorder& reported = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  std::vector<OpId> ops;
  {
    auto inbox = *ea().make_inbox(8);
    Write request = write(0, 5000);
    request.notify = Notify::inbox(inbox, 4);
    ops.push_back(*ea().submit(request));
    ASSERT_TRUE(inbox.wait(kLong));        // ended and never read
    ops.push_back(*ea().submit(request));  // still on its way
  }
  wait_idle();
  std::vector<OpId> done;
  for (const Event& event : reported.events) {
    if (event.kind == EventKind::kDone) done.push_back(event.op);
  }
  EXPECT_EQ(done, ops);
}

TEST_P(Conformance, P01CloseReportsEverythingThatItCutsShort) {
  EventRecorder& completions = recorder();
  uint32_t taken = 0;
  {
    Kinds kinds(a(), b(), ab());
    auto waiting = *ea().make_counter();
    for (int round = 0; round < 8; ++round) {
      for (const auto& kind : kinds.all()) {
        ASSERT_TRUE(kind.submit(completions.notify(taken), {}));
        ++taken;
      }
      if (round == 3) run_for(5us);  // some under way, some not yet looked at
    }
    ASSERT_TRUE(ea().submit(Timer{.after = 1h, .notify = completions.notify(taken++)}));
    ASSERT_TRUE(waiting.expect(1, completions.notify(taken++), Timeout::forever()));
    ASSERT_TRUE(ea().close());
    EXPECT_EQ(completions.count(), taken) << "all reported when close() returns";
  }
  wait_idle();
  ASSERT_EQ(completions.count(), taken);
  uint32_t closed = 0;
  for (uint64_t tag = 0; tag < taken; ++tag) {
    ASSERT_EQ(completions.count(tag), 1u) << tag;
    const Errc code = completions.find(tag)->code;
    EXPECT_TRUE(code == Errc::kOk || code == Errc::kClosed) << to_string(code);
    closed += code == Errc::kClosed;
  }
  EXPECT_GT(closed, 2u);
  EXPECT_EQ(ea().submit(write(0, 1)).error().code, Errc::kClosed);
}

TEST_P(Conformance, P01PartsThatFailAreCountedAndNamedAndTheOthersArrive) {
  REQUIRE_CAP(two_engines);
  const RemoteHost ac = connect(a(), c());
  auto counter = *eb().make_counter();
  ASSERT_TRUE(ea().disconnect(ac.peer));
  std::vector<ScatterTarget> targets;
  for (uint32_t i = 0; i < 6; ++i) {
    const bool good = i % 3 != 1;  // 1 and 4 go to the closed peer
    targets.push_back({(good ? ab().region : ac.region).at(i * 1000), i * 1000, 1000,
                       good ? counter.key() : CounterKey::from_wire(1)});
  }
  auto batch = *ea().make_batch();
  const Event event = submit_and_wait(
      ea(), Scatter{.source = a().out.region.id(), .targets = targets, .batch = batch});
  EXPECT_EQ(event.code, Errc::kPeerLost);
  EXPECT_EQ(event.remote, Remote::kUnknown) << "some delivered, some not";
  EXPECT_EQ(event.parts_failed, 2u);
  EXPECT_EQ(event.parts_unknown, 0u) << "the fate of every part is known";
  EXPECT_EQ(event.first_failed, 1u);
  EXPECT_EQ(event.peer, ac.peer);
  EXPECT_EQ(event.value, 4000u);
  EXPECT_EQ(batch.delivered(), 4u);
  EXPECT_EQ(batch.failed(), 2u);
  EXPECT_EQ(batch.unknown(), 0u);
  std::array<Failure, 8> failures;
  ASSERT_EQ(batch.failures(failures), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(failures[i].part, 1 + 3 * i);
    EXPECT_EQ(failures[i].peer, ac.peer);
    EXPECT_EQ(failures[i].code, Errc::kPeerLost);
    EXPECT_EQ(failures[i].remote, Remote::kNotDelivered);
  }
  wait_idle();
  EXPECT_EQ(counter.count(), 4u);
  for (uint32_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(i % 3 != 1 ? arrived(i * 1000, 1000) : untouched(i * 1000, 1000)) << i;
  }
}

// ---- P2 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P02WhatGoesToASilentPeerEndsAtItsDeadline) {
  REQUIRE_CAP(two_engines);
  REQUIRE_CAP(virtual_time);
  const SilentPeer gone = silent_peer();
  const PeerId peer = *ea().connect(gone.address);
  const RemoteRegion region = *ea().import_region(peer, gone.desc);
  const auto group = *ea().make_group({&peer, 1});
  const std::array<uint32_t, 2> pages{0, 1};
  const std::array<ScatterTarget, 2> targets{
      {{region.at(0), 0, 10, CounterKey::from_wire(3)}, {ab().region.at(0), 0, 10, {}}}};
  const CounterKey key = CounterKey::from_wire(3);
  const uint64_t asked = 5;
  CounterKey answer;
  EventRecorder& completions = recorder();
  std::vector<Nanos> when(6);
  completions.then = [&](const Event& e) { when[e.tag] = ea().now(); };
  const Nanos start = ea().now();
  const Timeout limit = 50ms;
  const RegionId source = a().out.region.id();
  ASSERT_TRUE(ea().submit(Write{.source = a().out.at(0),
                                .target = region.at(0),
                                .size_bytes = 9,
                                .timeout = limit,
                                .notify = completions.notify(0)}));
  ASSERT_TRUE(ea().submit(PagedWrite{.source = source,
                                     .source_pages = {.indices = pages, .stride_bytes = 64},
                                     .target = region,
                                     .target_pages = {.indices = pages, .stride_bytes = 64},
                                     .page_bytes = 64,
                                     .timeout = limit,
                                     .notify = completions.notify(1)}));
  ASSERT_TRUE(ea().submit(Scatter{
      .source = source, .targets = targets, .timeout = limit, .notify = completions.notify(2)}));
  ASSERT_TRUE(ea().submit(Signal{
      .group = group, .keys = {&key, 1}, .timeout = limit, .notify = completions.notify(3)}));
  ASSERT_TRUE(ea().submit(Send{.peer = peer, .timeout = limit, .notify = completions.notify(4)}));
  ASSERT_TRUE(ea().submit(Resolve{.peer = peer,
                                  .names = {&asked, 1},
                                  .out = {&answer, 1},
                                  .timeout = limit,
                                  .notify = completions.notify(5)}));
  ASSERT_TRUE(until([&] { return completions.count() == 6; }, 50ms + config().drain_timeout));
  wait_idle();
  EXPECT_EQ(completions.count(), 6u);
  for (uint64_t tag = 0; tag < 6; ++tag) {
    SCOPED_TRACE(tag);
    const Event& event = *completions.find(tag);
    EXPECT_EQ(event.code, Errc::kTimeout);
    EXPECT_GE(when[tag] - start, 50ms) << "not before its time";
    EXPECT_LE(when[tag] - start, 50ms + config().drain_timeout);
    EXPECT_EQ(event.remote, tag == 2 ? Remote::kUnknown : Remote::kNotDelivered);
    EXPECT_EQ(event.parts_failed, tag == 1 ? 2u : 1u);
  }
  EXPECT_FALSE(answer);
  EXPECT_TRUE(arrived(0, 10)) << "the scatter's other target";
}

TEST_P(Conformance, P02WithoutATimeoutTheEnginesDefaultHolds) {
  REQUIRE_CAP(two_engines);
  REQUIRE_CAP(virtual_time);
  Config short_config = usual_config();
  short_config.default_timeout = 40ms;
  reopen(short_config);
  const SilentPeer gone = silent_peer();
  const PeerId peer = *ea().connect(gone.address);
  const RemoteRegion region = *ea().import_region(peer, gone.desc);
  const Nanos start = ea().now();
  const Event event = submit_and_wait(
      ea(), Write{.source = a().out.at(0), .target = region.at(0), .size_bytes = 9});
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_GE(ea().now() - start, 40ms);
  EXPECT_LE(ea().now() - start, 40ms + short_config.drain_timeout);
  auto counter = *ea().make_counter();
  const Nanos then = ea().now();
  EXPECT_EQ(counter.wait(1).error().code, Errc::kTimeout);
  EXPECT_GE(ea().now() - then, 40ms);
  EXPECT_LE(ea().now() - then, 41ms);
}

TEST_P(Conformance, P02NoOperationMayWaitForEver) {
  const auto refused = [&](Timeout timeout) {
    Write request = write(0, 8);
    request.timeout = timeout;
    const Error error = ea().submit(request).error();
    EXPECT_STREQ(error.what, "timeout");
    const Error sent = ea().submit(Send{.peer = ab().peer, .timeout = timeout}).error();
    EXPECT_EQ(sent.code, error.code);
    return error.code;
  };
  EXPECT_EQ(refused(Timeout::forever()), Errc::kInvalidArgument);
  EXPECT_EQ(refused(0ns), Errc::kInvalidArgument);
  EXPECT_EQ(refused(-1ns), Errc::kInvalidArgument);
  EXPECT_EQ(refused(config().timeout_max + 1ns), Errc::kInvalidArgument);
  Write longest = write(0, 8);
  longest.timeout = config().timeout_max;
  EXPECT_EQ(submit_and_wait(ea(), longest).code, Errc::kOk);
  wait_idle();
  EXPECT_EQ(ea().stats().ops_in_flight, 0u);
  // A wait may, because its caller asked for it; and it can still be cancelled.
  auto counter = *ea().make_counter();
  EventRecorder& completions = recorder();
  const auto op = counter.expect(1, completions.notify(), Timeout::forever());
  ASSERT_TRUE(op);
  wait_idle();
  EXPECT_EQ(completions.count(), 0u);
  ASSERT_TRUE(ea().cancel(*op));
  EXPECT_EQ(wait_completion(completions).code, Errc::kCancelled);
}

TEST_P(Conformance, P02EveryWaitEndsAtItsDeadline) {
  REQUIRE_CAP(virtual_time);
  auto counter = *ea().make_counter();
  auto member = *ea().make_counter();
  auto group = *ea().make_counter_group();
  ASSERT_TRUE(group.add(member, ab().peer));
  auto batch = *ea().make_batch();
  auto inbox = *ea().make_inbox(4);
  ASSERT_TRUE(ea().submit(Timer{.after = 1h, .batch = batch}));
  const std::array<std::function<Errc()>, 4> waits{
      [&] { return counter.wait(1, 10ms).error().code; },
      [&] { return group.wait(1, 10ms).error().code; },
      [&] { return ea().wait(batch, 10ms).error().code; },
      [&] { return inbox.wait(10ms).error().code; }};
  for (size_t i = 0; i < waits.size(); ++i) {
    SCOPED_TRACE(i);
    const Nanos start = ea().now();
    EXPECT_EQ(waits[i](), Errc::kTimeout);
    EXPECT_GE(ea().now() - start, 10ms);
    EXPECT_LE(ea().now() - start, 11ms);
  }
  EventRecorder& completions = recorder();
  ASSERT_TRUE(counter.expect(1, completions.notify(), 5ms)) << "the expired wait is still armed";
  EXPECT_EQ(wait_completion(completions).code, Errc::kTimeout);
}

// ---- P3 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P03TheSourceIsFreeAtTheInstantOfCompletion) {
  auto counter = *eb().make_counter();
  const auto kept = a().out.bytes;
  constexpr uint64_t kSize = 60'000;
  constexpr uint32_t kWrites = 16;
  EventRecorder& completions = recorder();
  completions.then = [&](const Event& e) {
    std::memset(a().out.bytes.data() + e.tag * kSize, 0xee, kSize);
  };
  for (uint32_t i = 0; i < kWrites; ++i) {
    Write request = write(i * kSize, kSize, counter.key());
    request.notify = completions.notify(i);
    request.priority = static_cast<Priority>(i % 3);
    request.unsplit = i % 4 == 3;
    ASSERT_TRUE(ea().submit(request));
  }
  ASSERT_TRUE(counter.wait(kWrites, kLong));
  ASSERT_TRUE(until([&] { return completions.count() == kWrites; }));
  wait_idle();
  EXPECT_EQ(std::memcmp(kept.data(), b().in.bytes.data(), kWrites * kSize), 0);
}

TEST_P(Conformance, P03SeveralPartsAreDeliveredNotDeliveredOrUnknownTogether) {
  REQUIRE_CAP(two_engines);
  const RemoteHost ac = connect(a(), c());
  ASSERT_TRUE(ea().disconnect(ac.peer));
  const auto scatter = [&](std::vector<RemoteRef> to) {
    std::vector<ScatterTarget> targets;
    for (const RemoteRef& ref : to) targets.push_back({ref, 0, 100, {}});
    return submit_and_wait(ea(), Scatter{.source = a().out.region.id(), .targets = targets});
  };
  EXPECT_EQ(scatter({ab().region.at(0), ab().region.at(500)}).remote, Remote::kDelivered);
  EXPECT_EQ(scatter({ac.region.at(0), ac.region.at(500)}).remote, Remote::kNotDelivered);
  const Event both = scatter({ab().region.at(0), ac.region.at(0)});
  EXPECT_EQ(both.remote, Remote::kUnknown);
  EXPECT_EQ(both.parts_failed, 1u);
  EXPECT_EQ(both.value, 100u);
}

// ---- P4 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P04CancelStopsWhatWasNotPosted) {
  REQUIRE_CAP(two_engines);
  const SilentPeer gone = silent_peer();
  const PeerId peer = *ea().connect(gone.address);
  const RemoteRegion region = *ea().import_region(peer, gone.desc);
  const Write request{.source = a().out.at(0), .target = region.at(0), .size_bytes = 100'000};
  for (const bool looked_at : {false, true}) {
    EventRecorder& completions = recorder();
    Write one = request;
    one.notify = completions.notify();
    const auto op = ea().submit(one);
    if (looked_at) run_for(1ms);
    const Nanos start = ea().now();
    ASSERT_TRUE(ea().cancel(*op));
    const Event event = wait_completion(completions);
    EXPECT_EQ(event.code, Errc::kCancelled);
    EXPECT_EQ(event.remote, Remote::kNotDelivered);
    EXPECT_EQ(event.value, 0u);
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(ea().now() - start, 1ms) << "there was nothing to drain";
    }
    wait_idle();
    EXPECT_EQ(completions.count(), 1u);
    EXPECT_EQ(ea().cancel(*op).error().code, Errc::kNotFound);
  }
}

TEST_P(Conformance, P04EveryKindCanBeCancelledAtEveryMomentAndStillEndsOnce) {
  Kinds kinds(a(), b(), ab());
  uint32_t cancelled = 0, done = 0;
  for (const auto& kind : kinds.all()) {
    for (const Nanos delay : kDelays) {
      EventRecorder& completions = recorder();
      const auto op = kind.submit(completions.notify(), {});
      ASSERT_TRUE(op);
      if (delay >= 0ns) run_for(delay);
      const bool over = completions.count() > 0;
      const auto asked = ea().cancel(*op);
      EXPECT_EQ(asked.error().code, over ? Errc::kNotFound : asked.error().code);
      const Event event = wait_completion(completions);
      wait_idle();
      EXPECT_EQ(completions.count(), 1u)
          << kind.name << " cancelled after " << delay.count() << " ns";
      if (event.code == Errc::kOk) {
        EXPECT_EQ(event.remote, Remote::kDelivered);
        ++done;
      } else {
        EXPECT_EQ(event.code, Errc::kCancelled) << kind.name;
        ++cancelled;
      }
    }
  }
  EXPECT_GT(cancelled, 5u);
  EXPECT_GT(done, 5u);
}

// Unsplit writes are one work request each, so each is delivered and counted, or not at all; and
// what is reported as not delivered never lands.
TEST_P(Conformance, P04NothingLandsAfterACancelIsReported) {
  constexpr uint64_t kSize = 4000;
  constexpr uint32_t kWrites = 250;
  uint32_t cancelled = 0, delivered = 0;
  for (const Nanos delay : kDelays) {
    SCOPED_TRACE(delay.count());
    auto counter = *eb().make_counter();
    auto batch = *ea().make_batch();
    EventRecorder& completions = recorder();
    b().in.clear();
    for (uint32_t i = 0; i < kWrites; ++i) {
      Write request = write(i * kSize, kSize, counter.key());
      request.unsplit = true;
      request.batch = batch;
      request.notify = completions.notify(i);
      ASSERT_TRUE(ea().submit(request));
    }
    if (delay >= 0ns) run_for(delay);
    ASSERT_TRUE(ea().cancel(batch.id()));
    EXPECT_EQ(
        ea().submit(Write{.source = a().out.at(0), .target = ab().region.at(0), .batch = batch})
            .error()
            .code,
        Errc::kCancelled);
    EXPECT_TRUE(until([&] { return completions.count() == kWrites; }));
    const auto at_the_end = b().in.bytes;
    wait_idle();
    ASSERT_EQ(completions.count(), kWrites);
    uint32_t counted = 0;
    for (uint32_t i = 0; i < kWrites; ++i) {
      ASSERT_EQ(completions.count(i), 1u);
      const Event& event = *completions.find(i);
      if (event.code == Errc::kOk) {
        ++counted;
        EXPECT_TRUE(arrived(i * kSize, kSize)) << i;
        continue;
      }
      ++cancelled;
      EXPECT_EQ(event.code, Errc::kCancelled);
      EXPECT_EQ(event.remote, Remote::kNotDelivered);
      EXPECT_EQ(std::memcmp(at_the_end.data() + i * kSize, b().in.bytes.data() + i * kSize, kSize),
                0)
          << i << " landed late";
    }
    delivered += counted;
    EXPECT_EQ(counter.count(), counted);
    EXPECT_EQ(batch.delivered(), counted);
    EXPECT_EQ(batch.failed(), kWrites - counted);
    EXPECT_EQ(batch.pending(), 0u);
  }
  EXPECT_GT(cancelled, 0u);
  EXPECT_GT(delivered, 0u);
}

TEST_P(Conformance, P04DestroyingABatchCancelsWhatIsPending) {
  EventRecorder& reported = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  EventRecorder& completions = recorder();
  std::optional<OpId> silent;
  {
    auto batch = *ea().make_batch();
    silent = *ea().submit(Timer{.after = 1h, .batch = batch});
    ASSERT_TRUE(ea().submit(Timer{.after = 1h, .batch = batch, .notify = completions.notify(1)}));
    run_for(1us);
  }
  EXPECT_EQ(wait_completion(completions, 1).code, Errc::kCancelled);
  wait_idle();
  ASSERT_EQ(reported.count(EventKind::kUnhandled), 1u);
  EXPECT_EQ(reported.find(EventKind::kUnhandled)->op, *silent);
  EXPECT_EQ(reported.find(EventKind::kUnhandled)->code, Errc::kCancelled);
}

// ---- P5 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P05LosingOnePeerDisturbsNoOther) {
  REQUIRE_CAP(two_engines);
  for (const bool we_leave : {true, false}) {
    SCOPED_TRACE(we_leave);
    const RemoteHost ac = connect(a(), c());
    b().in.clear();
    auto at_b = *eb().make_counter();
    auto at_c = *c().engine.make_counter();
    EventRecorder& to_b = recorder();
    EventRecorder& to_c = recorder();
    constexpr uint32_t kWrites = 100;
    constexpr uint64_t kSize = 9000;
    for (uint32_t i = 0; i < kWrites; ++i) {
      Write request = write(i * kSize, kSize, at_b.key());
      request.notify = to_b.notify(i);
      ASSERT_TRUE(ea().submit(request));
      request.target = ac.region.at(i * kSize);
      request.imm = at_c.key();
      request.notify = to_c.notify(i);
      ASSERT_TRUE(ea().submit(request));
    }
    run_for(8us);
    if (we_leave) {
      ASSERT_TRUE(ea().disconnect(ac.peer));
    } else {
      ASSERT_TRUE(c().engine.close());
    }
    ASSERT_TRUE(until([&] { return to_b.count() == kWrites && to_c.count() == kWrites; }));
    wait_idle();
    EXPECT_EQ(to_b.count() + to_c.count(), 2 * kWrites);
    uint32_t lost = 0;
    for (uint32_t i = 0; i < kWrites; ++i) {
      EXPECT_EQ(to_b.find(i)->code, Errc::kOk);
      const Event& event = *to_c.find(i);
      if (event.code == Errc::kOk) continue;
      ++lost;
      EXPECT_EQ(event.code, Errc::kPeerLost);
      EXPECT_EQ(event.peer, ac.peer) << "the event names the peer";
    }
    // Where time is real the writes may all have been faster.
    if (GetParam().caps.virtual_time) {
      EXPECT_GT(lost, 0u);
    }
    EXPECT_EQ(at_b.count(), kWrites);
    EXPECT_TRUE(arrived(0, kWrites * kSize));
    EXPECT_EQ(ea().peer_info(ab().peer)->state, PeerState::kConnected);
    for (const auto& rail : ea().rail_stats()) EXPECT_TRUE(rail.up);
  }
}

}  // namespace fabric::test::completion_test
