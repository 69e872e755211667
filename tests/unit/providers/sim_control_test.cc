#include <algorithm>
#include <map>

#include "unit/providers/sim_harness.h"

namespace fabric::sim::sim_control_test {
namespace {

std::vector<std::byte> bytes_of(uint32_t number, size_t size = 4) {
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), &number, 4);
  return bytes;
}

std::vector<uint32_t> receive_all(OpenNetwork& network) {
  std::vector<uint32_t> numbers;
  std::vector<std::byte> buffer(network.control_bytes_max());
  while (network.receive(buffer) != 0) {
    uint32_t number = 0;
    std::memcpy(&number, buffer.data(), 4);
    numbers.push_back(number);
  }
  return numbers;
}

/// Sends numbered datagrams a microsecond apart and returns what arrived, in order.
std::vector<uint32_t> exchange(const WorldOptions& options, uint32_t count) {
  TestWorld world(options);
  auto a = world.open_new(), b = world.open_new();
  const auto link = a->open_link(b->address());
  std::vector<uint32_t> arrived;
  for (uint32_t i = 0; i < count; ++i) {
    EXPECT_TRUE(a->send(*link, bytes_of(i)));
    world.run_for(1'000);
    for (const uint32_t number : receive_all(*b)) arrived.push_back(number);
  }
  world.run_for(1'000'000);
  for (const uint32_t number : receive_all(*b)) arrived.push_back(number);
  return arrived;
}

uint32_t late_ones(const std::vector<uint32_t>& arrived) {
  uint32_t late = 0, highest = 0;
  for (const uint32_t number : arrived) {
    late += number < highest;
    highest = std::max(highest, number);
  }
  return late;
}

TEST(SimControl, ArrivesWholeAfterOneLatency) {
  TestWorld world;
  auto a = world.open_new(), b = world.open_new();
  const auto link = a->open_link(b->address());
  ASSERT_TRUE(link);
  std::vector<std::byte> large(a->control_bytes_max());
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7);
  EXPECT_TRUE(a->send(*link, large));
  large.push_back(std::byte{0});
  EXPECT_FALSE(a->send(*link, large)) << "too large";
  large.pop_back();
  world.run_for(1'999);
  std::vector<std::byte> buffer(b->control_bytes_max());
  EXPECT_TRUE(b->arm());
  EXPECT_EQ(b->receive(buffer), 0u);
  world.run_for(1);
  EXPECT_FALSE(b->arm()) << "a datagram has arrived";
  EXPECT_EQ(b->receive(buffer), large.size());
  EXPECT_EQ(buffer, large);
  EXPECT_EQ(b->receive(buffer), 0u);
}

TEST(SimControl, PerfectNetworkKeepsEveryDatagramInOrder) {
  const auto arrived = exchange({.seed = 3}, 1'000);
  EXPECT_EQ(arrived.size(), 1'000u);
  EXPECT_EQ(late_ones(arrived), 0u);
}

TEST(SimControl, LosesAtTheRateAskedFor) {
  const auto arrived = exchange({.seed = 3, .drop_control = 0.2}, 5'000);
  EXPECT_NEAR(static_cast<double>(arrived.size()), 4'000, 120);
}

TEST(SimControl, DuplicatesAtTheRateAskedFor) {
  const auto arrived = exchange({.seed = 3, .duplicate_control = 0.2}, 5'000);
  std::map<uint32_t, uint32_t> copies;
  for (const uint32_t number : arrived) ++copies[number];
  EXPECT_EQ(copies.size(), 5'000u) << "duplicating loses nothing";
  EXPECT_NEAR(static_cast<double>(arrived.size()), 6'000, 120);
}

TEST(SimControl, LossTakesTheDuplicateToo) {
  const auto arrived = exchange({.seed = 3, .drop_control = 0.5, .duplicate_control = 0.5}, 5'000);
  EXPECT_NEAR(static_cast<double>(arrived.size()), 3'750, 150);
}

TEST(SimControl, ReordersAtTheRateAskedFor) {
  const auto arrived = exchange({.seed = 3, .reorder_control = 0.2}, 5'000);
  EXPECT_EQ(arrived.size(), 5'000u);
  // Held back by up to 20 latencies, and sent half a latency apart: nearly all fall behind.
  EXPECT_NEAR(static_cast<double>(late_ones(arrived)), 1'000, 150);
}

TEST(SimControl, QueuesAreBounded) {
  TestWorld world;
  auto a = world.open_new(), b = world.open_new();
  const auto link = a->open_link(b->address());
  uint32_t sent = 0;
  while (a->send(*link, bytes_of(sent))) ++sent;
  EXPECT_EQ(sent, kDatagramsMax) << "the limit of datagrams in flight";
  world.run_for(10'000);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_TRUE(a->send(*link, bytes_of(sent + i)));
  world.run_for(10'000);
  EXPECT_EQ(receive_all(*b).size(), kDatagramsMax) << "the rest is dropped, as UDP would";
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimControl, PortOfAClosedEngineIsSilentAndNeverUsedAgain) {
  TestWorld world;
  auto a = world.open_new();
  const uint32_t node = world.add_node();
  auto first = world.open(node);
  const auto stale = first->address();
  const auto link = a->open_link(stale);
  ASSERT_TRUE(link);
  EXPECT_TRUE(a->send(*link, bytes_of(1)));
  first.reset();  // while it is on its way
  auto second = world.open(node), third = world.open(node);
  EXPECT_NE(second->address(), stale);
  EXPECT_NE(second->address(), third->address());
  EXPECT_TRUE(a->send(*link, bytes_of(2)));
  world.run_for(1'000'000);
  EXPECT_TRUE(receive_all(*second).empty());
  EXPECT_TRUE(receive_all(*third).empty());
  a->close_link(*link);
  EXPECT_FALSE(a->send(*link, bytes_of(3)));
  EXPECT_FALSE(a->send(77, bytes_of(3)));
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

}  // namespace
}  // namespace fabric::sim::sim_control_test
