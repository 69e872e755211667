#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "providers/self/handles.h"
#include "providers/self/open.h"

namespace fabric::self::self_test {
namespace {

using Kind = RailEvent::Kind;

struct Region {
  uint64_t lkey = 0;
  uint64_t rkey = 0;
};

class SelfTest : public testing::Test {
 protected:
  void SetUp() override {
    const OpenContext context{.engine_id = 42, .wake = [this] { ++wakes_; }};
    auto opened = open({.provider = "self"}, context);
    ASSERT_TRUE(opened);
    network_ = *std::move(opened);
    rail_ = &network_->rail(0);
    path_ = connect();
  }

  uint32_t connect() {
    std::vector<std::byte> hello, answer;
    const auto path = rail_->open_path(network_->address(), 0, hello);
    EXPECT_TRUE(path);
    inbound_ = *rail_->accept_path(hello, answer);
    EXPECT_TRUE(rail_->start_path(*path, answer));
    return *path;
  }

  Region add(void* address, uint64_t size_bytes, bool remote_write = true) {
    std::vector<std::byte> wire;
    const auto local = rail_->register_memory(
        {.address = address, .size_bytes = size_bytes, .remote_write = remote_write}, wire);
    EXPECT_TRUE(local);
    const auto remote = rail_->import_rkey(wire);
    EXPECT_TRUE(remote);
    return {*local, *remote};
  }

  WriteOp write(const void* source, Region from, Region to, uint64_t target, uint64_t size_bytes) {
    return {.source = reinterpret_cast<uint64_t>(source),
            .target = target,
            .size_bytes = size_bytes,
            .lkey = from.lkey,
            .rkey = to.rkey,
            .cookie = ++cookie_,
            .path = path_};
  }

  /// One poll.
  std::vector<RailEvent> poll(size_t room = 64) {
    std::vector<RailEvent> events(room);
    events.resize(rail_->poll(events));
    return events;
  }
  /// Polls until nothing is left; the bound is far above what any test queues.
  std::vector<RailEvent> drain(size_t room = 64) {
    std::vector<RailEvent> all;
    for (int polls = 0; polls < 5000 && !network_->arm(); ++polls) {
      const auto events = poll(room);
      all.insert(all.end(), events.begin(), events.end());
    }
    EXPECT_TRUE(network_->arm());
    return all;
  }

  int wakes_ = 0;
  std::unique_ptr<OpenNetwork> network_;
  Rail* rail_ = nullptr;
  uint32_t path_ = 0, inbound_ = 0, cookie_ = 0;
};

std::vector<std::byte> pattern(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  return bytes;
}

TEST_F(SelfTest, CopiesBytesThenCountsThenCompletes) {
  const auto source = pattern(5000);
  auto target = std::vector<std::byte>(6000);
  const Region from = add(const_cast<std::byte*>(source.data()), source.size(), false);
  const Region to = add(target.data(), target.size());
  WriteOp op = write(source.data() + 100, from, to, 1000, 4900);
  op.imm = 77;
  op.has_imm = 1;
  EXPECT_TRUE(network_->arm());
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  EXPECT_FALSE(network_->arm());

  // Room for one event: the immediate comes alone, and only after its bytes.
  const auto first = poll(1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].kind, Kind::kImm);
  EXPECT_EQ(first[0].imm, 77u);
  EXPECT_EQ(std::memcmp(target.data() + 1000, source.data() + 100, 4900), 0);
  EXPECT_EQ(target[999], std::byte{0});
  EXPECT_EQ(target[5900], std::byte{0});
  const auto second = poll(1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].kind, Kind::kCompletion);
  EXPECT_EQ(second[0].code, Errc::kOk);
  EXPECT_EQ(second[0].remote, Remote::kDelivered);
  EXPECT_EQ(second[0].cookie, op.cookie);
  EXPECT_TRUE(network_->arm());
}

