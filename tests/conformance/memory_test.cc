#include <algorithm>
#include <array>
#include <cstring>

#include "base/rng.h"
#include "conformance/conformance.h"
#include "support/log_guard.h"

// P12 to P14: bounds, fences, and bytes from outside.

namespace fabric::test {

// ---- P12 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P12WhatDoesNotFitIsRefusedBeforeItIsPosted) {
  ASSERT_EQ(submit_and_wait(ea(), write(0, 100)).code, Errc::kOk);  // paths are open
  wait_idle();
  b().in.clear();
  const uint64_t ops = ea().stats().tx.ops;
  struct Bad {
    uint64_t source, target, size;
    const char* what;
  };
  const Bad bad[] = {
      {0, kBytes, 1, "target"},     {0, kBytes - 1, 2, "target"}, {0, kBytes + 1, 0, "target"},
      {0, UINT64_MAX, 2, "target"}, {0, 1, UINT64_MAX, "source"}, {kBytes, 0, 1, "source"},
      {UINT64_MAX, 0, 1, "source"}, {1, 0, kBytes, "source"},     {0, 1, kBytes, "target"}};
  for (const Bad& at : bad) {
    SCOPED_TRACE(std::to_string(at.source) + " " + std::to_string(at.target) + " " +
                 std::to_string(at.size));
    const Error error = ea().submit(Write{.source = a().out.at(at.source),
                                          .target = ab().region.at(at.target),
                                          .size_bytes = at.size})
                            .error();
    EXPECT_EQ(error.code, Errc::kOutOfBounds);
    EXPECT_STREQ(error.what, at.what);
    const ScatterTarget target{ab().region.at(at.target), at.source, at.size, {}};
    EXPECT_EQ(
        ea().submit(Scatter{.source = a().out.region.id(), .targets = {&target, 1}}).error().code,
        Errc::kOutOfBounds);
  }
  const auto paged = [&](uint32_t from, uint32_t to, Pages shape) {
    Pages source = shape, target = shape;
    source.indices = {&from, 1};
    target.indices = {&to, 1};
    return ea()
        .submit(PagedWrite{.source = a().out.region.id(),
                           .source_pages = source,
                           .target = ab().region,
                           .target_pages = target,
                           .page_bytes = 4096})
        .error()
        .code;
  };
  EXPECT_EQ(paged(0, kBytes / 4096, {.stride_bytes = 4096}), Errc::kOutOfBounds);
  EXPECT_EQ(paged(kBytes / 4096, 0, {.stride_bytes = 4096}), Errc::kOutOfBounds);
  EXPECT_EQ(paged(0, 0, {.stride_bytes = 4096, .offset_bytes = kBytes - 4095}), Errc::kOutOfBounds);
  EXPECT_EQ(paged(0, 0, {.stride_bytes = 1, .offset_bytes = UINT64_MAX}), Errc::kOutOfBounds);
  EXPECT_EQ(paged(2, 2, {.stride_bytes = UINT64_MAX / 2 + 1}), Errc::kOutOfBounds);
  wait_idle();
  EXPECT_EQ(ea().stats().tx.ops, ops) << "a refused write was posted";
  EXPECT_EQ(ea().stats().ops_in_flight, 0u);
  EXPECT_TRUE(untouched(0, kBytes));
  // The last byte, and nothing at the very end, fit.
  EXPECT_EQ(submit_and_wait(ea(), write(kBytes - 1, 1)).code, Errc::kOk);
  EXPECT_EQ(submit_and_wait(ea(), write(kBytes, 0)).code, Errc::kOk);
  EXPECT_EQ(submit_and_wait(ea(), write(0, kBytes)).code, Errc::kOk);
}

TEST_P(Conformance, P12ASourceOnlyRegionHasNoDescriptor) {
  std::vector<std::byte> bytes(4096, std::byte{7});
  auto source = ea().register_memory(
      {.address = bytes.data(), .size_bytes = bytes.size(), .remote_write = false});
  ASSERT_TRUE(source);
  EXPECT_EQ(source->desc().error().code, Errc::kPermission);
  EXPECT_EQ(source->grant(ab().peer).error().code, Errc::kPermission);
  EXPECT_EQ(
      submit_and_wait(
          ea(), Write{.source = source->at(0), .target = ab().region.at(0), .size_bytes = 4096})
          .code,
      Errc::kOk);
  EXPECT_EQ(b().in.bytes[4095], std::byte{7});
}

