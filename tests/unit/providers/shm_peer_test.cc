#include "providers/shm/shm_peer.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "fuzz/shm_fixture.h"

// A hostile process of the same user that breaks the rules on the socket, with descriptors, and in
// shared memory. Whatever it does, the traffic of the other peers stays exact, and nothing of it is
// leaked when it exits. tests/fuzz/shm_connection_fuzz.cc searches for more.

namespace fabric::fuzz::shm_peer_test {
namespace {

using namespace fabric::shm;
using Kind = RailEvent::Kind;

class ShmHostile : public testing::Test {
 protected:
  static constexpr uint64_t kInstance = UINT64_MAX - 0xbad;  // sorts after all others

  ShmHostile() { honest_.turns(2); }

  ~ShmHostile() override {
    expect_honest_traffic("at the end");
    hostile_.disconnect();
    victim_.turns(2);
  }

  /// In both directions, mapped and pulled.
  void expect_honest_traffic(const char* when) {
    const std::array<ShmTraffic*, 4> all{&in_, &in_pulled_, &out_, &out_pulled_};
    for (ShmTraffic* one : all) EXPECT_TRUE(one->write()) << when;
    bool exact = false;
    for (uint32_t turn = 0; turn < 400 && !exact; ++turn) {
      victim_.turn();
      honest_.turn();
      exact = std::ranges::all_of(all, [](const ShmTraffic* one) { return one->exact(); });
    }
    EXPECT_TRUE(exact) << when;
  }

  /// A path from the hostile process to the victim; returns the inbound path and the ring.
  std::pair<uint32_t, Ring*> path_in(uint32_t number = 1) {
    introduce();
    std::vector<std::byte> answer;
    const auto path =
        victim_.rail().accept_path(encode(PathHello{hostile_.address(), 0, number}), answer);
    EXPECT_TRUE(path);
    for (uint32_t turn = 0; turn < 20 && hostile_.rings.empty(); ++turn) {
      victim_.turn();
      hostile_.receive();
      hostile_.send(Frame(MemoryReply{}));  // without a descriptor: its memory cannot be read
    }
    EXPECT_EQ(hostile_.rings.size(), 1u);
    return {*path, hostile_.rings.empty() ? nullptr : hostile_.rings[0].as<Ring>()};
  }

  /// A path from the victim to the hostile process.
  uint32_t path_out() {
    introduce();
    std::vector<std::byte> hello;
    const auto path = victim_.rail().open_path(encode(hostile_.address()), 0, hello);
    EXPECT_TRUE(path);
    EXPECT_FALSE(victim_.rail().start_path(*path, {})) << "an empty answer";
    const std::byte answer[] = {std::byte{1}};
    EXPECT_TRUE(victim_.rail().start_path(*path, answer));
    return *path;
  }

  void introduce() {
    if (hostile_.connected()) return;
    ASSERT_TRUE(hostile_.connect(victim_.address()));
    ASSERT_TRUE(hostile_.greet());
    victim_.turns(2);
  }

  /// Publishes an rkey with arbitrary contents.
  uint64_t show_rkey(RkeyEntry& entry, RkeyKind kind, uint64_t block, uint64_t offset,
                     uint64_t bytes) {
    entry.block.store(block);
    entry.offset.store(offset);
    entry.size_bytes.store(bytes);
    entry.kind.store(static_cast<uint32_t>(kind));
    entry.validity_epoch.store(1);
    return uint64_t{1} << 32 | static_cast<uint64_t>(&entry - hostile_.header().rkeys.data());
  }

  bool post(uint32_t path, uint64_t rkey, uint32_t cookie, uint64_t target = 0) {
    const WriteOp op{.source = reinterpret_cast<uint64_t>(bytes_.data()),
                     .target = target,
                     .size_bytes = bytes_.size(),
                     .rkey = rkey,
                     .cookie = cookie,
                     .path = path,
                     .imm = 5,
                     .has_imm = 1};
    return victim_.rail().post({&op, 1}) == 1;
  }

