#include <array>
#include <numeric>
#include <set>

#include "conformance/conformance.h"

// P18 and P19: a full queue is reported, and callbacks run only where they may.

namespace fabric::test {

// ---- P18 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P18AFullQueueTakesNothingAndReportsOnceWhenThereIsRoom) {
  Config small = usual_config();
  small.ops_max = 8;
  reopen(small);
  EventRecorder& reported = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  auto batch = *ea().make_batch();
  auto counter = *eb().make_counter();
  auto inbox = *ea().make_inbox(16);
  std::array<Event, 16> events;
  for (uint32_t round = 1; round <= 3; ++round) {
    SCOPED_TRACE(round);
    b().in.clear();
    Write request = write(0, 9000, counter.key());
    request.batch = batch;
    request.notify = Notify::inbox(inbox);
    uint32_t taken = 0;
    while (taken < 100 && ea().submit(request)) ++taken;
    EXPECT_EQ(taken, 8u);
    for (int again = 0; again < 5; ++again) {
      const Error error = ea().submit(request).error();
      EXPECT_EQ(error.code, Errc::kExhausted);
      EXPECT_STREQ(error.what, "ops_max");
    }
    EXPECT_EQ(ea().submit(Timer{}).error().code, Errc::kExhausted);
    EXPECT_EQ(batch.pending(), 8u);
    EXPECT_EQ(reported.count(EventKind::kRoom), round - 1);
    ASSERT_TRUE(ea().wait(batch, kLong));
    wait_idle();
    EXPECT_EQ(reported.count(EventKind::kRoom), round) << "one event for all refusals";
    EXPECT_EQ(counter.count(), 8u * round) << "a refused write was sent";
    EXPECT_EQ(inbox.poll(events), 8u);
    EXPECT_EQ(inbox.poll(events), 0u);
  }
  EXPECT_EQ(ea().stats().exhausted, 3u * 7);
  // A refused request leaks nothing: every slot of the inbox is still free.
  for (int i = 0; i < 2; ++i) {
    for (int n = 0; n < 8; ++n) {
      ASSERT_TRUE(ea().submit(Timer{.notify = Notify::inbox(inbox)}));
    }
    wait_idle();
  }
  EXPECT_EQ(inbox.poll(events), 16u);
}

TEST_P(Conformance, P18ASpanIsTakenAsFarAsItFits) {
  Config small = usual_config();
  small.ops_max = 8;
  reopen(small);
  auto counter = *eb().make_counter();
  std::vector<Write> requests;
  for (uint32_t i = 0; i < 20; ++i) requests.push_back(write(i * 5000, 5000, counter.key()));
  size_t done = 0;
  for (int round = 0; round < 10 && done < requests.size(); ++round) {
    const auto taken = ea().submit(std::span(requests).subspan(done));
    ASSERT_TRUE(taken);
    EXPECT_EQ(*taken, std::min<size_t>(8, requests.size() - done));
    done += *taken;
    if (done < requests.size()) {
      EXPECT_EQ(ea().submit(std::span(requests).subspan(done)).error().code, Errc::kExhausted);
    }
    wait_idle();
  }
  EXPECT_EQ(counter.count(), 20u);
  EXPECT_TRUE(arrived(0, 20 * 5000));
  // A prefix up to the first that is wrong; its error when it is the first.
  requests[2].target.offset = kBytes;
  EXPECT_EQ(*ea().submit(std::span(requests).first(5)), 2u);
  EXPECT_EQ(ea().submit(std::span(requests).subspan(2)).error().code, Errc::kOutOfBounds);
  EXPECT_EQ(ea().submit(std::span<const Write>{}).error().code, Errc::kInvalidArgument);
  wait_idle();
  EXPECT_EQ(counter.count(), 22u);
}

TEST_P(Conformance, P18AFullInboxRefusesAtSubmitAndThereIsRoomOnceItIsRead) {
  EventRecorder& reported = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  auto inbox = *ea().make_inbox(4);
  std::array<Event, 8> events;
  const Timer timer{.notify = Notify::inbox(inbox)};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ea().submit(timer));
  const Error error = ea().submit(timer).error();
  EXPECT_EQ(error.code, Errc::kExhausted);
  EXPECT_STREQ(error.what, "notify");
  wait_idle();
  EXPECT_EQ(ea().submit(timer).error().code, Errc::kExhausted) << "the events were not read yet";
  EXPECT_EQ(inbox.poll(std::span(events).first(3)), 3u);
  wait_idle();
  EXPECT_GE(reported.count(EventKind::kRoom), 1u);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ea().submit(timer));
  EXPECT_EQ(ea().submit(timer).error().code, Errc::kExhausted);
  wait_idle();
  EXPECT_EQ(inbox.poll(events), 4u);
}

