#include <algorithm>
#include <cerrno>

#include "providers/verbs/handles.h"

// Opening and connecting paths, and the pools of queue pairs that they are taken from.

namespace fabric::verbs {

std::shared_ptr<CompletionQueue> VerbsRail::find_queue(uint32_t cqes) const {
  const auto found = std::find_if(queues_.begin(), queues_.end(), [&](const auto& one) {
    return !one->overrun && one->size - one->reserved >= cqes;
  });
  return found == queues_.end() ? nullptr : *found;
}

/// Starts jobs that make the missing queue pairs. A queue pair reserves CQEs for everything it can
/// have outstanding; when no completion queue has that many free, the job creates one more.
void VerbsRail::fill_pool(Direction direction) {
  QpPool& pool = qp_pools_[static_cast<size_t>(direction)];
  const uint32_t cqes = QueuePair::cqes(direction, device_->options());
  while (pool.ready.size() + pool.pending < QpPool::kSize + pool.expected) {
    auto queue = find_queue(cqes);
    if (queue == nullptr && pool.pending != 0) return;  // a pending job may create a queue
    if (queue != nullptr) queue->reserved += cqes;
    ++pool.pending;
    offload([queue, cqes, direction, device = device_, results = job_results_] {
      JobResult result{.kind = JobResult::Kind::kQpMade, .direction = direction, .queue = queue};
      if (queue == nullptr) {
        if (auto made = CompletionQueue::make(device, cqes)) result.queue = *std::move(made);
        if (result.queue != nullptr) result.queue->reserved = cqes;
      }
      if (result.queue != nullptr) {
        if (auto made = QueuePair::make(result.queue, direction)) result.qp = *std::move(made);
      }
      results->put(std::move(result));
    });
  }
}

void VerbsRail::qp_made(const JobResult& result) {
  QpPool& pool = qp_pools_[static_cast<size_t>(result.direction)];
  --pool.pending;
  if (result.queue == nullptr) return;
  const bool known = std::find(queues_.begin(), queues_.end(), result.queue) != queues_.end();
  if (!known) queues_.push_back(result.queue);
  if (result.qp != nullptr) {
    pool.ready.push_back(result.qp);
    if (result.queue->overrun) drop_overrun_qps();
  } else {
    // take_qp() tries again when a path needs one, and returns the error.
    result.queue->reserved -= QueuePair::cqes(result.direction, device_->options());
  }
}

/// Drops pooled queue pairs whose completion queue overran: their completions would be lost.
void VerbsRail::drop_overrun_qps() {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    auto& ready = qp_pools_[static_cast<size_t>(direction)].ready;
    const auto gone = std::stable_partition(ready.begin(), ready.end(),
                                            [](const auto& qp) { return !qp->queue()->overrun; });
    for (auto it = gone; it != ready.end(); ++it) release(*it, direction);
    ready.erase(gone, ready.end());
  }
}

void VerbsRail::expect_peer(bool comes) {
  for (const Direction direction : {Direction::kOut, Direction::kIn}) {
    QpPool& pool = qp_pools_[static_cast<size_t>(direction)];
    if (comes && pool.expected < QpPool::kExpectedMax) ++pool.expected;
    if (!comes && pool.expected > 0) --pool.expected;
    fill_pool(direction);
  }
}

/// Takes one from the pool. When more paths are opened at once than links announced peers, the pool
/// is empty, and this call waits for the kernel inside the turn.
Result<std::shared_ptr<QueuePair>> VerbsRail::take_qp(Direction direction) {
  QpPool& pool = qp_pools_[static_cast<size_t>(direction)];
  if (pool.expected != 0) --pool.expected;
  if (!pool.ready.empty()) {
    auto qp = std::move(pool.ready.back());
    pool.ready.pop_back();
    fill_pool(direction);
    return qp;
  }
  const uint32_t cqes = QueuePair::cqes(direction, device_->options());
  auto queue = find_queue(cqes);
  if (queue == nullptr) {
    auto made = CompletionQueue::make(device_, cqes);
    if (!made) return made.error();
    queue = queues_.emplace_back(*std::move(made));
  }
  auto qp = QueuePair::make(queue, direction);
  if (qp) queue->reserved += cqes;
  fill_pool(direction);  // also replaces one whose job failed
  return qp;
}

Endpoint VerbsRail::local_endpoint(const QueuePair& qp, uint64_t nonce, uint32_t psn) const {
  const ibv_port_attr& port = device_->state().attributes;
  const bool ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
  return {.nonce = nonce,
          .queue_pair = qp.number(),
          .psn = psn,
          .gid = device_->gid().bytes,
          .lid = port.lid,
          .mtu = device_->mtu(),
          .grh = ethernet || device_->options().gid_index >= 0};
}

/// Offloads the two ibv_modify_qp() calls. Addresses that did not resolve the last time have an
/// offload queue of their own.
void VerbsRail::connect_later(const std::shared_ptr<QueuePair>& qp, Direction direction,
                              uint32_t path, const LocalEnd& local, const Endpoint& remote_end,
                              uint32_t psn) {
  const auto connect = [qp, results = job_results_, direction, path, local, remote_end, psn] {
    JobResult result{.kind = JobResult::Kind::kConnected,
                     .direction = direction,
                     .path = path,
                     .remote_gid = remote_end.gid};
    result.error = qp->connect(local, remote_end, psn);
    results->put(std::move(result));
  };
  offload(connect, unresolved_.contains(remote_end.gid) ? OffloadQueue::kConnectUnresolved
                                                        : OffloadQueue::kConnect);
}