TEST_F(SelfTest, CopiesALargeWriteWithinItsBudgetPerPoll) {
  const auto source = pattern(3 * kPollBytes + 4097);
  std::vector<std::byte> target(source.size());
  const Region from = add(const_cast<std::byte*>(source.data()), source.size());
  const Region to = add(target.data(), target.size());
  WriteOp op = write(source.data(), from, to, 0, source.size());
  op.has_imm = 1;
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  for (int polls = 1; polls <= 3; ++polls) {
    EXPECT_TRUE(poll().empty());
    EXPECT_EQ(target[polls * kPollBytes - 1], source[polls * kPollBytes - 1]);
    // Untouched beyond the budget: the byte of the pattern there is not zero.
    ASSERT_NE(source[polls * kPollBytes + 1], std::byte{0});
    EXPECT_EQ(target[polls * kPollBytes + 1], std::byte{0});
  }
  const auto events = poll();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kImm);
  EXPECT_EQ(events[1].kind, Kind::kCompletion);
  EXPECT_EQ(target, source);
}

TEST_F(SelfTest, SharesOneBudgetBetweenTheWritesOfAPoll) {
  std::vector<std::byte> source(kPollBytes), target(kPollBytes);
  const Region from = add(source.data(), source.size());
  const Region to = add(target.data(), target.size());
  const std::vector<WriteOp> ops(4, write(source.data(), from, to, 0, kPollBytes / 2 + 1));
  ASSERT_EQ(rail_->post(ops), 4u);
  EXPECT_EQ(poll().size(), 1u);
  EXPECT_EQ(poll().size(), 2u);  // the rest of the second, and the third
  EXPECT_EQ(drain().size(), 1u);
}

TEST_F(SelfTest, MovesOverlappingBytesAsOneMemmove) {
  const uint64_t size = 2 * kPollBytes + 999;
  for (const uint64_t shift : {uint64_t{1}, uint64_t{4096}, kPollBytes + 5}) {
    for (const bool up : {true, false}) {
      auto bytes = pattern(size + shift);
      auto expected = bytes;
      const uint64_t from = up ? 0 : shift, to = up ? shift : 0;
      std::memmove(expected.data() + to, expected.data() + from, size);
      const Region whole = add(bytes.data(), bytes.size());
      const Region alias = add(bytes.data(), bytes.size());  // registrations may overlap
      const WriteOp op = write(bytes.data() + from, whole, alias, to, size);
      ASSERT_EQ(rail_->post({&op, 1}), 1u);
      const auto events = drain();
      ASSERT_EQ(events.size(), 1u);
      EXPECT_EQ(events[0].code, Errc::kOk);
      EXPECT_TRUE(bytes == expected) << "shift " << shift << " up " << up;
    }
  }
}

TEST_F(SelfTest, CountsABareImmediateWithoutAnyKey) {
  const WriteOp op{.cookie = 5, .path = path_, .imm = 9, .has_imm = 1};
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  const auto events = drain();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].imm, 9u);
  EXPECT_EQ(events[1].code, Errc::kOk);
}

TEST_F(SelfTest, TakesAPrefixWhenFullAndCompletesInOrder) {
  std::vector<WriteOp> ops(rail_->caps().queue_depth + 10);
  for (uint32_t i = 0; i < ops.size(); ++i) ops[i] = {.cookie = i, .path = path_};
  EXPECT_EQ(rail_->post(ops), rail_->caps().queue_depth);
  EXPECT_EQ(rail_->post(ops), 0u);
  EXPECT_EQ(poll(4).size(), 4u);
  EXPECT_EQ(rail_->post(std::span(ops).subspan(rail_->caps().queue_depth)), 4u);
  uint32_t expected = 4;
  for (const RailEvent& event : drain(7)) EXPECT_EQ(event.cookie, expected++);
  EXPECT_EQ(expected, rail_->caps().queue_depth + 4);
}

