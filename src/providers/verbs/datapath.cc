#include <arpa/inet.h>

#include <algorithm>

#include "base/check.h"
#include "providers/verbs/handles.h"

// post() and poll(). Work requests are filled into templates and posted in chains; completions are
// polled in batches, and a successful one also completes the unsignalled requests before it.

namespace fabric::verbs {

namespace {

constexpr uint64_t send_id(uint32_t path, uint32_t number) noexcept {
  return uint64_t{path} << 32 | number;
}
constexpr uint32_t path_of(uint64_t id) noexcept {
  return static_cast<uint32_t>(id >> 32) & 0x7fffffffu;
}
constexpr bool is_receive(uint64_t id) noexcept { return id >> 63 != 0; }

}  // namespace

uint32_t VerbsRail::post(std::span<const WriteOp> ops) noexcept {
  size_t done = 0;
  while (done < ops.size()) {
    const auto rest = ops.subspan(done);
    OutPath* path = out_.find(rest[0].path);
    if (path != nullptr && path->state == OutPath::State::kReady) [[likely]] {
      const uint32_t taken = post_chain(*path, rest);
      if (taken == 0) break;
      done += taken;
      continue;
    }
    if (path != nullptr && path->state == OutPath::State::kStarting) {
      if (path->held.size() == device_->options().send_depth) break;
      path->held.push_back(rest[0]);
    } else {
      refuse(path, rest.first(1), Errc::kRailLost);
    }
    ++done;
  }
  return static_cast<uint32_t>(done);
}

/// Takes writes that cannot be posted: poll() reports them as not delivered.
void VerbsRail::refuse(OutPath* path, std::span<const WriteOp> ops, Errc code) noexcept {
  for (const WriteOp& op : ops) {
    if (path != nullptr) ++path->owed;
    events_.push_back({.kind = RailEvent::Kind::kCompletion,
                       .code = code,
                       .remote = Remote::kNotDelivered,
                       .inbound = kOwed,
                       .cookie = op.cookie,
                       .path = op.path});
  }
}

/// Posts the next writes of one path with one doorbell. Returns how many were taken; writes that
/// the device refused are among them, and are refused here too.
uint32_t VerbsRail::post_chain(OutPath& path, std::span<const WriteOp> ops) noexcept {
  const uint64_t bytes_max = caps_.write_bytes_max;
  if (ops[0].size_bytes > bytes_max) [[unlikely]] {
    refuse(&path, ops.first(1), Errc::kTooLarge);
    return 1;
  }
  const uint32_t room = device_->options().send_depth - path.sends.outstanding();
  const auto most =
      static_cast<uint32_t>(std::min<size_t>({ops.size(), room, static_cast<size_t>(kChain)}));
  const uint64_t inline_max = path.qp->inline_bytes();
  const uint32_t id = path.id, mask = path.mask;
  const uint64_t* const shifts = shifts_.get();
  uint32_t* const cookies = path.cookies.get();
  uint64_t name = send_id(id, path.sends.next());
  uint32_t count = 0;
  for (; count < most; ++count) {
    const WriteOp& op = ops[count];
    if (op.path != id || op.size_bytes > bytes_max) break;
    ibv_send_wr& request = sends_[count];
    ibv_sge& source = sources_[count];
    source.length = static_cast<uint32_t>(op.size_bytes);
    source.lkey = static_cast<uint32_t>(op.lkey);
    request.num_sge = op.size_bytes != 0;
    request.wr_id = name;
    cookies[name & mask] = op.cookie;
    // Only the lower half counts up; it wraps.
    name = (name & ~uint64_t{UINT32_MAX}) | static_cast<uint32_t>(name + 1);
    static_assert(IBV_WR_RDMA_WRITE == 0 && IBV_WR_RDMA_WRITE_WITH_IMM == 1);
    request.opcode = static_cast<ibv_wr_opcode>(op.has_imm);
    request.imm_data = htonl(op.imm);
    request.wr.rdma.remote_addr = op.target + (op.rkey >> 32);
    request.wr.rdma.rkey = static_cast<uint32_t>(op.rkey);
    // Inline bytes are read by the CPU, so their address is virtual; the device wants an IOVA.
    if (op.size_bytes - 1 < inline_max && is_readable(op.lkey)) {
      source.addr = op.source;
      request.send_flags = IBV_SEND_INLINE;
    } else {
      source.addr = op.source - shifts[memory_slot(op.lkey)];
      request.send_flags = 0;
    }
  }
  if (count == 0) return 0;
  ibv_send_wr& last = sends_[count - 1];
  last.send_flags |= IBV_SEND_SIGNALED;
  if (count > kSignalEvery) sends_[kSignalEvery - 1].send_flags |= IBV_SEND_SIGNALED;
  path.sends.post(count);
  ibv_send_wr* const next = std::exchange(last.next, nullptr);
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(path.qp->get(), sends_.data(), &bad);
  last.next = next;
  if (error != 0) [[unlikely]] {
    // A driver that does not set `bad` may have posted all of them.
    const uint32_t good = bad == nullptr ? count : static_cast<uint32_t>(bad - sends_.data());
    path.sends.unpost(count - good);
    refuse(&path, ops.subspan(good, count - good), Errc::kRailLost);
    tear_down(path);
  }
  return count;
}

/// Posted after the error state: when it is flushed, every request before it has completed.
bool VerbsRail::post_marker(OutPath& path) noexcept {
  ibv_send_wr marker{};
  ibv_send_wr* bad = nullptr;
  marker.wr_id = send_id(path.id, path.sends.next());
  marker.opcode = IBV_WR_RDMA_WRITE;
  marker.send_flags = IBV_SEND_SIGNALED;
  return ibv_post_send(path.qp->get(), &marker, &bad) == 0;
}

/// Refills the receive queue, in one chain.
bool VerbsRail::refill(InPath& path) noexcept {
  const uint32_t count = device_->options().receive_depth - path.receives.outstanding();
  if (count == 0) return true;
  for (uint32_t i = 0; i < count; ++i) receives_[i].wr_id = receive_id(path.id);
  ibv_recv_wr* const next = std::exchange(receives_[count - 1].next, nullptr);
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(path.qp->get(), receives_.data(), &bad);
  receives_[count - 1].next = next;
  // When a driver does not set `bad`, all count as posted. The drain then ends by its timeout,
  // which is better than ending it too early.
  const bool all = error == 0 || bad == nullptr;
  path.receives.post(all ? count : static_cast<uint32_t>(bad - receives_.data()));
  return error == 0;
}

// ---- Polling ------------------------------------------------------------------------------------

uint32_t VerbsRail::poll(std::span<RailEvent> out) noexcept {
  if (!job_results_->empty()) [[unlikely]]
    take_job_results();
  if (check_events_ || ++polls_ % kPollsPerEventCheck == 0) poll_async_events();
  if (timed_paths_ != 0) [[unlikely]]
    check_deadlines();
  uint32_t n = 0;
  if (!events_.empty()) [[unlikely]]
    n = report_events(out);
  if (!delivering_.empty()) n += report_deliveries(out.subspan(n));
  n += poll_queues(out.subspan(n));
  // Events of teardowns that poll_queues() started.
  if (!events_.empty()) [[unlikely]]
    n += report_events(out.subspan(n));
  return n;
}

uint32_t VerbsRail::report_events(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  while (n < out.size() && !events_.empty()) {
    RailEvent event = events_.front();
    events_.pop_front();
    if (event.kind == RailEvent::Kind::kCompletion && event.inbound == kOwed) {
      event.inbound = 0;
      if (OutPath* path = out_.find(event.path)) --path->owed;
    }
    if (event.kind == RailEvent::Kind::kPathDown) {
      // The engine may have posted more writes before it saw this event: report those first.
      const OutPath* path = event.inbound != 0 ? nullptr : out_.find(event.path);
      if (path != nullptr && path->owed != 0) {
        events_.push_back(event);
        continue;
      }
      forget(event);
    }
    out[n++] = event;
  }
  return n;
}

uint32_t VerbsRail::report_deliveries(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  while (!delivering_.empty()) {
    OutPath* path = out_.find(delivering_.back());
    // finish() has reported everything of a path that is down.
    if (path != nullptr && path->state != OutPath::State::kDown) {
      while (path->sends.has_delivered()) {
        if (n == out.size()) return n;
        const uint32_t cookie = path->cookies[path->sends.report_delivered() & path->mask];
        uint32_t more = 0;  // the writes of one post batch have consecutive cookies
        while (path->sends.has_delivered() &&
               path->cookies[path->sends.next_to_report() & path->mask] == cookie + more + 1) {
          path->sends.report_delivered();
          ++more;
        }
        out[n++] = {.kind = RailEvent::Kind::kCompletion,
                    .cookie = cookie,
                    .path = path->id,
                    .value = more};
      }
      path->is_delivering = false;
    }
    delivering_.pop_back();
  }
  return n;
}

uint32_t VerbsRail::poll_queues(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  if (!polled_early_.empty()) {
    const size_t count = std::min(polled_early_.size(), out.size());
    n += take(std::span(polled_early_).first(count), out);
    polled_early_.erase(polled_early_.begin(),
                        polled_early_.begin() + static_cast<std::ptrdiff_t>(count));
    n += report_deliveries(out.subspan(n));
    if (!polled_early_.empty()) return n;
  }
  std::array<ibv_wc, kPollBatch> completions;
  for (const auto& queue : queues_) {
    for (;;) {
      const auto room = static_cast<int>(std::min<size_t>(kPollBatch, out.size() - n));
      if (room == 0) return n;
      const int got = ibv_poll_cq(queue->cq, room, completions.data());
      if (got <= 0) break;
      n += take(std::span(completions).first(static_cast<size_t>(got)), out.subspan(n));
      if (!delivering_.empty()) n += report_deliveries(out.subspan(n));
      if (got < room) break;
    }
  }
  return n;
}

/// Writes at most one event per completion: `out` has room for them.
uint32_t VerbsRail::take(std::span<const ibv_wc> completions, std::span<RailEvent> out) noexcept {
  const uint32_t low = device_->options().receive_depth / 2;
  uint32_t n = 0;
  InPath* in = nullptr;  // of the previous completion: often the same
  for (const ibv_wc& completion : completions) {
    const uint32_t id = path_of(completion.wr_id);
    if (is_receive(completion.wr_id)) {
      if (in == nullptr || in->id != id) in = in_.find(id);
      if (in == nullptr || in->state == InPath::State::kDown) continue;  // an abandoned drain
      if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
        receive_failed(*in);
        continue;
      }
      in->receives.succeed();
      if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) [[unlikely]] {
        tear_down(*in);  // no sender of ours posts anything else
      } else {
        ++in->taken;
        out[n++] = {.kind = RailEvent::Kind::kImm, .imm = ntohl(completion.imm_data), .path = id};
      }
      if (in->receives.outstanding() > low && in->state == InPath::State::kReady) [[likely]] {
        continue;
      }
      if (in->state != InPath::State::kReady) {
        check_drain(*in);
      } else if (!refill(*in)) {
        tear_down(*in);
      }
      continue;
    }
    OutPath* path = out_.find(id);
    if (path == nullptr || path->state == OutPath::State::kDown) continue;
    if (completion.status != IBV_WC_SUCCESS) [[unlikely]] {
      send_failed(*path, completion);
      continue;
    }
    path->sends.succeed(static_cast<uint32_t>(completion.wr_id));
    if (!path->is_delivering) {
      path->is_delivering = true;
      delivering_.push_back(id);
    }
  }
  return n;
}