  StepDriver driver_;
  ShmNode victim_{driver_}, honest_{driver_};
  ShmTraffic in_{honest_, victim_, TargetKind::kMapped},
      in_pulled_{honest_, victim_, TargetKind::kPulled};
  ShmTraffic out_{victim_, honest_, TargetKind::kMapped},
      out_pulled_{victim_, honest_, TargetKind::kPulled};
  HostileProcess hostile_{kInstance};
  std::array<std::byte, 256> bytes_{};
};

// The socket

TEST_F(ShmHostile, AGreetingWithoutProperMemoryIsNotAccepted) {
  expect_honest_traffic("before");
  const Footprint before = footprint();
  for (uint8_t kind = 0; kind < static_cast<uint8_t>(Passed::kCount); ++kind) {
    for (const bool slots_are_good : {false, true}) {
      const UniqueFd slots =
          make_descriptor(slots_are_good ? Passed::kMemory : Passed(kind), sizeof(WriterSlotTable));
      const UniqueFd header =
          make_descriptor(slots_are_good ? Passed(kind) : Passed::kMemory, sizeof(SharedHeader));
      ASSERT_TRUE(hostile_.connect(victim_.address()));
      const int both[] = {slots.get(), header.get()};
      ASSERT_TRUE(hostile_.send(Frame(Greeting{.from = hostile_.address()}), both));
      victim_.turns(2);
      // Read-only memory is enough here.
      const bool good = kind == static_cast<uint8_t>(Passed::kMemory) ||
                        kind == static_cast<uint8_t>(Passed::kReadOnly);
      EXPECT_EQ(hostile_.send(Frame(Wake{})), good) << int{kind} << slots_are_good;
      hostile_.disconnect();
      victim_.turns(2);
    }
  }
  EXPECT_EQ(footprint(), before);
}

TEST_F(ShmHostile, AnInvalidFrameClosesItsConnection) {
  const std::vector<std::byte> noise(3, std::byte{0xff});
  const std::vector<std::byte> too_long(300u << 10, std::byte{1});
  for (const bool greeted : {false, true}) {
    for (const auto* bytes : {&noise, &too_long}) {
      ASSERT_TRUE(hostile_.connect(victim_.address()));
      ASSERT_TRUE(!greeted || hostile_.greet());
      victim_.turns(2);
      ASSERT_TRUE(hostile_.send(Frame(Wake{})));
      if (!hostile_.send(*bytes)) continue;  // too long for the system
      victim_.turns(2);
      EXPECT_FALSE(hostile_.send(Frame(Wake{})));
      hostile_.disconnect();
      victim_.turns(2);
    }
  }
}

TEST_F(ShmHostile, ExcessDescriptorsCloseTheConnectionAndAreClosed) {
  expect_honest_traffic("before");
  const Footprint before = footprint();
  const UniqueFd one = make_descriptor(Passed::kPipe, 0);
  for (const uint32_t count : {1, 3, 4, 16}) {
    ASSERT_TRUE(hostile_.connect(victim_.address()));
    ASSERT_TRUE(hostile_.greet());
    victim_.turns(2);
    const std::vector<int> many(count, one.get());
    ASSERT_TRUE(hostile_.send(Frame(Wake{}), many));
    victim_.turns(2);
    EXPECT_FALSE(hostile_.send(Frame(Wake{}))) << count;
    hostile_.disconnect();
    victim_.turns(2);
  }
  EXPECT_EQ(footprint().descriptors, before.descriptors + 1);
}

TEST_F(ShmHostile, NoPeerTakesTheConnectionOfAnother) {
  const Address honest = honest_.address();
  for (const uint32_t connection : {0u, SharedHeader::kConnections}) {
    ASSERT_TRUE(hostile_.connect(victim_.address()));
    ASSERT_TRUE(hostile_.greet(&honest, connection));
    victim_.turns(2);
    EXPECT_FALSE(hostile_.send(Frame(Wake{}))) << connection;
    hostile_.disconnect();
    // Frames of the honest peer still arrive, for example a datagram.
    const auto link = honest_.network().open_link(victim_.network().address());
    const std::byte word[] = {std::byte{42}};
    ASSERT_TRUE(honest_.network().send(*link, word));
    victim_.datagrams.clear();
    victim_.turns(4);
    EXPECT_EQ(victim_.datagrams.size(), 1u) << connection;
    honest_.network().close_link(*link);
  }
}

TEST_F(ShmHostile, AGreetingWithAForeignAddressIsRefused) {
  Address other = hostile_.address();
  for (const uint32_t what : {0, 1, 2, 3}) {
    other = hostile_.address();
    if (what == 0) other.host[0] ^= std::byte{1};
    if (what == 1) ++other.user;
    if (what == 2) ++other.net_namespace;
    if (what == 3) other = victim_.address();
    ASSERT_TRUE(hostile_.connect(victim_.address()));
    ASSERT_TRUE(hostile_.greet(&other));
    victim_.turns(2);
    EXPECT_FALSE(hostile_.send(Frame(Wake{}))) << what;
    hostile_.disconnect();
  }
}

TEST_F(ShmHostile, AFloodDoesNotStarveOtherPeers) {
  introduce();
  const auto link = honest_.network().open_link(victim_.network().address());
  const std::byte word[] = {std::byte{42}};
  std::vector<std::byte> buffer(victim_.network().control_bytes_max());
  const std::byte noise[] = {std::byte{1}, std::byte{0xff}};
  for (const bool datagrams : {true, false}) {
    const auto flood = [&] {
      uint32_t more = 0;
      while (datagrams ? hostile_.send(noise) : hostile_.send(Frame(Wake{}))) ++more;
      return more;
    };
    victim_.turns(64);  // the rest of the previous flood
    flood();
    ASSERT_TRUE(honest_.network().send(*link, word));
    bool received = false;
    for (uint32_t call = 0; call < 100; ++call) {
      driver_.pass(100'000);
      received |= victim_.network().receive(buffer) == 1 && buffer[0] == std::byte{42};
      // Refilled as fast as it is read: one call must not read without bound.
      EXPECT_LE(flood(), 128u);
    }
    EXPECT_TRUE(received) << datagrams;
  }
  honest_.network().close_link(*link);
}

TEST_F(ShmHostile, APeerThatAsksAndNeverReadsCostsABoundedAmount) {
  introduce();
  const Footprint before = footprint();
  std::vector<std::byte> rkey;
  auto pages = *SharedPages::allocate(4096, false);
  ASSERT_TRUE(victim_.rail().register_memory({pages.address(), 4096}, rkey));
  const uint64_t block = SharedPages::find(pages.address(), 1)->block;
  for (uint32_t i = 0; i < 20'000; ++i) {
    while (!hostile_.send(i % 2 == 0 ? Frame(BlockRequest{block}) : Frame(MemoryRequest{}))) {
      victim_.turn();
    }
  }
  victim_.turns(400);
  EXPECT_LE(footprint().descriptors, before.descriptors + 16);
}

TEST_F(ShmHostile, ConnectionsWithoutAGreetingAreBounded) {
  expect_honest_traffic("before");
  const Footprint before = footprint();
  std::vector<UniqueFd> silent;
  for (uint32_t i = 0; i < 400; ++i) {
    auto connection = connect_to(victim_.address());
    if (connection) silent.push_back(*std::move(connection));
    if (i % 50 == 0) victim_.turn();
  }
  victim_.turns(20);
  EXPECT_LE(footprint().descriptors, before.descriptors + silent.size() + 257);
  expect_honest_traffic("after many connections");
  silent.clear();
  victim_.turns(20);
  EXPECT_EQ(footprint(), before);
}

// Shared header and writer slots

TEST_F(ShmHostile, GarbageInTheWriterSlotsBlocksNoFence) {
  introduce();
  WriterSlotTable& slots = hostile_.slots();
  slots.used.store(UINT32_MAX);
  for (WriterSlot& slot : slots.slot) {
    slot.section_seq.store(1);  // always inside a section
    slot.tid.store(1);
  }
  auto pages = *SharedPages::allocate(4096, false);
  std::vector<std::byte> rkey;
  const auto local = victim_.rail().register_memory({pages.address(), 4096}, rkey);
  ASSERT_TRUE(local);
  victim_.rail().deregister_memory(*local, 77);
  victim_.turns(20);
  EXPECT_NE(victim_.fenced(77), nullptr) << "it never mapped our pages";
}

TEST_F(ShmHostile, PagesAreForThoseWhoHaveAPath) {
  introduce();
  auto pages = *SharedPages::allocate(4096, false);
  std::vector<std::byte> rkey;
  ASSERT_TRUE(victim_.rail().register_memory({pages.address(), 4096}, rkey));
  const uint64_t block = SharedPages::find(pages.address(), 4096)->block;
  const auto ask = [&] {
    hostile_.send(Frame(BlockRequest{block}));
    victim_.turns(3);
    hostile_.receive();
  };
  ask();
  ASSERT_EQ(hostile_.blocks.size(), 1u);
  EXPECT_EQ(hostile_.blocks[0].size_bytes, 0u) << "a greeting alone must not get pages";
  path_in();
  ask();
  ASSERT_EQ(hostile_.blocks.size(), 2u);
  EXPECT_EQ(hostile_.blocks[1].size_bytes, 4096u);
}

TEST_F(ShmHostile, TheDeathOfOneThreadCompletesNoFence) {
  path_in();
  auto pages = *SharedPages::allocate(4096, false);
  std::vector<std::byte> rkey;
  const auto local = victim_.rail().register_memory({pages.address(), 4096}, rkey);
  ASSERT_TRUE(local);
  hostile_.send(Frame(BlockRequest{SharedPages::find(pages.address(), 4096)->block}));
  victim_.turns(3);
  WriterSlotTable& slots = hostile_.slots();
  const auto mark = [&](uint32_t slot) {
    constexpr uint32_t kOwnerDied = 0x40000000;
    std::memcpy(&slots.slot[slot].liveness_mutex, &kOwnerDied, sizeof(kOwnerDied));
  };
  slots.used.store(2);
  for (uint32_t slot = 0; slot < 2; ++slot) slots.slot[slot].tid.store(slot + 1);
  slots.slot[0].section_seq.store(1);  // inside a section
  victim_.rail().deregister_memory(*local, 78);
  victim_.turns(5);
  EXPECT_EQ(victim_.fenced(78), nullptr);
  mark(1);
  victim_.turns(20);
  EXPECT_EQ(victim_.fenced(78), nullptr) << "the other thread may still be storing";
  mark(0);
  victim_.turns(20);
  EXPECT_NE(victim_.fenced(78), nullptr);
}

TEST_F(ShmHostile, RkeysOutsideOfTheirBlockAreRefused) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  struct Case {
    uint64_t offset, bytes, target;
  };
  constexpr uint64_t kBlock = 4096;
  const Case cases[] = {
      {0, kBlock + 1, 0},  {1, kBlock, 0},
      {kBlock + 1, 0, 0},  {UINT64_MAX, 2, 0},
      {0, UINT64_MAX, 0},  {UINT64_MAX - 255, 256, 0},
      {0, kBlock, kBlock}, {0, kBlock, kBlock - 255},
      {0, 0, 0},           {0, kBlock, UINT64_MAX - 10},
  };
  const UniqueFd memory = make_descriptor(Passed::kMemory, kBlock);
  const int descriptor = memory.get();
  uint32_t cookie = 0;
  for (const Case& one : cases) {
    RkeyEntry& entry = hostile_.header().rkeys[cookie];
    const uint64_t rkey = show_rkey(entry, RkeyKind::kMapped, 9, one.offset, one.bytes);
    ASSERT_TRUE(post(path, rkey, cookie, one.target));
    victim_.turns(2);
    ASSERT_TRUE(cookie != 0 || hostile_.send(Frame(BlockReply{9, kBlock}), {&descriptor, 1}));
    victim_.turns(3);
    ASSERT_NE(victim_.completion(cookie), nullptr) << cookie;
    EXPECT_EQ(victim_.completion(cookie)->code, Errc::kRemoteAccess) << cookie;
    ++cookie;
  }
  // And one that is right.
  const uint64_t rkey = show_rkey(hostile_.header().rkeys[cookie], RkeyKind::kMapped, 9, 0, kBlock);
  ASSERT_TRUE(post(path, rkey, cookie, kBlock - bytes_.size()));
  victim_.turns(3);
  ASSERT_NE(victim_.completion(cookie), nullptr);
  EXPECT_EQ(victim_.completion(cookie)->code, Errc::kOk);
}

TEST_F(ShmHostile, BlocksWithAnUnsuitableDescriptorAreRefused) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  for (uint8_t kind = 0; kind < static_cast<uint8_t>(Passed::kCount); ++kind) {
    if (Passed(kind) == Passed::kMemory) continue;
    const uint64_t block = 100u + kind;
    const uint64_t rkey =
        show_rkey(hostile_.header().rkeys[kind], RkeyKind::kMapped, block, 0, 4096);
    const UniqueFd passed = make_descriptor(Passed(kind), 4096);
    const int descriptor = passed.get();
    ASSERT_TRUE(post(path, rkey, kind));
    victim_.turns(2);
    ASSERT_TRUE(hostile_.send(Frame(BlockReply{block, 4096}), {&descriptor, 1}));
    victim_.turns(3);
    ASSERT_NE(victim_.completion(kind), nullptr) << int{kind};
    EXPECT_EQ(victim_.completion(kind)->code, Errc::kRemoteAccess) << int{kind};
  }
}

TEST_F(ShmHostile, AnInvalidRingBreaksOnlyItsPath) {
  const uint32_t path = path_out();
  ASSERT_TRUE(post(path, 0, 1));
  const UniqueFd pipe = make_descriptor(Passed::kPipe, 0);
  const int descriptor = pipe.get();
  for (const uint32_t lane : {1u, UINT32_MAX}) {
    ASSERT_TRUE(hostile_.send(Frame(RingReady{.lane = lane, .path = path}), {&descriptor, 1}));
  }
  ASSERT_TRUE(hostile_.send(Frame(RingReady{.path = path + 1}), {&descriptor, 1}));
  ASSERT_TRUE(hostile_.send(Frame(RingReady{.path = path, .epoch_index = SharedHeader::kPaths}),
                            {&descriptor, 1}));
  victim_.turns(3);
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 0u) << "frames for other paths are ignored";
  ASSERT_TRUE(hostile_.send(Frame(RingReady{.path = path}), {&descriptor, 1}));
  victim_.turns(3);
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 1u);
  ASSERT_NE(victim_.completion(1), nullptr);
  EXPECT_EQ(victim_.completion(1)->code, Errc::kRailLost);
}

