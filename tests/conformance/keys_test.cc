#include <array>
#include <set>

#include "conformance/conformance.h"

// P9 to P11: names and early arrivals, never twice, and old traffic that cannot lie. Failover and
// replay need a path that breaks: keys_faults_test.cc.

namespace fabric::test {

// ---- P9 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P09WhatArrivesBeforeTheCounterIsClaimedCounts) {
  const std::array<uint64_t, 3> names{0, 42, UINT64_MAX};
  std::array<CounterKey, 3> keys;
  ASSERT_TRUE(ea().resolve(ab().peer, names, keys, kLong));
  std::set<CounterKey> distinct(keys.begin(), keys.end());
  EXPECT_EQ(distinct.size(), 3u);
  EXPECT_FALSE(distinct.contains(CounterKey{}));
  for (uint32_t i = 0; i < 3; ++i) {
    for (uint32_t n = 0; n <= i; ++n) {
      EXPECT_EQ(submit_and_wait(ea(), write(n * 30'000, 30'000, keys[i])).code, Errc::kOk);
    }
  }
  wait_idle();
  for (uint32_t i = 0; i < 3; ++i) {
    auto counter = eb().named_counter(names[i]);
    ASSERT_TRUE(counter);
    EXPECT_EQ(counter->key(), keys[i]);
    EXPECT_EQ(counter->count(), i + 1);
    EXPECT_TRUE(counter->wait(i + 1, 1ms)) << "counts before named_counter() were lost";
    EXPECT_EQ(eb().named_counter(names[i]).error().code, Errc::kBusy) << "another handle holds it";
  }
  EXPECT_EQ(eb().stats().stale_imms, 0u);
}

TEST_P(Conformance, P09ANameThatWasClaimedFirstResolvesToTheSameKey) {
  auto counter = *eb().named_counter(7);
  EventRecorder& met = recorder();
  ASSERT_TRUE(counter.expect(2, met.notify()));
  const uint64_t name = 7;
  CounterKey key, again;
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong));
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&again, 1}, kLong));
  EXPECT_EQ(key, counter.key());
  EXPECT_EQ(again, key);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(ea().submit(write(0, 30'000, key)));
  EXPECT_EQ(wait_completion(met).code, Errc::kOk);
}

TEST_P(Conformance, P09AReceiverThatCannotHoldAnotherNameRefusesItAtTheSender) {
  Config small = usual_config();
  small.names_per_peer_max = 4;
  reopen(small);
  for (uint64_t name = 1; name <= 5; ++name) {
    CounterKey key;
    const Event event =
        submit_and_wait(ea(), Resolve{.peer = ab().peer, .names = {&name, 1}, .out = {&key, 1}});
    EXPECT_EQ(event.code, name <= 4 ? Errc::kOk : Errc::kExhausted);
    EXPECT_EQ(event.remote, name <= 4 ? Remote::kDelivered : Remote::kNotDelivered);
    EXPECT_EQ(static_cast<bool>(key), name <= 4);
  }
  // A name that is claimed no longer counts against the sender.
  const auto claimed = eb().named_counter(2);
  ASSERT_TRUE(claimed);
  const uint64_t name = 5;
  CounterKey key;
  EXPECT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong));
  EXPECT_TRUE(key);
}

TEST_P(Conformance, P09CountersAreBoundedAndComeBackWhenReleased) {
  Config small = usual_config();
  small.counters_max = 4;
  reopen(small);
  std::vector<Counter> counters;
  while (counters.size() < 100) {
    auto counter = eb().make_counter();
    if (!counter) {
      EXPECT_EQ(counter.error().code, Errc::kExhausted);
      break;
    }
    counters.push_back(*std::move(counter));
  }
  EXPECT_EQ(counters.size(), 4u);
  const uint64_t name = 9;
  CounterKey key;
  EXPECT_EQ(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong).error().code, Errc::kExhausted);
  counters.pop_back();
  EXPECT_TRUE(eb().make_counter());
  // What was there all along still counts.
  ASSERT_TRUE(ea().submit(write(0, 100, counters[0].key())));
  EXPECT_TRUE(counters[0].wait(1, kLong));
}

