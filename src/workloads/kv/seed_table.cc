#include "workloads/kv/seed_table.h"

#include <algorithm>

#include "base/check.h"

namespace fabric::kv {

namespace {
// A watcher that is further behind gets the whole view, which costs about as much.
constexpr size_t kRemovalsMax = 4096;
}  // namespace

void SeedTable::touch(Listed& one) {
  by_revision_.erase(one.changed);
  one.changed = ++revision_;
  by_revision_[one.changed] = one.member.engine_id;
}

Result<void> SeedTable::put(const Member& member, PeerId session) {
  const auto found = members_.find(member.engine_id);
  if (found == members_.end()) {
    if (members_.size() >= members_max_) {
      return fail(Errc::kExhausted, "members_max", static_cast<int32_t>(members_max_));
    }
    touch(members_[member.engine_id] = Listed{member, session, 0});
    return {};
  }
  Listed& one = found->second;
  // The earlier incarnation's session has not ended yet, or its message was late.
  if (member.incarnation < one.member.incarnation) return fail(Errc::kPeerLost, "incarnation");
  one.session = session;
  if (one.member == member) return {};
  one.member = member;
  touch(one);
  return {};
}

bool SeedTable::remove(PeerId session) {
  const auto found = std::ranges::find_if(
      members_, [&](const auto& entry) { return entry.second.session == session; });
  if (found == members_.end()) return false;
  by_revision_.erase(found->second.changed);
  removals_.emplace_back(++revision_, found->first);
  members_.erase(found);
  if (removals_.size() > kRemovalsMax) {
    removals_known_after_ = removals_.front().first;
    removals_.pop_front();
  }
  return true;
}

ViewMessage SeedTable::after(WatchPosition& position, size_t bytes_max, uint64_t& unsent) const {
  uint64_t removed_after = std::max(position.revision, position.removals_after);
  if (position.revision == 0 || removed_after < removals_known_after_) {
    position = {.revision = 0, .removals_after = revision_};
    removed_after = revision_;
  }
  ViewMessage message{.from = position.revision, .upto = position.revision};
  size_t room = bytes_max - std::min(bytes_max, kViewHeaderBytes);
  auto changed = by_revision_.upper_bound(position.revision);
  auto removed =
      std::ranges::upper_bound(removals_, removed_after, {}, &std::pair<uint64_t, uint64_t>::first);
  while (changed != by_revision_.end() || removed != removals_.end()) {
    const bool leaves = changed == by_revision_.end() ||
                        (removed != removals_.end() && removed->first < changed->first);
    if (leaves) {
      if (room < kViewLeftBytes || message.left.size() == UINT16_MAX) return message;
      room -= kViewLeftBytes;
      message.left.push_back(removed->second);
      message.upto = removed->first;
      ++removed;
      continue;
    }
    const Member& member = members_.at(changed->second).member;
    const auto bytes = encode(member);
    FABRIC_CHECK(bytes.has_value());
    const size_t size = bytes->size() + kViewMemberBytes;
    if (size + kViewHeaderBytes > bytes_max) {
      ++unsent;
    } else if (size > room || message.members.size() == UINT16_MAX) {
      return message;
    } else {
      room -= size;
      message.members.push_back(member);
    }
    message.upto = changed->first;
    ++changed;
  }
  message.upto = revision_;
  message.last = true;
  return message;
}

}  // namespace fabric::kv
