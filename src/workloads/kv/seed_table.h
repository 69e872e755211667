#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include <fabric/kv_directory.h>
#include <fabric/types.h>

#include "workloads/kv/directory_messages.h"

namespace fabric::kv {

/// What a watcher has of a seed's view: all changes up to `revision`. The view that it started with
/// was sent by the revisions of the members, so a first part of it has a low one; but nothing that
/// left before `removals_after` was in it.
struct WatchPosition {
  uint64_t revision = 0;  ///< 0: nothing
  uint64_t removals_after = 0;
};

/// The members that have announced themselves to a seed, and the order of their changes. Every
/// change has a revision of its own, so that what a watcher has is two numbers
/// (WatchPosition), and the seed keeps no copy of it.
///
/// Pure: no engine, no time.
class SeedTable {
 public:
  explicit SeedTable(uint32_t members_max) : members_max_(members_max) {}

  /// `session` is where the announcement came from; none for the seed's own.
  ///
  /// Fails with kExhausted (members_max), kPeerLost (a later incarnation is listed).
  Result<void> put(const Member& member, PeerId session);
  /// The session has ended, or its member leaves. True when it was listed.
  bool remove(PeerId session);

  uint64_t revision() const noexcept { return revision_; }
  uint32_t size() const noexcept { return static_cast<uint32_t>(members_.size()); }
  template <class Function>
  void each(Function function) const {
    for (const auto& [engine_id, one] : members_) function(one.member);
  }

  /// The changes after `position`, in order, as many as fit into `bytes_max` with the message's
  /// header. Starts over, and sets the position back, when the removals since then are no longer
  /// known. `unsent` counts members that never fit.
  ViewMessage after(WatchPosition& position, size_t bytes_max, uint64_t& unsent) const;

 private:
  struct Listed {
    Member member{};
    PeerId session{};
    uint64_t changed = 0;  ///< its revision
  };
  void touch(Listed& one);

  const uint32_t members_max_;
  uint64_t revision_ = 1;  // 0 is what a watcher has before its first view
  std::map<uint64_t, Listed> members_;
  std::map<uint64_t, uint64_t> by_revision_;            ///< revision -> engine_id
  std::deque<std::pair<uint64_t, uint64_t>> removals_;  ///< the latest, (revision, engine_id)
  uint64_t removals_known_after_ = 0;
};

}  // namespace fabric::kv