TEST_P(Conformance, P12RegionsMayOverlapAndSplit) {
  // Two views of the same bytes, one inside the other.
  TestMemory& block = b().in;
  auto inner = eb().register_memory({.address = block.bytes.data() + 1000, .size_bytes = 500});
  ASSERT_TRUE(inner);
  const auto region = ea().import_region(ab().peer, *inner->desc());
  ASSERT_TRUE(region);
  EXPECT_EQ(*ea().import_region(ab().peer, *inner->desc()), *region) << "idempotent";
  EXPECT_EQ(submit_and_wait(
                ea(), Write{.source = a().out.at(1000), .target = region->at(0), .size_bytes = 500})
                .code,
            Errc::kOk);
  EXPECT_EQ(ea().submit(Write{.source = a().out.at(0), .target = region->at(1), .size_bytes = 500})
                .error()
                .code,
            Errc::kOutOfBounds);
  wait_idle();
  EXPECT_TRUE(arrived(1000, 500));
  EXPECT_TRUE(untouched(0, 1000) && untouched(1500, 1000));
  EXPECT_EQ(inner->find(block.bytes.data() + 1100, 400)->offset, 100u);
  EXPECT_EQ(inner->find(block.bytes.data() + 1100, 401).error().code, Errc::kOutOfBounds);
  EXPECT_EQ(inner->find(block.bytes.data() + 999, 1).error().code, Errc::kOutOfBounds);
}

// ---- P13 ----------------------------------------------------------------------------------------
// A fence without the peer's help, and one that cannot be proved in time, need a peer that is
// silent: with the faults.

TEST_P(Conformance, P13AfterDeregisterNothingLandsAnyMore) {
  for (const Nanos delay : {Nanos(0), Nanos(3us), Nanos(9us), Nanos(20us), Nanos(1ms)}) {
    SCOPED_TRACE(delay.count());
    auto block = make_memory(eb());
    const auto region = ea().import_region(ab().peer, *block.region.desc());
    ASSERT_TRUE(region);
    auto counter = *eb().make_counter();
    EventRecorder& completions = recorder();
    EventRecorder& fenced = recorder();
    constexpr uint32_t kWrites = 200;
    constexpr uint64_t kSize = 5000;
    for (uint32_t i = 0; i < kWrites; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = a().out.at(i * kSize),
                                    .target = region->at(i * kSize),
                                    .size_bytes = kSize,
                                    .imm = counter.key(),
                                    .unsplit = true,
                                    .notify = completions.notify(i)}));
    }
    run_for(delay);
    TestBytes at_the_end;
    fenced.then = [&](const Event&) { at_the_end = block.bytes; };
    ASSERT_TRUE(eb().submit(Deregister{.region = block.region.id(), .notify = fenced.notify()}));
    const Event event = wait_completion(fenced);
    EXPECT_EQ(event.code, Errc::kOk);
    EXPECT_EQ(event.remote, Remote::kDelivered);
    ASSERT_TRUE(until([&] { return completions.count() == kWrites; }));
    wait_idle();
    EXPECT_EQ(block.bytes, at_the_end) << "a write landed after the proof";
    uint32_t delivered = 0;
    for (uint32_t i = 0; i < kWrites; ++i) {
      ASSERT_EQ(completions.count(i), 1u);
      const Event& end = *completions.find(i);
      if (end.code == Errc::kOk) {
        ++delivered;
        EXPECT_EQ(
            std::memcmp(block.bytes.data() + i * kSize, a().out.bytes.data() + i * kSize, kSize),
            0);
      } else {
        EXPECT_EQ(end.code, Errc::kNotFound) << "the refusal must name the revoked region";
        EXPECT_EQ(end.remote, Remote::kNotDelivered);
      }
    }
    EXPECT_EQ(counter.count(), delivered);
    const Write late{.source = a().out.at(0), .target = region->at(0), .size_bytes = 8};
    EXPECT_EQ(ea().submit(late).error().code, Errc::kNotFound);
    EXPECT_EQ(eb().submit(Deregister{.region = block.region.id()}).error().code, Errc::kNotFound);
    EXPECT_EQ(block.region.desc().error().code, Errc::kNotFound);
    // The session stays up.
    EXPECT_EQ(submit_and_wait(ea(), write(0, 10'000)).code, Errc::kOk);
  }
}

TEST_P(Conformance, P13ARevokedDescriptorCannotBeImportedAgain) {
  auto block = make_memory(eb());
  const auto desc = *block.region.desc();
  ASSERT_TRUE(ea().import_region(ab().peer, desc));
  EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = block.region.id()}).code, Errc::kOk);
  wait_idle();
  EXPECT_EQ(ea().import_region(ab().peer, desc).error().code, Errc::kNotFound);
}

