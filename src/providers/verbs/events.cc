#include <algorithm>

#include "providers/verbs/handles.h"

// Asynchronous events of the device (ibv_get_async_event).

namespace fabric::verbs {

void VerbsRail::poll_async_events() noexcept {
  constexpr uint32_t kEventsMax = 64;
  check_events_ = false;
  std::erase_if(queues_, [](const auto& queue) { return queue->overrun && queue->reserved == 0; });
  ibv_async_event event{};
  for (uint32_t i = 0; i < kEventsMax; ++i) {
    if (library().get_async_event(device_->context(), &event) != 0) return;
    on_event(event);
    // Until this call the event's queue pair exists: ibv_destroy_qp() waits for the ack.
    library().ack_async_event(&event);
  }
  check_events_ = true;
}

void VerbsRail::on_event(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == device_->port()) rail_state(false);
      return;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num != device_->port()) return;
      if (!fatal_.load(std::memory_order_relaxed)) rail_state(true);
      return query_port_later();  // the cable may lead to another switch now
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      if (event.element.port_num == device_->port()) query_port_later();
      return;
    case IBV_EVENT_DEVICE_FATAL:
      fatal_.store(true, std::memory_order_relaxed);
      rail_state(false);
      return tear_down_all(nullptr);
    case IBV_EVENT_CQ_ERR:
      return overrun(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return qp_failed(event.element.qp);
    default:
      return;
  }
}

/// Reports changes only: some devices raise the same event twice.
void VerbsRail::rail_state(bool up) noexcept {
  if (std::exchange(up_, up) == up) return;
  events_.push_back({.kind = up ? RailEvent::Kind::kRailUp : RailEvent::Kind::kRailDown,
                     .code = up ? Errc::kOk : Errc::kRailLost});
}

/// Open paths keep the attributes they were connected with; if those are wrong now, the paths break
/// and are replaced by paths with the new ones.
void VerbsRail::query_port_later() {
  port_query_again_ = std::exchange(port_query_pending_, true);
  if (port_query_again_) return;  // the pending query may have read the old state
  offload([device = device_, results = job_results_, now = device_->gid()] {
    JobResult result{.kind = JobResult::Kind::kPortQueried};
    if (auto state = device->query_port_state(&now))
      result.port = std::make_shared<PortState>(*std::move(state));
    results->put(std::move(result));
  });
}

void VerbsRail::port_queried(const JobResult& result) {
  if (result.port != nullptr) device_->set_state(*result.port);
  port_query_pending_ = false;
  if (port_query_again_) query_port_later();
}

/// Completions were lost, so drains of paths on this queue would never finish.
void VerbsRail::overrun(const ibv_cq* cq) noexcept {
  for (const auto& queue : queues_) {
    if (queue->cq == cq) queue->overrun = true;
  }
  drop_overrun_qps();
  tear_down_all(cq);
}

/// Tears down the paths whose completions go to this queue (null: all paths), without a full drain.
void VerbsRail::tear_down_all(const ibv_cq* cq) noexcept {
  const int64_t last_polls_ns = driver_.now_ns() + kLastPollsNs;
  const auto hit = [cq](const auto& path) {
    return path.qp != nullptr && (cq == nullptr || path.qp->queue()->cq == cq);
  };
  out_.each([&](OutPath& path) {
    if (!hit(path)) return;
    tear_down(path);
    path.deadline_ns = std::min(path.deadline_ns, last_polls_ns);
  });
  in_.each([&](InPath& path) {
    if (!hit(path)) return;
    tear_down(path);
    path.deadline_ns = std::min(path.deadline_ns, last_polls_ns);
  });
}

void VerbsRail::qp_failed(const ibv_qp* qp) noexcept {
  out_.each([&](OutPath& path) {
    if (path.state <= OutPath::State::kReady && path.qp->get() == qp) tear_down(path);
  });
  in_.each([&](InPath& path) {
    if (path.state == InPath::State::kReady && path.qp->get() == qp) tear_down(path);
  });
}

}  // namespace fabric::verbs