// ---- P10 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P10LostAndRepeatedControlMessagesActOnce) {
  REQUIRE_CAP(lossy_control);
  reopen(usual_config(), {.drop_control = 0.25, .duplicate_control = 0.3, .reorder_control = 0.3});
  constexpr uint32_t kRounds = 120;
  EventRecorder& messages = recorder();
  EventRecorder& completions = recorder();
  EventRecorder& written = recorder();
  const auto listener = *eb().listen(3, messages.notify());
  std::vector<uint64_t> names(kRounds);
  std::vector<CounterKey> keys(kRounds);
  for (uint32_t i = 0; i < kRounds; ++i) {
    names[i] = i / 4;
    ASSERT_TRUE(ea().submit(Send{.peer = ab().peer,
                                 .channel = 3,
                                 .bytes = std::as_bytes(std::span(&i, 1)),
                                 .notify = completions.notify(i)}));
    ASSERT_TRUE(ea().submit(Resolve{.peer = ab().peer,
                                    .names = {&names[i], 1},
                                    .out = {&keys[i], 1},
                                    .notify = completions.notify(1000 + i)}));
  }
  ASSERT_TRUE(until([&] { return completions.count() == 2 * kRounds; }));
  for (uint32_t i = 0; i < kRounds; ++i) {
    EXPECT_EQ(completions.find(i)->code, Errc::kOk);
    EXPECT_EQ(keys[i], keys[i / 4 * 4]) << "one name resolved to two counter keys";
    Write request = write(0, 20'000, keys[i]);
    request.notify = written.notify();
    ASSERT_TRUE(ea().submit(request));
  }
  ASSERT_TRUE(until([&] { return written.count() == kRounds; }));  // a path's hello may be lost too
  wait_idle();
  EXPECT_EQ(completions.count(), 2 * kRounds);
  EXPECT_EQ(messages.count(), kRounds);
  std::set<uint32_t> distinct;
  for (const auto& bytes : messages.messages) {
    ASSERT_EQ(bytes.size(), sizeof(uint32_t));
    uint32_t number = 0;
    std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(&number, 1)).begin());
    distinct.insert(number);
  }
  EXPECT_EQ(distinct.size(), kRounds) << "each message once";
  for (uint64_t name = 0; name < kRounds / 4; ++name) {
    EXPECT_EQ(eb().named_counter(name)->count(), 4u) << name;
  }
  if (GetParam().caps.two_engines) {
    EXPECT_GT(ea().stats().tx.retried, 0u) << "no datagram was lost: the test shows nothing";
  }
}

// Cut into a long shard and one of a single byte, and cancelled when only the short one has been
// counted: a wait for the counter key must not go on, nor be met by the next write.
TEST_P(Conformance, P10ACountedWriteOfUnknownFatePoisonsItsKey) {
  REQUIRE_CAP(two_engines);
  REQUIRE_CAP(every_step);
  REQUIRE_CAP(several_rails);
  REQUIRE_CAP(counted_slices);
  constexpr uint64_t kHalf = kBytes / 2;
  Config uneven = usual_config();
  uneven.stripe_align = kHalf;
  uneven.bulk_slice_bytes = 8192;
  reopen(uneven);
  const PeerId at_b_of_a = *eb().connect(ea().address());
  auto counter = *eb().make_counter();
  auto other = *eb().make_counter();
  EventRecorder& met = recorder();
  EventRecorder& completions = recorder();
  ASSERT_TRUE(counter.expect(1, met.notify(1)));
  Write request = write(0, kHalf + 1, counter.key());
  request.priority = Priority::kBulk;
  request.notify = completions.notify();
  const auto op = ea().submit(request);
  ASSERT_TRUE(until([&] { return arrived(kHalf, 1); }));
  ASSERT_FALSE(arrived(0, kHalf)) << "the write landed before it could be cancelled";
  ASSERT_TRUE(ea().cancel(*op));
  const Event event = wait_completion(completions);
  EXPECT_EQ(event.code, Errc::kCancelled);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_GT(event.value, 0u);
  EXPECT_LT(event.value, kHalf);
  const Event poisoned = wait_completion(met, 1);
  EXPECT_EQ(poisoned.code, Errc::kAborted);
  EXPECT_EQ(poisoned.peer, at_b_of_a) << "the peer that poisoned it";
  ASSERT_TRUE(ea().submit(write(0, 100, counter.key())));
  ASSERT_TRUE(ea().submit(write(0, 100, other.key())));
  EXPECT_TRUE(other.wait(1, kLong)) << "other counter keys must not be poisoned";
  EXPECT_EQ(counter.expect(1, met.notify(2)).error().code, Errc::kAborted);
  EXPECT_EQ(counter.wait(1, 1ms).error().code, Errc::kAborted);
  auto fresh = *eb().make_counter();
  EXPECT_NE(fresh.key(), counter.key());
  counter.release();
  ASSERT_TRUE(ea().submit(write(0, 100, fresh.key())));
  EXPECT_TRUE(fresh.wait(1, kLong));
}

