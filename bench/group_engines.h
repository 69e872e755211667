#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench_engines.h"

// A receiver that waits for a group of counters, and a sender that feeds all of them.

namespace fabric::bench {

/// Both engines are on one thread with the inline runtime and on the shm network.
class GroupEngines {
 public:
  static constexpr uint32_t kMembers = 63;

  GroupEngines() {
    const PeerId from = need(receiver_.connect(sender_.address()), "connect");
    const MemoryRegion& target = target_;
    const Offer to =
        need(sender_.accept(need(receiver_.offer(target, CounterKey{}), "offer")), "accept");
    for (uint32_t i = 0; i < kMembers; ++i) {
      members_.push_back(need(receiver_.make_counter(), "make_counter"));
      need(group_.add(members_[i], from), "add");
      writes_[i] = {.source = source_.at(0),
                    .target = to.region.at(0),
                    .size_bytes = 8,
                    .imm = members_[i].key()};
    }
  }

  /// Arms an expectation of the share of every member.
  void expect() { need(group_.expect(Notify::inbox(inbox_)), "expect"); }
  /// Every member gets its share, and the expectation is met.
  void feed() {
    need(need(sender_.submit(std::span<const Write>(writes_)), "submit") == kMembers,
         "a short span");
    Event event;
    while (inbox_.poll({&event, 1}) == 0) runtime_->turn();
    need(event.code == Errc::kOk && event.value == kMembers, "an expectation failed");
  }

 private:
  static Engine open(const std::shared_ptr<InlineRuntime>& runtime) {
    Config config;
    config.networks = {{.provider = "shm"}};
    // No heartbeats during a measurement.
    config.peer_timeout = config.lost_timeout = std::chrono::hours(1);
    config.counters_max = 128;
    config.ops_max = 1024;
    return need(Engine::open(config, runtime), "open");
  }

  std::shared_ptr<InlineRuntime> runtime_ = std::make_shared<InlineRuntime>();
  Engine sender_ = open(runtime_), receiver_ = open(runtime_);
  MemoryRegion source_ = need(sender_.allocate({.size_bytes = 4096}), "allocate");
  MemoryRegion target_ = need(receiver_.allocate({.size_bytes = 4096}), "allocate");
  Inbox inbox_ = need(receiver_.make_inbox(4), "make_inbox");
  std::vector<Counter> members_{};
  CounterGroup group_ = need(receiver_.make_counter_group(), "make_counter_group");
  std::array<Write, kMembers> writes_{};
};

}  // namespace fabric::bench
