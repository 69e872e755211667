#include <algorithm>

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
      if (event.element.port_num != device_->port()) return;
      if (!fatal_.load(std::memory_order_relaxed)) rail_state(true);
      return look_at_port();  // at the other end of the cable there may be another switch
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
      if (event.element.port_num == device_->port()) look_at_port();
      return;
    case IBV_EVENT_DEVICE_FATAL:
      fatal_.store(true, std::memory_order_relaxed);
      rail_state(false);
      return give_up(nullptr);
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

/// Paths that are open keep what they were opened with: if it is wrong from now on, they break, and
/// the next ones are opened with what is right.
void VerbsRail::look_at_port() {
  port_changed_ = std::exchange(port_asked_, true);
  if (port_changed_) return;  // what it has seen may be old
  offload([device = device_, box = mailbox_, now = device_->gid()] {
    Mail mail{.kind = Mail::Kind::kLooked};
    if (auto state = device->ask_port(&now))
      mail.port = std::make_shared<PortState>(*std::move(state));
    box->put(std::move(mail));
  });
}

void VerbsRail::looked(const Mail& mail) {
  if (mail.port != nullptr) device_->renew(*mail.port);
  port_asked_ = false;
  if (port_changed_) look_at_port();
}

/// Completions are lost, so the drains of its paths would never end: they are given up.
void VerbsRail::overrun(const ibv_cq* cq) noexcept {
  for (const auto& queue : queues_) {
    if (queue->cq == cq) queue->overrun = true;
  }
  drop_stock();
  give_up(cq);
}

/// Ends the paths with completions on this queue, or all, without a drain.
void VerbsRail::give_up(const ibv_cq* cq) noexcept {
  const int64_t last_look_ns = driver_.now_ns() + kLastLookNs;
  const auto hit = [cq](const auto& path) {
    return path.pair != nullptr && (cq == nullptr || path.pair->queue()->cq == cq);
  };
  out_.each([&](OutPath& path) {
    if (!hit(path)) return;
    break_out(path);
    path.deadline_ns = std::min(path.deadline_ns, last_look_ns);
  });
  in_.each([&](InPath& path) {
    if (!hit(path)) return;
    break_in(path);
    path.deadline_ns = std::min(path.deadline_ns, last_look_ns);
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
