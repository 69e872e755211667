#include <algorithm>
#include <array>

#include "core/submit.h"

// The submitter's side of operations that take lists, prepared or copied: checks, then as in
// submit.cc.

namespace fabric::core {

namespace {

using PinnedPages = PinnedList<PageListSlot>;

/// What the errors of one side are called.
struct SideNames {
  const char *pages, *indices, *list;
};
constexpr SideNames kSourceNames{"source_pages", "source_pages.indices", "source_pages.list"};
constexpr SideNames kTargetNames{"target_pages", "target_pages.indices", "target_pages.list"};

/// One list, or indices, and not none of both.
Result<void> check_side(const Pages& pages, const PinnedPages& list, const SideNames& names) {
  if (pages.list && !pages.indices.empty()) return fail(Errc::kInvalidArgument, names.list);
  if (pages.list && !list) return fail(Errc::kNotFound, names.list);
  if (!pages.list && pages.indices.empty()) return fail(Errc::kInvalidArgument, names.indices);
  return {};
}

size_t page_count(const Pages& pages, const PinnedPages& list) noexcept {
  return list ? list->pages.count : pages.indices.size();
}

/// Every part of the side lies inside `limit`. Of a prepared list the largest index is known.
bool pages_fit(const Pages& pages, const PinnedPages& list, const PagedWrite& request,
               uint64_t limit) noexcept {
  uint32_t largest = list ? list->pages.largest : 0;
  for (const uint32_t index : pages.indices) largest = std::max(largest, index);
  uint64_t page = 0, inner = 0, end = 0;
  return !__builtin_mul_overflow(pages.stride_bytes, uint64_t{largest}, &page) &&
         !__builtin_mul_overflow(pages.inner_stride_bytes, uint64_t{request.inner_count - 1},
                                 &inner) &&
         !__builtin_add_overflow(page, pages.offset_bytes, &end) &&
         !__builtin_add_overflow(end, inner, &end) && fits(end, request.page_bytes, limit);
}

PageSide side_of(const Pages& pages, PinnedPages& list, const uint32_t* copied) noexcept {
  PageSide side{
      .indices = copied, .stride = pages.stride_bytes, .inner_stride = pages.inner_stride_bytes};
  if (list) {
    side.indices = list->pages.indices.get();
    side.runs = list->pages.runs.get();
    side.list = list.hand_over();
  }
  return side;
}

}  // namespace

Result<OpId> EngineCore::submit(const PagedWrite& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  auto source = regions.local_size(request.source, "source");
  if (!source) return source.error();
  auto target = regions.remote_size(request.target, "target");
  if (!target) return target.error();
  const Pages& here = request.source_pages;
  const Pages& there = request.target_pages;
  PinnedPages source_list(page_lists, state_mutex, here.list.slot, here.list.generation);
  PinnedPages target_list(page_lists, state_mutex, there.list.slot, there.list.generation);
  if (auto ok = check_side(here, source_list, kSourceNames); !ok) return ok.error();
  if (auto ok = check_side(there, target_list, kTargetNames); !ok) return ok.error();
  const size_t n = page_count(here, source_list);
  if (n != page_count(there, target_list)) {
    return fail(Errc::kInvalidArgument, there.list ? kTargetNames.list : kTargetNames.indices);
  }
  if (request.inner_count == 0) return fail(Errc::kInvalidArgument, "inner_count");
  if (n > UINT32_MAX / request.inner_count) return fail(Errc::kTooLarge, "inner_count");
  if (!pages_fit(here, source_list, request, *source)) {
    return fail(Errc::kOutOfBounds, kSourceNames.pages);
  }
  if (!pages_fit(there, target_list, request, *target)) {
    return fail(Errc::kOutOfBounds, kTargetNames.pages);
  }
  auto admitted = admit({.kind = OpKind::kPaged,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .peer = regions.remote_peer(request.target)});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  const uint32_t* copied = nullptr;
  if (const size_t given = here.indices.size() + there.indices.size(); given != 0) {
    auto list = copy_list(op, nullptr, given * sizeof(uint32_t), "source_pages.indices");
    if (!list) return list.error();
    auto* const indices = static_cast<uint32_t*>(*list);
    std::copy(here.indices.begin(), here.indices.end(), indices);
    std::copy(there.indices.begin(), there.indices.end(), indices + here.indices.size());
    op.list.count = static_cast<uint32_t>(given);
    copied = indices;
  }
  op.source_pages = side_of(here, source_list, copied);
  op.target_pages = side_of(there, target_list, copied + here.indices.size());
  op.inner_count = request.inner_count;
  op.parts = static_cast<uint32_t>(n) * request.inner_count;
  op.source = request.source;
  op.source_offset = here.offset_bytes;
  op.target = request.target;
  op.target_offset = there.offset_bytes;
  op.size_bytes = request.page_bytes;
  op.counter_key = request.imm;
  return launch(op);
}

Result<OpId> EngineCore::submit(const ListedWrites& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  auto source = regions.local_size(request.source.region, "source");
  if (!source) return source.error();
  auto target = regions.remote_size(request.target.region, "target");
  if (!target) return target.error();
  if (!request.list) return fail(Errc::kInvalidArgument, "list");
  PinnedList<WriteListSlot> list(write_lists, state_mutex, request.list.slot,
                                 request.list.generation);
  if (!list) return fail(Errc::kNotFound, "list");
  const WriteEntries& entries = list->entries;
  if (request.count == 0) return fail(Errc::kInvalidArgument, "count");
  if (request.first >= entries.count) return fail(Errc::kOutOfBounds, "first");
  if (request.count > entries.count - request.first) return fail(Errc::kOutOfBounds, "count");
  const auto range = entries.range(request.first, request.count);
  const auto inside = [&](const WriteEnds& ends) {
    if (!fits(request.source.offset, ends.source, *source)) return "source";
    return fits(request.target.offset, ends.target, *target) ? nullptr : "target";
  };
  if (inside(entries.ends) != nullptr) {
    // Another range of the list may be for a larger region.
    const char* const what = inside(WriteEnds::of(range));
    if (what != nullptr) return fail(Errc::kOutOfBounds, what);
  }
  auto admitted = admit({.kind = OpKind::kListed,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .peer = regions.remote_peer(request.target.region)});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  op.listed = range.data();
  op.write_list = list.hand_over();
  op.parts = request.count;
  op.source = request.source.region;
  op.source_offset = request.source.offset;
  op.target = request.target.region;
  op.target_offset = request.target.offset;
  op.counter_key = request.imm;
  return launch(op);
}

}  // namespace fabric::core
