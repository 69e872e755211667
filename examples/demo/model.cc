#include "model.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace demo {

namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

uint64_t word_at(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Four independent accumulators hide the latency of the multiplication, so that the checksum costs
/// about as much as reading the bytes. Each step is invertible: a single changed bit always shows.
uint64_t sum_of(std::span<const std::byte> bytes) {
  uint64_t lanes[4] = {1, 2, 3, 4};
  for (size_t i = 0; i < bytes.size(); i += sizeof(lanes)) {
    for (size_t lane = 0; lane < 4; ++lane) {
      lanes[lane] = (lanes[lane] ^ word_at(&bytes[i + 8 * lane])) * kOdd;
      lanes[lane] ^= lanes[lane] >> 29;
    }
  }
  uint64_t sum = 0;
  for (const uint64_t lane : lanes) sum = (sum ^ lane) * kOdd;
  return sum;
}

std::span<std::byte> body_of(PageBytes page) { return page.subspan(sizeof(Stamp)); }
static_assert((kPageBytes - sizeof(Stamp)) % 32 == 0);

}  // namespace

PageBytes page_at(std::span<std::byte> memory, uint32_t index) {
  return memory.subspan(uint64_t{index} * kPageBytes).first<kPageBytes>();
}

uint64_t fill_body(PageBytes page, uint64_t seed) {
  uint64_t state = (seed + 1) * kOdd;
  const auto body = body_of(page);
  for (size_t i = 0; i < body.size(); i += sizeof(state)) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(&body[i], &state, sizeof(state));
  }
  return sum_of(body);
}

void put_stamp(PageBytes page, const Stamp& stamp) {
  std::memcpy(page.data(), &stamp, sizeof(stamp));
}

bool page_is_correct(PageBytes page, Stamp expected) {
  Stamp found;
  std::memcpy(&found, page.data(), sizeof(found));
  expected.body_sum = found.body_sum;
  return found == expected && sum_of(body_of(page)) == found.body_sum;
}

Pool::Pool(uint32_t pages, Reuse reuse) : reuse_(reuse) {
  for (uint32_t i = 0; i < pages; ++i) free_.push_back(i);
}

std::vector<uint32_t> Pool::take(uint32_t pages) {
  const std::lock_guard lock(mutex_);
  if (pages > free_.size()) {
    std::fprintf(stderr, "demo: the pool has only %zu free pages of %u needed\n", free_.size(),
                 pages);
    std::_Exit(1);
  }
  std::vector<uint32_t> taken(free_.begin(), free_.begin() + pages);
  free_.erase(free_.begin(), free_.begin() + pages);
  return taken;
}

void Pool::give_back(std::span<const uint32_t> pages) {
  const std::lock_guard lock(mutex_);
  const auto where = reuse_ == Reuse::kOldestFirst ? free_.end() : free_.begin();
  free_.insert(where, pages.begin(), pages.end());
}

}  // namespace demo