// The ring

/// Publishes a pull request with the given contents.
void publish(Ring& ring, uint64_t position, uint64_t rkey, uint64_t target, uint64_t source,
             uint64_t bytes, uint32_t flags) {
  PullRequest& request = ring.pulls[position % Ring::kPulls];
  request.rkey.store(rkey);
  request.target.store(target);
  request.source.store(source);
  request.size_bytes.store(bytes);
  request.flags.store(flags);
  request.word.store(PullRequest::word_of(position, PullRequest::kPublished));
}

TEST_F(ShmHostile, PullsOutOfBoundsAreRefused) {
  std::vector<std::byte> mine(4096), wire;
  const auto local = victim_.rail().register_memory({mine.data(), mine.size()}, wire);
  const uint64_t rkey = *victim_.rail().import_rkey(wire);
  std::vector<std::byte> read_only(4096);
  const auto closed = victim_.rail().register_memory(
      {.address = read_only.data(), .size_bytes = 4096, .remote_write = false}, wire);
  ASSERT_TRUE(local && closed);
  const auto [path, ring] = path_in();
  ASSERT_NE(ring, nullptr);
  constexpr uint32_t kHasImm = PullRequest::kHasImm, kBounced = PullRequest::kBounced;
  struct Case {
    uint64_t rkey, target, source, bytes;
    uint32_t flags;
  };
  const Case cases[] = {
      {rkey, 0, 0, 4097, kBounced | kHasImm},
      {rkey, 4096, 0, 1, kBounced | kHasImm},
      {rkey, UINT64_MAX, 0, 2, kBounced | kHasImm},
      {rkey, 0, Ring::kBounceBytes, 1, kBounced | kHasImm},
      {rkey, 0, UINT64_MAX, 2, kBounced | kHasImm},
      {rkey, 0, 0, UINT64_MAX, kBounced | kHasImm},
      {rkey, 0, 0, 0, kBounced | kHasImm},  // an empty request is invalid
      {rkey, 0, 0, 0, kHasImm},
      {rkey + 1, 0, 0, 8, kBounced | kHasImm},
      {rkey + (uint64_t{1} << 32), 0, 0, 8, kBounced | kHasImm},
      {*closed, 0, 0, 8, kBounced | kHasImm},
      {UINT64_MAX, 0, 0, 8, kBounced | kHasImm},
  };
  uint64_t position = 0;
  for (const Case& one : cases) {
    publish(*ring, position, one.rkey, one.target, one.source, one.bytes, one.flags);
    victim_.turns(2);
    EXPECT_EQ(ring->pulls[position].word.load(),
              PullRequest::word_of(position, PullRequest::kRefused))
        << position;
    EXPECT_FALSE(victim_.rail().busy()) << position;
    ++position;
  }
  EXPECT_EQ(victim_.count(Kind::kImm, path), 0u);
  // And one that is right.
  ring->bounce[7] = std::byte{0x77};
  publish(*ring, position, rkey, 4095, 7, 1, kBounced | kHasImm);
  victim_.turns(2);
  EXPECT_EQ(ring->pulls[position].word.load(), PullRequest::word_of(position, PullRequest::kDone));
  EXPECT_EQ(victim_.count(Kind::kImm, path), 1u);
  EXPECT_EQ(mine[4095], std::byte{0x77});
  victim_.rail().deregister_memory(*local, 1);
  victim_.rail().deregister_memory(*closed, 2);
  victim_.turns(2);
}