// Whatever the reason, a refused request gives back all that it had reserved on its way.
TEST_P(Conformance, P18ARefusedRequestLeaksNothing) {
  auto inbox = *ea().make_inbox(2);
  auto sealed = *ea().make_batch();
  auto open = *ea().make_batch();
  auto armed = *ea().make_counter();
  ASSERT_TRUE(sealed.seal({}));
  ASSERT_TRUE(armed.expect(1, {}));
  const Notify notify = Notify::inbox(inbox);
  const std::vector<uint32_t> endless(3'000'000);
  const Pages pages{.indices = endless, .stride_bytes = 1};
  const uint32_t in_flight = ea().stats().ops_in_flight;
  for (uint32_t i = 0; i < config().ops_max + 2; ++i) {
    Write request = write(0, 8);
    request.notify = notify;
    request.batch = sealed;
    ASSERT_EQ(ea().submit(request).error().code, Errc::kCancelled);
    request.batch = BatchId(1, 12345);
    ASSERT_EQ(ea().submit(request).error().code, Errc::kNotFound);
    ASSERT_EQ(armed.expect(1, notify).error().code, Errc::kBusy);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(ea().submit(PagedWrite{.source = a().out.region.id(),
                                     .source_pages = pages,
                                     .target = ab().region,
                                     .target_pages = pages,
                                     .page_bytes = 1,
                                     .batch = open,
                                     .notify = notify})
                  .error()
                  .code,
              Errc::kTooLarge);
  }
  EXPECT_EQ(open.pending() + sealed.pending(), 0u);
  EXPECT_EQ(ea().stats().ops_in_flight, in_flight);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(ea().submit(Timer{.batch = open, .notify = notify}));
  EXPECT_TRUE(ea().wait(open, kLong));
  std::array<Event, 4> events;
  EXPECT_EQ(inbox.poll(events), 2u);
}