TEST_P(Conformance, P13DestroyingARegionFencesIt) {
  std::vector<std::byte> bytes(kBytes);
  std::vector<std::byte> at_the_end;
  EventRecorder& completions = recorder();
  {
    auto region = *eb().register_memory({.address = bytes.data(), .size_bytes = kBytes});
    const auto imported = *ea().import_region(ab().peer, *region.desc());
    for (uint32_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = a().out.at(i * 8000),
                                    .target = imported.at(i * 8000),
                                    .size_bytes = 8000,
                                    .notify = completions.notify(i)}));
    }
    run_for(6us);
  }
  at_the_end = bytes;
  wait_idle();
  EXPECT_EQ(bytes, at_the_end);
  EXPECT_EQ(completions.count(), 100u);
}

TEST_P(Conformance, P13DeregisteringASourceEndsItsWritesFirst) {
  constexpr uint32_t kWrites = 60;
  constexpr uint64_t kSize = 16'000;
  uint32_t cut_short = 0, delivered = 0;
  for (const Nanos delay : {-1ns, 4us + 0ns, 8us + 0ns, 12us + 0ns, 20us + 0ns, 30us + 0ns}) {
    SCOPED_TRACE(delay.count());
    auto block = make_memory(ea());
    block.fill(5);
    const auto kept = block.bytes;
    auto counter = *eb().make_counter();
    EventRecorder& completions = recorder();
    for (uint32_t i = 0; i < kWrites; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = block.at(i * kSize),
                                    .target = ab().region.at(i * kSize),
                                    .size_bytes = kSize,
                                    .imm = counter.key(),
                                    .unsplit = true,
                                    .notify = completions.notify(i)}));
    }
    if (delay >= 0ns) run_for(delay);
    uint32_t ended_before = 0;
    EventRecorder& fenced = recorder();
    fenced.then = [&](const Event&) {
      ended_before = completions.count();
      std::memset(block.bytes.data(), 0xee, block.bytes.size());  // the memory is ours again
    };
    ASSERT_TRUE(ea().submit(Deregister{.region = block.region.id(), .notify = fenced.notify()}));
    EXPECT_EQ(wait_completion(fenced).code, Errc::kOk);
    EXPECT_EQ(ended_before, kWrites);
    wait_idle();
    uint32_t counted = 0;
    for (uint32_t i = 0; i < kWrites; ++i) {
      const Event& end = *completions.find(i);
      if (end.code == Errc::kOk) {
        ++counted;
        const size_t at = i * kSize;
        EXPECT_EQ(std::memcmp(b().in.bytes.data() + at, kept.data() + at, kSize), 0);
      } else {
        EXPECT_EQ(end.code, Errc::kNotFound);
        EXPECT_EQ(end.remote, Remote::kNotDelivered)
            << "posted writes drain, the others are never posted";
        ++cut_short;
      }
    }
    EXPECT_EQ(counter.count(), counted);
    delivered += counted;
  }
  EXPECT_GT(cut_short, 0u);
  EXPECT_GT(delivered, 0u);
}

