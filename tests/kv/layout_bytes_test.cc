// Layouts as bytes: round trip, golden hashes, and nothing but errors from hostile bytes.

#include <fabric/kv_layout.h>
#include <fabric/kv_plan.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "base/rng.h"
#include "kv/plan_model.h"

namespace fabric::kv::test::layout_bytes_test {
namespace {

/// One of everything that a layout may have.
Side sample_side(uint32_t tp) {
  SideSpec spec{.tp = tp, .region_per_layer = true, .page_align_bytes = 256};
  spec.groups = {
      {.tensors = {{.name = "kv", .heads = 4, .parts = 2}}},
      {.name = "sliding",
       .kind = GroupKind::kWindow,
       .window = 128,
       .layers = {2, 3},
       .tensors = {{.name = "kv", .heads = 4, .parts = 2}, {.name = "scale", .heads = 4}}},
      {.name = "mamba",
       .kind = GroupKind::kState,
       .page_tokens = 0,
       .layers = {4},
       .tensors = {{.name = "conv",
                    .blocks = {{.name = "x", .groups = 4, .width = 2, .rows = 3},
                               {.name = "z", .groups = 1, .rows = 3, .sharded = false}}}}}};
  return make_side(spec);
}

TEST(KvLayoutBytes, ComeBackAsTheyWere) {
  const Side side = sample_side(2);
  const auto bytes = encode(side);
  ASSERT_TRUE(bytes);
  const auto back = decode_side(*bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(*encode(*back), *bytes);
  EXPECT_EQ(back->ranks.size(), 2u);
  EXPECT_EQ(back->ranks[1].tp_rank, 1u);
  EXPECT_EQ(back->ranks[1].groups[2].tensors[0].blocks[1].name, "z");
  EXPECT_EQ(layout_hash(side.ranks[1]), layout_hash(back->ranks[1]));
  EXPECT_NE(layout_hash(side.ranks[0]), layout_hash(side.ranks[1]));
}

TEST(KvLayoutBytes, HashesAreGolden) {
  // Peers of other builds compare these numbers. A change of the bytes needs another version in
  // layout_bytes.cc or plan_bytes.cc, and then other numbers here.
  const Side prefill = sample_side(2);
  const Side decode = sample_side(4);
  EXPECT_EQ(layout_hash(prefill.ranks[0]), 480948248716401841u);
  EXPECT_EQ(plan(prefill, decode)->hash, 3364620565133336733u);
  EXPECT_EQ(plan(prefill, decode, {.staging = true})->hash, 764058471821115840u);
  EXPECT_EQ(request_seed("request-1"), 6996955302536081010u);
}

/// The seeds of the fuzzer by their names in tests/fuzz/corpus/kv_layout.
std::map<std::string, std::vector<std::byte>> fuzz_seeds() {
  SideSpec stages{.tp = 4, .pp = 2, .order = PageOrder::kNHD};
  stages.groups = {{.tensors = {{.name = "k", .heads = 2}, {.name = "v", .heads = 2}}}};
  SideSpec latent;
  latent.groups = {{.tensors = {{.name = "latent", .sharding = Sharding::kReplicated}}}};
  return {{"hybrid_side", *encode(sample_side(2))},
          {"hybrid_rank", *encode(sample_side(1).ranks[0])},
          {"nhd_two_stages", *encode(make_side(stages))},
          {"latent", *encode(make_side(latent).ranks[0])}};
}

// As for the other fuzzers, FABRICLIB_TEST_WRITE_CORPUS=1 writes the files again after a wanted
// change of the format.
TEST(KvLayoutBytes, FuzzCorpusHoldsTheCurrentFormat) {
  auto folder = std::filesystem::current_path();
  const auto corpus = [&] { return folder / "tests" / "fuzz" / "corpus" / "kv_layout"; };
  while (!std::filesystem::is_directory(corpus()) && folder != folder.parent_path()) {
    folder = folder.parent_path();
  }
  if (!std::filesystem::is_directory(corpus())) {
    GTEST_SKIP() << "the working folder is not below the source tree";
  }
  for (const auto& [name, bytes] : fuzz_seeds()) {
    const std::string expected(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (std::getenv("FABRICLIB_TEST_WRITE_CORPUS") != nullptr) {
      std::ofstream(corpus() / name, std::ios::binary) << expected;
    }
    std::ifstream file(corpus() / name, std::ios::binary);
    ASSERT_TRUE(file.is_open()) << name;
    EXPECT_TRUE((std::string{std::istreambuf_iterator<char>(file), {}}) == expected) << name;
  }
}

TEST(KvLayoutBytes, APlanForOneDecodeRankHasItsTargetHash) {
  const Side prefill = sample_side(2);
  const Side decode = sample_side(4);
  const auto all = plan(prefill, decode);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->target_hashes.size(), 4u);
  for (size_t n = 0; n < 4; ++n) {
    const auto alone = plan(prefill, Side{{decode.ranks[n]}});
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->target_hashes[0], all->target_hashes[n]) << n;
  }
}

TEST(KvLayoutBytes, EveryChangeOfTheMemoryChangesThePlanHash) {
  const Side prefill = sample_side(2);
  const Side decode = sample_side(4);
  const uint64_t hash = plan(prefill, decode)->hash;
  Side moved = prefill;
  moved.ranks[1].region_bytes.back() += 4;
  moved.ranks[1].groups[2].tensors[0].locations[0].offset_bytes += 4;
  EXPECT_NE(plan(moved, decode)->hash, hash);
  Side more_pages = decode;
  more_pages.ranks[3].groups[0].pages -= 1;
  EXPECT_NE(plan(prefill, more_pages)->hash, hash);
  Side model_a = prefill;
  Side model_b = decode;
  for (Layout& layout : model_a.ranks) layout.model_hash = 8;
  for (Layout& layout : model_b.ranks) layout.model_hash = 8;
  EXPECT_NE(plan(model_a, model_b)->hash, hash);
}

TEST(KvLayoutBytes, EveryTruncationIsRefused) {
  const auto bytes = encode(sample_side(1).ranks[0]);
  ASSERT_TRUE(bytes);
  for (size_t size = 0; size < bytes->size(); ++size) {
    const auto back = decode_layout(std::span(*bytes).first(size));
    ASSERT_FALSE(back) << size;
    ASSERT_EQ(back.error().code, Errc::kBadFormat) << size;
  }
  auto longer = *bytes;
  longer.push_back({});
  EXPECT_EQ(decode_layout(longer).error().code, Errc::kBadFormat);
  auto newer = *bytes;
  newer[4] = std::byte{9};
  EXPECT_EQ(decode_layout(newer).error().code, Errc::kVersion);
  auto foreign = *bytes;
  foreign[0] = std::byte{0};
  EXPECT_EQ(decode_layout(foreign).error().code, Errc::kBadFormat);
  EXPECT_EQ(decode_layout(std::vector<std::byte>(kLayoutBytesMax + 1)).error().code,
            Errc::kTooLarge);
}

TEST(KvLayoutBytes, GarbageNeverGivesALayoutThatCheckRefuses) {
  Rng rng(3);
  const auto valid = *encode(sample_side(2));
  int accepted = 0;
  for (int n = 0; n < 20000; ++n) {
    auto bytes = valid;
    for (uint64_t changes = rng.between(1, 4); changes > 0; --changes) {
      // A byte, or eight of them: large numbers must not overflow.
      const size_t at = rng.below(bytes.size());
      const auto value = static_cast<std::byte>(rng.chance(0.3) ? 0xff : rng.below(256));
      const size_t end = std::min(bytes.size(), at + (rng.chance(0.3) ? 8 : 1));
      std::fill(bytes.begin() + static_cast<long>(at), bytes.begin() + static_cast<long>(end),
                value);
    }
    const auto back = decode_side(bytes);
    if (!back) continue;
    ++accepted;
    ASSERT_EQ(*encode(*back), bytes);
    for (const Layout& layout : back->ranks) ASSERT_TRUE(check(layout));
    // Whatever two valid layouts are, a plan or a refusal comes out.
    Refusal refusal;
    if (!plan(*back, *back, {.staging = true}, &refusal)) {
      ASSERT_NE(refusal.code, RefusalCode::kNone);
      ASSERT_NE(refusal.remedy, "");
    }
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace fabric::kv::test::layout_bytes_test
