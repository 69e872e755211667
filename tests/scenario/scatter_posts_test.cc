#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/core.h"
#include "harness/host.h"

// When the work requests of a scatter reach the rail. A rail between the engine and its network
// records the calls of post(): virtual time does not advance within a turn.

namespace fabric::test::scatter_posts_test {

/// The core of an engine: private, and named here by an explicit instantiation, where access is not
/// checked.
template <auto Member>
struct CoreOf {
  friend core::EngineCore& core_of(const Engine& engine) { return *(engine.*Member); }
};
template struct CoreOf<&Engine::core_>;
core::EngineCore& core_of(const Engine& engine);

namespace {

/// Passes everything on, and records how many work requests each post() had.
class RecordingRail : public Rail {
 public:
  RecordingRail(Rail& real, std::vector<size_t>& posts) : real_(real), posts_(posts) {}
  Rail& real() const { return real_; }

  const Caps& caps() const noexcept override { return real_.caps(); }
  std::string_view device() const noexcept override { return real_.device(); }
  Result<uint64_t> register_memory(const Memory& memory,
                                   std::vector<std::byte>& wire_rkey) override {
    return real_.register_memory(memory, wire_rkey);
  }
  void deregister_memory(uint64_t lkey, uint32_t cookie) noexcept override {
    real_.deregister_memory(lkey, cookie);
  }
  Result<uint64_t> import_rkey(std::span<const std::byte> wire_rkey) override {
    return real_.import_rkey(wire_rkey);
  }
  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override {
    return real_.open_path(peer, remote_rail, hello);
  }
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override {
    return real_.accept_path(hello, answer);
  }
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override {
    return real_.start_path(path, answer);
  }
  void close_path(uint32_t path, bool inbound) noexcept override {
    real_.close_path(path, inbound);
  }
  uint32_t post(std::span<const WriteOp> ops) noexcept override {
    posts_.push_back(ops.size());
    return real_.post(ops);
  }
  uint32_t poll(std::span<RailEvent> out) noexcept override { return real_.poll(out); }

 private:
  Rail& real_;
  std::vector<size_t>& posts_;
};

class ScatterPosts : public testing::Test {
 protected:
  static constexpr uint32_t kPeers = 5;
  static constexpr uint64_t kBytes = 1 << 16;
  static constexpr uint64_t kStripe = 4096;

  void SetUp() override {
    for (uint32_t i = 0; i < kPeers; ++i) {
      receivers.push_back(open_host(world, world.add_node(2), kBytes, config()));
      remotes.push_back(connect(sender, receivers.back(), {.warm = true}));
    }
    for (const RemoteHost& remote : remotes) await_connected(world, sender, remote.peer);
    world.run_for(5ms);
    for (core::RailSlot& slot : core_of(sender.engine).networks[0].rails) {
      recorded.push_back(std::make_unique<RecordingRail>(*slot.rail, posts));
      slot.rail = recorded.back().get();
    }
  }
  void TearDown() override {
    auto& slots = core_of(sender.engine).networks[0].rails;
    for (size_t i = 0; i < slots.size(); ++i) slots[i].rail = &recorded[i]->real();
  }
  static Config config() {
    Config config = test_config();
    config.stripe_bytes_min = kStripe;
    config.stripe_align = 1;
    return config;
  }
  /// How many work requests each call of post() had, on all rails.
  std::vector<size_t> posts_of_scatter(uint64_t size) {
    std::vector<ScatterTarget> targets;
    for (const RemoteHost& remote : remotes) {
      targets.push_back({.target = remote.at(0), .size_bytes = size});
    }
    posts.clear();
    EXPECT_TRUE(sender.engine.submit(
        Scatter{.source = sender.memory.id(), .targets = targets, .batch = batch}));
    EXPECT_TRUE(sender.engine.wait(batch));
    return posts;
  }

  sim::World world;
  Host sender = open_host(world, world.add_node(2), kBytes, config());
  Batch batch = *sender.engine.make_batch();
  std::vector<Host> receivers;
  std::vector<RemoteHost> remotes;
  std::vector<size_t> posts;
  std::vector<std::unique_ptr<RecordingRail>> recorded;
};

TEST_F(ScatterPosts, TheFirstTargetIsPostedBeforeTheOthersArePrepared) {
  EXPECT_EQ(posts_of_scatter(64), (std::vector<size_t>{1, 2, 2}));
  EXPECT_EQ(posts_of_scatter(64), (std::vector<size_t>{1, 2, 2}));
}

// Each target has a shard for either rail.
TEST_F(ScatterPosts, TheFirstCutTargetIsPostedBeforeTheOthersArePrepared) {
  EXPECT_EQ(posts_of_scatter(2 * kStripe), (std::vector<size_t>{1, 1, 4, 4}));
}

}  // namespace
}  // namespace fabric::test::scatter_posts_test
