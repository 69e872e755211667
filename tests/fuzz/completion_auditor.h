#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <fabric/notify.h>

#include "base/check.h"
#include "providers/sim/world.h"

namespace fabric::fuzz {

/// Who was promised a report, and by when.
///
/// Lifetime: outlives the engines that report to it.
class Ledger {
 public:
  explicit Ledger(const sim::World::Impl& world) : world_(world) {}
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// `submit(notify)` offers one operation that ends within `time` if it is accepted. `ended` hears
  /// how.
  template <class Submit>
  bool offer(Nanos time, Submit&& submit, std::function<void(const Event&)> ended = {}) {
    const uint64_t tag = entries_.size();
    entries_.push_back({.latest_ns = world_.wire.now_ns() + time.count()});
    entries_.back().ended = std::move(ended);
    const Result<OpId> op = submit(Notify::call<&Ledger::on>(this, tag));
    if (op) entries_[tag].op = *op;
    return op.has_value();
  }

  void on(const Event& event) {
    FABRIC_CHECK(event.kind == EventKind::kDone && event.tag < entries_.size());
    Entry& entry = entries_[event.tag];
    FABRIC_CHECK(entry.op, "reported, and was refused");
    FABRIC_CHECK(entry.op == event.op, "reported under the name of another");
    FABRIC_CHECK(++entry.reports == 1, "reported twice");
    FABRIC_CHECK(world_.wire.now_ns() <= entry.latest_ns, "reported too late");
    FABRIC_CHECK(event.code != Errc::kOk || event.remote == Remote::kDelivered);
    if (entry.ended) entry.ended(event);
  }

  void check_all_ended() const {
    for (const Entry& entry : entries_) {
      FABRIC_CHECK(!entry.op || entry.reports == 1, "never reported");
    }
  }

  /// The one offered so many before the last; a default one when it was refused.
  OpId recent(size_t back) const {
    return back < entries_.size() ? entries_[entries_.size() - 1 - back].op : OpId{};
  }

 private:
  struct Entry {
    OpId op{};
    int64_t latest_ns = 0;
    uint32_t reports = 0;
    std::function<void(const Event&)> ended{};
  };
  const sim::World::Impl& world_;
  std::vector<Entry> entries_;
};

}  // namespace fabric::fuzz