// Cancelled half way, before the slice that counts: nothing was counted and nothing more lands, so
// the counter key is as good as before.
TEST_P(Conformance, P10AWriteCancelledBeforeItCountsPoisonsNothing) {
  REQUIRE_CAP(two_engines);
  REQUIRE_CAP(every_step);
  REQUIRE_CAP(counted_slices);
  Config sliced = usual_config();
  sliced.bulk_slice_bytes = 8192;
  reopen(sliced);
  auto counter = *eb().make_counter();
  auto other = *eb().make_counter();
  EventRecorder& met = recorder();
  EventRecorder& completions = recorder();
  ASSERT_TRUE(counter.expect(1, met.notify(1)));
  Write request = write(0, kBytes, counter.key());
  request.priority = Priority::kBulk;
  request.notify = completions.notify();
  const auto op = ea().submit(request);
  ASSERT_TRUE(until([&] { return b().in.bytes[0] != std::byte{0}; }));
  ASSERT_TRUE(ea().cancel(*op));
  const Event event = wait_completion(completions);
  EXPECT_EQ(event.code, Errc::kCancelled);
  EXPECT_EQ(event.remote, Remote::kNotDelivered);
  EXPECT_GT(event.value, 0u);
  EXPECT_LT(event.value, kBytes);
  EXPECT_EQ(counter.count(), 0u);
  ASSERT_TRUE(ea().submit(write(0, 100, counter.key())));
  ASSERT_TRUE(ea().submit(write(0, 100, other.key())));
  EXPECT_TRUE(other.wait(1, kLong)) << "other counter keys must not be poisoned";
  EXPECT_EQ(wait_completion(met, 1).code, Errc::kOk) << "the next write counts one, and only one";
  auto fresh = *eb().make_counter();
  EXPECT_NE(fresh.key(), counter.key());
  counter.release();
  ASSERT_TRUE(ea().submit(write(0, 100, fresh.key())));
  EXPECT_TRUE(fresh.wait(1, kLong));
}

