#include "control/reliable.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::control::reliable_test {
namespace {

using Arrival = ReliableChannel::Arrival;
constexpr ReliableChannel::Options kOptions{.retransmit_ns = 100, .retransmit_max_ns = 1000};

std::vector<std::byte> number(uint32_t value) {
  std::vector<std::byte> bytes(4);
  for (int i = 0; i < 4; ++i)
    bytes[static_cast<size_t>(i)] = static_cast<std::byte>(value >> 8 * i);
  return bytes;
}

void push(ReliableChannel& channel, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) channel.push(MessageType::kMessage, number(i));
}

std::vector<uint64_t> due(ReliableChannel& channel, int64_t now_ns) {
  std::vector<uint64_t> seqs;
  ReliableChannel::Due out;
  while (channel.next_due(now_ns, out)) seqs.push_back(out.seq);
  return seqs;
}

using Seqs = std::vector<uint64_t>;

TEST(ReliableChannel, NumbersFromOneAndKeepsTypeAndBody) {
  ReliableChannel channel(kOptions);
  EXPECT_EQ(channel.next_time(), kNeverNs);
  channel.push(MessageType::kFence, number(77));
  channel.push(MessageType::kResolve, number(78));
  EXPECT_LE(channel.next_time(), 0);
  ReliableChannel::Due out;
  ASSERT_TRUE(channel.next_due(0, out));
  EXPECT_EQ(out.type, MessageType::kFence);
  EXPECT_EQ(out.seq, 1u);
  EXPECT_FALSE(out.again);
  EXPECT_EQ(std::vector(out.body.begin(), out.body.end()), number(77));
  ASSERT_TRUE(channel.next_due(0, out));
  EXPECT_EQ(out.type, MessageType::kResolve);
  EXPECT_EQ(out.seq, 2u);
  EXPECT_FALSE(channel.next_due(0, out));
}

// However often a number is acknowledged, and in whatever order.
TEST(ReliableChannel, CountsThePartsThatAreNotAcknowledged) {
  ReliableChannel channel(kOptions);
  for (uint32_t i = 0; i < 6; ++i) {
    channel.push(i % 2 == 0 ? MessageType::kMessagePart : MessageType::kMessage, number(i));
  }
  EXPECT_EQ(channel.unacknowledged_parts(), 3u);
  channel.on_ack(6, 0);
  EXPECT_EQ(channel.unacknowledged_parts(), 3u) << "none of them was sent";
  due(channel, 0);
  channel.on_ack(0, 0b1010);  // 3 and 5
  EXPECT_EQ(channel.unacknowledged_parts(), 1u);
  channel.on_ack(0, 0b1010);
  channel.on_ack(4, 0);
  EXPECT_EQ(channel.unacknowledged_parts(), 0u);
  channel.on_ack(6, 0);
  EXPECT_EQ(channel.unacknowledged_parts(), 0u);
  EXPECT_EQ(channel.unacknowledged(), 0u);
}

TEST(ReliableChannel, SendsAgainLaterAndLaterUpToItsBound) {
  ReliableChannel channel(kOptions);
  push(channel, 1);
  int64_t now = 50;
  EXPECT_EQ(due(channel, now), Seqs{1});
  for (const int64_t wait : {100, 200, 400, 800, 1000, 1000, 1000}) {
    EXPECT_EQ(channel.next_time(), now + wait);
    EXPECT_EQ(due(channel, now + wait - 1), Seqs{});
    now += wait;
    ReliableChannel::Due out;
    ASSERT_TRUE(channel.next_due(now, out));
    EXPECT_TRUE(out.again);
  }
  for (int i = 0; i < 200; ++i) {  // more doublings than a shift has room for
    now += 1000;
    EXPECT_EQ(due(channel, now), Seqs{1});
  }
}