Result<uint32_t> VerbsRail::open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                      std::vector<std::byte>& hello) {
  const auto address = decode_address(peer);
  if (!address) return address.error();
  if (remote_rail >= address->rails) return fail(Errc::kInvalidArgument, "remote_rail");
  auto qp = take_qp(Direction::kOut);
  if (!qp) return qp.error();
  OutPath* path = out_.add();
  if (path == nullptr) {
    release(*qp, Direction::kOut);
    return fail(Errc::kExhausted, "verbs: paths");
  }
  const uint32_t depth = device_->options().send_depth;
  path->mask = std::bit_ceil(depth) - 1;
  path->cookies = std::make_unique<uint32_t[]>(path->mask + 1);
  path->qp = *std::move(qp);
  path->nonce = driver_.entropy() | 1;
  path->psn = static_cast<uint32_t>(driver_.entropy()) & kQpnPsnMax;
  path->local = device_->local_end();
  hello = encode(PathHello{.from = instance_,
                           .to = address->instance,
                           .to_rail = static_cast<uint8_t>(remote_rail),
                           .end = local_endpoint(*path->qp, path->nonce, path->psn)});
  return path->id;
}

Result<uint32_t> VerbsRail::accept_path(std::span<const std::byte> bytes,
                                        std::vector<std::byte>& answer) {
  const auto hello = decode_hello(bytes);
  if (!hello) return hello.error();
  if (hello->to != instance_ || hello->to_rail != index_) {
    return fail(Errc::kBadFormat, "verbs: hello");
  }
  const std::pair name(hello->from, hello->end.nonce);
  if (const auto known = accepted_.find(name); known != accepted_.end()) {
    // That path was reported down already: accepting the repeated hello would leave the core with a
    // path that never goes down.
    if (in_.find(known->second.path) == nullptr) return fail(Errc::kClosed, "verbs: hello");
    answer = known->second.answer;
    return known->second.path;
  }
  auto qp = take_qp(Direction::kIn);
  if (!qp) return qp.error();
  InPath* path = in_.add();
  if (path == nullptr) {
    release(*qp, Direction::kIn);
    return fail(Errc::kExhausted, "verbs: paths");
  }
  path->qp = *std::move(qp);
  path->hello = name;
  if (!refill(*path)) {
    release(path->qp, Direction::kIn);
    in_.erase(path->id);
    return fail(Errc::kExhausted, "ibv_post_recv");
  }
  const uint64_t nonce = driver_.entropy() | 1;
  const uint32_t psn = static_cast<uint32_t>(driver_.entropy()) & kQpnPsnMax;
  answer = encode(
      PathAnswer{.hello_nonce = hello->end.nonce, .end = local_endpoint(*path->qp, nonce, psn)});
  accepted_[name] = {path->id, answer};
  // The sender may get the answer before this job has run. Its first packets are then dropped, and
  // its NIC retransmits them.
  path->connecting = true;
  connect_later(path->qp, Direction::kIn, path->id, device_->local_end(), hello->end, psn);
  return path->id;
}

Result<void> VerbsRail::start_path(uint32_t id, std::span<const std::byte> bytes) {
  OutPath* path = out_.find(id);
  if (path == nullptr) return fail(Errc::kNotFound, "path");
  const auto answer = decode_answer(bytes);
  if (!answer) return answer.error();
  if (answer->hello_nonce != path->nonce) return fail(Errc::kBadFormat, "verbs: answer");
  switch (path->state) {
    case OutPath::State::kOpened:
      break;
    case OutPath::State::kStarting:
    case OutPath::State::kReady:
      if (path->remote_end == answer->end) return {};
      return fail(Errc::kBadFormat, "verbs: another answer");
    default:
      return fail(Errc::kClosed, "path");
  }
  path->remote_end = answer->end;
  path->state = OutPath::State::kStarting;
  path->deadline_ns = driver_.now_ns() + kConnectNs + timed_paths_ * kConnectEachNs;
  ++timed_paths_;
  path->connecting = true;
  connect_later(path->qp, Direction::kOut, id, path->local, path->remote_end, path->psn);
  return {};
}

void VerbsRail::note_resolution(const GidBytes& remote, int error) {
  constexpr size_t kUnresolvedMax = 1024;
  if (error == 0) {
    unresolved_.erase(remote);
  } else if (error != ECANCELED && unresolved_.size() < kUnresolvedMax) {
    unresolved_.insert(remote);
  }
}

/// The connect job returned.
void VerbsRail::connected(OutPath& path, int error) {
  path.connecting = false;
  if (error != 0) return tear_down(path);
  path.state = OutPath::State::kReady;
  path.deadline_ns = kNeverNs;
  --timed_paths_;
  const std::vector<WriteOp> held = std::exchange(path.held, {});
  post(held);  // all fit: post() held at most send_depth of them
}

/// The connect job returned. A teardown that was started before goes on now.
void VerbsRail::connected(InPath& path, int error) {
  path.connecting = false;
  if (path.state == InPath::State::kBreaking) {
    return move_to_error_later(path.qp, Direction::kIn, path.id);
  }
  if (error != 0) tear_down(path);
}

void VerbsRail::close_path(uint32_t id, bool inbound) noexcept {
  if (inbound) {
    if (InPath* path = in_.find(id)) tear_down(*path);
  } else {
    if (OutPath* path = out_.find(id)) tear_down(*path);
  }
}

}  // namespace fabric::verbs
