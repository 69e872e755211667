#include "providers/verbs/handles.h"

// What a device says by itself.

namespace fabric::verbs {

void VerbsRail::look_at_events() noexcept {
  constexpr uint32_t kEventsMax = 64;
  look_ = false;
  std::erase_if(queues_, [](const auto& queue) { return queue->overrun && queue->taken == 0; });
  ibv_async_event event{};
  for (uint32_t i = 0; i < kEventsMax; ++i) {
    if (library().get_async_event(device_->context(), &event) != 0) return;
    on_event(event);
    // What it names stays alive until here: the end of a queue pair waits for it.
    library().ack_async_event(&event);
  }
  look_ = true;
}

void VerbsRail::on_event(const ibv_async_event& event) noexcept {
  switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
      if (event.element.port_num == device_->port()) rail_state(false);
      return;
    case IBV_EVENT_PORT_ACTIVE:
      if (event.element.port_num == device_->port() && !fatal_) rail_state(true);
      return;
    case IBV_EVENT_DEVICE_FATAL:
      fatal_ = true;
      return rail_state(false);
    case IBV_EVENT_CQ_ERR:
      return overrun(event.element.cq);
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
      return broken(event.element.qp);
    default:
      return;
  }
}

/// Some devices say the same twice.
void VerbsRail::rail_state(bool up) noexcept {
  if (std::exchange(up_, up) == up) return;
  events_.push_back({.kind = up ? WireEvent::Kind::kRailUp : WireEvent::Kind::kRailDown,
                     .code = up ? Errc::kOk : Errc::kRailLost});
}

/// Completions are lost, so the drains of its paths would never end: they are given up at once.
void VerbsRail::overrun(const ibv_cq* cq) noexcept {
  for (const auto& queue : queues_) {
    if (queue->cq == cq) queue->overrun = true;
  }
  drop_stock();
  out_.each([&](OutPath& path) {
    if (path.state == OutPath::State::kDown || path.pair->queue()->cq != cq) return;
    break_out(path);
    path.deadline_ns = INT64_MIN;
  });
  in_.each([&](InPath& path) {
    if (path.state == InPath::State::kDown || path.pair->queue()->cq != cq) return;
    break_in(path);
    path.deadline_ns = INT64_MIN;
  });
}

void VerbsRail::broken(const ibv_qp* pair) noexcept {
  out_.each([&](OutPath& path) {
    if (path.state <= OutPath::State::kReady && path.pair->get() == pair) break_out(path);
  });
  in_.each([&](InPath& path) {
    if (path.state == InPath::State::kReady && path.pair->get() == pair) break_in(path);
  });
}

}  // namespace fabric::verbs
