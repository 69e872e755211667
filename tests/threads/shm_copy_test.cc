#include "providers/shm/copy.h"

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "providers/shm/proof.h"

namespace fabric::shm::shm_copy_test {
namespace {

// A thread that sees the commit may read what was stored before the call, and the bytes of the
// copy. ThreadSanitizer does not see into a section, so the code annotates it.
TEST(ShmCopyThreads, ACommitPublishesWhatWasStoredBeforeIt) {
  constexpr uint64_t kRounds = 20'000;
  struct SharedBlock {
    uint64_t round = 0;
    std::array<std::byte, 200> bytes{};
    alignas(128) std::atomic<uint64_t> sequence{0};
    alignas(128) std::atomic<uint64_t> taken{0};
  };
  const auto shared = std::make_unique<SharedBlock>();
  SharedBlock& block = *shared;
  std::thread writer([&] {
    WriterSlot& writer_slot = *(**WriterSlots::of_process()).mine();
    std::array<std::byte, 200> source{};
    for (uint64_t i = 1; i <= kRounds; ++i) {
      while (block.taken.load(std::memory_order_acquire) != i - 1) sched_yield();
      block.round = i;
      source.fill(static_cast<std::byte>(i));
      // Short ones and long ones take turns.
      guarded_copy(writer_slot, block.bytes.data(), source.data(), i % 2 == 0 ? 8 : 200, {},
                   {&block.sequence, i}, false);
    }
  });
  uint64_t wrong = 0;
  for (uint64_t i = 1; i <= kRounds; ++i) {
    while (block.sequence.load(std::memory_order_acquire) != i) sched_yield();
    wrong += block.round != i || block.bytes[7] != static_cast<std::byte>(i);
    block.taken.store(i, std::memory_order_release);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace fabric::shm::shm_copy_test
