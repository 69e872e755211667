#include "guest/stream.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <fabric/verbs.h>
#include <gtest/gtest.h>

#include "guest/links.h"
#include "support/log_guard.h"

namespace fabric::test {
namespace {

using namespace std::chrono_literals;

constexpr std::byte kWiped{0xEE};
constexpr auto kPatience = 60s;  // of a guest without KVM on a busy host

/// Bytes that differ with the write and with every word of it.
void fill(std::span<std::byte> bytes, uint64_t stamp) {
  for (uint64_t at = 0; at < bytes.size(); at += sizeof stamp) {
    const uint64_t word = (stamp + at) * 0x9e3779b97f4a7c15;
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

/// By memcmp, which even an emulated CPU does quickly.
bool all(std::span<const std::byte> bytes, std::byte value) {
  return bytes.empty() ||
         (bytes[0] == value && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

MemoryRegion block(Engine& engine, uint64_t size_bytes) {
  auto region = engine.allocate({.size_bytes = size_bytes});
  EXPECT_TRUE(region) << region.error().what;
  return *std::move(region);
}

}  // namespace

Network rails_of(char host, uint32_t rails) {
  Network network{.provider = "verbs",
                  .options = verbs::Options{.timeout_code = kTimeoutCode, .retry_count = kRetries}};
  for (uint32_t rail = 0; rail < rails; ++rail) {
    network.devices.push_back(std::string("x") + host + std::to_string(rail));
  }
  return network;
}

Config guest_config(char host, uint32_t rails) {
  Config config;
  config.networks = {rails_of(host, rails)};
  config.log_sink = test_log_sink();
  config.spin = Nanos(5'000);       // two engines share two slow cores
  config.retransmit = Nanos(50ms);  // a turn with a large write takes tens of milliseconds
  config.stripe_bytes_min = 8192;   // so that many are cut over both rails
  config.peer_timeout = 10s;
  config.lost_timeout = 40s;
  return config;
}

Engine open_host(char host, uint32_t rails) {
  auto engine = Engine::open(guest_config(host, rails));
  EXPECT_TRUE(engine) << engine.error().what;
  return *std::move(engine);
}

std::vector<std::byte> forged(const MemoryRegion& region,
                              const std::function<void(control::RegionDesc&)>& change) {
  auto desc = control::decode_desc(*region.desc());
  EXPECT_TRUE(desc);
  change(*desc);
  return *control::encode(*desc);
}

void with_wrong_keys(control::RegionDesc& desc) {
  for (auto& section : desc.networks) {
    for (auto& key : section.rail_keys) key[key.size() - 8] ^= std::byte{0x5a};
  }
}

uint32_t rounds() {
  const char* text = std::getenv("FABRICLIB_TEST_ROUNDS");
  uint32_t times = 1;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), times);
  return std::max(times, 1u);
}

void Stream::StreamSlot::on(const Event& event) {
  end = event;
  ends.fetch_add(1, std::memory_order_release);
}

Stream::Stream(Engine& from, Engine& to, uint64_t seed, const Options& options)
    : from_(from),
      to_(to),
      options_(options),
      rng_(seed),
      source_(block(from, options.slots * options.bytes_max)),
      target_(block(to, options.slots * options.bytes_max)),
      stamps_(seed << 20) {
  const auto peer = from.connect(to.address());
  EXPECT_TRUE(peer) << peer.error().what;
  peer_ = *peer;
  const auto remote = from.import_region(peer_, *target_.desc());
  EXPECT_TRUE(remote) << remote.error().what;
  remote_ = *remote;
  std::ranges::fill(target_.bytes(), kWiped);
  for (uint32_t i = 0; i < options.slots; ++i) {
    slots_.push_back(std::make_unique<StreamSlot>(*to.make_counter()));
  }
}

std::span<std::byte> Stream::target(uint32_t index) const {
  return target_.bytes().subspan(index * options_.bytes_max, options_.bytes_max);
}

void Stream::submit(uint32_t index) {
  constexpr uint64_t kSizes[] = {0, 64, 4096, 65536, 65536};
  StreamSlot& slot = *slots_[index];
  expect_wiped(index, "before its next write");
  slot.size_bytes = std::min(kSizes[rng_.below(5)], options_.bytes_max);
  slot.counts = rng_.chance(0.8);
  slot.counted = slot.taken = false;
  slot.stamp = ++stamps_;
  slot.ends.store(0, std::memory_order_relaxed);
  const uint64_t at = index * options_.bytes_max;
  fill(source_.bytes().subspan(at, slot.size_bytes), slot.stamp);
  const auto op = from_.submit(Write{.source = source_.at(at),
                                     .target = remote_.at(at),
                                     .size_bytes = slot.size_bytes,
                                     .imm = slot.counts ? slot.counter.key() : CounterKey(),
                                     .timeout = options_.timeout,
                                     .notify = Notify::call<&StreamSlot::on>(&slot)});
  if (op) slot.phase = Phase::kFlying;
  // A lost peer refuses; callers that need service check delivered().
}

void Stream::check_bytes(uint32_t index, const char* when) {
  const StreamSlot& slot = *slots_[index];
  const auto there = target(index).first(slot.size_bytes);
  const auto here = source_.bytes().subspan(index * options_.bytes_max, slot.size_bytes);
  EXPECT_TRUE(there.empty() || std::memcmp(there.data(), here.data(), there.size()) == 0)
      << when << ": slot " << index << ", " << slot.size_bytes
      << " bytes are not those of its write";
  std::ranges::fill(there, kWiped);
}

void Stream::expect_wiped(uint32_t index, const char* when) {
  const StreamSlot& slot = *slots_[index];
  EXPECT_TRUE(all(target(index), kWiped)) << when << ": a write landed in the wiped slot " << index;
  EXPECT_EQ(slot.counter.count(), 0u)
      << when << ": slot " << index << " of " << to_.rail_stats()[0].device
      << ", last written with " << slot.size_bytes << " bytes " << (slot.counts ? "and" : "without")
      << " a count";
}

void Stream::take_end(uint32_t index) {
  StreamSlot& slot = *slots_[index];
  EXPECT_EQ(slot.ends.load(), 1u) << "completed more than once";
  const Event& end = slot.end;
  if (end.remote == Remote::kDelivered) {
    if (!slot.counts) check_bytes(index, "after its end");
    ++delivered_;
    slot.phase = Phase::kFree;
    return;
  }
  slot.phase = Phase::kFailed;
  slot.left.assign(target(index).begin(), target(index).end());
  ++(end.remote == Remote::kUnknown ? unknown_ : not_delivered_);
  if (first_failure_.empty()) {
    first_failure_ = std::string(to_string(end.code)) + ", " + to_string(end.remote);
  }
  if (end.remote == Remote::kNotDelivered) {
    EXPECT_FALSE(slot.counted) << "counted, and reported as not delivered: slot " << index;
  }
}

bool Stream::look(uint32_t index) {
  StreamSlot& slot = *slots_[index];
  if (slot.phase != Phase::kFlying) return false;
  // The completion is read first: a delivered write has been counted, or will be.
  const bool ended = slot.ends.load(std::memory_order_acquire) != 0;
  bool moved = false;
  if (slot.counts && !slot.counted && slot.counter.count() >= 1) {
    check_bytes(index, "at its count");
    // A counter key that was poisoned in the meantime keeps its count.
    slot.taken = slot.counter.try_take(1);
    slot.counted = moved = true;
  }
  if (!ended) return moved;
  const bool waits = slot.end.remote == Remote::kDelivered && slot.counts && !slot.counted;
  if (waits) return moved;
  if (slot.end.remote == Remote::kDelivered && slot.counts) {
    EXPECT_TRUE(slot.taken) << "delivered, and its counter key is poisoned: slot " << index;
  }
  take_end(index);
  return true;
}

bool Stream::step(bool refill) {
  bool moved = false;
  for (uint32_t i = 0; i < options_.slots; ++i) {
    moved |= look(i);
    if (refill && slots_[i]->phase == Phase::kFree) submit(i);
  }
  return moved;
}

std::string Stream::describe() const {
  return std::to_string(delivered_) + " delivered, " + std::to_string(not_delivered_) + " not, " +
         std::to_string(unknown_) + " unknown (" + first_failure_ + "), " +
         std::to_string(outstanding()) + " in flight\nits sender: " + from_.dump() +
         "\nits receiver: " + to_.dump();
}

uint32_t Stream::outstanding() const {
  return static_cast<uint32_t>(std::ranges::count_if(slots_, [](const auto& slot) {
    return slot->phase == Phase::kFlying && slot->ends.load() == 0;
  }));
}

void Stream::finish() {
  const bool over = run(
      {this},
      [&] {
        return std::ranges::none_of(slots_,
                                    [](const auto& p) { return p->phase == Phase::kFlying; });
      },
      false);
  EXPECT_TRUE(over) << "writes are still in flight, or delivered ones are not counted: "
                    << describe();
  std::this_thread::sleep_for(20ms);
  for (uint32_t i = 0; i < options_.slots; ++i) {
    const StreamSlot& slot = *slots_[i];
    if (slot.phase == Phase::kFree) expect_wiped(i, "at the end");
    if (slot.phase != Phase::kFailed) continue;
    const uint64_t counted = slot.counter.count() + (slot.taken ? 1 : 0);
    EXPECT_LE(counted, slot.end.remote == Remote::kUnknown ? 1u : 0u) << "slot " << i;
    if (slot.end.remote == Remote::kNotDelivered) {
      EXPECT_TRUE(std::ranges::equal(target(i), slot.left)) << "late bytes in slot " << i;
    }
  }
}

bool run(std::vector<Stream*> streams, const std::function<bool()>& done, bool refill) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    // A test that has failed need not wait for what may never come.
    if (testing::Test::HasFailure() || std::chrono::steady_clock::now() > limit) return false;
    bool moved = false;
    for (Stream* stream : streams) moved |= stream->step(refill);
    if (!moved) std::this_thread::sleep_for(500us);  // the engines need the cores
  }
  return true;
}

void expect_service(std::vector<Stream*> streams, uint64_t writes) {
  std::vector<uint64_t> aims;
  for (Stream* stream : streams) aims.push_back(stream->delivered() + writes);
  const auto served = [&](size_t i) { return streams[i]->delivered() >= aims[i]; };
  const auto failed = [](const Stream* stream) { return stream->failed() > 0; };
  run(streams, [&] {
    if (std::ranges::any_of(streams, failed)) return true;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (!served(i)) return false;
    }
    return true;
  });
  for (size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(served(i) && !failed(streams[i]))
        << "stream " << i << ": " << streams[i]->describe();
  }
}

void expect_all_rails(Engine& one, Engine& other, std::vector<Stream*> streams) {
  const auto carried = [&] {
    std::vector<uint64_t> ops;
    for (Engine* engine : {&one, &other}) {
      for (const RailStats& rail : engine->rail_stats()) {
        if (rail.network == "verbs") ops.push_back(rail.tx.ops);
      }
    }
    return ops;
  };
  const auto failed = [](const Stream* stream) { return stream->failed() > 0; };
  const std::vector<uint64_t> before = carried();
  const bool over = run(streams, [&] {
    if (std::ranges::any_of(streams, failed)) return true;
    const std::vector<uint64_t> now = carried();
    for (size_t i = 0; i < now.size(); ++i) {
      if (now[i] <= before[i]) return false;
    }
    return true;
  });
  EXPECT_TRUE(over && std::ranges::none_of(streams, failed)) << "a rail carries no traffic\n"
                                                             << one.dump();
}

}  // namespace fabric::test
