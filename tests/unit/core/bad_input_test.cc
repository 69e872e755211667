#include <fabric/fabric.h>
#include <fabric/sim.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/log_guard.h"

// Every wrong argument has its own error: a code, the name of the argument, nothing posted, and no
// effect on other calls.

namespace fabric::bad_input_test {
namespace {

using namespace std::chrono_literals;

Config quiet() {
  Config config;
  config.log_sink = test::test_log_sink();
  return config;
}

void ignore(void*, const Event&) {}

class BadInput : public testing::Test {
 protected:
  static constexpr uint64_t kSize = 4096;

  BadInput() {
    EXPECT_TRUE(world.run_until(
        [&] { return a.peer_info(peer)->state == PeerState::kConnected && !b.peers().empty(); },
        1s));
  }

  /// After every refusal: the engine is as it was, and works.
  ~BadInput() override {
    if (!a.submit(Timer{.after = 1ns})) return;  // a test that closed it
    const EngineStats stats = a.stats();
    EXPECT_EQ(stats.tx.ops, 0u) << "something was posted";
    Counter counter = *b.make_counter();
    EXPECT_TRUE(a.submit(write({.imm = counter.key()})));
    EXPECT_TRUE(counter.wait(1)) << "the engine does not work after a refusal";
    EXPECT_TRUE(world.run_until([&] { return a.stats().ops_in_flight == 0; }, 1s));
  }

  template <class T>
  void expect_refused(const Result<T>& result, Errc code, const char* what) {
    ASSERT_FALSE(result) << what;
    EXPECT_EQ(result.error().code, code) << what << ": " << to_string(result.error().code);
    EXPECT_STREQ(result.error().what, what);
    EXPECT_EQ(a.stats().ops_in_flight, 0u) << "a refused operation was accepted";
    EXPECT_EQ(a.stats().tx.queued + a.stats().tx.posted, 0u);
  }
  /// Submits what must be refused; the batch that it names must not notice.
  template <class Request>
  void expect_refused(Request request, Errc code, const char* what) {
    if (!request.batch) request.batch = batch;
    expect_refused(a.submit(request), code, what);
    EXPECT_EQ(batch.pending(), 0u) << "a refused operation joined the batch";
    EXPECT_EQ(batch.failed(), 0u);
  }

  // Requests that are good but for what the test changes.
  Write write(Write request = {}) const {
    request.source = memory.at(0);
    request.target = region.at(0);
    request.size_bytes = 64;
    return request;
  }
  PagedWrite paged(std::span<const uint32_t> here, std::span<const uint32_t> there) const {
    return {.source = memory.id(),
            .source_pages = {.indices = here, .stride_bytes = 64},
            .target = region,
            .target_pages = {.indices = there, .stride_bytes = 64},
            .page_bytes = 64};
  }

