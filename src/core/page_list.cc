#include "core/page_list.h"

#include <new>
#include <utility>

#include "core/core.h"

// Prepared page lists: making, reading and destroying them. Operations take them in
// submit_lists.cc.

namespace fabric::core {

Result<PageIndices> PageIndices::copy(std::span<const uint32_t> indices) {
  if (indices.empty()) return fail(Errc::kInvalidArgument, "indices");
  if (indices.size() > UINT32_MAX) return fail(Errc::kTooLarge, "indices");
  PageIndices out;
  out.indices.reset(new (std::nothrow) uint32_t[indices.size()]);
  if (out.indices == nullptr) return fail(Errc::kExhausted, "memory");
  std::copy(indices.begin(), indices.end(), out.indices.get());
  out.count = static_cast<uint32_t>(indices.size());
  out.largest = *std::max_element(indices.begin(), indices.end());
  return out;
}

Result<PageIndices> PageIndices::copy(std::span<const PageRange> ranges) {
  if (ranges.empty()) return fail(Errc::kInvalidArgument, "ranges");
  if (ranges.size() >= UINT32_MAX) return fail(Errc::kTooLarge, "ranges");
  PageIndices out;
  uint64_t pages = 0;
  for (const PageRange& range : ranges) {
    if (range.count == 0 || range.count - 1 > UINT32_MAX - range.first) {
      return fail(Errc::kInvalidArgument, "ranges");
    }
    pages += range.count;
    out.largest = std::max(out.largest, range.first + (range.count - 1));
  }
  if (pages > UINT32_MAX) return fail(Errc::kTooLarge, "ranges");
  out.count = static_cast<uint32_t>(pages);
  if (pages * sizeof(uint32_t) <= (ranges.size() + 1) * sizeof(PageRun)) {
    out.indices.reset(new (std::nothrow) uint32_t[pages]);
    if (out.indices == nullptr) return fail(Errc::kExhausted, "memory");
    uint32_t* at = out.indices.get();
    for (const PageRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) *at++ = range.first + i;
    }
    return out;
  }
  out.run_count = static_cast<uint32_t>(ranges.size());
  out.runs.reset(new (std::nothrow) PageRun[ranges.size() + 1]);
  if (out.runs == nullptr) return fail(Errc::kExhausted, "memory");
  PageRun* run = out.runs.get();
  uint32_t begin = 0;
  for (const PageRange& range : ranges) {
    *run++ = {.begin = begin, .first = range.first};
    begin += range.count;
  }
  *run = {.begin = begin};
  return out;
}

uint32_t PageSide::run_of(uint32_t page) const noexcept {
  const auto later = [](uint32_t number, const PageRun& run) { return number < run.begin; };
  const PageRun* const after = std::upper_bound(runs, runs + list->pages.run_count, page, later);
  return static_cast<uint32_t>(after - runs) - 1;
}

PageListState::~PageListState() {
  if (core == nullptr) return;
  if (core->forked()) {
    new (EngineCore::leaked(sizeof core)) std::shared_ptr<EngineCore>(std::move(core));
    return;
  }
  const StateGuard lock(core->state_mutex);
  core->page_lists.hide(*slot);
  core->page_lists.release(*slot);
}

Result<std::shared_ptr<const PageListState>> EngineCore::add_page_list(Result<PageIndices> pages) {
  if (!pages) return pages.error();
  auto state = std::make_shared<PageListState>();
  state->size = pages->count;
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  PageListSlot* const slot = page_lists.acquire();
  if (slot == nullptr) return fail(Errc::kExhausted, "page lists");
  slot->pages = *std::move(pages);
  state->slot = slot;
  state->id = PageListId(slot->self, page_lists.publish(*slot));
  state->core = shared_from_this();
  return std::shared_ptr<const PageListState>(std::move(state));
}

}  // namespace fabric::core

namespace fabric {

PageList::PageList(std::shared_ptr<const core::PageListState> state) noexcept
    : state_(std::move(state)) {}
PageListId PageList::id() const noexcept { return state_ == nullptr ? PageListId{} : state_->id; }
uint32_t PageList::size() const noexcept { return state_ == nullptr ? 0 : state_->size; }

Result<PageList> Engine::make_page_list(std::span<const uint32_t> indices) {
  if (core_ == nullptr || core_->refuses()) return fail(Errc::kClosed, "engine");
  auto state = core_->add_page_list(core::PageIndices::copy(indices));
  if (!state) return state.error();
  return PageList(*std::move(state));
}

Result<PageList> Engine::make_page_list(std::span<const PageRange> ranges) {
  if (core_ == nullptr || core_->refuses()) return fail(Errc::kClosed, "engine");
  auto state = core_->add_page_list(core::PageIndices::copy(ranges));
  if (!state) return state.error();
  return PageList(*std::move(state));
}

}  // namespace fabric