TEST_F(ShmHostile, APullThatChangesWhileItIsServedStillCompletes) {
  constexpr uint64_t kBytes = 8u << 20;
  std::vector<std::byte> mine(kBytes), wire;
  const auto local = victim_.rail().register_memory({mine.data(), mine.size()}, wire);
  ASSERT_TRUE(local);
  const uint64_t rkey = *victim_.rail().import_rkey(wire);
  const auto [path, ring] = path_in();
  ASSERT_NE(ring, nullptr);
  // One poll serves a part of it. Then its size changes: below that part, to exactly that, above.
  const uint64_t sizes[] = {1, 1u << 20, 2u << 20, 0};
  uint64_t position = 0;
  for (const uint64_t size : sizes) {
    publish(*ring, position, rkey, 0, reinterpret_cast<uint64_t>(mine.data()), kBytes, 0);
    victim_.turn();
    PullRequest& request = ring->pulls[position];
    request.size_bytes.store(size);
    for (uint32_t turn = 0; turn < 20; ++turn) victim_.turn();
    EXPECT_NE(request.word.load(), PullRequest::word_of(position, PullRequest::kTaken)) << size;
    EXPECT_FALSE(victim_.rail().busy()) << size;
    ++position;
  }
  EXPECT_EQ(victim_.count(Kind::kImm, path), 0u);
  victim_.rail().deregister_memory(*local, 1);
  victim_.turns(2);
}