TEST_F(SelfTest, RefusesWhatTheKeyDoesNotCover) {
  std::vector<std::byte> source(100), target(100);
  const Region from = add(source.data(), 100);
  const Region to = add(target.data(), 100);
  const Region read_only = add(target.data(), 100, false);
  struct Case {
    const char* name;
    WriteOp op;
    Errc code;
  };
  std::vector<Case> cases{
      {"past the end", write(source.data(), from, to, 51, 50), Errc::kRemoteAccess},
      {"offset beyond", write(source.data(), from, to, 101, 0), Errc::kOk},  // touches nothing
      {"offset that wraps", write(source.data(), from, to, UINT64_MAX - 9, 20),
       Errc::kRemoteAccess},
      {"without remote_write", write(source.data(), from, read_only, 0, 1), Errc::kRemoteAccess},
      {"unknown key", write(source.data(), from, {0, to.rkey + 7}, 0, 1), Errc::kRemoteAccess},
      {"another generation", write(source.data(), from, {0, to.rkey + (1ull << 32)}, 0, 1),
       Errc::kRemoteAccess},
      {"source past its end", write(source.data() + 60, from, to, 0, 50), Errc::kNotFound},
      {"source before its start", write(source.data() - 1, from, to, 0, 2), Errc::kNotFound},
      {"unknown source key", write(source.data(), {999, 0}, to, 0, 1), Errc::kNotFound},
      {"all of it", write(source.data(), from, to, 0, 100), Errc::kOk},
  };
  std::fill(source.begin(), source.end(), std::byte{1});
  for (Case& c : cases) {
    c.op.has_imm = 1;
    std::fill(target.begin(), target.end(), std::byte{0});
    ASSERT_EQ(rail_->post({&c.op, 1}), 1u);
    const auto events = drain();
    ASSERT_EQ(events.size(), c.code == Errc::kOk ? 2u : 1u) << c.name;
    EXPECT_EQ(events.back().kind, Kind::kCompletion) << c.name;
    EXPECT_EQ(events.back().code, c.code) << c.name;
    if (c.code == Errc::kOk) continue;
    EXPECT_EQ(events.back().remote, Remote::kNotDelivered) << c.name;
    EXPECT_EQ(std::count(target.begin(), target.end(), std::byte{1}), 0) << c.name;
  }
}

TEST_F(SelfTest, FencesAtOnceAndRefusesWhatIsQueued) {
  std::vector<std::byte> source(100, std::byte{1}), target(100);
  const Region from = add(source.data(), 100);
  const Region to = add(target.data(), 100);
  WriteOp op = write(source.data(), from, to, 0, 100);
  op.has_imm = 1;
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  rail_->deregister_memory(to.lkey, 1234);
  EXPECT_EQ(wakes_, 1);
  const auto events = drain();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kFenced);
  EXPECT_EQ(events[0].cookie, 1234u);
  EXPECT_EQ(events[1].code, Errc::kRemoteAccess);
  EXPECT_EQ(events[1].remote, Remote::kNotDelivered);
  EXPECT_EQ(target[0], std::byte{0});
}

TEST_F(SelfTest, StopsInTheMiddleOfAWriteWhoseTargetIsDeregistered) {
  const auto source = pattern(2 * kPollBytes);
  std::vector<std::byte> target(source.size());
  const Region from = add(const_cast<std::byte*>(source.data()), source.size());
  const Region to = add(target.data(), target.size());
  WriteOp op = write(source.data(), from, to, 0, source.size());
  op.has_imm = 1;
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  EXPECT_TRUE(poll().empty());
  rail_->deregister_memory(to.lkey, 1);
  const auto events = drain();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kFenced);
  EXPECT_EQ(events[1].code, Errc::kRemoteAccess);
  EXPECT_EQ(events[1].remote, Remote::kNotDelivered);
  EXPECT_EQ(target[kPollBytes + 1], std::byte{0});
}

TEST_F(SelfTest, GivesASlotThatIsUsedAgainAnotherKey) {
  std::vector<std::byte> source(10), target(10);
  const Region from = add(source.data(), 10);
  const Region old = add(target.data(), 10);
  rail_->deregister_memory(old.lkey, 1);
  drain();
  const Region fresh = add(target.data(), 10);
  EXPECT_NE(fresh.lkey, old.lkey);
  const WriteOp ops[] = {write(source.data(), from, old, 0, 10),
                         write(source.data(), from, fresh, 0, 10)};
  ASSERT_EQ(rail_->post(ops), 2u);
  const auto events = drain();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].code, Errc::kRemoteAccess);
  EXPECT_EQ(events[1].code, Errc::kOk);
}

// The regions table on its own: the proof waits for the copy that has begun, as a source or target.
TEST(SelfRegions, ProvesAFenceOnlyWhenTheCopyHasEnded) {
  std::vector<std::byte> bytes(64);
  for (const bool as_source : {true, false}) {
    RegionTable table;
    const uint64_t from = *table.add({.address = bytes.data(), .size_bytes = 64});
    const uint64_t to = *table.add({.address = bytes.data(), .size_bytes = 64});
    const WriteOp op{.source = reinterpret_cast<uint64_t>(bytes.data()),
                     .size_bytes = 64,
                     .lkey = from,
                     .rkey = to};
    uint32_t cookie = 0;
    ASSERT_EQ(table.pin(op).access, RegionTable::Access::kOk);
    EXPECT_FALSE(table.remove(as_source ? from : to, 8));
    EXPECT_FALSE(table.take_fenced(cookie));
    EXPECT_NE(table.pin(op).access, RegionTable::Access::kOk);  // no new copy begins
    table.unpin(op);
    ASSERT_TRUE(table.take_fenced(cookie));
    EXPECT_EQ(cookie, 8u);
    EXPECT_FALSE(table.take_fenced(cookie));
  }
}

