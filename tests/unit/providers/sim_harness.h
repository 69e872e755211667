#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fabric/provider.h>
#include <fabric/sim.h>

#include "base/rng.h"
#include "harness/nic_models.h"
#include "providers/sim/open.h"
#include "providers/sim/world.h"

// Networks of a simulated world without an engine above them: the provider contract itself.

namespace fabric::sim {

class TestWorld {
 public:
  explicit TestWorld(const WorldOptions& options = {}) : impl(make_world(options)) {}

  uint32_t add_node(uint32_t rails = 1, const NicModel& model = {}, std::string name = "sim") {
    NodeNetwork network;
    network.name = std::move(name);
    network.rails = rails;
    network.model = model;
    return impl->wire.add_node({network});
  }
  Result<std::unique_ptr<OpenNetwork>> try_open(uint32_t node, std::string name = "sim",
                                                Progress* engine = nullptr) {
    Network spec;
    spec.provider = "sim";
    spec.name = std::move(name);
    spec.devices = {world_token(*impl, node)};
    OpenContext context;
    context.driver = &impl->world_driver;
    context.progress = engine;
    return fabric::sim::open(spec, context);
  }
  std::unique_ptr<OpenNetwork> open(uint32_t node, std::string name = "sim",
                                    Progress* engine = nullptr) {
    auto opened = try_open(node, std::move(name), engine);
    EXPECT_TRUE(opened) << opened.error().what;
    return *std::move(opened);
  }
  std::unique_ptr<OpenNetwork> open_new(uint32_t rails = 1, const NicModel& model = {}) {
    return open(add_node(rails, model));
  }

  void now(const Fault& fault) {
    in(0, fault);
    run_for(0);
  }
  void in(int64_t ns, const Fault& fault) {
    const auto planned = impl->wire.plan(now() + ns, fault);
    ASSERT_TRUE(planned) << planned.error().what;
  }

  int64_t now() const { return impl->wire.now_ns(); }
  void run_for(int64_t ns) {
    impl->world_driver.drive([] { return false; }, now() + ns);
  }
  /// False when `limit_ns` passed first.
  bool run_until(const std::function<bool()>& done, int64_t limit_ns = 1'000'000'000) {
    // There is no engine here, so the clock is advanced from event to event.
    const int64_t deadline = now() + limit_ns;
    while (!done()) {
      const int64_t next = impl->wire.next_due_ns();
      if (next > deadline) return false;
      impl->wire.run_to(next);
    }
    return true;
  }

  std::shared_ptr<World::Impl> impl;
};

/// Registered memory on one rail, and what a peer needs to write to it.
struct Block {
  Block(Rail& on, size_t size, uint64_t seed = 0, bool remote_write = true)
      : bytes(size), rail(&on) {
    if (seed != 0) fill(seed);
    Memory memory;
    memory.address = bytes.data();
    memory.size_bytes = size;
    memory.remote_write = remote_write;
    auto registered = on.register_memory(memory, wire_rkey);
    EXPECT_TRUE(registered);
    key = *registered;
  }
  void fill(uint64_t seed) {
    Rng rng(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
  }
  uint64_t address(size_t offset = 0) const {
    return reinterpret_cast<uintptr_t>(bytes.data() + offset);
  }

  std::vector<std::byte> bytes;
  std::vector<std::byte> wire_rkey;
  uint64_t key = 0;
  Rail* rail;
};

/// A started path from one rail to another.
struct Path {
  Path(OpenNetwork& a, OpenNetwork& b, uint32_t rail_a = 0, uint32_t rail_b = 0)
      : from(&a.rail(rail_a)), to(&b.rail(rail_b)) {
    std::vector<std::byte> hello, answer;
    auto opened = from->open_path(b.address(), rail_b, hello);
    EXPECT_TRUE(opened) << opened.error().what;
    out = *opened;
    auto accepted = to->accept_path(hello, answer);
    EXPECT_TRUE(accepted) << accepted.error().what;
    in = *accepted;
    EXPECT_TRUE(from->start_path(out, answer));
  }

  WriteOp write(const Block& source, const Block& target, uint64_t size, uint32_t cookie) const {
    WriteOp op;
    op.source = source.address();
    op.size_bytes = size;
    op.lkey = source.key;
    auto imported = from->import_rkey(target.wire_rkey);
    EXPECT_TRUE(imported);
    op.rkey = *imported;
    op.cookie = cookie;
    op.path = out;
    return op;
  }
  WriteOp counted(const Block& source, const Block& target, uint64_t size, uint32_t cookie,
                  uint32_t imm) const {
    WriteOp op = write(source, target, size, cookie);
    op.has_imm = 1;
    op.imm = imm;
    return op;
  }
  void post(const WriteOp& op) const { ASSERT_EQ(from->post({&op, 1}), 1u); }

  Rail* from;
  Rail* to;
  uint32_t out = 0;
  uint32_t in = 0;
};

inline std::vector<RailEvent> drain(Rail& rail) {
  std::vector<RailEvent> all;
  RailEvent some[64];
  while (const uint32_t count = rail.poll(some)) all.insert(all.end(), some, some + count);
  return all;
}

inline uint32_t count_of(const std::vector<RailEvent>& events, RailEvent::Kind kind) {
  uint32_t count = 0;
  for (const RailEvent& event : events) count += event.kind == kind;
  return count;
}

/// A NIC whose packets overtake each other wildly.
inline NicModel wild_model() {
  NicModel model = test::srd_model();
  model.jitter = Nanos(40'000);
  return model;
}

/// An ordered one on a network that would reorder.
inline NicModel jittery_ordered_model() {
  NicModel model = test::rc_model();
  model.jitter = Nanos(40'000);
  return model;
}

}  // namespace fabric::sim
