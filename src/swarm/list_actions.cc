#include <algorithm>

#include "swarm/runner.h"

// The actions of actions.cc that take lists of pages or writes, copied or prepared.

namespace fabric::swarm {
namespace {

constexpr uint64_t kPageBytesMax = 4u << 10, kListedBytesMax = 2u << 10;
constexpr uint32_t kPagesMax = 24, kListedMax = 40;

}  // namespace

/// A prepared list, of indices or of ranges; empty if it was refused. The handle of
/// every second list outlives its operation.
std::optional<PageList> Runner::list_of(Process& process, std::span<const uint32_t> pages,
                                        Rng& rng) {
  std::vector<PageRange> ranges;
  for (const uint32_t page : pages) {
    if (!ranges.empty() && page == ranges.back().first + ranges.back().count) {
      ++ranges.back().count;
    } else {
      ranges.push_back({page, 1});
    }
  }
  auto list = rng.chance(0.5) ? process.engine->make_page_list(pages)
                              : process.engine->make_page_list(ranges);
  if (!list) {
    coverage_.add("refusal", to_string(list.error().code));
    return {};
  }
  coverage_.add("prepared", "page list");
  if (rng.chance(0.5)) process.page_lists.push_back(*list);
  return *std::move(list);
}

void Runner::paged(Process& process, uint32_t to, Rng& rng) {
  Session* session = session_to(process, to);
  if (session == nullptr) return;
  const auto inner = static_cast<uint32_t>(rng.chance(0.3) ? rng.between(2, 4) : 1);
  const auto pages = static_cast<uint32_t>(rng.between(1, kPagesMax / inner));
  const uint32_t parts = pages * inner;
  const uint64_t part_bytes = rng.between(1, kPageBytesMax);
  // Target parts have a constant stride, so the gaps between their slots are equal.
  const uint64_t stride = part_bytes + 64;
  const uint32_t arena = arena_for(*session, (parts + 1) * stride + 64);
  if (arena == kNone) return;
  const RemoteRegion region = remote_region(*session, arena);
  if (!region) return;
  CounterModel* model = rng.chance(0.1) ? nullptr : counter_for(process, *session, rng, parts);
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kPaged, timeout);
  const SourceRange source = source_for(process, parts * part_bytes, 0);
  if (source.bytes.empty()) return;
  op.source = source.bytes;
  op.bytes = parts * part_bytes;
  std::vector<uint32_t> source_pages(pages), target_pages(pages);
  uint64_t base = 0;
  for (uint32_t i = 0; i < parts; ++i) {
    const uint64_t content_seed = ++next_content_seed_;
    // The source pages rotated, so that source and target indices differ, and both have runs.
    const uint32_t page = (i / inner + pages / 2) % pages;
    source_pages[i / inner] = page;
    target_pages[i / inner] = i / inner;
    fill_content(source.bytes.subspan((page * inner + i % inner) * part_bytes, part_bytes),
                 content_seed);
    const Part& part =
        parts_[add_part(op, *session, arena, part_bytes, content_seed, model, stride - part_bytes)];
    if (i == 0) base = arenas_[arena].memory.slot(part.slot).offset;
  }
  PagedWrite request{.source = source.ref.region,
                     .source_pages = {.stride_bytes = inner * part_bytes,
                                      .offset_bytes = source.ref.offset,
                                      .inner_stride_bytes = part_bytes},
                     .target = region,
                     .target_pages = {.stride_bytes = inner * stride,
                                      .offset_bytes = base,
                                      .inner_stride_bytes = stride},
                     .page_bytes = part_bytes,
                     .inner_count = inner,
                     .imm = model == nullptr ? CounterKey{} : model->key,
                     .priority = static_cast<Priority>(rng.below(3)),
                     .timeout = timeout};
  // They live until the submit has returned; sometimes longer.
  std::optional<PageList> here, there;
  if (rng.chance(0.5)) here = list_of(process, source_pages, rng);
  if (rng.chance(0.5)) there = list_of(process, target_pages, rng);
  if (here) {
    request.source_pages.list = *here;
  } else {
    request.source_pages.indices = source_pages;
  }
  if (there) {
    request.target_pages.list = *there;
  } else {
    request.target_pages.indices = target_pages;
  }
  submit(process, std::move(op), request, rng);
}

void Runner::listed(Process& process, uint32_t to, Rng& rng) {
  Session* session = session_to(process, to);
  if (session == nullptr) return;
  const auto count = static_cast<uint32_t>(rng.between(1, kListedMax));
  std::vector<uint64_t> sizes(count);
  uint64_t total = 0;
  for (uint64_t& size : sizes) total += size = rng.below(kListedBytesMax + 1);
  const uint32_t arena = arena_for(*session, total + (count + 1) * 64);
  if (arena == kNone) return;
  const RemoteRegion region = remote_region(*session, arena);
  if (!region) return;
  const SourceRange source = source_for(process, total, 0);
  if (source.bytes.empty() && total > 0) return;
  CounterModel* model = rng.chance(0.1) ? nullptr : counter_for(process, *session, rng, count);
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kListed, timeout);
  op.source = source.bytes;
  op.bytes = total;
  // The range is in the middle of its list. What is around it must not be sent: it would overwrite
  // the first slot.
  const auto before = static_cast<uint32_t>(rng.below(5));
  std::vector<ListedWrite> writes(before, ListedWrite{.size_bytes = 1});
  uint64_t base = 0, at = total;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t content_seed = ++next_content_seed_;
    at -= sizes[i];  // the source from back to front
    fill_content(source.bytes.subspan(at, sizes[i]), content_seed);
    const Part& part =
        parts_[add_part(op, *session, arena, sizes[i], content_seed, model, rng.between(1, 64))];
    const uint64_t offset = arenas_[arena].memory.slot(part.slot).offset;
    if (i == 0) base = offset;
    writes.push_back({.source_offset = at, .target_offset = offset - base, .size_bytes = sizes[i]});
  }
  writes.resize(writes.size() + rng.below(5), ListedWrite{.size_bytes = 1});
  auto list = process.engine->make_write_list(writes);
  if (!list) {
    coverage_.add("refusal", to_string(list.error().code));
    return refused(process, op, list.error());
  }
  coverage_.add("prepared", "write list");
  if (rng.chance(0.5)) process.write_lists.push_back(*list);
  submit(process, std::move(op),
         ListedWrites{.list = *list,
                      .first = before,
                      .count = count,
                      .source = source.ref,
                      .target = region.at(base),
                      .imm = model == nullptr ? CounterKey{} : model->key,
                      .priority = static_cast<Priority>(rng.below(3)),
                      .timeout = timeout},
         rng);
}

}  // namespace fabric::swarm