TEST(ReliableChannel, StopsAtTheWindowUntilTheFirstIsAcknowledged) {
  ReliableChannel channel(kOptions);
  push(channel, ReliableChannel::kWindow + 10);
  EXPECT_EQ(due(channel, 0).size(), ReliableChannel::kWindow);
  // Everything but the first has arrived: the window does not move.
  channel.on_ack(0, ~uint64_t{0});
  EXPECT_EQ(channel.unacknowledged(), 11u);
  EXPECT_EQ(due(channel, 0), Seqs{});
  channel.on_ack(1, ~uint64_t{0});
  EXPECT_EQ(channel.unacknowledged(), 10u);
  EXPECT_EQ(due(channel, 0).size(), 10u);
}

TEST(ReliableChannel, RetransmitsOnlyWhatIsMissing) {
  ReliableChannel channel(kOptions);
  push(channel, 6);
  due(channel, 0);
  channel.on_ack(1, 0b101);  // 1, 3 and 5 have arrived
  EXPECT_EQ(channel.unacknowledged(), 3u);
  EXPECT_EQ(due(channel, 100), (Seqs{2, 4, 6}));
  channel.on_ack(6, 0);
  EXPECT_EQ(channel.unacknowledged(), 0u);
  EXPECT_EQ(channel.next_time(), kNeverNs);
}

TEST(ReliableChannel, IgnoresAcknowledgementsOfWhatWasNeverSent) {
  ReliableChannel channel(kOptions);
  push(channel, 2);
  channel.on_ack(UINT64_MAX, UINT64_MAX);
  channel.on_ack(0, UINT64_MAX);
  EXPECT_EQ(channel.unacknowledged(), 2u);
  EXPECT_EQ(due(channel, 0), (Seqs{1, 2}));
}

TEST(ReliableChannel, OldAcknowledgementsTakeNothingBack) {
  ReliableChannel channel(kOptions);
  push(channel, 3);
  due(channel, 0);
  channel.on_ack(2, 0);
  channel.on_ack(1, 0);
  channel.on_ack(0, 0);
  EXPECT_EQ(channel.unacknowledged(), 1u);
  EXPECT_EQ(due(channel, 100), Seqs{3});
}

TEST(ReliableChannel, OffersAgainWhatCouldNotBeSent) {
  ReliableChannel channel(kOptions);
  push(channel, 1);
  ReliableChannel::Due out;
  ASSERT_TRUE(channel.next_due(10, out));
  channel.unsent(out.seq);
  ASSERT_TRUE(channel.next_due(10, out)) << "an unsent message must be due at once";
  EXPECT_FALSE(out.again) << "the message was never sent";
  EXPECT_EQ(channel.next_time(), 110) << "the delay did not grow";
  channel.on_ack(1, 0);
  channel.unsent(1);  // Acknowledged already.
  channel.unsent(99);
  EXPECT_EQ(channel.unacknowledged(), 0u);
}

TEST(ReliableChannel, ClassifiesArrivals) {
  ReliableChannel channel(kOptions);
  EXPECT_EQ(channel.classify(0), Arrival::kBeyond);
  EXPECT_EQ(channel.classify(1), Arrival::kNew);
  EXPECT_EQ(channel.classify(65), Arrival::kNew) << "the last number that ack_bits covers";
  EXPECT_EQ(channel.classify(66), Arrival::kBeyond);
  EXPECT_EQ(channel.classify(UINT64_MAX), Arrival::kBeyond);

  channel.arrived(3);
  channel.arrived(65);
  EXPECT_EQ(channel.classify(3), Arrival::kDuplicate);
  EXPECT_EQ(channel.classify(65), Arrival::kDuplicate);
  EXPECT_EQ(channel.classify(2), Arrival::kNew);
  channel.arrived(1);
  EXPECT_EQ(channel.classify(1), Arrival::kDuplicate);
  EXPECT_EQ(channel.classify(66), Arrival::kNew);
}