// A cancelled write that reports kNotDelivered was not counted at all: its counter key stays valid.
TEST_P(Conformance, P10AWriteThatWasNotDeliveredPoisonsNothing) {
  auto counter = *eb().make_counter();
  EventRecorder& met = recorder();
  EventRecorder& completions = recorder();
  ASSERT_TRUE(counter.expect(1, met.notify()));
  Write request = write(0, 50'000, counter.key());
  request.notify = completions.notify();
  const auto op = ea().submit(request);
  ASSERT_TRUE(ea().cancel(*op));
  EXPECT_EQ(wait_completion(completions).remote, Remote::kNotDelivered);
  wait_idle();
  EXPECT_EQ(met.count(), 0u);
  ASSERT_TRUE(ea().submit(write(0, 50'000, counter.key())));
  EXPECT_EQ(wait_completion(met).code, Errc::kOk);
  EXPECT_TRUE(arrived(0, 50'000));
}

// ---- P11 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P11TrafficOfAReleasedKeyIsStaleAndCountedAsSuch) {
  auto counter = std::make_optional(*eb().make_counter());
  EventRecorder& met = recorder();
  const CounterKey old = counter->key();
  constexpr uint32_t kWrites = 100;
  auto batch = *ea().make_batch();
  for (uint32_t i = 0; i < kWrites; ++i) {
    Write request = write(i * 4000, 4000, old);  // one work request each: one immediate
    request.batch = batch;
    ASSERT_TRUE(ea().submit(request));
  }
  ASSERT_TRUE(counter->expect(2 * kWrites, met.notify()));
  ASSERT_TRUE(until([&] { return !untouched(0, 4000); }));
  const uint64_t before = eb().stats().rx.imms;
  counter.reset();
  EXPECT_EQ(wait_completion(met).code, Errc::kReleased);
  auto next = *eb().make_counter();
  EXPECT_NE(next.key(), old);
  ASSERT_TRUE(ea().wait(batch, kLong)) << "the senders are not disturbed";
  wait_idle();
  EXPECT_EQ(next.count(), 0u);
  EXPECT_EQ(eb().stats().stale_imms, kWrites - before);
  const uint64_t stale = eb().stats().stale_imms;
  ASSERT_TRUE(ea().submit(write(0, 100, old)));
  ASSERT_TRUE(ea().submit(write(0, 100, CounterKey::from_wire(0x0fff'fff0))));  // no counter's
  wait_idle();
  EXPECT_EQ(eb().stats().stale_imms, stale + 2);
  EXPECT_EQ(next.count(), 0u);
}

// So many generations that every slot of the receiver's table is used again: no value comes back,
// and writes under all the old counter keys together add nothing to the two that are open now.
TEST_P(Conformance, P11NoKeyOfAnEarlierGenerationOpensALaterOne) {
  constexpr uint32_t kGenerations = 5000;
  Config small = usual_config();
  small.counters_max = 2;
  reopen(small);
  std::vector<ScatterTarget> late;
  std::set<CounterKey> distinct;
  for (uint32_t generation = 0; generation < kGenerations; ++generation) {
    const auto counter = eb().make_counter();
    ASSERT_TRUE(counter) << generation;
    ASSERT_TRUE(distinct.insert(counter->key()).second)
        << "a counter key was reused without quarantine";
    late.push_back({ab().region.at(0), 0, 0, counter->key()});
  }
  auto first = *eb().make_counter();
  auto second = *eb().make_counter();
  ASSERT_TRUE(ea().submit(write(0, 64, second.key())));
  EXPECT_EQ(submit_and_wait(ea(), Scatter{.source = a().out.region.id(), .targets = late}).code,
            Errc::kOk);
  wait_idle();
  EXPECT_EQ(first.count(), 0u);
  EXPECT_EQ(second.count(), 1u);
  EXPECT_EQ(eb().stats().stale_imms, kGenerations);
}

TEST_P(Conformance, P11CloseReportsHowItKnowsThatTheKeyIsQuiet) {
  const uint64_t name = 12;
  CounterKey key;
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong));
  auto named = *eb().named_counter(name);
  auto made = *eb().make_counter();
  constexpr uint32_t kWrites = 300;
  EventRecorder& completions = recorder();
  for (uint32_t i = 0; i < kWrites; ++i) {
    Write request = write(i * 3000, 3000, key);
    request.notify = completions.notify();
    ASSERT_TRUE(ea().submit(request));
  }
  run_for(3us);
  const auto proof = named.close(kLong);
  ASSERT_TRUE(proof);
  EXPECT_EQ(*proof, Quiescence::kProved) << "its only sender answered";
  const uint64_t stale = eb().stats().stale_imms;
  wait_idle();
  EXPECT_EQ(eb().stats().stale_imms, stale) << "a write arrived after the proof of quiescence";
  ASSERT_EQ(completions.count(), kWrites);
  for (const Event& event : completions.events) {
    EXPECT_TRUE(event.code == Errc::kOk ||
                (event.code == Errc::kReleased && event.remote == Remote::kNotDelivered))
        << to_string(event.code);
  }
  const auto quiescence = made.close(kLong);
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kQuarantined)
      << "it is unknown which peers have its counter key";
  EXPECT_EQ(made.close().error().code, Errc::kReleased);
  EXPECT_EQ(named.wait(1, 1ms).error().code, Errc::kReleased);
  // The name can be used again, with another counter key.
  auto again = *eb().named_counter(name);
  EXPECT_NE(again.key(), key);
  CounterKey resolved;
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&resolved, 1}, kLong));
  EXPECT_EQ(resolved, again.key());
}

TEST_P(Conformance, P11CloseWithoutItsSenderCanOnlyQuarantine) {
  REQUIRE_CAP(two_engines);
  const uint64_t name = 12;
  CounterKey key;
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong));
  auto named = *eb().named_counter(name);
  const PeerId sender = *eb().connect(ea().address());
  ASSERT_TRUE(eb().disconnect(sender));
  const auto quiescence = named.close(kLong);
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kQuarantined)
      << "its sender was lost without a reply, and is not fenced";
}

}  // namespace fabric::test