TEST_F(ShmHostile, AFloodOfImmediatesDoesNotStarveOtherPeers) {
  const auto [path, ring] = path_in();
  ASSERT_NE(ring, nullptr);
  victim_.poll_room = 8;
  ASSERT_TRUE(in_.write() && in_pulled_.write() && out_pulled_.write());
  uint64_t position = 0;
  bool exact = false;
  for (uint32_t turn = 0; turn < 400 && !exact; ++turn) {
    // Always more than one poll can report.
    for (; position < ring->imms_taken.load() + Ring::kImms; ++position) {
      ring->imms[position % Ring::kImms].store(Ring::imm_word(position, 3));
    }
    victim_.turn();
    honest_.turn();
    exact = in_.exact() && in_pulled_.exact() && out_pulled_.exact();
  }
  EXPECT_TRUE(exact);
  EXPECT_GT(victim_.count(Kind::kImm, path), 0u);
}

TEST_F(ShmHostile, WordsInAClosingRingDoNotKeepItOpen) {
  const auto [path, ring] = path_in();
  ASSERT_NE(ring, nullptr);
  for (uint64_t at = 0; at < Ring::kPulls; ++at) {
    ring->pulls[at].word.store(PullRequest::word_of(at, PullRequest::State(at % 8)));
  }
  for (auto& count : ring->imms) count.store(UINT64_MAX);
  ring->imms_taken.store(UINT64_MAX);
  victim_.rail().close_path(path, true);
  victim_.turns(4);
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 1u);
}