TEST(ReliableChannel, AcknowledgesWhatArrivedAndNoMore) {
  ReliableChannel channel(kOptions);
  Header header;
  EXPECT_FALSE(channel.ack_owed());
  channel.arrived(2);
  EXPECT_TRUE(channel.ack_owed());
  channel.fill_ack(header);
  EXPECT_FALSE(channel.ack_owed());
  EXPECT_EQ(header.ack, 0u);
  EXPECT_EQ(header.ack_bits, 0b1u);
  channel.arrived(5);
  channel.arrived(1);
  channel.fill_ack(header);
  EXPECT_EQ(header.ack, 2u);
  EXPECT_EQ(header.ack_bits, 0b10u) << "5 is 2 + 2 + 1";
  channel.arrived(3);
  channel.arrived(4);
  channel.fill_ack(header);
  EXPECT_EQ(header.ack, 5u);
  EXPECT_EQ(header.ack_bits, 0u);
  channel.owe_ack();
  EXPECT_TRUE(channel.ack_owed());
}

/// Two channels and a wire that loses, repeats, delays and reorders.
struct World {
  explicit World(uint64_t seed) : rng(seed), loss(static_cast<double>(rng.below(60)) / 100) {}

  struct Datagram {
    int to;
    Header header;
    std::vector<std::byte> body;
  };
  Rng rng;
  double loss;
  int64_t now = 0;
  ReliableChannel ends[2]{ReliableChannel(kOptions), ReliableChannel(kOptions)};
  std::multimap<int64_t, Datagram> wire;
  std::vector<uint32_t> delivered[2];
  uint32_t again = 0;

  void send(int from, Header header, std::span<const std::byte> body) {
    ends[from].fill_ack(header);
    for (int copies = rng.chance(0.2) ? 2 : 1; copies > 0; --copies) {
      if (rng.chance(loss)) continue;
      const int64_t at = now + static_cast<int64_t>(rng.between(1, 400));
      wire.emplace(at, Datagram{1 - from, header, {body.begin(), body.end()}});
    }
  }

  void receive(const Datagram& datagram) {
    ReliableChannel& end = ends[datagram.to];
    end.on_ack(datagram.header.ack, datagram.header.ack_bits);
    if (datagram.header.seq == 0) return;
    const Arrival arrival = end.classify(datagram.header.seq);
    if (arrival == Arrival::kDuplicate) end.owe_ack();
    if (arrival != Arrival::kNew || rng.chance(0.05)) return;  // sometimes it is held back
    uint32_t value = 0;
    for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(datagram.body[i]) << 8 * i;
    delivered[datagram.to].push_back(value);
    end.arrived(datagram.header.seq);
  }

  void turn() {
    for (int side = 0; side < 2; ++side) {
      ReliableChannel::Due out;
      while (ends[side].next_due(now, out)) {
        if (rng.chance(0.1)) {
          ends[side].unsent(out.seq);
          break;
        }
        again += out.again ? 1 : 0;
        send(side, {.type = out.type, .seq = out.seq}, out.body);
      }
      if (ends[side].ack_owed()) send(side, {.type = MessageType::kAck}, {});
    }
    now += 20;
    while (!wire.empty() && wire.begin()->first <= now) {
      const Datagram datagram = std::move(wire.extract(wire.begin()).mapped());
      receive(datagram);
    }
  }
};

// Whatever the wire does, each message arrives once, and both sides learn that it did.
TEST(ReliableChannel, DeliversOnceOverAWireThatLosesRepeatsAndReorders) {
  constexpr uint32_t kMessages = 300;
  uint32_t again = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    push(world.ends[0], kMessages);
    push(world.ends[1], kMessages / 2);
    uint32_t turns = 0;
    const auto busy = [&] {
      return world.ends[0].unacknowledged() + world.ends[1].unacknowledged() > 0;
    };
    for (; turns < 20'000 && busy(); ++turns) world.turn();
    ASSERT_FALSE(busy()) << "after " << turns << " turns";
    for (int side = 0; side < 2; ++side) {
      auto& got = world.delivered[side];
      std::sort(got.begin(), got.end());
      ASSERT_EQ(got.size(), side == 1 ? kMessages : kMessages / 2);
      for (uint32_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i);
      EXPECT_EQ(world.ends[side].next_time(), kNeverNs);
    }
    again += world.again;
  }
  EXPECT_GT(again, 0u) << "no datagram was lost: the test shows nothing";
}

}  // namespace
}  // namespace fabric::control::reliable_test
