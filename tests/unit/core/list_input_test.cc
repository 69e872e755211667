#include <array>
#include <cstring>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "harness/host.h"
#include "scenario/pairs.h"

// Bad prepared lists, and bad requests that name them: each is refused, and names its argument.

namespace fabric::test::list_input_test {
namespace {

constexpr uint64_t kSize = 1 << 16;

class ListInput : public testing::Test {
 protected:
  template <class T>
  void expect_refused(const Result<T>& result, Errc code, const char* what) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << to_string(result.error().code);
    EXPECT_STREQ(result.error().what, what);
  }
  void expect_refused(PagedWrite request, Errc code, const char* what) {
    request.batch = batch;
    expect_refused(pair.a.engine.submit(request), code, what);
    EXPECT_EQ(batch.pending(), 0u) << "a refused operation joined the batch";
  }
  PagedWrite paged(PageListId here, PageListId there) const {
    return {.source = pair.a.memory.id(),
            .source_pages = {.stride_bytes = 64, .list = here},
            .target = pair.remote.region,
            .target_pages = {.stride_bytes = 64, .list = there},
            .page_bytes = 64};
  }

  ConnectedPair pair{test_config(), kSize};
  Engine& engine = pair.a.engine;
  Batch batch = *engine.make_batch();
  const std::array<uint32_t, 3> three{0, 5, 2};
  PageList list = *engine.make_page_list(three);
};

TEST_F(ListInput, PageListsThatCannotBe) {
  expect_refused(engine.make_page_list(std::span<const uint32_t>{}), Errc::kInvalidArgument,
                 "indices");
  expect_refused(engine.make_page_list(std::span<const PageRange>{}), Errc::kInvalidArgument,
                 "ranges");
  const PageRange empty[] = {{0, 4}, {9, 0}};
  expect_refused(engine.make_page_list(empty), Errc::kInvalidArgument, "ranges");
  const PageRange past[] = {{UINT32_MAX - 1, 3}};
  expect_refused(engine.make_page_list(past), Errc::kInvalidArgument, "ranges");
  const PageRange many[] = {{0, UINT32_MAX}, {0, 1}};
  expect_refused(engine.make_page_list(many), Errc::kTooLarge, "ranges");
  EXPECT_EQ(PageList().size(), 0u);
  EXPECT_FALSE(PageList().id());
  EXPECT_EQ(list.size(), 3u);
}

TEST_F(ListInput, AListAndIndicesOnOneSide) {
  PagedWrite request = paged(list, list);
  request.source_pages.indices = three;
  expect_refused(request, Errc::kInvalidArgument, "source_pages.list");
  request = paged(list, list);
  request.target_pages.indices = three;
  expect_refused(request, Errc::kInvalidArgument, "target_pages.list");
  expect_refused(paged({}, list), Errc::kInvalidArgument, "source_pages.indices");
  expect_refused(paged(list, {}), Errc::kInvalidArgument, "target_pages.indices");
}

TEST_F(ListInput, ListsThatAreGoneUnknownOrOfAnotherEngine) {
  PageListId gone;
  {
    const PageList temporary = *engine.make_page_list(three);
    gone = temporary;
  }
  expect_refused(paged(gone, list), Errc::kNotFound, "source_pages.list");
  expect_refused(paged(list, gone), Errc::kNotFound, "target_pages.list");
  expect_refused(paged(PageListId(7, 1), list), Errc::kNotFound, "source_pages.list");
  expect_refused(paged(PageListId(UINT32_MAX, UINT32_MAX), list), Errc::kNotFound,
                 "source_pages.list");
  // Both engines have made as many lists.
  const PageList theirs = *pair.b.engine.make_page_list(three);
  EXPECT_EQ(theirs.id().slot, list.id().slot);
  expect_refused(paged(theirs, list), Errc::kNotFound, "source_pages.list");
  expect_refused(paged(list, theirs), Errc::kNotFound, "target_pages.list");
}

TEST_F(ListInput, SidesOfDifferentLength) {
  const std::array<uint32_t, 2> two{0, 1};
  const PageList shorter = *engine.make_page_list(two);
  expect_refused(paged(list, shorter), Errc::kInvalidArgument, "target_pages.list");
  PagedWrite request = paged(list, {});
  request.target_pages.indices = two;
  expect_refused(request, Errc::kInvalidArgument, "target_pages.indices");
}

TEST_F(ListInput, PagesPastTheRegion) {
  const uint32_t last = kSize / 64 - 1;
  const PageRange fits[] = {{last - 2, 3}}, past[] = {{0, 2}, {last + 1, 1}};
  const PageList good = *engine.make_page_list(fits), bad = *engine.make_page_list(past);
  expect_refused(paged(bad, good), Errc::kOutOfBounds, "source_pages");
  expect_refused(paged(good, bad), Errc::kOutOfBounds, "target_pages");
  PagedWrite request = paged(good, good);
  request.source_pages.offset_bytes = 1;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  request = paged(good, good);
  request.target_pages.stride_bytes = 1ull << 60;
  expect_refused(request, Errc::kOutOfBounds, "target_pages");
  EXPECT_TRUE(engine.submit(paged(good, good)));
}

TEST_F(ListInput, InnerCountsAndStrides) {
  PagedWrite request = paged(list, list);
  request.inner_count = 0;
  expect_refused(request, Errc::kInvalidArgument, "inner_count");
  request.inner_count = UINT32_MAX / 3 + 1;
  expect_refused(request, Errc::kTooLarge, "inner_count");
  // The last element of the last page ends one byte past the region.
  request = paged(list, list);
  request.inner_count = 4;
  request.target_pages.inner_stride_bytes = 16;
  request.source_pages.inner_stride_bytes = (kSize - 5 * 64 - 64) / 3 + 1;
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  request.source_pages.inner_stride_bytes = 1ull << 63;  // wraps
  expect_refused(request, Errc::kOutOfBounds, "source_pages");
  request.source_pages.inner_stride_bytes = (kSize - 5 * 64 - 64) / 3;
  EXPECT_TRUE(engine.submit(request));
}

TEST_F(ListInput, AClosedEngineMakesNone) {
  ASSERT_TRUE(engine.close());
  expect_refused(engine.make_page_list(three), Errc::kClosed, "engine");
  const PageRange range[] = {{0, 1}};
  expect_refused(engine.make_page_list(range), Errc::kClosed, "engine");
}

TEST_F(ListInput, ThereIsABoundOnLists) {
  std::vector<PageList> lists;
  const uint32_t page = 0;
  for (;;) {
    auto made = engine.make_page_list({&page, 1});
    if (!made) {
      expect_refused(made, Errc::kExhausted, "page lists");
      break;
    }
    lists.push_back(*std::move(made));
  }
  EXPECT_EQ(lists.size() + 1, 65'536u);
  lists.pop_back();
  EXPECT_TRUE(engine.make_page_list({&page, 1}));
}

}  // namespace
}  // namespace fabric::test::list_input_test