void VerbsRail::receive_failed(InPath& path) noexcept {
  path.receives.fail();
  tear_down(path);
  check_drain(path);
}

void VerbsRail::send_failed(OutPath& path, const ibv_wc& completion) noexcept {
  const auto number = static_cast<uint32_t>(completion.wr_id);
  const bool marker = path.state == OutPath::State::kBreaking && number == path.sends.next();
  if (path.sends.fail(number, completion.status == IBV_WC_REM_ACCESS_ERR)) {
    path.first_failed = number;
    switch (completion.status) {
      case IBV_WC_REM_ACCESS_ERR:
        // The far end went into the error state by itself, so no later request lands either.
        path.code = Errc::kRemoteAccess;
        path.remote = path.remote_after = Remote::kNotDelivered;
        break;
      case IBV_WC_LOC_PROT_ERR:
        path.code = Errc::kNotFound;  // kUnknown: some of its packets may have been sent
        break;
      default:
        break;
    }
  }
  tear_down(path);
  if (marker) finish(path, true);
}

// ---- Sleeping -----------------------------------------------------------------------------------

bool VerbsRail::arm() noexcept {
  check_events_ = true;
  if (!job_results_->empty() || !events_.empty() || !delivering_.empty() || !polled_early_.empty())
    return false;
  const Library& lib = library();
  ibv_cq* cq = nullptr;
  void* owner = nullptr;
  while (lib.get_cq_event(device_->channel(), &cq, &owner) == 0) {
    static_cast<CompletionQueue*>(owner)->armed = false;
    lib.ack_cq_events(cq, 1);  // from here on the queue may be destroyed
  }
  for (const auto& queue : queues_) {
    if (!std::exchange(queue->armed, true)) ibv_req_notify_cq(queue->cq, 0);
  }
  // Completions that arrived before ibv_req_notify_cq() raised no event.
  std::array<ibv_wc, kPollBatch> completions;
  for (const auto& queue : queues_) {
    const int got = ibv_poll_cq(queue->cq, kPollBatch, completions.data());
    if (got > 0)
      polled_early_.insert(polled_early_.end(), completions.begin(), completions.begin() + got);
  }
  return polled_early_.empty();
}

}  // namespace fabric::verbs