TEST_F(ShmHostile, ATargetThatDisconnectsWhileItServesAPullCompletesTheWrite) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  Ring& ring = *hostile_.own_rings[0].mapping.as<Ring>();
  const uint64_t rkey = show_rkey(hostile_.header().rkeys[0], RkeyKind::kPulled, 0, 0, 4096);
  for (uint32_t cookie = 0; cookie < 3; ++cookie) ASSERT_TRUE(post(path, rkey, cookie));
  ring.pulls[0].word.store(PullRequest::word_of(0, PullRequest::kTaken));
  ring.pulls[1].word.store(UINT64_MAX);
  victim_.turns(3);
  EXPECT_EQ(victim_.completion(0), nullptr) << "the target is serving it";
  hostile_.disconnect();
  victim_.turns(4);
  ASSERT_EQ(victim_.count(Kind::kPathDown, path), 1u);
  for (uint32_t cookie = 0; cookie < 3; ++cookie) {
    ASSERT_NE(victim_.completion(cookie), nullptr) << cookie;
    EXPECT_EQ(victim_.completion(cookie)->code, Errc::kPeerLost) << cookie;
  }
  EXPECT_EQ(victim_.completion(0)->remote, Remote::kUnknown);
  EXPECT_EQ(victim_.completion(2)->remote, Remote::kNotDelivered) << "withdrawn";
}

TEST_F(ShmHostile, ATargetThatStopsWhileItServesAPullDelaysTheWriteForABoundedTime) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  Ring& ring = *hostile_.own_rings[0].mapping.as<Ring>();
  const uint64_t rkey = show_rkey(hostile_.header().rkeys[0], RkeyKind::kPulled, 0, 0, 4096);
  for (uint32_t cookie = 0; cookie < 2; ++cookie) ASSERT_TRUE(post(path, rkey, cookie));
  ring.pulls[0].word.store(PullRequest::word_of(0, PullRequest::kTaken));
  victim_.rail().close_path(path, false);  // as after the drain bound of its operation
  victim_.turns(5);
  EXPECT_EQ(victim_.completion(0), nullptr) << "the target may be serving it";
  victim_.turns(100);
  ASSERT_NE(victim_.completion(0), nullptr);
  EXPECT_EQ(victim_.completion(0)->remote, Remote::kUnknown);
  ASSERT_NE(victim_.completion(1), nullptr);
  EXPECT_EQ(victim_.completion(1)->remote, Remote::kNotDelivered) << "withdrawn";
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 1u);
  EXPECT_EQ(ring.pulls[0].word.load(), PullRequest::word_of(0, PullRequest::kAbandoned))
      << "a target that continues delivers no immediate";
}