TEST(SelfRegions, CountsARegionThatIsSourceAndTargetTwice) {
  std::vector<std::byte> bytes(64);
  RegionTable table;
  const uint64_t key = *table.add({.address = bytes.data(), .size_bytes = 64});
  const WriteOp op{.source = reinterpret_cast<uint64_t>(bytes.data()),
                   .size_bytes = 64,
                   .lkey = key,
                   .rkey = key};
  uint32_t cookie = 0;
  ASSERT_EQ(table.pin(op).access, RegionTable::Access::kOk);
  EXPECT_FALSE(table.remove(key, 3));
  table.unpin(op);
  EXPECT_TRUE(table.take_fenced(cookie));
  EXPECT_FALSE(table.take_fenced(cookie));
}

TEST_F(SelfTest, RegistersOnlyHostMemoryThatIsThere) {
  std::byte byte{};
  std::vector<std::byte> wire;
  const auto code = [&](const Memory& memory) {
    return rail_->register_memory(memory, wire).error().code;
  };
  EXPECT_EQ(code({.address = nullptr, .size_bytes = 1}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.address = &byte, .size_bytes = 0}), Errc::kInvalidArgument);
  EXPECT_EQ(code({.address = &byte, .size_bytes = 1, .kind = MemoryKind::kCuda}),
            Errc::kUnsupported);
}

TEST_F(SelfTest, RefusesHostileBytes) {
  std::byte byte{};
  std::vector<std::byte> wire, hello, answer;
  ASSERT_TRUE(rail_->register_memory({.address = &byte, .size_bytes = 1}, wire));
  EXPECT_LE(wire.size(), Rail::kWireRkeyBytesMax);
  auto longer = wire;
  longer.push_back({});
  auto foreign = wire;
  foreign[0] ^= std::byte{1};
  for (const auto& bad : {std::vector<std::byte>(wire.begin(), wire.end() - 1), longer, foreign}) {
    EXPECT_EQ(rail_->import_rkey(bad).error().code, Errc::kBadFormat);
  }
  const auto address = network_->address();
  auto other = address;
  other[0] ^= std::byte{1};
  EXPECT_EQ(network_->open_link({}).error().code, Errc::kBadFormat);
  EXPECT_EQ(network_->open_link(other).error().code, Errc::kUnreachable);
  EXPECT_EQ(rail_->open_path(other, 0, hello).error().code, Errc::kUnreachable);
  EXPECT_EQ(rail_->open_path(address, 1, hello).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(rail_->accept_path({}, answer).error().code, Errc::kBadFormat);
}

TEST_F(SelfTest, AcceptsTheSameHelloTwiceWithTheSameAnswer) {
  std::vector<std::byte> hello, first, second;
  const auto path = rail_->open_path(network_->address(), 0, hello);
  ASSERT_TRUE(path);
  EXPECT_FALSE(rail_->start_path(*path, hello));  // it was not accepted
  const auto a = rail_->accept_path(hello, first);
  const auto b = rail_->accept_path(hello, second);
  ASSERT_TRUE(a);
  ASSERT_TRUE(b);
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(first, second);
  EXPECT_TRUE(rail_->start_path(*path, first));
}

TEST_F(SelfTest, FlushesAClosedPathOnceAndThenReportsIt) {
  const uint32_t other = connect();
  std::vector<WriteOp> ops;
  for (uint32_t i = 0; i < 6; ++i) {
    ops.push_back({.cookie = i, .path = i % 2 == 0 ? path_ : other, .imm = i, .has_imm = 1});
  }
  ASSERT_EQ(rail_->post(ops), 6u);
  EXPECT_EQ(poll(1).size(), 1u);  // the immediate of write 0: from here on it is delivered
  rail_->close_path(path_, false);
  rail_->close_path(path_, false);
  const auto events = drain(3);
  std::vector<uint32_t> lost, written, down;
  for (const RailEvent& event : events) {
    if (event.kind == Kind::kPathDown) down.push_back(event.path);
    if (event.kind != Kind::kCompletion) continue;
    EXPECT_TRUE(down.empty());
    (event.code == Errc::kOk ? written : lost).push_back(event.cookie);
    if (event.code == Errc::kOk) continue;
    EXPECT_EQ(event.code, Errc::kRailLost);
    EXPECT_EQ(event.remote, Remote::kNotDelivered);
  }
  EXPECT_EQ(written, (std::vector<uint32_t>{0, 1, 3, 5}));
  EXPECT_EQ(lost, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(down, std::vector<uint32_t>{path_});
}

TEST_F(SelfTest, ClosingTheTargetsEndBreaksTheSendersAndReportsTheCount) {
  const WriteOp op{.cookie = 1, .path = path_, .imm = 1, .has_imm = 1};
  for (int i = 0; i < 3; ++i) ASSERT_EQ(rail_->post({&op, 1}), 1u);
  EXPECT_EQ(poll(4).size(), 4u);  // two of them
  rail_->close_path(inbound_, true);
  const auto events = drain();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].code, Errc::kRailLost);
  EXPECT_EQ(events[1].kind, Kind::kPathDown);
  EXPECT_EQ(events[1].inbound, 0u);
  EXPECT_EQ(events[2].kind, Kind::kPathDown);
  EXPECT_EQ(events[2].inbound, 1u);
  EXPECT_EQ(events[2].value, 2u);
  rail_->close_path(path_, false);  // late: nothing is left to report
  EXPECT_TRUE(drain().empty());
}

