#include <algorithm>
#include <utility>

#include "providers/verbs/handles.h"

// Tearing down a path: error state, drain, report (kPathDown). Exact failover depends on this order
// (docs/design/0013-verbs.md).

namespace fabric::verbs {

namespace {
constexpr int64_t kDrainNs = 2'000'000'000;  // a hundred times the slowest drain that was measured
// Limit of reaching the error state: that job may be queued after others that block in the kernel.
constexpr int64_t kErrorNs = 30'000'000'000;
constexpr size_t kClosedHellosMax = 1024;
}  // namespace

void JobResults::put(JobResult result) noexcept {
  const std::lock_guard lock(mutex_);
  if (!wake_) return;
  results_.push_back(std::move(result));
  has_results_.store(true, std::memory_order_release);  // pairs with empty()
  wake_();
}

std::vector<JobResult> JobResults::take() {
  const std::lock_guard lock(mutex_);
  has_results_.store(false, std::memory_order_relaxed);  // the mutex orders it
  return std::exchange(results_, {});
}

void JobResults::close() noexcept {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

void VerbsRail::move_to_error_later(const std::shared_ptr<QueuePair>& qp, Direction direction,
                                    uint32_t path) {
  offload([qp, results = job_results_, direction, path] {
    const int error = qp->to_error();
    results->put({JobResult::Kind::kInError, direction, error, path});
  });
}

void VerbsRail::destroy_later(const std::shared_ptr<QueuePair>& qp, Direction direction,
                              uint32_t path) {
  offload([qp, results = job_results_, direction, path] {
    qp->destroy();
    results->put({JobResult::Kind::kDestroyed, direction, 0, path});
  });
}

/// Destroys a queue pair that has nothing outstanding, and frees its CQEs.
void VerbsRail::release(std::shared_ptr<QueuePair>& qp, Direction direction) noexcept {
  qp->queue()->reserved -= QueuePair::cqes(direction, device_->options());
  offload([gone = std::exchange(qp, nullptr)] { gone->destroy(); });
}

// ---- Error state --------------------------------------------------------------------------------

void VerbsRail::tear_down(OutPath& path) noexcept {
  if (path.state > OutPath::State::kReady) return;
  if (path.state == OutPath::State::kStarting) --timed_paths_;
  path.state = OutPath::State::kBreaking;
  path.deadline_ns = driver_.now_ns() + kErrorNs;
  ++timed_paths_;
  refuse(&path, std::exchange(path.held, {}), Errc::kRailLost);
  path.qp->abandon();
  if (path.connecting) return finish(path, true);  // nothing was ever posted on it
  move_to_error_later(path.qp, Direction::kOut, path.id);
}

/// Leaving kReady also stops refill(): a receive that is posted after the error state is never
/// flushed.
void VerbsRail::tear_down(InPath& path) noexcept {
  if (path.state != InPath::State::kReady) return;
  path.state = InPath::State::kBreaking;
  path.deadline_ns = driver_.now_ns() + kErrorNs;
  ++timed_paths_;
  path.qp->abandon();
  if (!path.connecting) move_to_error_later(path.qp, Direction::kIn, path.id);
}

// ---- Drains -------------------------------------------------------------------------------------

void VerbsRail::take_job_results() noexcept {
  for (const JobResult& result : job_results_->take()) {
    if (result.kind == JobResult::Kind::kFenced) {
      events_.push_back({.kind = RailEvent::Kind::kFenced, .cookie = result.cookie});
      continue;
    }
    if (result.kind == JobResult::Kind::kQpMade) {
      qp_made(result);
      continue;
    }
    if (result.kind == JobResult::Kind::kPortQueried) {
      port_queried(result);
      continue;
    }
    if (result.kind == JobResult::Kind::kConnected)
      note_resolution(result.remote_gid, result.error);
    if (result.direction == Direction::kOut) {
      if (const auto orphan = orphans_.find(result.path); orphan != orphans_.end()) {
        release(orphan->second, Direction::kOut);
        orphans_.erase(orphan);
        continue;
      }
      OutPath* path = out_.find(result.path);
      if (path == nullptr || path->state == OutPath::State::kDown) continue;
      if (result.kind == JobResult::Kind::kConnected) connected(*path, result.error);
      if (result.kind == JobResult::Kind::kInError) in_error_state(*path, result.error);
      if (result.kind == JobResult::Kind::kDestroyed) finish(*path, false);
      continue;
    }
    InPath* path = in_.find(result.path);
    if (path == nullptr || path->state == InPath::State::kDown) continue;
    if (result.kind == JobResult::Kind::kConnected) connected(*path, result.error);
    if (result.kind == JobResult::Kind::kInError) in_error_state(*path, result.error);
    if (result.kind == JobResult::Kind::kDestroyed) finish(*path, false);
  }
}

/// Unsignalled requests that were acknowledged never complete, so counting cannot tell when the
/// drain is done. A marker that is posted after the error state is flushed after all of them.
void VerbsRail::in_error_state(OutPath& path, int error) noexcept {
  if (path.destroying) return;
  if (error != 0) {  // the kernel refused the error state: nothing will be flushed
    path.deadline_ns = std::min(path.deadline_ns, driver_.now_ns() + kLastPollsNs);
    return;
  }
  if (!path.sends.has_unreported()) return finish(path, true);
  path.deadline_ns = std::min(path.deadline_ns, driver_.now_ns() + kDrainNs);
  if (!post_marker(path)) path.deadline_ns = INT64_MIN;
}

void VerbsRail::in_error_state(InPath& path, int error) noexcept {
  path.in_error = error == 0;
  const int64_t limit_ns = error == 0 ? kDrainNs : kLastPollsNs;
  path.deadline_ns = std::min(path.deadline_ns, driver_.now_ns() + limit_ns);
  check_drain(path);
}

void VerbsRail::check_drain(InPath& path) noexcept {
  if (!path.in_error || path.destroying || path.state != InPath::State::kBreaking) return;
  switch (path.receives.drain()) {
    case ReceiveTracker::Drain::kWait:
      return;
    case ReceiveTracker::Drain::kDone:
      return finish(path, true);
    case ReceiveTracker::Drain::kNeedsMarker:
      break;
  }
  ibv_recv_wr marker{};
  ibv_recv_wr* bad = nullptr;
  marker.wr_id = receive_id(path.id);
  if (ibv_post_recv(path.qp->get(), &marker, &bad) != 0) {
    path.deadline_ns = INT64_MIN;
    return;
  }
  path.receives.post(1);
  path.in_error = false;
  move_to_error_later(path.qp, Direction::kIn, path.id);
}

/// Enforces two timeouts. A connect that has not completed is abandoned, so that traffic can use
/// another rail. A drain that has not completed is abandoned by destroying the queue pair:
/// afterwards the NIC accesses no memory through it, but which writes landed is unknown.
void VerbsRail::check_deadlines() noexcept {
  const int64_t now_ns = driver_.now_ns();
  const auto due = [&](const auto& path) {
    return path.deadline_ns <= now_ns && !path.destroying && !path.connecting;
  };
  out_.each([&](OutPath& path) {
    if (path.state == OutPath::State::kStarting && path.deadline_ns <= now_ns) {
      return tear_down(path);
    }
    if (path.state != OutPath::State::kBreaking || !due(path)) return;
    path.destroying = true;
    ++drains_abandoned_;
    destroy_later(path.qp, Direction::kOut, path.id);
  });
  in_.each([&](InPath& path) {
    if (path.state != InPath::State::kBreaking || !due(path)) return;
    path.destroying = true;
    ++drains_abandoned_;
    destroy_later(path.qp, Direction::kIn, path.id);
  });
}

// ---- Reports ------------------------------------------------------------------------------------

void VerbsRail::finish(OutPath& path, bool proved) noexcept {
  path.state = OutPath::State::kDown;
  --timed_paths_;
  RailEvent written{.kind = RailEvent::Kind::kCompletion, .path = path.id};
  while (path.sends.has_delivered()) {
    written.cookie = path.cookies[path.sends.report_delivered() & path.mask];
    events_.push_back(written);
  }
  while (path.sends.has_unreported()) {
    const uint32_t number = path.sends.report_lost();
    const bool first_failed = number == path.first_failed;
    written.cookie = path.cookies[number & path.mask];
    written.code = first_failed ? path.code : Errc::kRailLost;
    written.remote = first_failed ? path.remote : proved ? path.remote_after : Remote::kUnknown;
    events_.push_back(written);
  }
  events_.push_back({.kind = RailEvent::Kind::kPathDown, .code = Errc::kRailLost, .path = path.id});
  if (path.connecting) {
    orphans_[path.id] = std::move(path.qp);
  } else {
    release(path.qp, Direction::kOut);
  }
}

void VerbsRail::finish(InPath& path, bool proved) noexcept {
  path.state = InPath::State::kDown;
  --timed_paths_;
  events_.push_back({.kind = RailEvent::Kind::kPathDown,
                     .code = Errc::kRailLost,
                     .remote = proved ? Remote::kDelivered : Remote::kUnknown,
                     .inbound = 1,
                     .path = path.id,
                     .value = path.taken});
  release(path.qp, Direction::kIn);
}

/// The engine has the kPathDown event. An inbound path's hello may be repeated by its sender, so it
/// is remembered as closed for a while.
void VerbsRail::forget(const RailEvent& down) {
  if (down.inbound == 0) return out_.erase(down.path);
  const InPath* path = in_.find(down.path);
  if (path == nullptr) return;
  closed_hellos_.push_back(path->hello);
  in_.erase(down.path);
  if (closed_hellos_.size() <= kClosedHellosMax) return;
  accepted_.erase(closed_hellos_.front());
  closed_hellos_.pop_front();
}

}  // namespace fabric::verbs