TEST_F(ShmHostile, ABouncedWriteCompletesOnceAndAfterItsParts) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path, false));
  victim_.turns(2);
  Ring& ring = *hostile_.own_rings[0].mapping.as<Ring>();
  const std::vector<std::byte> large(2 * Ring::kBounceBytes);
  const uint64_t rkey =
      show_rkey(hostile_.header().rkeys[0], RkeyKind::kPulled, 0, 0, large.size());
  const WriteOp op{.source = reinterpret_cast<uint64_t>(large.data()),
                   .size_bytes = large.size(),
                   .rkey = rkey,
                   .cookie = 4,
                   .path = path,
                   .imm = 5,
                   .has_imm = 1};
  ASSERT_EQ(victim_.rail().post({&op, 1}), 1u);
  victim_.turns(4);
  ASSERT_EQ(ring.pulls[1].word.load(), PullRequest::word_of(1, PullRequest::kPublished))
      << "one of several requests of a write";
  ring.pulls[0].word.store(PullRequest::word_of(0, PullRequest::kTaken));
  victim_.rail().close_path(path, false);
  victim_.turns(5);
  EXPECT_EQ(victim_.completion(4), nullptr) << "a part of it may still land";
  victim_.turns(100);
  ASSERT_NE(victim_.completion(4), nullptr);
  EXPECT_EQ(victim_.completion(4)->remote, Remote::kUnknown);
  EXPECT_EQ(victim_.count(Kind::kCompletion, path), 1u);
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 1u);
}

TEST_F(ShmHostile, ATargetThatMiscountsGetsNoMoreThanItsRingHolds) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  Ring& ring = *hostile_.own_rings[0].mapping.as<Ring>();
  for (const uint64_t taken : {UINT64_MAX, uint64_t{1} << 40, uint64_t{0}}) {
    ring.imms_taken.store(taken);
    const WriteOp bare{.cookie = 9, .path = path, .imm = 1, .has_imm = 1};
    for (uint32_t i = 0; i < 2 * Ring::kImms; ++i) {
      (void)victim_.rail().post({&bare, 1});
      if (i % 64 == 0) victim_.turn();
    }
  }
  victim_.rail().close_path(path, false);
  victim_.turns(40);
  EXPECT_EQ(victim_.count(Kind::kPathDown, path), 1u);
}

TEST_F(ShmHostile, ASleeperIsWokenOncePerSleep) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  victim_.turns(2);
  hostile_.receive();
  hostile_.header().sleep_epoch.store(5);
  const WriteOp bare{.cookie = 9, .path = path, .imm = 1, .has_imm = 1};
  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(victim_.rail().post({&bare, 1}), 1u);
  EXPECT_EQ(hostile_.receive(), 1u);
  hostile_.header().sleep_epoch.store(UINT64_MAX);
  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(victim_.rail().post({&bare, 1}), 1u);
  EXPECT_EQ(hostile_.receive(), 1u);
}

// Afterwards

TEST(ShmHostileEnd, NoDescriptorOrMappingIsLeaked) {
  const auto play = [] {
    StepDriver driver;
    ShmNode victim(driver), honest(driver);
    HostileProcess hostile(0xbad);
    {
      ShmTraffic traffic(honest, victim, TargetKind::kMapped);
      ASSERT_TRUE(hostile.connect(victim.address()) && hostile.greet());
      std::vector<std::byte> answer, hello;
      ASSERT_TRUE(victim.rail().accept_path(encode(PathHello{hostile.address(), 0, 1}), answer));
      ASSERT_TRUE(victim.rail().open_path(encode(hostile.address()), 0, hello));
      ASSERT_TRUE(traffic.write());
      for (uint32_t turn = 0; turn < 20; ++turn) {
        victim.turn();
        honest.turn();
        hostile.receive();
      }
      EXPECT_TRUE(traffic.exact());
    }
    // The networks are destroyed with paths open.
  };
  play();  // allocates what stays, such as the writer slots of the process
  const Footprint before = footprint();
  play();
  EXPECT_EQ(footprint(), before);
}

