#include <sys/mman.h>

#include <cstring>
#include <set>

#include "fake_verbs/fake_nic_setup.h"

// Failing calls into the kernel, and the attributes that reach the NIC.

namespace fabric::test::calls_test {
namespace {

using Call = FakeNics::Call;
using End = FakeNics::End;

/// One call fails when paths are opened on the first of two rails; the other one serves.
void expect_true_without(const FakeNics::Failure& failure) {
  FakeNicSetup setup({.rails = 2});
  setup.expect_fault_logs();
  setup.nics().fail(failure);
  CheckedWrites writes(setup[0], setup[1], {.count = 64, .bytes = 1000});
  writes.submit();
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  EXPECT_GE(setup.nics().failed_calls(), 1u);
  writes.expect_true();
  EXPECT_EQ(writes.unknown(), 0u);
  setup.expect_service();
}

TEST(VerbsCall, ASenderThatCannotConnect) {
  expect_true_without({.call = Call::kToReceive, .host = 0, .rail = 0, .error = ETIMEDOUT});
  expect_true_without({.call = Call::kToSend, .host = 0, .rail = 0, .error = EINVAL});
}

TEST(VerbsCall, ATargetThatCannotConnect) {
  expect_true_without({.call = Call::kToReceive, .host = 1, .rail = 0, .error = ETIMEDOUT});
}

/// After the engines are open: their QP pools are full and cannot be refilled at first.
TEST(VerbsCall, QueuePairsThatCannotBeMade) {
  for (const Call call : {Call::kCreateQp, Call::kToInit}) {
    FakeNicSetup setup({.rails = 2});
    setup.expect_fault_logs();
    for (const uint32_t host : {0, 1}) {
      setup.nics().fail({.call = call, .host = host, .rail = 0, .times = 3});
    }
    // Paths that are torn down and opened again empty the pools. Writes without a path wait.
    for (uint32_t round = 0; round < 20 && setup.nics().failed_calls() < 6; ++round) {
      CheckedWrites there(setup[0], setup[1]), back(setup[1], setup[0]);
      there.submit();
      back.submit();
      setup.nics().break_path(0, 1, 0, End::kSender);
      setup.nics().break_path(1, 0, 0, End::kTarget);
      EXPECT_TRUE(setup.until([&] { return there.ended() && back.ended(); })) << setup[0].dump();
      there.expect_delivered();
      back.expect_delivered();
    }
    EXPECT_EQ(setup.nics().failed_calls(), 6u);
    setup.expect_service();
  }
}

// From the first call on, so that the pools stay empty.
TEST(VerbsCall, AnEngineWithoutAQpPool) {
  for (const uint32_t rails : {1, 2}) {
    FakeNicSetup setup({.hosts = 3, .rails = rails});
    setup.expect_fault_logs();
    setup.close(2);
    // Two pooled for each direction, one more for a peer, and two that open_path() makes itself.
    setup.nics().fail({.call = Call::kCreateQp, .host = 2, .rail = 0, .times = 8});
    auto late = setup.open(2);
    ASSERT_TRUE(late) << late.error().what;
    CheckedWrites there(setup[0], *late), back(*late, setup[0]);
    there.submit();
    back.submit();
    EXPECT_TRUE(setup.until([&] { return there.ended() && back.ended(); })) << late->dump();
    there.expect_delivered();
    back.expect_delivered();
  }
}

// Neither rail has room at first, and one never gets any: what waits for it goes by the other.
TEST(VerbsCall, ARailThatNeverGetsRoom) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.expect_fault_logs();
  setup.close(2);
  setup.nics().fail({.call = Call::kCreateQp, .host = 2, .rail = 0, .times = 10});
  setup.nics().fail({.call = Call::kCreateQp, .host = 2, .rail = 1, .times = UINT32_MAX});
  auto late = setup.open(2);
  ASSERT_TRUE(late) << late.error().what;
  CheckedWrites back(*late, setup[0], {.count = 32, .bytes = 1000});
  back.submit();
  EXPECT_TRUE(setup.until([&] { return back.ended(); })) << late->dump();
  back.expect_delivered();
}

// What is no lack of room is no reason to wait.
TEST(VerbsCall, QueuePairsThatTheKernelRefuses) {
  FakeNicSetup setup({.hosts = 3});
  setup.expect_fault_logs();
  setup.close(2);
  setup.nics().fail({.call = Call::kToInit, .host = 2, .times = UINT32_MAX, .error = EINVAL});
  auto late = setup.open(2);
  ASSERT_TRUE(late) << late.error().what;
  CheckedWrites back(*late, setup[0], {.count = 8, .bytes = 1000});
  back.submit();
  EXPECT_TRUE(setup.until([&] { return back.ended(); })) << late->dump();
  EXPECT_EQ(back.with(Errc::kUnreachable), 8u);
}

TEST(VerbsCall, AnEngineThatCannotBeOpened) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.close(2);
  const struct {
    Call call;
    int error;
    Errc code;
    const char* what;
  } kCases[] = {{Call::kOpen, EACCES, Errc::kPermission, "ibv_open_device"},
                {Call::kAllocPd, ENOMEM, Errc::kExhausted, "ibv_alloc_pd"},
                {Call::kCreateChannel, EMFILE, Errc::kExhausted, "ibv_create_comp_channel"},
                {Call::kCreateCq, ENOMEM, Errc::kExhausted, "ibv_create_cq"}};
  for (const auto& one : kCases) {
    // On the second rail: what the first has is given back.
    setup.nics().fail({.call = one.call, .host = 2, .rail = 1, .error = one.error});
    const auto engine = setup.open(2);
    ASSERT_FALSE(engine) << one.what;
    EXPECT_EQ(engine.error().code, one.code);
    EXPECT_STREQ(engine.error().what, one.what);
  }
  const auto engine = setup.open(2);
  EXPECT_TRUE(engine) << engine.error().what;
}

