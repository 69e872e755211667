#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "generate.h"
#include "page_pool.h"
#include "prefix_index.h"

// The model by itself: the same tokens however the work is divided, and the pages it runs in.

namespace fabric::test::transformer_test {
namespace {

using kv::PageOrder;
using transformer::Attention;
using transformer::CacheOptions;
using transformer::ModelOptions;
using transformer::PagePool;
using transformer::PrefixIndex;
using transformer::Sequence;
using transformer::ShardedCache;
using transformer::Transformer;

ModelOptions small_model(Attention attention) {
  return {.attention = attention,
          .layers = 3,
          .width = 64,
          .kv_heads = 2,
          .head_size = 16,
          .latent_size = 24,
          .rotary_size = 8,
          .hidden = 96,
          .vocabulary = 256,
          .positions = 160};
}

class TransformerTokens : public testing::TestWithParam<Attention> {
 protected:
  const Transformer model_ = *Transformer::make(small_model(GetParam()));
  const std::vector<uint32_t> prompt_ = transformer::random_tokens(model_.options(), 3, 100);
  const std::vector<uint32_t> expected_ = *transformer::generate(model_, prompt_, 12);
};

// The numbers were written down once. A compiler, a level of optimisation or a machine that gives
// others would give other tokens on the two sides of a transfer.
TEST_P(TransformerTokens, AreTheSameOnEveryMachine) {
  const std::vector<uint32_t> grouped{251, 135, 114, 210, 144, 80, 249, 35, 171, 129, 5, 129};
  const std::vector<uint32_t> latent{134, 20, 179, 246, 150, 210, 109, 226, 246, 212, 225, 162};
  EXPECT_EQ(expected_, GetParam() == Attention::kGrouped ? grouped : latent);
}

TEST_P(TransformerTokens, AreTheSameInChunksAndOnAnyRanks) {
  for (const PageOrder order : {PageOrder::kHND, PageOrder::kNHD}) {
    for (const uint32_t tp : {1, 2, 4}) {
      for (const uint32_t chunk : {1u, 17u, 64u}) {
        SCOPED_TRACE(testing::Message()
                     << kv::to_string(order) << ", " << tp << " ranks, chunks of " << chunk);
        auto cache = ShardedCache::allocate(
            model_.options(),
            {.order = order, .page_tokens = 8, .pages = 14, .tp_size = tp, .pp_size = 3});
        ASSERT_TRUE(cache) << cache.error().what;
        Sequence sequence{.tokens = prompt_, .pages = std::vector<uint32_t>(14)};
        std::iota(sequence.pages.rbegin(), sequence.pages.rend(), 0);
        const uint32_t first = transformer::prefill(model_, *cache, sequence, chunk);
        EXPECT_EQ(transformer::decode(model_, *cache, sequence, first, 12), expected_);
      }
    }
  }
}

TEST_P(TransformerTokens, AreTheSameAfterAPrefixThatAnotherRequestComputed) {
  auto cache = ShardedCache::allocate(model_.options(), {.page_tokens = 8, .pages = 40});
  ASSERT_TRUE(cache);
  PagePool pool(*cache);
  PrefixIndex index(pool, 8);
  Sequence earlier{.tokens = {prompt_.begin(), prompt_.begin() + 67}, .pages = *pool.take(9)};
  transformer::prefill(model_, *cache, earlier);
  index.add(earlier.tokens, earlier.pages);
  pool.give_back(earlier.pages);
  EXPECT_EQ(pool.free(), 40u - 8u) << "the index keeps the full pages";

  Sequence sequence{.tokens = prompt_, .pages = index.find(prompt_)};
  ASSERT_EQ(sequence.pages.size(), 8u);
  sequence.cached = 64;
  const auto rest = pool.take(6);
  sequence.pages.insert(sequence.pages.end(), rest->begin(), rest->end());
  const uint32_t first = transformer::prefill(model_, *cache, sequence);
  EXPECT_EQ(transformer::decode(model_, *cache, sequence, first, 12), expected_);

  pool.give_back(sequence.pages);
  index.make_room(40);
  EXPECT_EQ(pool.free(), 40u);
  pool.check_free_pages();
  EXPECT_EQ(pool.touched(), 0u);
}

// Otherwise equal tokens would prove little.
TEST_P(TransformerTokens, DependOnEveryTokenOfThePrompt) {
  for (const size_t at : {0u, 33u, 98u}) {
    auto other = prompt_;
    other[at] = (other[at] + 1) % model_.options().vocabulary;
    EXPECT_NE(*transformer::generate(model_, other, 12), expected_) << "token " << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Model, TransformerTokens,
                         testing::Values(Attention::kGrouped, Attention::kLatent),
                         [](const auto& kind) {
                           return kind.param == Attention::kGrouped ? "Grouped" : "Latent";
                         });

TEST(Matrix, MultipliesAsTheDefinitionSays) {
  transformer::SeededNumbers numbers(1);
  transformer::SeededNumbers same(1);
  const transformer::Matrix matrix(24, 16, 2, numbers);
  std::vector<float> weights(24 * 16);  // in panels of eight columns
  for (float& weight : weights) weight = same.uniform() * 2;
  std::vector<float> x(7 * 24);
  for (float& value : x) value = numbers.uniform();
  std::vector<float> y(7 * 16);
  matrix.multiply(x, y);
  for (uint32_t i = 0; i < 7; ++i) {
    for (uint32_t column = 0; column < 16; ++column) {
      float sum = 0;
      for (uint32_t row = 0; row < 24; ++row) {
        sum += x[i * 24 + row] * weights[column / 8 * 24 * 8 + row * 8 + column % 8];
      }
      EXPECT_NEAR(y[i * 16 + column], sum, 1e-5) << i << ", " << column;
    }
  }
}

TEST(ExactMath, ExponentialAndRotationAreThoseOfTheLibrary) {
  for (float x = -86; x < 80; x += 0.37f) {
    EXPECT_NEAR(transformer::exp_float(x) / std::exp(x), 1, 1e-6) << x;
  }
  EXPECT_EQ(transformer::exp_float(-200), 0);
  const transformer::Rotary rotary(8, 100);
  for (const uint32_t position : {0u, 1u, 7u, 99u}) {
    float head[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    rotary.turn(head, position);
    for (int i = 0; i < 4; ++i) {
      const double angle = position * std::pow(10000.0, -i / 4.0);
      EXPECT_NEAR(head[i], (i + 1) * std::cos(angle) - (i + 5) * std::sin(angle), 1e-5);
      EXPECT_NEAR(head[i + 4], (i + 5) * std::cos(angle) + (i + 1) * std::sin(angle), 1e-5);
    }
  }
}

TEST(PagePool, FindsAFreePageThatWasWritten) {
  const ModelOptions model = small_model(Attention::kGrouped);
  auto cache = ShardedCache::allocate(model, {.page_tokens = 4, .pages = 3, .tp_size = 2});
  ASSERT_TRUE(cache);
  PagePool pool(*cache);
  const auto pages = *pool.take(2);
  EXPECT_FALSE(pool.take(2));
  const std::vector<float> row(model.head_size, 1.0f);
  transformer::PagedCache& rank = cache->ranks()[1];
  const transformer::PagedCache::Rows rows{.layer = 2,
                                           .stream = transformer::Stream::kValues,
                                           .head = static_cast<uint32_t>(rank.heads().begin),
                                           .pages = pages};
  rank.write(rows, 5, row);
  pool.give_back(pages);
  pool.check_free_pages();
  EXPECT_EQ(pool.touched(), 0u);
  rank.write(rows, 5, row);  // the second page, which is free now
  EXPECT_TRUE(pool.take(3));
  EXPECT_EQ(pool.touched(), 1u);
}

// A row depends on every token before it, so the same tokens after others are not a hit.
TEST(PrefixIndex, FindsPagesOnlyAfterTheSameBeginning) {
  auto cache =
      ShardedCache::allocate(small_model(Attention::kGrouped), {.page_tokens = 4, .pages = 8});
  ASSERT_TRUE(cache);
  PagePool pool(*cache);
  PrefixIndex index(pool, 4);
  const std::vector<uint32_t> one{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<uint32_t> two{9, 9, 9, 9, 8, 8, 8, 8};
  const auto pages = *pool.take(4);
  index.add(one, std::span(pages).first(2));
  index.add(two, std::span(pages).last(2));
  pool.give_back(pages);
  EXPECT_EQ(index.find(std::vector<uint32_t>{1, 2, 3, 4, 5, 6, 7, 8, 0}),
            (std::vector{pages[0], pages[1]}));
  EXPECT_EQ(index.find(one), std::vector{pages[0]}) << "the last token is left to compute";
  EXPECT_EQ(index.find(std::vector<uint32_t>{9, 9, 9, 9, 5, 6, 7, 8, 0}), std::vector{pages[2]});
  EXPECT_EQ(index.find(std::vector<uint32_t>{5, 6, 7, 8, 0}), std::vector<uint32_t>{});
}

TEST(ModelSizes, ThatDoNotFitAreRefusedByName) {
  ModelOptions options;
  options.width = 20;
  EXPECT_STREQ(Transformer::make(options).error().what, "width: a multiple of 8 up to 16384");
  options = {};
  options.kv_heads = 3;
  EXPECT_STREQ(Transformer::make(options).error().what, "query_heads: a multiple of kv_heads");
  options = {};
  options.head_size = 24;
  EXPECT_STREQ(Transformer::make(options).error().what, "head_size or rotary_size: a power of two");
  EXPECT_FALSE(ShardedCache::allocate({}, {.pages = 4, .pp_size = 4}));
  EXPECT_FALSE(ShardedCache::allocate({}, {.pages = 4, .tp_size = 3}));
}

}  // namespace
}  // namespace fabric::test::transformer_test