TEST_F(ShmHostile, APeerThatDoesNotCountArrivalsIsNotAskedTo) {
  path_in();
  EXPECT_TRUE(hostile_.arrivals.empty());
}

// It stores an immediate and is killed before it counts or wakes, and the count is garbage. The
// sleeper wakes by its timer.
TEST_F(ShmHostile, ASleeperFindsAnImmediateThatWasNotCounted) {
  hostile_.counts_arrivals = true;
  const auto [path, ring] = path_in();
  ASSERT_EQ(hostile_.arrivals.size(), 1u);
  OpenNetwork& network = victim_.network();
  bool armed = false;
  for (uint32_t turn = 0; turn < 20 && !armed; ++turn) {
    victim_.turn();
    EXPECT_TRUE(network.sleep_through(5));
    armed = network.arm();
  }
  ASSERT_TRUE(armed);
  hostile_.arrivals[0].as<ArrivalCount>()->arrived.store(UINT64_MAX / 2);
  ring->imms[0].store(Ring::imm_word(0, 7));
  pollfd sleeper{network.wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&sleeper, 1, 30'000), 1);
  victim_.turns(2);
  EXPECT_EQ(victim_.count(Kind::kImm, path), 1u);
}

/// The hostile process is the receiver here, and sleeps.
TEST_F(ShmHostile, OnlyTheArrivalThatReachesTheNumberWakes) {
  const uint32_t path = path_out();
  ASSERT_TRUE(hostile_.show_ring(0, path));
  auto count = make_memory(sizeof(ArrivalCount), PeerAccess::kReadWrite);
  ASSERT_TRUE(count);
  const int descriptor = count->fd.get();
  ASSERT_TRUE(hostile_.send(Frame(Arrivals{}), {&descriptor, 1}));
  victim_.turns(2);
  hostile_.receive();
  std::atomic<uint64_t>& arrived = count->mapping.as<ArrivalCount>()->arrived;
  SharedHeader& header = hostile_.header();
  uint32_t cookie = 100;
  const auto wakes_after = [&](uint32_t imms) {
    const uint32_t before = hostile_.wakes;
    std::vector<WriteOp> ops;
    for (uint32_t i = 0; i < imms; ++i) {
      ops.push_back({.cookie = cookie++, .path = path, .imm = 5, .has_imm = 1});
    }
    EXPECT_EQ(victim_.rail().post(ops), imms);
    hostile_.receive();
    return hostile_.wakes - before;
  };
  EXPECT_EQ(wakes_after(3), 0u) << "awake";
  EXPECT_EQ(arrived.load(), 0u) << "counted while it is awake";
  arrived.store(1000);
  header.wake_at.store(1004);
  header.sleep_epoch.store(1);
  hostile_.own_rings[0].mapping.as<Ring>()->imms_taken.store(3);
  EXPECT_EQ(wakes_after(1), 0u);
  EXPECT_EQ(wakes_after(2), 0u);
  EXPECT_EQ(arrived.load(), 1003u) << "each is counted once, and those taken before are not";
  EXPECT_EQ(wakes_after(1), 1u) << "the last one";
  EXPECT_EQ(wakes_after(1), 0u) << "it was woken already";
  header.wake_at.store(kEachWakes);
  header.sleep_epoch.store(3);
  EXPECT_EQ(wakes_after(1), 1u) << "it did not ask for a number";
}

TEST_F(ShmHostile, ASenderIsWokenForRoomOnlyIfItsRingWasFull) {
  Ring* const ring = path_in().second;
  hostile_.receive();
  hostile_.wakes = 0;
  hostile_.header().sleep_epoch.store(1);
  uint64_t posted = 0;
  const auto wakes_after = [&](uint64_t imms) {
    const uint32_t before = hostile_.wakes;
    for (uint64_t i = 0; i < imms; ++i, ++posted) {
      ring->imms[posted % Ring::kImms].store(Ring::imm_word(posted, 7));
    }
    for (uint32_t turn = 0; turn < 50 && ring->imms_taken.load() != posted; ++turn) victim_.turn();
    EXPECT_EQ(ring->imms_taken.load(), posted);
    hostile_.receive();
    return hostile_.wakes - before;
  };
  EXPECT_EQ(wakes_after(1), 0u);
  EXPECT_EQ(wakes_after(Ring::kImms - 1), 0u) << "one slot was free";
  EXPECT_EQ(wakes_after(Ring::kImms), 1u);
  hostile_.header().sleep_epoch.store(3);
  EXPECT_EQ(wakes_after(5), 0u);
}

}  // namespace
}  // namespace fabric::fuzz::shm_peer_test