TEST(VerbsCall, MemoryThatCannotBeRegistered) {
  FakeNicSetup setup({.rails = 2});
  expect_log("memory could not be registered");
  const struct {
    int error;
    Errc code;
  } kCases[] = {{ENOMEM, Errc::kExhausted},
                {EAGAIN, Errc::kExhausted},
                {EPERM, Errc::kPermission},
                {EOPNOTSUPP, Errc::kUnsupported},
                {EFAULT, Errc::kInvalidArgument}};
  for (const auto& one : kCases) {
    setup.nics().fail({.call = Call::kRegister, .host = 0, .rail = 1, .error = one.error});
    const auto region = setup[0].allocate({.size_bytes = 8192});
    ASSERT_FALSE(region);
    EXPECT_EQ(region.error().code, one.code);
  }
  setup.expect_service();
}

// There is no proof: the region reports that, its pages are leaked, and everything else goes on.
TEST(VerbsCall, MemoryThatCannotBeDeregistered) {
  FakeNicSetup setup({.config = {.drain_timeout = 300ms}});
  setup.expect_fault_logs();
  expect_log("region");
  expect_log("memory");
  auto region = setup[1].allocate({.size_bytes = 8192});
  ASSERT_TRUE(region);
  setup.nics().fail({.call = Call::kDeregister, .host = 1, .error = EBUSY});
  struct Report {
    void on(const Event& event) {
      last = event;
      ends.fetch_add(1, std::memory_order_release);
    }
    Event last{};
    std::atomic<uint32_t> ends{0};
  } end;
  const auto op = setup[1].submit(Deregister{
      .region = region->id(), .timeout = 200ms, .notify = Notify::call<&Report::on>(&end)});
  ASSERT_TRUE(op);
  EXPECT_TRUE(setup.until([&] { return end.ends.load(std::memory_order_acquire) != 0; }));
  EXPECT_EQ(end.last.code, Errc::kTimeout);
  EXPECT_EQ(end.last.remote, Remote::kUnknown);
  EXPECT_EQ(end.ends.load(), 1u);
  setup.expect_service();
}

