#include "providers/shm/rkeys.h"

#include <memory>

#include <gtest/gtest.h>

namespace fabric::shm {
namespace {

class ShmKeys : public testing::Test {
 protected:
  Memory plain(uint64_t bytes = 4096) { return {plain_.data(), bytes}; }
  Memory shared(uint64_t offset, uint64_t bytes) {
    return {static_cast<std::byte*>(pages_.address()) + offset, bytes};
  }

  std::unique_ptr<Front> front_ = std::make_unique<Front>();
  Keys keys_{*front_};
  std::vector<std::byte> plain_ = std::vector<std::byte>(4096);
  SharedPages pages_ = *SharedPages::allocate(16384, false);
};

TEST_F(ShmKeys, AKeyShowsWhereItsBytesAre) {
  const WireKey fetched = *keys_.add(plain());
  const KeyEntry& one = front_->keys[fetched.index];
  EXPECT_EQ(one.permit.load(), fetched.generation);
  EXPECT_EQ(one.kind.load(), static_cast<uint32_t>(KeyKind::kPulled));
  EXPECT_EQ(one.size_bytes.load(), 4096u);

  const WireKey mapped = *keys_.add(shared(4096, 100));
  const KeyEntry& other = front_->keys[mapped.index];
  EXPECT_EQ(other.permit.load(), mapped.generation);
  EXPECT_EQ(other.kind.load(), static_cast<uint32_t>(KeyKind::kMapped));
  EXPECT_EQ(other.offset.load(), 4096u);
  EXPECT_EQ(other.size_bytes.load(), 100u);
  EXPECT_EQ(other.block_bytes.load(), 16384u);
  EXPECT_EQ(other.block.load(), SharedPages::find(pages_.address(), 1)->block);
}

TEST_F(ShmKeys, MemoryThatNobodyMayWriteIsNotShown) {
  Memory memory = shared(0, 4096);
  memory.remote_write = false;
  const WireKey key = *keys_.add(memory);
  EXPECT_EQ(front_->keys[key.index].permit.load(), 0u);
  EXPECT_EQ(keys_.place(key, 0, 1), nullptr);
}

TEST_F(ShmKeys, APlaceIsInsideOrThereIsNone) {
  const WireKey key = *keys_.add(plain());
  EXPECT_EQ(keys_.place(key, 0, 4096), plain_.data());
  EXPECT_EQ(keys_.place(key, 4095, 1), plain_.data() + 4095);
  EXPECT_EQ(keys_.place(key, 4096, 0), plain_.data() + 4096);
  EXPECT_EQ(keys_.place(key, 4096, 1), nullptr);
  EXPECT_EQ(keys_.place(key, 4097, 0), nullptr);
  EXPECT_EQ(keys_.place(key, 1, UINT64_MAX), nullptr);
  EXPECT_EQ(keys_.place(key, UINT64_MAX, 1), nullptr);
  EXPECT_EQ(keys_.place({key.index + 1, key.generation}, 0, 1), nullptr);
  EXPECT_EQ(keys_.place({UINT32_MAX, key.generation}, 0, 1), nullptr);
  EXPECT_EQ(keys_.place({key.index, key.generation + 2}, 0, 1), nullptr);
  EXPECT_EQ(keys_.place({key.index, 0}, 0, 1), nullptr);
}

TEST_F(ShmKeys, WhatWasTakenBackIsGoodForNothingAndItsPlaceForAnother) {
  const WireKey key = *keys_.add(plain());
  keys_.revoke(key);
  EXPECT_NE(front_->keys[key.index].permit.load(), key.generation);
  EXPECT_EQ(keys_.place(key, 0, 1), nullptr);
  const WireKey meanwhile = *keys_.add(plain());
  EXPECT_NE(meanwhile.index, key.index) << "not before it is proved";
  EXPECT_EQ(keys_.release(key), 0u);
  const WireKey next = *keys_.add(plain());
  EXPECT_EQ(next.index, key.index);
  EXPECT_NE(next.generation, key.generation);
  // The old key says and does nothing any more.
  keys_.revoke(key);
  EXPECT_EQ(keys_.release({next.index, key.generation}), 0u);
  EXPECT_EQ(front_->keys[next.index].permit.load(), next.generation);
  EXPECT_EQ(keys_.place(next, 0, 1), plain_.data());
}

TEST_F(ShmKeys, ABlockIsShownForAsLongAsAKeyLiesInIt) {
  const uint64_t block = SharedPages::find(pages_.address(), 1)->block;
  EXPECT_EQ(keys_.block(block).file, nullptr);
  const WireKey one = *keys_.add(shared(0, 4096)), other = *keys_.add(shared(4096, 4096));
  EXPECT_NE(keys_.block(block).file, nullptr);
  EXPECT_EQ(keys_.block(block).block_bytes, 16384u);
  EXPECT_EQ(keys_.block(block + 1).file, nullptr);
  EXPECT_EQ(keys_.block(0).file, nullptr);
  keys_.revoke(one);
  EXPECT_EQ(keys_.release(one), 0u);
  keys_.revoke(other);
  EXPECT_EQ(keys_.release(other), block) << "the last one says so";
  EXPECT_EQ(keys_.block(block).file, nullptr);
}

TEST_F(ShmKeys, ThereAreSoManyAndNoMore) {
  WireKey last;
  for (uint32_t i = 0; i < Front::kKeys; ++i) last = *keys_.add(plain(1));
  EXPECT_EQ(keys_.add(plain(1)).error().code, Errc::kExhausted);
  keys_.revoke(last);
  keys_.release(last);
  EXPECT_TRUE(keys_.add(plain(1)));
}

}  // namespace
}  // namespace fabric::shm
