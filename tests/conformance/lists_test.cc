#include <algorithm>
#include <array>
#include <vector>

#include "conformance/conformance.h"

// Prepared lists on every network: exact bytes, exact counts, whatever became of the handle.

namespace fabric::test::lists_test {
namespace {

constexpr uint64_t kElement = 120, kInner = 3;
constexpr std::array<PageRange, 3> kHere{{{10, 9}, {2, 1}, {40, 14}}};
constexpr std::array<PageRange, 2> kThere{{{30, 23}, {7, 1}}};
constexpr uint32_t kListPages = 24;

/// Parts of 120 bytes, three to a page, with other strides here and there.
PagedWrite paged(RegionId source, RemoteRegion target, PageListId here, PageListId there,
                 CounterKey imm) {
  return {.source = source,
          .source_pages = {.stride_bytes = 1000,
                           .offset_bytes = 3,
                           .list = here,
                           .inner_stride_bytes = 300},
          .target = target,
          .target_pages = {.stride_bytes = 700,
                           .offset_bytes = 7,
                           .list = there,
                           .inner_stride_bytes = 140},
          .page_bytes = kElement,
          .inner_count = kInner,
          .imm = imm};
}

std::vector<uint32_t> pages_of(std::span<const PageRange> ranges) {
  std::vector<uint32_t> pages;
  for (const PageRange& range : ranges) {
    for (uint32_t i = 0; i < range.count; ++i) pages.push_back(range.first + i);
  }
  return pages;
}

/// What the target holds after the parts have arrived, and nothing else.
TestBytes after_pages(const TestBytes& out) {
  TestBytes expected(out.size());
  const auto here = pages_of(kHere), there = pages_of(kThere);
  for (size_t i = 0; i < here.size(); ++i) {
    for (uint64_t j = 0; j < kInner; ++j) {
      std::memcpy(expected.data() + 7 + there[i] * 700 + j * 140,
                  out.data() + 3 + here[i] * 1000 + j * 300, kElement);
    }
  }
  return expected;
}

/// Small writes, an empty one, and some of several stripes.
std::vector<ListedWrite> plan() {
  std::vector<ListedWrite> writes;
  uint64_t at = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    const uint64_t size = i % 10 == 4 ? 20'000 + i : i * 37 % 900;
    writes.push_back(
        {.source_offset = 400'000 - at - size, .target_offset = at, .size_bytes = size});
    at += size + 11;
  }
  return writes;
}

TestBytes after_writes(const TestBytes& out, std::span<const ListedWrite> writes, uint64_t here,
                       uint64_t there) {
  TestBytes expected(out.size());
  for (const ListedWrite& write : writes) {
    std::memcpy(expected.data() + there + write.target_offset,
                out.data() + here + write.source_offset, write.size_bytes);
  }
  return expected;
}

}  // namespace

TEST_P(Conformance, P08PreparedPagesCountOneForEachElement) {
  auto counter = *eb().make_counter();
  const auto here = *ea().make_page_list(kHere), there = *ea().make_page_list(kThere);
  const auto indices = *ea().make_page_list(pages_of(kHere));
  const TestBytes expected = after_pages(a().out.bytes);
  for (const PageListId from : {PageListId(here), PageListId(indices)}) {
    const Event done =
        submit_and_wait(ea(), paged(a().out.region.id(), ab().region, from, there, counter.key()));
    EXPECT_EQ(done.code, Errc::kOk);
    EXPECT_EQ(done.value, kListPages * kInner * kElement);
    ASSERT_TRUE(counter.wait(kListPages * kInner, kLong));
    EXPECT_TRUE(b().in.bytes == expected);
    wait_idle();
    EXPECT_EQ(counter.count(), 0u);
    b().in.clear();
  }
}

TEST_P(Conformance, P08ListedWritesCountOneEach) {
  auto counter = *eb().make_counter();
  const auto writes = plan();
  const auto list = *ea().make_write_list(writes);
  const auto submit = [&](uint32_t first, uint32_t count) {
    const Event done = submit_and_wait(ea(), ListedWrites{.list = list,
                                                          .first = first,
                                                          .count = count,
                                                          .source = a().out.at(500),
                                                          .target = ab().region.at(70),
                                                          .imm = counter.key()});
    EXPECT_EQ(done.code, Errc::kOk);
    uint64_t bytes = 0;
    for (const ListedWrite& write : std::span(writes).subspan(first, count)) {
      bytes += write.size_bytes;
    }
    EXPECT_EQ(done.value, bytes);
    ASSERT_TRUE(counter.wait(count, kLong));
  };
  submit(20, 40);
  EXPECT_TRUE(b().in.bytes == after_writes(a().out.bytes, std::span(writes).subspan(20), 500, 70));
  submit(0, 20);
  EXPECT_TRUE(b().in.bytes == after_writes(a().out.bytes, writes, 500, 70));
  wait_idle();
  EXPECT_EQ(counter.count(), 0u);
}

// The arguments, the handles and the memory that a new list could take are all reused before
// anything is sent.
TEST_P(Conformance, P22PreparedListsBelongToTheEngine) {
  auto counter = *eb().make_counter();
  auto batch = *ea().make_batch();
  auto writes = plan();
  const TestBytes expected = after_writes(a().out.bytes, writes, 0, 300'000);
  TestBytes pages = after_pages(a().out.bytes);
  std::memcpy(pages.data() + 300'000, expected.data() + 300'000, pages.size() - 300'000);
  {
    std::vector<PageRange> from(kHere.begin(), kHere.end()), to(kThere.begin(), kThere.end());
    const auto here = *ea().make_page_list(from), there = *ea().make_page_list(to);
    const auto list = *ea().make_write_list(writes);
    std::fill(from.begin(), from.end(), PageRange{900, 5});
    std::fill(to.begin(), to.end(), PageRange{900, 5});
    PagedWrite request = paged(a().out.region.id(), ab().region, here, there, counter.key());
    request.batch = batch;
    ASSERT_TRUE(ea().submit(request));
    const auto count = static_cast<uint32_t>(writes.size());
    std::fill(writes.begin(), writes.end(), ListedWrite{0, 0, 9});
    ASSERT_TRUE(ea().submit(ListedWrites{.list = list,
                                         .count = count,
                                         .source = a().out.at(0),
                                         .target = ab().region.at(300'000),
                                         .imm = counter.key(),
                                         .batch = batch}));
  }
  const PageRange other{800, 3};
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(ea().make_page_list({&other, 1}));
    ASSERT_TRUE(ea().make_write_list(writes));
  }
  ASSERT_TRUE(ea().wait(batch, kLong));
  ASSERT_TRUE(counter.wait(kListPages * kInner + 60, kLong));
  EXPECT_TRUE(b().in.bytes == pages);
}

TEST_P(Conformance, P10PreparedListsArriveOnceWhenAPathBreaks) {
  REQUIRE_CAP(broken_paths);
  REQUIRE_CAP(exact_replay);
  reopen_with_faults();
  const auto writes = plan();
  const auto here = *ea().make_page_list(kHere), there = *ea().make_page_list(kThere);
  const auto list = *ea().make_write_list(writes);
  for (uint32_t round = 0; round < 6; ++round) {
    a().out.fill(round);
    b().in.clear();
    auto counter = *eb().make_counter();
    auto batch = *ea().make_batch();
    PagedWrite request = paged(a().out.region.id(), ab().region, here, there, counter.key());
    request.batch = batch;
    ASSERT_TRUE(ea().submit(request));
    ASSERT_TRUE(ea().submit(ListedWrites{.list = list,
                                         .count = 60,
                                         .source = a().out.at(0),
                                         .target = ab().region.at(300'000),
                                         .imm = counter.key(),
                                         .batch = batch}));
    run_on_wire(Nanos(1'000) * round * round);
    faults().break_path(
        kA, kB, 0, round % 2 == 0 ? FaultInjector::Side::kSender : FaultInjector::Side::kTarget);
    ASSERT_TRUE(ea().wait(batch, kLong)) << ea().dump();
    ASSERT_TRUE(counter.wait(kListPages * kInner + 60, kLong));
    TestBytes expected = after_pages(a().out.bytes);
    const TestBytes listed = after_writes(a().out.bytes, writes, 0, 300'000);
    std::memcpy(expected.data() + 300'000, listed.data() + 300'000, listed.size() - 300'000);
    EXPECT_TRUE(b().in.bytes == expected);
    wait_idle();
    EXPECT_EQ(counter.count(), 0u);
  }
}

}  // namespace fabric::test::lists_test