TEST_P(Conformance, P18WhatCanNeverFitIsTooLarge) {
  Config small = usual_config();
  small.index_arena_bytes = 65'536;
  small.message_bytes_max = 5000;
  reopen(small);
  const auto listener = *eb().listen(1, recorder().notify());
  std::vector<std::byte> bytes(5001);
  EXPECT_EQ(ea().submit(Send{.peer = ab().peer, .channel = 1, .bytes = bytes}).error().code,
            Errc::kTooLarge);
  bytes.pop_back();
  EXPECT_EQ(submit_and_wait(ea(), Send{.peer = ab().peer, .channel = 1, .bytes = bytes}).code,
            Errc::kOk);
  std::vector<uint32_t> pages(100'000);
  const auto paged = [&](size_t n, Notify notify) {
    const std::span<const uint32_t> list(pages.data(), n);
    return ea().submit(PagedWrite{.source = a().out.region.id(),
                                  .source_pages = {.indices = list, .stride_bytes = 8},
                                  .target = ab().region,
                                  .target_pages = {.indices = list, .stride_bytes = 8},
                                  .page_bytes = 8,
                                  .notify = notify});
  };
  EXPECT_EQ(paged(pages.size(), {}).error().code, Errc::kTooLarge);
  // What fits, but not now, is another answer.
  EventRecorder& completions = recorder();
  uint32_t taken = 0;
  Errc refused = Errc::kOk;
  while (taken < 100 && refused == Errc::kOk) {
    refused = paged(2000, completions.notify()).error().code;
    taken += refused == Errc::kOk;
  }
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_GE(taken, 2u);
  ASSERT_TRUE(until([&] { return completions.count() == taken; }));
  EXPECT_TRUE(paged(2000, {})) << "there is room again";
  wait_idle();
}

TEST_P(Conformance, P18AMessageOfTheLargestSizeArrivesWhole) {
  Config config = usual_config();
  config.index_arena_bytes = 8u << 20;
  reopen(config);
  EventRecorder& received = recorder();
  const auto listener = *eb().listen(1, received.notify());
  const uint32_t most = ea().peer_info(ab().peer)->message_bytes_max;
  EXPECT_EQ(most, 1u << 20);
  std::vector<std::vector<std::byte>> sent;
  EventRecorder& completions = recorder();
  for (const uint32_t size : {most, 8u, 65'537u, most - 1, 65'536u}) {
    sent.emplace_back(size);
    fill(sent.back(), size);
    ASSERT_TRUE(ea().submit(Send{
        .peer = ab().peer, .channel = 1, .bytes = sent.back(), .notify = completions.notify()}));
  }
  ASSERT_TRUE(until([&] { return completions.count() == sent.size(); })) << ea().dump();
  EXPECT_EQ(completions.count(Errc::kOk), sent.size());
  ASSERT_TRUE(until([&] { return received.messages.size() == sent.size(); }));
  for (size_t i = 0; i < sent.size(); ++i) EXPECT_EQ(received.messages[i], sent[i]) << i;
}

TEST_P(Conformance, P18AMessageAboveThePeersMaximumIsTooLarge) {
  REQUIRE_CAP(two_engines);
  Config modest = usual_config();
  modest.message_bytes_max = 100;
  const auto other = make_host(2, modest);
  const RemoteHost there = connect(a(), *other);
  EXPECT_EQ(ea().peer_info(there.peer)->message_bytes_max, 100u);
  const std::vector<std::byte> bytes(101);
  EXPECT_EQ(ea().submit(Send{.peer = there.peer, .bytes = bytes}).error().code, Errc::kTooLarge);
}

// A listener that does not read holds its senders back; nothing is dropped, nothing comes twice.
TEST_P(Conformance, P18SendersAreHeldBackByAListenerThatDoesNotRead) {
  Config small = usual_config();
  small.message_buffers = 4;
  small.message_credits = 3;
  reopen(small);
  auto inbox = *eb().make_inbox(2);
  const auto listener = *eb().listen(9, Notify::inbox(inbox));
  EXPECT_EQ(eb().listen(9, Notify::inbox(inbox)).error().code, Errc::kBusy);
  EventRecorder& completions = recorder();
  constexpr uint32_t kMessages = 60;
  for (uint32_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(ea().submit(Send{.peer = ab().peer,
                                 .channel = 9,
                                 .bytes = std::as_bytes(std::span(&i, 1)),
                                 .notify = completions.notify(i)}));
  }
  wait_idle();
  EXPECT_LE(completions.count(), 4u) << "the sender must hold back what exceeds the buffers";
  EXPECT_GT(completions.count(), 0u);
  std::vector<uint32_t> got;
  std::array<Event, 2> events;
  while (got.size() < kMessages && inbox.wait(kLong)) {
    const uint32_t n = inbox.poll(events);
    for (uint32_t i = 0; i < n; ++i) {
      EXPECT_EQ(events[i].kind, EventKind::kMessage);
      EXPECT_EQ(events[i].value, 9u);
      ASSERT_EQ(events[i].size_bytes, sizeof(uint32_t));
      uint32_t number = 0;
      std::copy_n(events[i].data, sizeof number, reinterpret_cast<std::byte*>(&number));
      got.push_back(number);
    }
  }
  wait_idle();
  EXPECT_EQ(inbox.poll(events), 0u);
  EXPECT_EQ(completions.count(), kMessages);
  EXPECT_EQ(std::set<uint32_t>(got.begin(), got.end()).size(), kMessages);
  for (const Event& event : completions.events) EXPECT_EQ(event.code, Errc::kOk);
}

TEST_P(Conformance, P18ALongBacklogIsPostedWithinTheDepthOfTheNetwork) {
  constexpr uint32_t kWrites = 800;
  auto counter = *eb().make_counter();
  EventRecorder& completions = recorder();
  for (uint32_t i = 0; i < kWrites; ++i) {
    Write request = write(i * 1000, 1000, counter.key());
    request.notify = completions.notify(i);
    ASSERT_TRUE(ea().submit(request)) << i;
  }
  ASSERT_TRUE(counter.wait(kWrites, kLong));
  EXPECT_TRUE(arrived(0, kWrites * 1000));
  ASSERT_TRUE(until([&] { return completions.count() == kWrites; }));
}

// ---- P19 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P19NoCallbackRunsInsideTheCallThatCausesIt) {
  auto counter = *ea().make_counter();
  const PeerId self = *ea().connect(ea().address());
  const auto region = *ea().import_region(self, *a().in.region.desc());
  ASSERT_TRUE(
      ea().submit(Write{.source = a().out.at(0), .target = region.at(0), .imm = counter.key()}));
  ASSERT_TRUE(until([&] { return counter.count() == 1; }));
  EventRecorder& calls = recorder();
  bool inside = false;
  uint32_t inside_calls = 0;
  calls.then = [&](const Event&) { inside_calls += inside; };
  auto batch = *ea().make_batch();
  auto watcher = *ea().make_watcher(calls.notify(5));
  std::optional<Subscription> subscription;
  const std::array<std::function<bool()>, 7> causes{
      [&] { return ea().submit(Timer{.notify = calls.notify(0)}).has_value(); },
      [&] {
        return ea()
            .submit(Write{.source = a().out.at(0),
                          .target = region.at(0),
                          .size_bytes = 8,
                          .notify = calls.notify(1)})
            .has_value();
      },
      [&] { return counter.expect(1, calls.notify(2)).has_value(); },  // met already
      [&] { return batch.seal(calls.notify(3)).has_value(); },         // empty already
      [&] {
        auto subscribed = ea().subscribe(calls.notify(4));  // there are peers already
        if (subscribed) subscription.emplace(*std::move(subscribed));
        return subscription.has_value();
      },
      [&] {
        watcher.arm();
        watcher.store(17);
        return true;
      },
      [&] {
        const auto op = ea().submit(Timer{.after = 1h, .notify = calls.notify(6)});
        return op && ea().cancel(*op);
      }};
  for (size_t i = 0; i < causes.size(); ++i) {
    SCOPED_TRACE(i);
    inside = true;
    EXPECT_TRUE(causes[i]());
    inside = false;
    EXPECT_TRUE(until([&] { return calls.count(i) > 0; }));
  }
  EXPECT_EQ(inside_calls, 0u);
}

