#include "providers/shm/rkeys.h"

#include <memory>

#include <gtest/gtest.h>

namespace fabric::shm::shm_rkeys_test {
namespace {

class ShmRkeyTable : public testing::Test {
 protected:
  Memory plain(uint64_t bytes = 4096) { return {plain_.data(), bytes}; }
  Memory shared(uint64_t offset, uint64_t bytes) {
    return {static_cast<std::byte*>(pages_.address()) + offset, bytes};
  }

  std::unique_ptr<SharedHeader> header_ = std::make_unique<SharedHeader>();
  RkeyTable rkeys_{*header_};
  std::vector<std::byte> plain_ = std::vector<std::byte>(4096);
  SharedPages pages_ = *SharedPages::allocate(16384, false);
};

TEST_F(ShmRkeyTable, AnEntryShowsWhereItsBytesAre) {
  const WireRkey fetched = *rkeys_.add(plain());
  const RkeyEntry& one = header_->rkeys[fetched.index];
  EXPECT_EQ(one.validity_epoch.load(), fetched.generation);
  EXPECT_EQ(one.kind.load(), static_cast<uint32_t>(RkeyKind::kPulled));
  EXPECT_EQ(one.size_bytes.load(), 4096u);

  const WireRkey mapped = *rkeys_.add(shared(4096, 100));
  const RkeyEntry& other = header_->rkeys[mapped.index];
  EXPECT_EQ(other.validity_epoch.load(), mapped.generation);
  EXPECT_EQ(other.kind.load(), static_cast<uint32_t>(RkeyKind::kMapped));
  EXPECT_EQ(other.offset.load(), 4096u);
  EXPECT_EQ(other.size_bytes.load(), 100u);
  EXPECT_EQ(other.block_bytes.load(), 16384u);
  EXPECT_EQ(other.block.load(), SharedPages::find(pages_.address(), 1)->block);
}

TEST_F(ShmRkeyTable, MemoryWithoutRemoteWriteIsNotPublished) {
  Memory memory = shared(0, 4096);
  memory.remote_write = false;
  const WireRkey rkey = *rkeys_.add(memory);
  EXPECT_EQ(header_->rkeys[rkey.index].validity_epoch.load(), 0u);
  EXPECT_EQ(rkeys_.resolve(rkey, 0, 1), nullptr);
}

TEST_F(ShmRkeyTable, ARangeIsResolvedInBoundsOrNotAtAll) {
  const WireRkey rkey = *rkeys_.add(plain());
  EXPECT_EQ(rkeys_.resolve(rkey, 0, 4096), plain_.data());
  EXPECT_EQ(rkeys_.resolve(rkey, 4095, 1), plain_.data() + 4095);
  EXPECT_EQ(rkeys_.resolve(rkey, 4096, 0), plain_.data() + 4096);
  EXPECT_EQ(rkeys_.resolve(rkey, 4096, 1), nullptr);
  EXPECT_EQ(rkeys_.resolve(rkey, 4097, 0), nullptr);
  EXPECT_EQ(rkeys_.resolve(rkey, 1, UINT64_MAX), nullptr);
  EXPECT_EQ(rkeys_.resolve(rkey, UINT64_MAX, 1), nullptr);
  EXPECT_EQ(rkeys_.resolve({rkey.index + 1, rkey.generation}, 0, 1), nullptr);
  EXPECT_EQ(rkeys_.resolve({UINT32_MAX, rkey.generation}, 0, 1), nullptr);
  EXPECT_EQ(rkeys_.resolve({rkey.index, rkey.generation + 2}, 0, 1), nullptr);
  EXPECT_EQ(rkeys_.resolve({rkey.index, 0}, 0, 1), nullptr);
}

TEST_F(ShmRkeyTable, ARevokedRkeyIsInvalidAndItsIndexIsReusedAfterTheProof) {
  const WireRkey rkey = *rkeys_.add(plain());
  rkeys_.revoke(rkey);
  EXPECT_NE(header_->rkeys[rkey.index].validity_epoch.load(), rkey.generation);
  EXPECT_EQ(rkeys_.resolve(rkey, 0, 1), nullptr);
  const WireRkey second = *rkeys_.add(plain());
  EXPECT_NE(second.index, rkey.index) << "the index is reused before the proof";
  EXPECT_EQ(rkeys_.release(rkey), 0u);
  const WireRkey next = *rkeys_.add(plain());
  EXPECT_EQ(next.index, rkey.index);
  EXPECT_NE(next.generation, rkey.generation);
  // The old rkey has no effect any more.
  rkeys_.revoke(rkey);
  EXPECT_EQ(rkeys_.release({next.index, rkey.generation}), 0u);
  EXPECT_EQ(header_->rkeys[next.index].validity_epoch.load(), next.generation);
  EXPECT_EQ(rkeys_.resolve(next, 0, 1), plain_.data());
}

TEST_F(ShmRkeyTable, ABlockIsSharedWhileAnRkeyLiesInIt) {
  const uint64_t block = SharedPages::find(pages_.address(), 1)->block;
  EXPECT_EQ(rkeys_.block(block).file, nullptr);
  const WireRkey one = *rkeys_.add(shared(0, 4096)), other = *rkeys_.add(shared(4096, 4096));
  EXPECT_NE(rkeys_.block(block).file, nullptr);
  EXPECT_EQ(rkeys_.block(block).block_bytes, 16384u);
  EXPECT_EQ(rkeys_.block(block + 1).file, nullptr);
  EXPECT_EQ(rkeys_.block(0).file, nullptr);
  rkeys_.revoke(one);
  EXPECT_EQ(rkeys_.release(one), 0u);
  rkeys_.revoke(other);
  EXPECT_EQ(rkeys_.release(other), block) << "the last rkey returns the block";
  EXPECT_EQ(rkeys_.block(block).file, nullptr);
}

TEST_F(ShmRkeyTable, TheTableIsBounded) {
  WireRkey last;
  for (uint32_t i = 0; i < SharedHeader::kRkeys; ++i) last = *rkeys_.add(plain(1));
  EXPECT_EQ(rkeys_.add(plain(1)).error().code, Errc::kExhausted);
  rkeys_.revoke(last);
  rkeys_.release(last);
  EXPECT_TRUE(rkeys_.add(plain(1)));
}

}  // namespace
}  // namespace fabric::shm::shm_rkeys_test
