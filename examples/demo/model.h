#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

// The data and its checks: a paged KV cache, as both sides of a disaggregated inference engine keep
// it.

namespace demo {

/// An 8B model with grouped-query attention has 4 KiB of keys and values per token and layer, so a
/// page holds 16 tokens.
constexpr uint32_t kLayers = 32;
constexpr uint32_t kPageBytes = 64 << 10;
constexpr uint32_t kTokensPerPage = 16;

/// Prompts of 128 tokens: 16 MiB in 256 pages. One of 1024 tokens takes long enough
/// to be interrupted in the middle.
constexpr uint32_t kPagesPerLayer = 8;
constexpr uint32_t kPagesPerLayerLong = 64;
constexpr uint32_t kPagesLong = kLayers * kPagesPerLayerLong;

/// Requests that a receiver has pages ready for at any time.
constexpr uint32_t kSlots = 3;

/// CLOCK_MONOTONIC is shared by all processes of a host, so times can be compared between them.
inline int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// The first bytes of every page identify it. `body_sum` is a checksum of the rest.
struct Stamp {
  uint64_t receiver = 0;
  uint64_t request = 0;
  uint64_t layer = 0;
  uint64_t page = 0;
  uint64_t body_sum = 0;
  uint64_t zero[3] = {};
  friend bool operator==(const Stamp&, const Stamp&) = default;
};
static_assert(sizeof(Stamp) == 64);

using PageBytes = std::span<std::byte, kPageBytes>;

PageBytes page_at(std::span<std::byte> memory, uint32_t index);
/// Fills the body with bytes that depend on `seed`; returns their checksum.
uint64_t fill_body(PageBytes page, uint64_t seed);
void put_stamp(PageBytes page, const Stamp& stamp);
/// Checks every byte of the page. `expected.body_sum` is ignored: the page carries its own.
bool page_is_correct(PageBytes page, Stamp expected);

/// Free pages of a cache, by number.
///
/// Threads: everything from any thread.
class Pool {
 public:
  enum class Reuse { kOldestFirst, kNewestFirst };
  Pool(uint32_t pages, Reuse reuse);
  std::vector<uint32_t> take(uint32_t pages);
  void give_back(std::span<const uint32_t> pages);

 private:
  const Reuse reuse_;
  std::mutex mutex_;
  std::deque<uint32_t> free_;
};

/// Message from a receiver to the source: asks for a prompt, to be written to these pages.
struct PageRequest {
  static constexpr uint32_t kTag = 1;
  uint32_t tag = kTag;
  uint32_t key = 0;  ///< wire form of the counter key for the pages
  uint64_t request = 0;
  uint32_t pages_per_layer = 0;
  uint32_t spare = 0;
  // kLayers * pages_per_layer page numbers follow.
};
static_assert(sizeof(PageRequest) == 24);

/// Message after it: all pages were counted and checked.
struct Ack {
  static constexpr uint32_t kTag = 2;
  uint32_t tag = kTag;
  uint32_t pages_wrong = 0;
  uint64_t request = 0;
  uint64_t pages_counted = 0;
  uint64_t counts_extra = 0;  ///< beyond the expected number; must be 0
  uint64_t bytes_correct = 0;
  int64_t counted_ns = 0;
};
static_assert(sizeof(Ack) == 48);

constexpr uint16_t kChannel = 1;

}  // namespace demo
