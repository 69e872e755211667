#include "core/write_list.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/core.h"

// Prepared write lists: making and destroying them. Operations take them in submit_lists.cc.

namespace fabric::core {

WriteEnds WriteEnds::of(std::span<const ListedWrite> writes) noexcept {
  WriteEnds ends;
  for (const ListedWrite& write : writes) {
    ends.source = std::max(ends.source, write.source_offset + write.size_bytes);
    ends.target = std::max(ends.target, write.target_offset + write.size_bytes);
  }
  return ends;
}

Result<WriteEntries> WriteEntries::copy(std::span<const ListedWrite> writes) {
  if (writes.empty()) return fail(Errc::kInvalidArgument, "writes");
  if (writes.size() > UINT32_MAX) return fail(Errc::kTooLarge, "writes");
  WriteEntries out;
  for (const ListedWrite& write : writes) {
    const uint64_t offset = std::max(write.source_offset, write.target_offset);
    if (write.size_bytes > UINT64_MAX - offset) return fail(Errc::kInvalidArgument, "writes");
    out.size_max = std::max(out.size_max, write.size_bytes);
  }
  out.writes.reset(new (std::nothrow) ListedWrite[writes.size()]);
  out.bytes_before.reset(new (std::nothrow) uint64_t[writes.size() + 1]);
  if (out.writes == nullptr || out.bytes_before == nullptr) {
    return fail(Errc::kExhausted, "memory");
  }
  std::copy(writes.begin(), writes.end(), out.writes.get());
  // The sums may wrap: only differences are used, of ranges that fit into a region each.
  uint64_t bytes = 0;
  for (size_t i = 0; i < writes.size(); ++i) {
    out.bytes_before[i] = bytes;
    bytes += writes[i].size_bytes;
  }
  out.bytes_before[writes.size()] = bytes;
  out.count = static_cast<uint32_t>(writes.size());
  out.ends = WriteEnds::of(writes);
  return out;
}

WriteListState::~WriteListState() {
  if (core == nullptr) return;
  if (core->forked()) {
    new (EngineCore::leaked(sizeof core)) std::shared_ptr<EngineCore>(std::move(core));
    return;
  }
  const StateGuard lock(core->state_mutex);
  core->write_lists.hide(*slot);
  core->write_lists.release(*slot);
}

Result<std::shared_ptr<const WriteListState>> EngineCore::add_write_list(
    std::span<const ListedWrite> writes) {
  auto entries = WriteEntries::copy(writes);
  if (!entries) return entries.error();
  auto state = std::make_shared<WriteListState>();
  state->size = entries->count;
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  WriteListSlot* const slot = write_lists.acquire();
  if (slot == nullptr) return fail(Errc::kExhausted, "write lists");
  slot->entries = *std::move(entries);
  state->slot = slot;
  state->id = WriteListId(slot->self, write_lists.publish(*slot));
  state->core = shared_from_this();
  return std::shared_ptr<const WriteListState>(std::move(state));
}

}  // namespace fabric::core

namespace fabric {

WriteList::WriteList(std::shared_ptr<const core::WriteListState> state) noexcept
    : state_(std::move(state)) {}
WriteListId WriteList::id() const noexcept {
  return state_ == nullptr ? WriteListId{} : state_->id;
}
uint32_t WriteList::size() const noexcept { return state_ == nullptr ? 0 : state_->size; }

Result<WriteList> Engine::make_write_list(std::span<const ListedWrite> writes) {
  if (core_ == nullptr || core_->refuses()) return fail(Errc::kClosed, "engine");
  auto state = core_->add_write_list(writes);
  if (!state) return state.error();
  return WriteList(*std::move(state));
}

}  // namespace fabric