TEST_F(SelfTest, ReportsAPathOnlyAfterItsLastWriteAlsoWhenAnotherHoldsItUp) {
  std::vector<std::byte> bytes(2 * kPollBytes);
  const Region region = add(bytes.data(), bytes.size());
  const uint32_t closed = path_;
  const uint32_t closed_inbound = inbound_;
  path_ = connect();
  const WriteOp ops[] = {write(bytes.data(), region, region, 0, bytes.size()),
                         {.cookie = 99, .path = closed}};
  ASSERT_EQ(rail_->post(ops), 2u);
  rail_->close_path(closed_inbound, true);
  EXPECT_TRUE(poll().empty());  // half of the large write
  const auto events = drain();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].code, Errc::kOk);
  EXPECT_EQ(events[1].cookie, 99u);
  EXPECT_EQ(events[1].code, Errc::kRailLost);
  EXPECT_EQ(events[2].kind, Kind::kPathDown);
  EXPECT_EQ(events[3].kind, Kind::kPathDown);
}

TEST_F(SelfTest, CompletesWhatIsPostedOnAPathThatIsNotThere) {
  const WriteOp op{.cookie = 3, .path = 4711};
  ASSERT_EQ(rail_->post({&op, 1}), 1u);
  const auto events = drain();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].code, Errc::kRailLost);
  EXPECT_EQ(events[0].remote, Remote::kNotDelivered);
}

TEST_F(SelfTest, LoopsControlDatagramsBackWithinABound) {
  const auto link = network_->open_link(network_->address());
  ASSERT_TRUE(link);
  const auto text = pattern(1000);
  uint32_t sent = 0;
  while (sent < 10'000 && network_->send(*link, std::span(text).first(1 + sent % 1000))) ++sent;
  EXPECT_GE(sent, 16u);
  EXPECT_LT(sent, 10'000u);
  EXPECT_FALSE(network_->arm());
  std::vector<std::byte> buffer(network_->control_bytes_max());
  for (uint32_t i = 0; i < sent; ++i) {
    ASSERT_EQ(network_->receive(buffer), 1 + i % 1000);
    EXPECT_EQ(std::memcmp(buffer.data(), text.data(), 1 + i % 1000), 0);
  }
  EXPECT_EQ(network_->receive(buffer), 0u);
  EXPECT_TRUE(network_->arm());
  EXPECT_FALSE(network_->send(*link, std::vector<std::byte>(network_->control_bytes_max() + 1)));
  network_->close_link(*link);
  EXPECT_FALSE(network_->send(*link, text));
}

}  // namespace
}  // namespace fabric::self::self_test