  sim::World world;
  Engine a = *world.open(world.add_node(2), quiet());
  Engine b = *world.open(world.add_node(2), quiet());
  MemoryRegion memory = *a.allocate({.size_bytes = kSize});
  MemoryRegion target = *b.allocate({.size_bytes = kSize});
  PeerId peer = *a.connect(b.address());
  RemoteRegion region = *a.import_region(peer, *target.desc());
  Batch batch = *a.make_batch();
  const RegionId never{77, 1};
  const RemoteRegion never_imported{77, 1};
};

// ---- Regions and offsets ------------------------------------------------------------------------

TEST_F(BadInput, SourceThatIsNullOrWasNeverRegistered) {
  Write request = write();
  request.source.region = {};
  expect_refused(request, Errc::kInvalidArgument, "source");
  request.source.region = never;
  expect_refused(request, Errc::kNotFound, "source");
  request.source.region = RegionId(UINT32_MAX, UINT32_MAX);
  expect_refused(request, Errc::kNotFound, "source");
  const uint32_t page = 0;
  PagedWrite pages = paged({&page, 1}, {&page, 1});
  pages.source = {};
  expect_refused(pages, Errc::kInvalidArgument, "source");
  pages.source = never;
  expect_refused(pages, Errc::kNotFound, "source");
  const ScatterTarget to{.target = region.at(0), .size_bytes = 8};
  expect_refused(Scatter{.targets = {&to, 1}}, Errc::kInvalidArgument, "source");
  expect_refused(Scatter{.source = never, .targets = {&to, 1}}, Errc::kNotFound, "source");
  expect_refused(Deregister{}, Errc::kInvalidArgument, "region");
  expect_refused(Deregister{.region = never}, Errc::kNotFound, "region");
}

TEST_F(BadInput, SourceThatWasDeregistered) {
  std::byte bytes[64];
  Write request = write();
  {
    const MemoryRegion gone = *a.register_memory({.address = bytes, .size_bytes = 64});
    request.source = gone.at(0);
  }
  expect_refused(request, Errc::kNotFound, "source");
}

TEST_F(BadInput, TargetThatIsNullOrWasNeverImported) {
  Write request = write();
  request.target.region = {};
  expect_refused(request, Errc::kInvalidArgument, "target");
  request.target.region = never_imported;
  expect_refused(request, Errc::kNotFound, "target");
  const uint32_t page = 0;
  PagedWrite pages = paged({&page, 1}, {&page, 1});
  pages.target = {};
  expect_refused(pages, Errc::kInvalidArgument, "target");
  const ScatterTarget targets[] = {{.target = region.at(0), .size_bytes = 8},
                                   {.target = never_imported.at(0), .size_bytes = 8}};
  expect_refused(Scatter{.source = memory.id(), .targets = targets}, Errc::kNotFound,
                 "targets.target");
}

TEST_F(BadInput, LengthOrOffsetPastTheRegion) {
  struct Case {
    uint64_t source, target, size;
    const char* what;
  };
  for (const Case& bad :
       {Case{0, 0, kSize + 1, "source"}, Case{1, 0, kSize, "source"},
        Case{kSize + 1, 0, 0, "source"}, Case{0, 1, kSize, "target"},
        Case{0, kSize + 1, 0, "target"}, Case{0, 0, UINT64_MAX, "source"},
        Case{UINT64_MAX, 0, 1, "source"}, Case{UINT64_MAX, 0, UINT64_MAX, "source"},
        Case{UINT64_MAX - 63, 0, 64, "source"}, Case{0, UINT64_MAX, 1, "target"},
        Case{0, UINT64_MAX - 63, 64, "target"}}) {
    SCOPED_TRACE(testing::Message() << bad.source << " " << bad.target << " " << bad.size);
    Write request = write();
    request.source.offset = bad.source;
    request.target.offset = bad.target;
    request.size_bytes = bad.size;
    expect_refused(request, Errc::kOutOfBounds, bad.what);
    const ScatterTarget to{
        .target = request.target, .source_offset = bad.source, .size_bytes = bad.size};
    // A scatter looks at its targets first.
    const bool both = bad.source == 0 && bad.target == 0;
    const std::string what =
        both || bad.what == std::string("target") ? "targets.target" : "targets.source_offset";
    const auto refused = a.submit(Scatter{.source = memory.id(), .targets = {&to, 1}});
    EXPECT_EQ(refused.error().code, Errc::kOutOfBounds);
    if (bad.size <= kSize) {
      EXPECT_EQ(refused.error().what, what);
    }
  }
}

TEST_F(BadInput, PagesPastTheRegionOrBeyondArithmetic) {
  const uint32_t last = kSize / 64 - 1;
  const uint32_t good[] = {0, last}, bad[] = {0, last + 1}, huge[] = {0, UINT32_MAX};
  expect_refused(paged(bad, good), Errc::kOutOfBounds, "source_pages");
  expect_refused(paged(good, bad), Errc::kOutOfBounds, "target_pages");
  expect_refused(paged(huge, good), Errc::kOutOfBounds, "source_pages");
  PagedWrite request = paged(good, good);
  request.source_pages.offset_bytes = 1;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  request.source_pages.offset_bytes = UINT64_MAX;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  // index * stride wraps to something small.
  const uint32_t two[] = {0, 2}, four_billion[] = {0, 1u << 31};
  request = paged(two, good);
  request.source_pages.stride_bytes = 1ull << 63;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  request = paged(good, four_billion);
  request.target_pages.stride_bytes = 1ull << 33;
  expect_refused(request, Errc::kOutOfBounds, "target_pages");
  // index * stride + offset wraps.
  request = paged(good, two);
  request.target_pages.stride_bytes = 1ull << 62;
  request.target_pages.offset_bytes = UINT64_MAX - (1ull << 63) + 1;
  expect_refused(request, Errc::kOutOfBounds, "target_pages");
  request = paged(good, good);
  request.page_bytes = UINT64_MAX;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
}

TEST_F(BadInput, MismatchedOrEmptyPageLists) {
  const uint32_t pages[] = {0, 1, 2};
  expect_refused(paged({}, {}), Errc::kInvalidArgument, "source_pages.indices");
  expect_refused(paged({}, pages), Errc::kInvalidArgument, "source_pages.indices");
  expect_refused(paged(pages, {}), Errc::kInvalidArgument, "target_pages.indices");
  expect_refused(paged(pages, std::span(pages).first(2)), Errc::kInvalidArgument,
                 "target_pages.indices");
}

// ---- Targets, groups and counter keys -----------------------------------------------------------

TEST_F(BadInput, ZeroTargetsOrAGroupThatDoesNotFit) {
  expect_refused(Scatter{.source = memory.id()}, Errc::kInvalidArgument, "targets");
  const PeerGroup group = *a.make_group({&peer, 1});
  const ScatterTarget to{.target = region.at(0), .size_bytes = 8};
  const ScatterTarget targets[] = {to, to};
  expect_refused(Scatter{.source = memory.id(), .targets = targets, .group = group},
                 Errc::kInvalidArgument, "group");
  expect_refused(Scatter{.source = memory.id(), .targets = {&to, 1}, .group = GroupId(9, 9)},
                 Errc::kNotFound, "group");
  Engine c = *world.open(world.add_node(), quiet());
  const PeerId other = *a.connect(c.address());
  const PeerGroup others = *a.make_group({&other, 1});
  expect_refused(Scatter{.source = memory.id(), .targets = {&to, 1}, .group = others},
                 Errc::kInvalidArgument, "group");
  expect_refused(a.make_group({}), Errc::kInvalidArgument, "peers");
  const PeerId strangers[] = {peer, PeerId(9, 9)};
  expect_refused(a.make_group(strangers), Errc::kNotFound, "peers");
}

TEST_F(BadInput, NoKeyWhereOneIsNeeded) {
  const PeerGroup group = *a.make_group({&peer, 1});
  const CounterKey none, keys[] = {CounterKey::from_wire(5), CounterKey::from_wire(6)};
  expect_refused(Signal{.group = group}, Errc::kInvalidArgument, "keys");
  expect_refused(Signal{.group = group, .keys = {&none, 1}}, Errc::kInvalidArgument, "keys");
  expect_refused(Signal{.group = group, .keys = keys}, Errc::kInvalidArgument, "keys");
  expect_refused(Signal{.keys = {keys, 1}}, Errc::kInvalidArgument, "group");
  expect_refused(Signal{.group = GroupId(9, 9), .keys = {keys, 1}}, Errc::kNotFound, "group");
}

TEST_F(BadInput, NamesAndRoomForTheirKeys) {
  const uint64_t names[] = {1, 2};
  CounterKey out[2];
  const std::vector<uint64_t> many(100'000);
  std::vector<CounterKey> room(many.size());
  expect_refused(Resolve{.peer = peer, .out = out}, Errc::kInvalidArgument, "names");
  expect_refused(Resolve{.peer = peer, .names = names, .out = {out, 1}}, Errc::kInvalidArgument,
                 "out");
  expect_refused(Resolve{.peer = peer, .names = many, .out = room}, Errc::kTooLarge, "names");
  expect_refused(Resolve{.names = names, .out = out}, Errc::kInvalidArgument, "peer");
  expect_refused(Resolve{.peer = PeerId(9, 9), .names = names, .out = out}, Errc::kNotFound,
                 "peer");
  expect_refused(a.resolve(peer, names, {out, 1}), Errc::kInvalidArgument, "out");
}

// ---- Times, priorities, batches, notifies -------------------------------------------------------

TEST_F(BadInput, TimeoutOfZeroAboveTheMaximumOrForEver) {
  const Timeout bad[] = {0ns, -1ns, -5s, 300s + 1ns, Nanos::max() - 1ns, Timeout::forever()};
  const uint32_t page = 0;
  const uint64_t name = 1;
  CounterKey key = CounterKey::from_wire(5);
  const PeerGroup group = *a.make_group({&peer, 1});
  const ScatterTarget to{.target = region.at(0), .size_bytes = 8};
  for (const Timeout timeout : bad) {
    SCOPED_TRACE(testing::Message() << timeout.ns << " ns");
    const auto with = [&](auto request) {
      request.timeout = timeout;
      expect_refused(request, Errc::kInvalidArgument, "timeout");
    };
    with(write());
    with(paged({&page, 1}, {&page, 1}));
    with(Scatter{.source = memory.id(), .targets = {&to, 1}});
    with(Signal{.group = group, .keys = {&key, 1}});
    with(Send{.peer = peer});
    with(Resolve{.peer = peer, .names = {&name, 1}, .out = {&key, 1}});
    with(Fence{.peer = peer});
    with(Drop{.peer = peer});
    with(Deregister{.region = memory.id()});
  }
  // Waits may take for ever, but not no time at all.
  Counter counter = *a.make_counter();
  expect_refused(counter.wait(1, 0ns), Errc::kInvalidArgument, "timeout");
  expect_refused(counter.expect(1, {}, -1ns), Errc::kInvalidArgument, "timeout");
  Inbox inbox = *a.make_inbox(1);
  expect_refused(inbox.wait(0ns), Errc::kInvalidArgument, "timeout");
  expect_refused(a.wait(batch, -1ns), Errc::kInvalidArgument, "timeout");
  expect_refused(a.submit(Timer{.after = -1ns}), Errc::kInvalidArgument, "after");
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_TRUE(counter.expect(1, {}, 1ns)) << "nothing was left armed";
  world.run_for(1us);
}

TEST_F(BadInput, PriorityThatDoesNotExist) {
  expect_refused(write({.priority = static_cast<Priority>(3)}), Errc::kInvalidArgument, "priority");
}

TEST_F(BadInput, BatchThatIsDestroyedSealedOrCancelled) {
  BatchId gone;
  { gone = a.make_batch()->id(); }
  expect_refused(write({.batch = gone}), Errc::kNotFound, "batch");
  expect_refused(a.cancel(gone), Errc::kNotFound, "batch");
  expect_refused(a.wait(gone), Errc::kNotFound, "batch");
  Batch sealed = *a.make_batch();
  ASSERT_TRUE(sealed.seal(Notify::call(ignore, nullptr)));
  expect_refused(write({.batch = sealed}), Errc::kCancelled, "batch");
  Batch cancelled = *a.make_batch();
  ASSERT_TRUE(a.cancel(cancelled));
  expect_refused(write({.batch = cancelled}), Errc::kCancelled, "batch");
  ASSERT_TRUE(cancelled.reset());
  ASSERT_TRUE(a.submit(Timer{.after = 1ns, .batch = cancelled}))
      << "a reset batch must be usable again";
  ASSERT_TRUE(a.wait(cancelled));
}

TEST_F(BadInput, BatchThatIsResetOrSealedWhileSomethingIsPending) {
  ASSERT_TRUE(a.submit(Timer{.after = 1ms, .batch = batch}));
  EXPECT_EQ(batch.reset().error().code, Errc::kBusy);
  EXPECT_STREQ(batch.reset().error().what, "batch");
  ASSERT_TRUE(batch.seal(Notify::call(ignore, nullptr)));
  EXPECT_EQ(batch.seal(Notify::call(ignore, nullptr)).error().code, Errc::kBusy);
  EXPECT_EQ(batch.pending(), 1u);
  ASSERT_TRUE(a.wait(batch));
  ASSERT_TRUE(batch.reset());
}

TEST_F(BadInput, NotifyOfAnotherEngineOrWithoutTarget) {
  Inbox theirs = *b.make_inbox(4);
  Flag flag = *b.make_flag();
  expect_refused(write({.notify = Notify::inbox(theirs)}), Errc::kInvalidArgument, "notify");
  expect_refused(write({.notify = Notify::flag(flag)}), Errc::kInvalidArgument, "notify");
  expect_refused(write({.notify = Notify::call(nullptr, this)}), Errc::kInvalidArgument, "notify");
  expect_refused(a.make_watcher(Notify::inbox(theirs)), Errc::kInvalidArgument, "notify");
  expect_refused(a.make_watcher({}), Errc::kInvalidArgument, "notify");
  expect_refused(a.listen(1, Notify::inbox(theirs)), Errc::kInvalidArgument, "notify");
  expect_refused(a.subscribe({}), Errc::kInvalidArgument, "notify");
  expect_refused(batch.seal(Notify::inbox(theirs)), Errc::kInvalidArgument, "notify");
  Counter counter = *a.make_counter();
  expect_refused(counter.expect(1, Notify::inbox(theirs)), Errc::kInvalidArgument, "notify");
  EXPECT_TRUE(batch.seal(Notify::call(ignore, nullptr))) << "the refused seal left nothing";
  EXPECT_TRUE(batch.reset());
}

TEST_F(BadInput, NotifyToAnInboxOrFlagThatIsDestroyed) {
  std::optional<Inbox> inbox(*a.make_inbox(4));
  std::optional<Flag> flag(*a.make_flag());
  const Notify to_inbox = Notify::inbox(*inbox), to_flag = Notify::flag(*flag);
  Inbox moved = *std::move(inbox);
  expect_refused(write({.notify = Notify::inbox(*inbox)}), Errc::kInvalidArgument, "notify");
  ASSERT_TRUE(a.submit(Timer{.after = 1ns, .notify = to_inbox})) << "a moved handle stays valid";
  world.run_for(1us);
  std::vector<Event> out(1);
  EXPECT_EQ(moved.poll(out), 1u);
  { const Inbox dying = std::move(moved); }
  flag.reset();
  expect_refused(write({.notify = to_inbox}), Errc::kNotFound, "notify");
  expect_refused(write({.notify = to_flag}), Errc::kNotFound, "notify");
  expect_refused(a.make_inbox(0), Errc::kInvalidArgument, "depth");
  expect_refused(a.make_inbox(UINT32_MAX), Errc::kInvalidArgument, "depth");
}

TEST_F(BadInput, OperationThatIsNoneOrHasCompleted) {
  expect_refused(a.cancel(OpId{}), Errc::kInvalidArgument, "op");
  expect_refused(a.cancel(OpId(UINT32_MAX, 1)), Errc::kNotFound, "op");
  const OpId op = *a.submit(Timer{.after = 1ns});
  world.run_for(1us);
  expect_refused(a.cancel(op), Errc::kNotFound, "op");
}

TEST_F(BadInput, SpanOfWritesWithoutOneOrWithABadOne) {
  expect_refused(a.submit(std::span<const Write>{}), Errc::kInvalidArgument, "requests");
  std::vector<Write> requests(3, write());
  requests[0].size_bytes = kSize + 1;
  expect_refused(a.submit(std::span<const Write>(requests)), Errc::kOutOfBounds, "source");
}

// ---- Memory and descriptors ---------------------------------------------------------------------

TEST_F(BadInput, MemoryThatIsNothing) {
  std::byte bytes[64];
  expect_refused(a.register_memory({.size_bytes = 64}), Errc::kInvalidArgument, "memory.address");
  expect_refused(a.register_memory({.address = bytes}), Errc::kInvalidArgument,
                 "memory.size_bytes");
  expect_refused(a.register_memory({.address = bytes, .size_bytes = UINT64_MAX}),
                 Errc::kOutOfBounds, "memory.size_bytes");
  expect_refused(a.register_memory({.address = bytes, .size_bytes = 64, .kind = MemoryKind::kCuda}),
                 Errc::kUnsupported, "memory.kind");
  for (const int kind : {3, 32, 99}) {  // 32 would shift to the bit of host memory
    expect_refused(a.register_memory(
                       {.address = bytes, .size_bytes = 64, .kind = static_cast<MemoryKind>(kind)}),
                   Errc::kInvalidArgument, "memory.kind");
  }
  expect_refused(a.allocate({}), Errc::kInvalidArgument, "size_bytes");
  expect_refused(a.allocate({.size_bytes = UINT64_MAX}), Errc::kTooLarge, "size_bytes");
  expect_refused(a.allocate({.size_bytes = 64, .kind = MemoryKind::kCuda}), Errc::kUnsupported,
                 "kind");
  expect_refused(a.make_flag(MemoryKind::kRocm), Errc::kUnsupported, "kind");
  EXPECT_EQ(a.stats().regions, 1u);
  expect_refused(memory.find(bytes, 1), Errc::kOutOfBounds, "address");
  expect_refused(memory.find(memory.bytes().data() + 1, kSize), Errc::kOutOfBounds, "address");
  expect_refused(memory.find(memory.bytes().data(), UINT64_MAX), Errc::kOutOfBounds, "address");
  EXPECT_TRUE(memory.find(memory.bytes().data() + kSize, 0));
}

TEST_F(BadInput, RegionThatMayNotBeWrittenTo) {
  std::byte bytes[64];
  MemoryRegion source =
      *a.register_memory({.address = bytes, .size_bytes = 64, .remote_write = false});
  expect_refused(source.desc(), Errc::kPermission, "region");
  expect_refused(source.grant(peer), Errc::kPermission, "region");
  expect_refused(memory.grant(PeerId(9, 9)), Errc::kNotFound, "peer");
}

TEST_F(BadInput, DescriptorOfAnotherVersionCutShortOrForged) {
  const std::vector<std::byte> desc = *target.desc();
  for (size_t size = 0; size < desc.size(); ++size) {
    expect_refused(a.import_region(peer, std::span(desc).first(size)), Errc::kBadFormat, "desc");
  }
  auto damaged = desc;
  damaged[4] ^= std::byte{0x40};  // the major version
  expect_refused(a.import_region(peer, damaged), Errc::kVersion, "desc");
  damaged = desc;
  damaged[0] ^= std::byte{1};
  expect_refused(a.import_region(peer, damaged), Errc::kBadFormat, "desc");
  damaged = desc;
  damaged.push_back({});
  expect_refused(a.import_region(peer, damaged), Errc::kBadFormat, "desc");
  expect_refused(a.import_region(PeerId{}, desc), Errc::kNotFound, "owner");
  expect_refused(a.import_region(PeerId(9, 9), desc), Errc::kNotFound, "owner");
  expect_refused(a.import_region(peer, *memory.desc()), Errc::kInvalidArgument, "owner");
  EXPECT_EQ(*a.import_region(peer, desc), region) << "the valid import must be unchanged";
}

TEST_F(BadInput, DescriptorThatWasGrantedToAnother) {
  Engine c = *world.open(world.add_node(), quiet());
  const PeerId b_of_c = *c.connect(b.address());
  const PeerId a_of_b = b.peers().at(0);
  const auto granted = target.grant(a_of_b)->desc;
  expect_refused(c.import_region(b_of_c, granted), Errc::kPermission, "desc");
  EXPECT_TRUE(a.import_region(peer, granted));
}

// ---- Addresses ----------------------------------------------------------------------------------

TEST_F(BadInput, AddressThatIsCutShortOfAnotherVersionOrNetwork) {
  const auto address = b.address();
  for (size_t size = 0; size < address.size(); ++size) {
    expect_refused(a.connect(std::span(address).first(size)), Errc::kBadFormat, "address");
  }
  auto damaged = address;
  damaged[4] ^= std::byte{0x40};
  expect_refused(a.connect(damaged), Errc::kVersion, "address");
  expect_refused(a.connect(""), Errc::kBadFormat, "address");
  expect_refused(a.connect("fabric1:"), Errc::kBadFormat, "address");
  expect_refused(a.connect("fabric1:!!!"), Errc::kBadFormat, "address");
  std::string text = b.address_text();
  text[6] = '2';
  expect_refused(a.connect(text), Errc::kVersion, "address");
  // Another network of the same provider, and the same name in another world.
  Engine island = *world.open(world.add_node({{.name = "island"}}), quiet());
  expect_refused(a.connect(island.address()), Errc::kUnreachable, "address");
  sim::World elsewhere({.seed = 2});
  Engine far = *elsewhere.open(elsewhere.add_node(), quiet());
  expect_refused(a.connect(far.address()), Errc::kUnreachable, "sim: address");
  expect_refused(a.connect(b.address(), {.networks = {"nowhere"}}), Errc::kUnsupported,
                 "options.networks");
  EXPECT_EQ(a.peers(), std::vector<PeerId>{peer});
}

TEST_F(BadInput, OfferThatIsNone) {
  expect_refused(a.accept(""), Errc::kBadFormat, "offer");
  expect_refused(a.accept(b.address_text()), Errc::kBadFormat, "offer");
  Counter counter = *b.make_counter();
  std::string offer = *b.offer(target, counter.key());
  expect_refused(a.accept(offer.substr(0, offer.size() / 2)), Errc::kBadFormat, "offer");
  offer[std::string("fabric-offer").size()] = '9';
  expect_refused(a.accept(offer), Errc::kVersion, "offer");
}

TEST_F(BadInput, PeerThatIsNoneOrNeverWas) {
  for (const PeerId unknown : {PeerId{}, PeerId(9, 9), PeerId(UINT32_MAX, 1)}) {
    const Errc code = unknown ? Errc::kNotFound : Errc::kInvalidArgument;
    expect_refused(Send{.peer = unknown}, code, "peer");
    expect_refused(Fence{.peer = unknown}, code, "peer");
    expect_refused(Drop{.peer = unknown}, code, "peer");
    expect_refused(a.disconnect(unknown), Errc::kNotFound, "peer");
    expect_refused(a.peer_info(unknown), Errc::kNotFound, "peer");
    Counter counter = *a.make_counter();
    expect_refused(counter.bind(unknown), Errc::kNotFound, "peer");
    CounterGroup group = *a.make_counter_group();
    expect_refused(group.add(counter, unknown), Errc::kNotFound, "peer");
    expect_refused(group.mask(unknown), Errc::kNotFound, "peer");
  }
}

// ---- Messages -----------------------------------------------------------------------------------

TEST_F(BadInput, MessageAboveThePeersMaximum) {
  Config config = quiet();
  config.message_bytes_max = 1000;
  Engine small = *world.open(world.add_node(), config);
  Inbox inbox = *small.make_inbox(4);
  const Subscription listener = *small.listen(1, Notify::inbox(inbox));
  const PeerId to = *a.connect(small.address());
  const std::vector<std::byte> text((1u << 20) + 1);
  const auto send = [&](size_t size, BatchId in = {}) {
    return Send{.peer = to, .channel = 1, .bytes = std::span(text).first(size), .batch = in};
  };
  // Before the peer is connected only the local maximum is known; the peer's is checked later.
  expect_refused(send(text.size()), Errc::kTooLarge, "bytes");
  Batch early = *a.make_batch();
  ASSERT_TRUE(a.submit(send(1001, early)));
  EXPECT_EQ(a.wait(early).error().code, Errc::kTooLarge);
  ASSERT_EQ(a.peer_info(to)->message_bytes_max, 1000u);
  expect_refused(send(1001), Errc::kTooLarge, "bytes");
  ASSERT_TRUE(early.reset());
  ASSERT_TRUE(a.submit(send(1000, early)));
  EXPECT_TRUE(a.wait(early));
  std::vector<Event> out(4);
  EXPECT_EQ(inbox.poll(out), 1u);
}

TEST_F(BadInput, ChannelOrNameThatIsTaken) {
  Inbox inbox = *a.make_inbox(4);
  const Subscription first = *a.listen(1, Notify::inbox(inbox));
  expect_refused(a.listen(1, Notify::inbox(inbox)), Errc::kBusy, "channel");
  EXPECT_TRUE(a.listen(2, Notify::inbox(inbox)));
  {
    const Counter counter = *a.named_counter(7);
    expect_refused(a.named_counter(7), Errc::kBusy, "name");
  }
  EXPECT_TRUE(a.named_counter(7)) << "the name must be free again";
}

// ---- Counters -----------------------------------------------------------------------------------

TEST_F(BadInput, ExpectationThatCannotBe) {
  Counter counter = *a.make_counter();
  EXPECT_EQ(counter.expect(0, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(counter.expect(UINT64_MAX, {}).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(counter.wait(0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(a.stats().ops_in_flight, 0u);
  EXPECT_TRUE(counter.expect(1, Notify::call(ignore, nullptr), 1us));
  EXPECT_EQ(counter.expect(1, {}).error().code, Errc::kBusy);
  EXPECT_EQ(counter.wait(1).error().code, Errc::kBusy);
  world.run_for(1ms);
  counter.release();
  EXPECT_EQ(counter.expect(1, {}).error().code, Errc::kReleased);
  EXPECT_EQ(counter.wait(1).error().code, Errc::kReleased);
  EXPECT_EQ(counter.close().error().code, Errc::kReleased);
  EXPECT_EQ(counter.bind(peer).error().code, Errc::kReleased);
  EXPECT_FALSE(counter.try_take(1));
}

TEST_F(BadInput, GroupMemberThatCannotBe) {
  Counter mine = *a.make_counter(), theirs = *b.make_counter(), released = *a.make_counter();
  released.release();
  CounterGroup group = *a.make_counter_group(), other = *a.make_counter_group();
  expect_refused(group.add(mine, peer, 0), Errc::kInvalidArgument, "share");
  expect_refused(group.add(theirs, peer), Errc::kInvalidArgument, "member");
  expect_refused(group.add(released, peer), Errc::kReleased, "member");
  ASSERT_TRUE(group.add(mine, peer));
  expect_refused(other.add(mine, peer), Errc::kBusy, "member");
  expect_refused(mine.expect(1, {}), Errc::kBusy, "counter");
  expect_refused(mine.wait(1), Errc::kBusy, "counter");
}

// ---- Networks -----------------------------------------------------------------------------------

TEST_F(BadInput, NetworkThatIsNotBuiltOrNotThere) {
  const auto open = [&](std::vector<Network> networks) {
    Config config = quiet();
    config.networks = std::move(networks);
    return world.open(0, config);
  };
  const std::vector<std::string> built = providers();
  for (const std::string provider : {"shm", "verbs", "ofi", "tcp", "carrier pigeon"}) {
    const bool is_built = std::find(built.begin(), built.end(), provider) != built.end();
    const std::string why =
        is_built ? provider + ": the engine's time is virtual" : "networks.provider";
    expect_refused(open({{.provider = provider}}), Errc::kUnsupported, why.c_str());
    expect_refused(open({{.provider = "sim"}, {.provider = provider}}), Errc::kUnsupported,
                   why.c_str());
    auto without = open({{.provider = provider, .required = false}, {.provider = "sim"}});
    ASSERT_TRUE(without) << "not required, so it is left out";
    EXPECT_TRUE(without->connect(b.address()));
  }
  expect_refused(open({{.provider = "sim", .name = "nowhere"}}), Errc::kUnsupported,
                 "sim: no such network on the node");
  auto alone = open({{.provider = "sim", .name = "nowhere", .required = false}});
  ASSERT_TRUE(alone);
  EXPECT_EQ(alone->connect(b.address()).error().code, Errc::kUnreachable);
  EXPECT_TRUE(alone->connect(alone->address())) << "an engine can always reach its own address";
  expect_refused(world.open(99, quiet()), Errc::kInvalidArgument, "node");
  Config config = quiet();
  config.networks = {{.provider = "sim"}};
  EXPECT_EQ(Engine::open(config, std::make_shared<InlineRuntime>()).error().code,
            Errc::kInvalidArgument)
      << "a simulated network without its world";
}

TEST_F(BadInput, MoreRailsThanSupported) {
  Config config = quiet();
  config.networks = {{.provider = "sim", .near = "numa:0"}};
  expect_refused(world.open(0, config), Errc::kInvalidArgument, "networks.near");
  config.networks = {{.provider = "sim", .rails_max = kRailsMax + 1}};
  expect_refused(world.open(0, config), Errc::kInvalidArgument, "networks.rails_max");
  config.networks[0].rails_max = 1;
  Engine one = *world.open(0, config);
  EXPECT_EQ(one.peer_info(*one.connect(b.address()))->rails_here, 1u);
}

// ---- Closed, moved and inside a callback --------------------------------------------------------

/// Calls every function of an engine that answers.
std::map<std::string, Error> call_everything(Engine& engine, const std::vector<std::byte>& address,
                                             const std::string& address_text,
                                             const MemoryRegion& region) {
  const uint64_t name = 1;
  CounterKey key = CounterKey::from_wire(1);
  const PeerId peer(0, 1);
  std::map<std::string, Error> out;
  out["connect"] = engine.connect(address).error();
  out["connect bad bytes"] = engine.connect(std::span<const std::byte>{}).error();
  out["connect text"] = engine.connect(address_text).error();
  out["connect bad text"] = engine.connect("nonsense").error();
  out["disconnect"] = engine.disconnect(peer).error();
  out["peer_info"] = engine.peer_info(peer).error();
  out["make_group"] = engine.make_group({&peer, 1}).error();
  out["offer"] = engine.offer(region, key).error();
  out["accept"] = engine.accept("nonsense").error();
  out["register_memory"] = engine.register_memory({.address = &key, .size_bytes = 4}).error();
  out["allocate"] = engine.allocate({.size_bytes = 64}).error();
  out["import_region"] = engine.import_region(peer, address).error();
  out["make_inbox"] = engine.make_inbox(1).error();
  out["make_batch"] = engine.make_batch().error();
  out["make_counter"] = engine.make_counter().error();
  out["named_counter"] = engine.named_counter(1).error();
  out["resolve"] = engine.resolve(peer, {&name, 1}, {&key, 1}).error();
  out["make_counter_group"] = engine.make_counter_group().error();
  out["make_watcher"] = engine.make_watcher(Notify::call(ignore, nullptr)).error();
  out["make_flag"] = engine.make_flag().error();
  out["listen"] = engine.listen(1, Notify::call(ignore, nullptr)).error();
  out["subscribe"] = engine.subscribe(Notify::call(ignore, nullptr)).error();
  out["Write"] = engine.submit(Write{}).error();
  out["Writes"] = engine.submit(std::span<const Write>{}).error();
  out["PagedWrite"] = engine.submit(PagedWrite{}).error();
  out["ListedWrites"] = engine.submit(ListedWrites{}).error();
  out["make_page_list"] = engine.make_page_list(std::span<const uint32_t>{}).error();
  out["make_page_list ranges"] = engine.make_page_list(std::span<const PageRange>{}).error();
  out["make_write_list"] = engine.make_write_list({}).error();
  out["Scatter"] = engine.submit(Scatter{}).error();
  out["Signal"] = engine.submit(Signal{}).error();
  out["Send"] = engine.submit(Send{}).error();
  out["Timer"] = engine.submit(Timer{}).error();
  out["Resolve"] = engine.submit(Resolve{}).error();
  out["Fence"] = engine.submit(Fence{}).error();
  out["Drop"] = engine.submit(Drop{}).error();
  out["Deregister"] = engine.submit(Deregister{}).error();
  out["cancel op"] = engine.cancel(OpId(0, 1)).error();
  out["cancel batch"] = engine.cancel(BatchId(0, 1)).error();
  out["wait"] = engine.wait(BatchId(0, 1)).error();
  out["close"] = engine.close().error();
  return out;
}

void expect_all_closed(const std::map<std::string, Error>& answers) {
  for (const auto& [call, error] : answers) {
    EXPECT_EQ(error.code, Errc::kClosed) << call << ": " << to_string(error.code);
    EXPECT_STREQ(error.what, "engine") << call;
  }
}

TEST_F(BadInput, ClosedEngineAnswersEveryCall) {
  Counter counter = *a.make_counter();
  CounterGroup group = *a.make_counter_group();
  Inbox inbox = *a.make_inbox(4);
  Flag flag = *a.make_flag();
  Watcher watcher = *a.make_watcher(Notify::call(ignore, nullptr));
  Subscription subscription = *a.subscribe(Notify::call(ignore, nullptr));
  const PeerGroup peers = *a.make_group({&peer, 1});
  const auto address = b.address();
  ASSERT_TRUE(a.close());

  expect_all_closed(call_everything(a, address, b.address_text(), memory));
  expect_all_closed({{"expect", counter.expect(1, {}).error()},
                     {"wait", counter.wait(1).error()},
                     {"bind", counter.bind(peer).error()},
                     {"close", counter.close().error()},
                     {"group add", group.add(counter, peer).error()},
                     {"group expect", group.expect(1, {}).error()},
                     {"group wait", group.wait(1).error()},
                     {"group mask", group.mask(peer).error()},
                     {"inbox wait", inbox.wait().error()},
                     {"inbox fd", inbox.fd().error()},
                     {"seal", batch.seal(Notify::call(ignore, nullptr)).error()},
                     {"reset", batch.reset().error()},
                     {"desc", memory.desc().error()},
                     {"grant", memory.grant(peer).error()}});
  EXPECT_FALSE(counter.try_take(1));
  EXPECT_EQ(group.missing().size(), 0u);
  watcher.arm();
  watcher.store(1);
  watcher.disarm();
  flag.store(3);
  EXPECT_EQ(flag.load(), 3u);
  EXPECT_TRUE(a.address().empty());
  EXPECT_TRUE(a.peers().empty());
  EXPECT_EQ(a.progress(), 0u);
  EXPECT_EQ(peers.size(), 1u);
  world.run_for(1s);
  EXPECT_TRUE(b.peers().empty()) << "the peer received a goodbye";
}

TEST_F(BadInput, MovedEngineAndHandlesAreInert) {
  Engine moved = std::move(a);
  expect_all_closed(call_everything(a, b.address(), b.address_text(), memory));
  EXPECT_TRUE(a.address().empty());
  EXPECT_TRUE(a.peers().empty());
  EXPECT_EQ(a.now(), Nanos(0));
  EXPECT_EQ(a.progress(), 0u);
  EXPECT_EQ(a.stats().turns, 0u);
  EXPECT_TRUE(a.rail_stats().empty());
  EXPECT_EQ(moved.peers(), std::vector<PeerId>{peer}) << "the sessions must move with the engine";

  Counter counter = *moved.make_counter();
  const Counter kept = std::move(counter);
  EXPECT_EQ(counter.wait(1).error().code, Errc::kReleased);
  EXPECT_EQ(counter.expect(1, {}).error().code, Errc::kReleased);
  EXPECT_EQ(counter.key(), CounterKey{});
  EXPECT_EQ(counter.count(), 0u);
  counter.release();
  Batch gone = *moved.make_batch();
  const Batch there = std::move(gone);
  EXPECT_EQ(gone.seal({}).error().code, Errc::kNotFound);
  EXPECT_EQ(gone.id(), BatchId{});
  EXPECT_EQ(gone.pending(), 0u);
  Inbox inbox = *moved.make_inbox(1);
  const Inbox elsewhere = std::move(inbox);
  EXPECT_EQ(inbox.wait().error().code, Errc::kClosed);
  std::vector<Event> out(1);
  EXPECT_EQ(inbox.poll(out), 0u);
  a = std::move(moved);  // for the look at the end
  EXPECT_EQ(a.peers(), std::vector<PeerId>{peer});
}

TEST_F(BadInput, BlockingCallsInACallback) {
  Counter counter = *a.make_counter();
  Counter named = *a.named_counter(1);
  CounterGroup group = *a.make_counter_group();
  Inbox inbox = *a.make_inbox(1);
  std::map<std::string, Error> answers;
  struct Callback {
    std::function<void()> body;
    void run(const Event&) { body(); }
  } callback;
  callback.body = [&] {
    const uint64_t name = 1;
    CounterKey key;
    answers["wait"] = a.wait(batch).error();
    answers["resolve"] = a.resolve(peer, {&name, 1}, {&key, 1}).error();
    answers["Counter::wait"] = counter.wait(1).error();
    answers["Counter::close"] = named.close().error();
    answers["CounterGroup::wait"] = group.wait(1).error();
    answers["Inbox::wait"] = inbox.wait().error();
    answers["close"] = a.close().error();
    answers["close of another engine"] = b.close().error();
    // What does not block goes on.
    EXPECT_TRUE(a.submit(Timer{.after = 1ns, .notify = Notify::inbox(inbox)}));
    EXPECT_TRUE(a.make_batch());
  };
  ASSERT_TRUE(a.submit(Timer{.after = 1ns, .notify = Notify::call<&Callback::run>(&callback)}));
  ASSERT_TRUE(world.run_until([&] { return !answers.empty(); }, 1s));
  EXPECT_EQ(answers.size(), 8u);
  for (const auto& [call, error] : answers) {
    EXPECT_EQ(error.code, Errc::kWouldDeadlock) << call << ": " << to_string(error.code);
    EXPECT_STRNE(error.what, "") << call;
  }
  EXPECT_TRUE(inbox.wait(1s)) << "the calls must work outside of a callback";
  EXPECT_EQ(named.count(), 0u);
  EXPECT_TRUE(named.close()) << "the refused close released nothing";
}

}  // namespace
}  // namespace fabric::bad_input_test
