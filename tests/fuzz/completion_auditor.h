#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <fabric/notify.h>

#include "base/check.h"
#include "providers/sim/world.h"

namespace fabric::fuzz {

/// Checks that every accepted operation is reported once, in time and under its own id.
///
/// Not test::WriteAuditor, which also knows the bytes and counts that a write leaves at its target:
/// here the peers lie, so only the report itself can be checked. And a fuzzer has no gtest: a
/// violation aborts.
///
/// Lifetime: outlives the engines that report to it.
class CompletionAuditor {
 public:
  explicit CompletionAuditor(const sim::World::Impl& world) : world_(world) {}
  CompletionAuditor(const CompletionAuditor&) = delete;
  CompletionAuditor& operator=(const CompletionAuditor&) = delete;

  /// `submit(notify)` offers one operation, which completes within `time` if it is accepted.
  template <class Submit>
  bool offer(Nanos time, Submit&& submit, std::function<void(const Event&)> on_completion = {}) {
    const uint64_t tag = promises_.size();
    promises_.push_back({.latest_ns = world_.wire.now_ns() + time.count()});
    promises_.back().on_completion = std::move(on_completion);
    const Result<OpId> op = submit(Notify::call<&CompletionAuditor::on>(this, tag));
    if (op) promises_[tag].op = *op;
    return op.has_value();
  }

  void on(const Event& event) {
    FABRIC_CHECK(event.kind == EventKind::kDone && event.tag < promises_.size());
    Promise& promise = promises_[event.tag];
    FABRIC_CHECK(promise.op, "an operation that was refused is reported");
    FABRIC_CHECK(promise.op == event.op, "reported with the id of another operation");
    FABRIC_CHECK(++promise.reports == 1, "reported twice");
    FABRIC_CHECK(world_.wire.now_ns() <= promise.latest_ns, "reported too late");
    FABRIC_CHECK(event.code != Errc::kOk || event.remote == Remote::kDelivered);
    if (promise.on_completion) promise.on_completion(event);
  }

  void check_all_reported() const {
    for (const Promise& promise : promises_) {
      FABRIC_CHECK(!promise.op || promise.reports == 1, "never reported");
    }
  }

  /// The operation that was offered `back` before the last; a default id when it was refused.
  OpId recent(size_t back) const {
    return back < promises_.size() ? promises_[promises_.size() - 1 - back].op : OpId{};
  }

 private:
  struct Promise {
    OpId op{};
    int64_t latest_ns = 0;
    uint32_t reports = 0;
    std::function<void(const Event&)> on_completion{};
  };
  const sim::World::Impl& world_;
  std::vector<Promise> promises_;
};

}  // namespace fabric::fuzz