TEST_P(Conformance, P19ABlockingCallInACallbackIsRefused) {
  auto counter = *ea().make_counter();
  auto closed = *ea().make_counter();
  auto group = *ea().make_counter_group();
  auto batch = *ea().make_batch();
  auto inbox = *ea().make_inbox(2);
  auto region = std::make_optional(make_memory(ea(), 4096));
  ASSERT_TRUE(ea().submit(Timer{.after = 1h, .batch = batch}));
  const uint64_t name = 1;
  CounterKey key;
  EventRecorder& calls = recorder();
  EventRecorder& later = recorder();
  std::vector<Errc> codes;
  calls.then = [&](const Event&) {
    codes = {counter.wait(1, 1s).error().code,
             group.wait(1, 1s).error().code,
             closed.close(1s).error().code,
             ea().wait(batch, 1s).error().code,
             inbox.wait(1s).error().code,
             ea().resolve(ab().peer, {&name, 1}, {&key, 1}, 1s).error().code,
             ea().close(1s).error().code};
    // What does not block may be called, and goes on afterwards.
    Write request = write(0, 20'000);
    request.notify = later.notify();
    EXPECT_TRUE(ea().submit(request));
    region.reset();
  };
  ASSERT_TRUE(ea().submit(Timer{.notify = calls.notify()}));
  wait_completion(calls);
  EXPECT_EQ(codes, std::vector<Errc>(7, Errc::kWouldDeadlock));
  EXPECT_EQ(wait_completion(later).code, Errc::kOk);
  wait_idle();
  EXPECT_TRUE(arrived(0, 20'000));
  ASSERT_TRUE(ea().submit(Write{.source = a().out.at(0), .target = ab().region.at(0)}))
      << "the engine was not closed";
}

TEST_P(Conformance, P19NothingIsCalledAfterASubscriptionEnds) {
  EventRecorder& reported = recorder();
  std::optional<Subscription> subscription;
  subscription.emplace(*eb().listen(2, reported.notify()));
  reported.then = [&](const Event&) { subscription.reset(); };  // from inside its own callback
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(ea().submit(Send{.peer = ab().peer, .channel = 2}));
  wait_idle();
  EXPECT_EQ(reported.count(), 1u);
  EXPECT_FALSE(subscription.has_value());
  EXPECT_EQ(submit_and_wait(ea(), Send{.peer = ab().peer, .channel = 2}).code, Errc::kUnsupported);
}

}  // namespace fabric::test
