#include <algorithm>

#include <fmt/format.h>

#include "swarm/runner.h"

// Waits for every peer, and the ways to go on without one.

namespace fabric::swarm {

void Runner::start_group_wait(Process& process, Rng& rng) {
  auto group = process.engine->make_counter_group();
  if (!group) return;
  GroupWait group_wait{process.node, *std::move(group)};
  for (uint32_t from = 0; from < processes_.size(); ++from) {
    const auto session = std::ranges::find_if(sessions_, [&](const Session& s) {
      return s.from == from && s.to_incarnation == process.incarnation && s.peer_at_target &&
             !s.closed;
    });
    if (session == sessions_.end() || from == process.node) continue;
    CounterModel* model = make_counter_model(process.node, 1, 0);
    if (model == nullptr) break;
    model->only_from = from;
    model->group_wait = static_cast<uint32_t>(group_waits_.size());
    model->member = session->peer_at_target;
    model->from_session = session->number;
    if (!group_wait.group->add(*model->counter, session->peer_at_target)) {
      model->may_miss_counts = true;
      continue;
    }
    group_wait.members.push_back(model->number);
  }
  if (group_wait.members.empty()) return;
  group_waits_.push_back(std::move(group_wait));
  arm_group_wait(static_cast<uint32_t>(group_waits_.size() - 1), draw_op_timeout(rng));
}

void Runner::arm_group_wait(uint32_t number, Nanos timeout) {
  GroupWait& group_wait = group_waits_[number];
  Process& owner = *process_on(group_wait.node);
  uint64_t members = 0;
  for (const uint32_t model : group_wait.members) members += counters_[model].counter.has_value();
  if (members == 0) return;
  PendingOp op = begin(owner, PendingOp::Kind::kGroupWait, timeout);
  op.subject = number;
  const Notify how = Notify::call(&EventSink::on_completion, owner.sink.get(), op.tag);
  // A wrong number is refused with the right one, which is taken.
  const auto wrong = group_wait.group->expect(members + 1, how, timeout).error();
  if (wrong.code == Errc::kInvalidArgument && wrong.native != static_cast<int32_t>(members)) {
    violated("a group knows the shares of its live members",
             fmt::format("node {}: {} instead of {}", owner.node, wrong.native, members));
  }
  const auto id = op.tag % 2 == 0 ? group_wait.group->expect(how, timeout)
                                  : group_wait.group->expect(members, how, timeout);
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    return;
  }
  accepted(std::move(op), *id);
}

void Runner::fence(Process& process, uint32_t other, Rng& rng) {
  for (const Session& session : sessions_) {
    if (session.from != other || session.to_incarnation != process.incarnation ||
        !session.peer_at_target)
      continue;
    if (rng.chance(0.5)) continue;
    // A fence ends the sessions in both directions.
    fencing_.insert(std::minmax(session.from_incarnation, session.to_incarnation));
    const Nanos timeout = draw_op_timeout(rng);
    PendingOp op = begin(process, PendingOp::Kind::kFence, timeout);
    op.subject = session.number;
    return submit(process, std::move(op), Fence{.peer = session.peer_at_target, .timeout = timeout},
                  rng);
  }
}

void Runner::drop(Process& process, uint32_t other, Rng& rng) {
  const auto session = std::ranges::find_if(sessions_, [&](const Session& s) {
    return s.from == other && s.to_incarnation == process.incarnation && s.peer_at_target;
  });
  if (session == sessions_.end() || other == process.node) return;
  const PeerId peer = session->peer_at_target;
  // It ends the sessions in both directions.
  fencing_.insert(std::minmax(session->from_incarnation, session->to_incarnation));
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kDrop, timeout);
  op.subject = session->number;
  const uint64_t tag = op.tag;
  submit(process, std::move(op), Drop{.peer = peer, .timeout = timeout}, rng);
  const bool accepted = pending_ops_.contains(tag);
  for (GroupWait& group_wait : group_waits_) {
    if (group_wait.node != process.node || !group_wait.group) continue;
    const Errc masked = group_wait.group->mask(peer).error().code;
    if (accepted && masked != Errc::kNotFound) {
      violated("a drop masks the peer in every group", fmt::format("node {}", process.node));
    }
    if (masked != Errc::kExhausted) member_masked(group_wait, peer);
  }
}

/// mask() has released the members of the peer: later counts are stale.
void Runner::member_masked(GroupWait& group_wait, PeerId peer) {
  for (const uint32_t number : group_wait.members) {
    CounterModel& model = counters_[number];
    if (model.member != peer || !model.counter) continue;
    by_key_.erase({model.node, model.key});
    model.counter.reset();
  }
}

/// The next expectation is armed at once, before the end of the disarmed one is reported.
void Runner::disarm_one(Process& process, Rng& rng) {
  for (CounterModel& model : counters_) {
    if (model.incarnation != process.incarnation || !model.open() || model.group_wait != kNone) {
      continue;
    }
    const auto armed = pending_ops_.find(model.armed_by);
    if (armed == pending_ops_.end() || model.met) continue;
    armed->second.cancelled = true;
    model.armed_by = 0;
    model.counter->disarm();
    return expect(model, rng);
  }
}

}  // namespace fabric::swarm