// The error state is refused: the drain is abandoned in time, and nothing is counted twice. A
// target that still receives would acknowledge writes that it never polls, which costs the
// connection: so nothing arrives while it abandons.
TEST(VerbsCall, AnErrorStateThatIsRefused) {
  for (const uint32_t host : {0, 1}) {
    FakeNicSetup setup({.rails = 2, .threads = false});
    setup.expect_fault_logs();
    setup.nics().allow_undrained();
    CheckedWrites first(setup[0], setup[1]);
    first.submit();
    ASSERT_TRUE(setup.until([&] { return first.ended(); }));
    CheckedWrites writes(setup[0], setup[1], {.count = 200, .bytes = 6000, .timeout = 10s});
    setup.nics().fail({.call = Call::kToError, .host = host, .error = EIO});
    setup.nics().hold_packets(1, 0, host == 1);
    writes.submit();
    setup.nics().raise_qp_events(host, 0, host == 0 ? End::kSender : End::kTarget,
                                 IBV_EVENT_QP_FATAL);
    EXPECT_TRUE(setup.until([&] { return setup.fact(host, 0, "drains abandoned") == "1"; }));
    setup.nics().hold_packets(1, 0, false);
    EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
    writes.expect_true();
    EXPECT_EQ(writes.not_delivered(), 0u);
    setup.expect_service();
  }
}

// ---- Attributes that reach the NIC --------------------------------------------------------------

TEST(VerbsAttributes, OptionsArriveAtTheNic) {
  FakeNicSetup setup({.network = {.gid_index = 1,
                                  .mtu_bytes = 1024,
                                  .traffic_class = 104,
                                  .service_level = 3,
                                  .pkey_index = 2,
                                  .timeout_code = 12,
                                  .retry_count = 4,
                                  .rnr_retry = 6,
                                  .rnr_timer = 9}});
  setup.expect_service();
  const auto routes = setup.nics().qp_settings(0, 0);
  ASSERT_FALSE(routes.empty());
  for (const auto& settings : routes) {
    EXPECT_EQ(settings.gid_index, 1);
    EXPECT_EQ(settings.mtu, IBV_MTU_1024);
    EXPECT_EQ(settings.traffic_class, 104);
    EXPECT_EQ(settings.service_level, 3);
    EXPECT_EQ(settings.pkey_index, 2);
    EXPECT_EQ(settings.timeout, 12);
    EXPECT_EQ(settings.retries, 4);
    EXPECT_EQ(settings.rnr_retries, 6);
    EXPECT_EQ(settings.rnr_timer, 9);
  }
}

// Memory that was not registered for remote writes has no rkey that could be guessed.
TEST(VerbsAttributes, PeersMayWriteOnlyToMemoryRegisteredForIt) {
  FakeNicSetup setup;
  std::vector<std::byte> bytes(8192);
  for (const bool open : {false, true}) {
    const auto region = setup[0].register_memory(
        {.address = bytes.data(), .size_bytes = bytes.size(), .remote_write = open});
    ASSERT_TRUE(region) << region.error().what;
    const unsigned write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    EXPECT_EQ(setup.nics().access(bytes.data()), IBV_ACCESS_RELAXED_ORDERING | (open ? write : 0u));
  }
}

// A packet of an old connection matches a new one only by chance: one in 16 million.
TEST(VerbsAttributes, EveryConnectionBeginsWithAnotherPacket) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  std::set<uint32_t> firsts;
  for (uint32_t connection = 1; connection <= 4; ++connection) {
    setup.expect_service();
    for (const auto& settings : setup.nics().qp_settings(0, 0)) {
      if (settings.timeout != 0) firsts.insert(settings.first_packet);  // it sends
    }
    EXPECT_EQ(firsts.size(), connection);
    EXPECT_EQ(setup.nics().break_path(0, 1, 0, End::kSender), 1u);
  }
}

TEST(VerbsAttributes, ThreadDomainsWhereThereAreSome) {
  for (const bool some : {true, false}) {
    FakeNicSetup setup({.rails = 2, .nics = {.thread_domains = some}});
    EXPECT_EQ(setup.fact(0, 0, "thread domain"), some ? "yes" : "no");
    setup.expect_service();
  }
}

TEST(VerbsAttributes, NicsThatCarryLessOrNothingInline) {
  for (const uint32_t most : {0u, 32u}) {
    FakeNicSetup setup({.nics = {.inline_max = most}});
    CheckedWrites small(setup[0], setup[1], {.bytes = 40});
    small.submit();
    EXPECT_TRUE(setup.until([&] { return small.ended(); }));
    small.expect_delivered();
  }
}

