#include "core/page_list.h"

#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core::page_list_test {
namespace {

/// A slot with the list, and the side of an operation that uses it.
struct Listed {
  explicit Listed(const std::vector<PageRange>& ranges) {
    auto copied = PageIndices::copy(std::span<const PageRange>(ranges));
    EXPECT_TRUE(copied);
    slot.pages = *std::move(copied);
    side.indices = slot.pages.indices.get();
    side.runs = slot.pages.runs.get();
    side.list = &slot;
    for (const PageRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) expected.push_back(range.first + i);
    }
  }
  PageListSlot slot;
  PageSide side;
  std::vector<uint32_t> expected;
};

std::vector<PageRange> draw_ranges(Rng& rng, uint32_t longest) {
  std::vector<PageRange> ranges(rng.between(1, 200));
  for (PageRange& range : ranges) {
    range = {static_cast<uint32_t>(rng.below(1u << 20)),
             static_cast<uint32_t>(rng.between(1, longest))};
  }
  return ranges;
}

TEST(PageList, FindsEveryPageInEveryWalkOverTheRails) {
  Rng rng(11);
  for (const uint32_t longest : {1u, 2u, 3u, 8u, 100u}) {
    for (int round = 0; round < 20; ++round) {
      const Listed list(draw_ranges(rng, longest));
      ASSERT_EQ(list.slot.pages.count, list.expected.size());
      for (uint32_t stride = 1; stride <= kRailsMax; ++stride) {
        for (uint32_t first = 0; first < stride; ++first) {
          uint32_t run = 0;
          for (uint32_t page = first; page < list.expected.size(); page += stride) {
            ASSERT_EQ(list.side.index_of(page, run), list.expected[page]) << page;
          }
        }
      }
    }
  }
}

TEST(PageList, FindsEveryPageWhateverTheHintSays) {
  Rng rng(12);
  const Listed list(draw_ranges(rng, 40));
  ASSERT_NE(list.side.runs, nullptr);
  for (int i = 0; i < 5000; ++i) {
    const auto page = static_cast<uint32_t>(rng.below(list.expected.size()));
    auto run = static_cast<uint32_t>(rng.below(list.slot.pages.run_count));
    ASSERT_EQ(list.side.index_of(page, run), list.expected[page]);
  }
}

TEST(PageList, KeepsLongRangesAsRangesAndShortOnesAsIndices) {
  // A million pages in one range take two runs, not four megabytes.
  const Listed longer({{5, 1'000'000}});
  EXPECT_EQ(longer.slot.pages.run_count, 1u);
  EXPECT_EQ(longer.slot.pages.indices, nullptr);
  EXPECT_EQ(longer.slot.pages.largest, 1'000'004u);
  const Listed shorter({{9, 1}, {3, 2}, {7, 1}});
  EXPECT_EQ(shorter.slot.pages.runs, nullptr);
  EXPECT_EQ(shorter.slot.pages.count, 4u);
  EXPECT_EQ(shorter.slot.pages.largest, 9u);
}

TEST(PageList, TakesTheLastIndexAndNothingPastIt) {
  const PageRange last[] = {{UINT32_MAX, 1}};
  EXPECT_EQ(PageIndices::copy(std::span(last))->largest, UINT32_MAX);
  const PageRange past[] = {{UINT32_MAX, 2}};
  EXPECT_EQ(PageIndices::copy(std::span(past)).error().code, Errc::kInvalidArgument);
  const PageRange none[] = {{0, 4}, {8, 0}};
  EXPECT_EQ(PageIndices::copy(std::span(none)).error().code, Errc::kInvalidArgument);
  const PageRange twice[] = {{0, UINT32_MAX}, {0, 1}};
  EXPECT_EQ(PageIndices::copy(std::span(twice)).error().code, Errc::kTooLarge);
}

// The count of users decides who frees: a handle that is destroyed while a submitter reads the
// list must leave that to the submitter, and a handle of the next list must not find this one.

struct CountedSlot : ListHead {
  int value = 0;
  uint32_t cleared = 0;
  void clear() noexcept { ++cleared; }
};

TEST(ListTable, FreesAListWithItsLastUser) {
  StateMutex mutex;
  ListTable<CountedSlot> table;
  table.set_first_generation(1000);
  CountedSlot* slot = nullptr;
  uint32_t generation = 0;
  {
    const StateGuard lock(mutex);
    slot = table.acquire();
    slot->value = 7;
    generation = table.publish(*slot);
  }
  EXPECT_EQ(generation, 1001u);
  EXPECT_FALSE((PinnedList<CountedSlot>(table, mutex, slot->self, generation + 1)));
  EXPECT_FALSE((PinnedList<CountedSlot>(table, mutex, slot->self, 0)));
  EXPECT_FALSE((PinnedList<CountedSlot>(table, mutex, UINT32_MAX, generation)));
  CountedSlot* of_an_op = nullptr;
  {
    PinnedList<CountedSlot> reader(table, mutex, slot->self, generation);
    ASSERT_TRUE(reader);
    EXPECT_EQ(reader->value, 7);
    {
      const StateGuard lock(mutex);  // the handle is destroyed
      table.hide(*slot);
      table.release(*slot);
      EXPECT_EQ(table.live(), 1u);
    }
    EXPECT_FALSE((PinnedList<CountedSlot>(table, mutex, slot->self, generation)));
    EXPECT_EQ(slot->cleared, 0u) << "a submitter reads it";
    of_an_op = reader.hand_over();
  }
  EXPECT_EQ(slot->cleared, 0u) << "an operation uses it";
  const StateGuard lock(mutex);
  table.release(*of_an_op);
  EXPECT_EQ(slot->cleared, 1u);
  EXPECT_EQ(table.live(), 0u);
}

TEST(ListTable, ASubmitterThatIsTheLastUserFrees) {
  StateMutex mutex;
  ListTable<CountedSlot> table;
  CountedSlot* slot = nullptr;
  {
    const StateGuard lock(mutex);
    slot = table.acquire();
    table.publish(*slot);
  }
  {
    const PinnedList<CountedSlot> reader(table, mutex, slot->self, 1);
    ASSERT_TRUE(reader);
    const StateGuard lock(mutex);
    table.hide(*slot);
    table.release(*slot);
  }
  EXPECT_EQ(slot->cleared, 1u);
  const StateGuard lock(mutex);
  EXPECT_EQ(table.live(), 0u);
}

}  // namespace
}  // namespace fabric::core::page_list_test