TEST_P(Conformance, P13AFencedPeerIsShutOutAndTheOthersAreNot) {
  REQUIRE_CAP(two_engines);
  constexpr uint32_t kWrites = 120;
  constexpr uint64_t kSize = 4000, kHalf = kBytes / 2;
  const RemoteHost cb = connect(c(), b());
  c().out.fill(77);
  uint32_t lost = 0, delivered = 0;
  for (const Nanos delay : {Nanos(1us), Nanos(7us), Nanos(12us), Nanos(1ms)}) {
    SCOPED_TRACE(delay.count());
    b().in.clear();
    const RemoteHost mine = connect(a(), b());  // a new session after each fence
    const PeerId of_a = *eb().connect(ea().address());
    EventRecorder& completions = recorder();
    EventRecorder& others = recorder();
    EventRecorder& fenced = recorder();
    auto counter = *eb().make_counter();
    for (uint32_t i = 0; i < kWrites; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = a().out.at(i * kSize),
                                    .target = mine.region.at(i * kSize),
                                    .size_bytes = kSize,
                                    .notify = completions.notify(i)}));
      ASSERT_TRUE(c().engine.submit(Write{.source = c().out.at(i * kSize),
                                          .target = cb.region.at(kHalf + i * kSize),
                                          .size_bytes = kSize,
                                          .imm = counter.key(),
                                          .notify = others.notify(i)}));
    }
    run_for(delay);
    std::vector<std::byte> at_the_end;
    fenced.then = [&](const Event&) {
      at_the_end.assign(b().in.bytes.begin(), b().in.bytes.begin() + kHalf);
    };
    ASSERT_TRUE(eb().submit(Fence{.peer = of_a, .notify = fenced.notify()}));
    const Event event = wait_completion(fenced);
    EXPECT_EQ(event.code, Errc::kOk);
    EXPECT_EQ(event.remote, Remote::kDelivered);
    ASSERT_TRUE(until([&] { return completions.count() == kWrites && others.count() == kWrites; }));
    wait_idle();
    EXPECT_TRUE(std::equal(at_the_end.begin(), at_the_end.end(), b().in.bytes.begin()))
        << "a write of the fenced peer landed";
    for (uint32_t i = 0; i < kWrites; ++i) {
      EXPECT_EQ(others.find(i)->code, Errc::kOk);
      const Errc code = completions.find(i)->code;
      EXPECT_TRUE(code == Errc::kOk || code == Errc::kPeerLost) << to_string(code);
      ++(code == Errc::kOk ? delivered : lost);
    }
    EXPECT_EQ(counter.count(), kWrites);
    EXPECT_EQ(std::memcmp(b().in.bytes.data() + kHalf, c().out.bytes.data(), kWrites * kSize), 0);
    const Write late{.source = a().out.at(0), .target = mine.region.at(0), .size_bytes = 8};
    EXPECT_EQ(ea().submit(late).error().code, Errc::kPeerLost);
    EXPECT_EQ(eb().peer_info(of_a)->state, PeerState::kFenced);
  }
  // Where time is real the writes may all have been faster.
  if (GetParam().caps.virtual_time) {
    EXPECT_GT(lost, 0u) << "every write had landed before the fence: the test shows nothing";
  }
  EXPECT_GT(delivered, 0u);
}

TEST_P(Conformance, P13ASessionThatNeverCameUpIsFencedAtOnce) {
  REQUIRE_CAP(two_engines);
  const SilentPeer gone = silent_peer();
  const PeerId silent = *ea().connect(gone.address);
  EventRecorder& completions = recorder();
  ASSERT_TRUE(ea().submit(Send{.peer = silent, .notify = completions.notify(1)}));
  const Nanos start = ea().now();
  const Event event = submit_and_wait(ea(), Fence{.peer = silent});
  EXPECT_EQ(event.code, Errc::kOk) << "a peer that never connected cannot write";
  EXPECT_LE(ea().now() - start, 1s);
  EXPECT_EQ(wait_completion(completions, 1).code, Errc::kPeerLost);
  EXPECT_EQ(ea().peer_info(silent)->state, PeerState::kFenced);
}

TEST_P(Conformance, P13AnEngineCannotFenceItselfOff) {
  const PeerId self = *ea().connect(ea().address());
  const Event event = submit_and_wait(ea(), Fence{.peer = self});
  EXPECT_EQ(event.code, Errc::kUnsupported);
  EXPECT_EQ(event.remote, Remote::kUnknown);
}