TEST(VerbsAttributes, SmallPacketsAndSmallQueues) {
  FakeNicSetup setup({.nics = {.cqe_max = 600, .requests_max = 200, .mtu = IBV_MTU_256},
                      .network = {.send_depth = 16, .receive_depth = 8}});
  CheckedWrites writes(setup[0], setup[1], {.count = 300, .bytes = 3001});
  CheckedWrites back(setup[1], setup[0], {.count = 300, .bytes = 3001});
  writes.submit();
  back.submit();
  EXPECT_TRUE(setup.until([&] { return writes.ended() && back.ended(); }));
  writes.expect_delivered();
  back.expect_delivered();
}

/// GPU memory: the NIC reaches it by a descriptor, the CPU not at all.
TEST(VerbsAttributes, MemoryByDmaBuf) {
  FakeNicSetup setup({.rails = 2});
  EXPECT_EQ(setup.fact(0, 0, "dma-buf"), "yes");
  constexpr uint64_t kBytes = 64 << 10, kOffset = 4096 + 512;
  std::array<int, 2> fds{};
  std::array<std::byte*, 2> seen{};
  std::vector<MemoryRegion> regions;
  for (uint32_t host : {0u, 1u}) {
    fds[host] = ::memfd_create("device", MFD_CLOEXEC);
    ASSERT_EQ(::ftruncate(fds[host], kBytes + 2 * kOffset), 0);
    void* const at =
        ::mmap(nullptr, kBytes + 2 * kOffset, PROT_READ | PROT_WRITE, MAP_SHARED, fds[host], 0);
    ASSERT_NE(at, MAP_FAILED);
    seen[host] = static_cast<std::byte*>(at) + kOffset;
    // An address that is not mapped in this process: reading it crashes.
    auto region =
        setup[host].register_memory({.address = reinterpret_cast<void*>(0x7000'0000'0000 + kOffset),
                                     .size_bytes = kBytes,
                                     .kind = MemoryKind::kCuda,
                                     .gpu = 0,
                                     .dmabuf_fd = fds[host],
                                     .dmabuf_offset = kOffset});
    ASSERT_TRUE(region) << to_string(region.error().code) << " " << region.error().what;
    regions.push_back(*std::move(region));
  }
  for (uint64_t i = 0; i < kBytes; ++i) seen[0][i] = static_cast<std::byte>(i * 31 % 251);
  const PeerId peer = *setup[0].connect(setup[1].address());
  const RemoteRegion remote = *setup[0].import_region(peer, *regions[1].desc());
  auto counter = *setup[1].make_counter();
  for (const auto& [at, size] : {std::pair<uint64_t, uint64_t>{0, 32}, {32, kBytes - 32}}) {
    const auto op = setup[0].submit(Write{.source = regions[0].at(at),
                                          .target = remote.at(at),
                                          .size_bytes = size,
                                          .imm = counter.key()});
    ASSERT_TRUE(op);
  }
  EXPECT_TRUE(setup.until([&] { return counter.count() == 2; }));
  EXPECT_EQ(std::memcmp(seen[0], seen[1], kBytes), 0);
  regions.clear();
  for (uint32_t host : {0u, 1u}) {
    ::munmap(seen[host] - kOffset, kBytes + 2 * kOffset);
    ::close(fds[host]);
  }
}

TEST(VerbsAttributes, NoDmaBufWhereTheNicLacksIt) {
  FakeNicSetup setup({.nics = {.dmabuf = false}});
  EXPECT_EQ(setup.fact(0, 0, "dma-buf"), "no");
  const int fd = ::memfd_create("device", MFD_CLOEXEC);
  const auto region =
      setup[0].register_memory({.address = reinterpret_cast<void*>(0x7000'0000'0000),
                                .size_bytes = 4096,
                                .kind = MemoryKind::kCuda,
                                .gpu = 0,
                                .dmabuf_fd = fd});
  EXPECT_FALSE(region);
  EXPECT_EQ(region.error().code, Errc::kUnsupported);
  ::close(fd);
}

}  // namespace
}  // namespace fabric::test::calls_test