TEST_P(Conformance, P13AGrantIsForItsPeerOnly) {
  REQUIRE_CAP(two_engines);
  const RemoteHost cb = connect(c(), b());
  const PeerId of_c = *eb().connect(c().engine.address());
  const auto grant = b().in.region.grant(of_c);
  ASSERT_TRUE(grant);
  EXPECT_EQ(ea().import_region(ab().peer, grant->desc).error().code, Errc::kPermission);
  const auto region = c().engine.import_region(cb.peer, grant->desc);
  ASSERT_TRUE(region);
  c().out.fill(3);
  EXPECT_EQ(
      submit_and_wait(c().engine,
                      Write{.source = c().out.at(0), .target = region->at(0), .size_bytes = 50'000})
          .code,
      Errc::kOk);
  wait_idle();
  EXPECT_EQ(std::memcmp(b().in.bytes.data(), c().out.bytes.data(), 50'000), 0);
  // Deregistering takes the grants with it.
  EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = b().in.region.id()}).code, Errc::kOk);
  wait_idle();
  EXPECT_EQ(
      c().engine.submit(Write{.source = c().out.at(0), .target = region->at(0), .size_bytes = 8})
          .error()
          .code,
      Errc::kNotFound);
}

// ---- P14 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P14EveryCutShortTextAndByteStringIsAnError) {
  const auto address = eb().address();
  const auto text = eb().address_text();
  const auto desc = *b().in.region.desc();
  const auto offer = *eb().offer(b().in.region, CounterKey::from_wire(5));
  const auto refused = [](Errc code) { return code == Errc::kBadFormat || code == Errc::kVersion; };
  for (size_t n = 0; n < address.size(); ++n) {
    EXPECT_TRUE(refused(ea().connect(std::span(address).first(n)).error().code)) << n;
  }
  for (size_t n = 0; n < desc.size(); ++n) {
    EXPECT_TRUE(refused(ea().import_region(ab().peer, std::span(desc).first(n)).error().code)) << n;
  }
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_TRUE(refused(ea().connect(std::string_view(text).substr(0, n)).error().code)) << n;
  }
  for (size_t n = 0; n < offer.size(); ++n) {
    EXPECT_TRUE(refused(ea().accept(std::string_view(offer).substr(0, n)).error().code)) << n;
  }
  auto longer = address;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(ea().connect(longer).error().code));
  longer = desc;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(refused(ea().import_region(ab().peer, longer).error().code));
  EXPECT_LE(desc.size(), MemoryRegion::kDescBytesMax);
  // Whole, they still work.
  EXPECT_EQ(*ea().connect(text), ab().peer);
  const auto accepted = ea().accept(offer);
  ASSERT_TRUE(accepted);
  EXPECT_EQ(accepted->peer, ab().peer);
  EXPECT_EQ(accepted->region, ab().region);
  EXPECT_EQ(accepted->key, CounterKey::from_wire(5));
}

// A garbled one may still parse: as another peer's, or of another size. It must do no harm.
TEST_P(Conformance, P14GarbledBytesDoNoHarm) {
  expect_log("a path broke");  // a write with a wrong rkey ends its connection, if it has one
  const auto address = eb().address();
  const auto desc = *b().in.region.desc();
  auto guard = make_memory(eb(), 65'536);  // a region whose descriptor was given to no peer
  Rng rng(test_seed());
  for (size_t i = 0; i < address.size(); ++i) {
    auto garbled = address;
    garbled[i] ^= static_cast<std::byte>(rng.between(1, 255));
    const auto peer = ea().connect(garbled);
    if (peer && *peer != ab().peer) (void)ea().disconnect(*peer);
  }
  // One that looks like the next incarnation of the peer ends the present session, so there
  // may be a new one.
  const RemoteHost now = connect(a(), b());
  const auto kept_in = b().in.bytes;
  for (size_t i = 0; i < desc.size(); ++i) {
    auto garbled = desc;
    garbled[i] ^= static_cast<std::byte>(rng.between(1, 255));
    const auto region = ea().import_region(now.peer, garbled);
    if (!region || *region == now.region) continue;
    EventRecorder& completions = recorder();
    const auto op = ea().submit(Write{.source = a().out.at(0),
                                      .target = region->at(kBytes - 64),
                                      .size_bytes = 65,
                                      .notify = completions.notify()});
    if (!op) continue;
    EXPECT_NE(wait_completion(completions).code, Errc::kOk)
        << "beyond the end of the real region, byte " << i;
  }
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> noise(rng.below(300));
    for (std::byte& b : noise) b = static_cast<std::byte>(rng.next());
    EXPECT_FALSE(ea().import_region(now.peer, noise));
    EXPECT_FALSE(ea().connect(noise));
    const std::string text(reinterpret_cast<const char*>(noise.data()), noise.size());
    EXPECT_FALSE(ea().connect(text));
    EXPECT_FALSE(ea().accept(text));
  }
  wait_idle();
  EXPECT_EQ(b().in.bytes, kept_in);
  EXPECT_TRUE(std::all_of(guard.bytes.begin(), guard.bytes.end(),
                          [](std::byte b) { return b == std::byte{0}; }));
  EXPECT_EQ(
      submit_and_wait(
          ea(), Write{.source = a().out.at(0), .target = now.region.at(0), .size_bytes = kBytes})
          .code,
      Errc::kOk)
      << "the session was affected";
  wait_idle();
  EXPECT_TRUE(arrived(0, kBytes));
}

}  // namespace fabric::test
