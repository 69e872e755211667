#include "swarm/runner.h"

#include <algorithm>

#include <fmt/format.h>

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using FaultKind = sim::Fault::Kind;

/// Short timeouts, so that failure and recovery take a few virtual seconds; small tables.
Config config_of(const Plan& plan, uint32_t node) {
  Config config;
  config.default_timeout = 500ms;
  config.drain_timeout = Runner::kDrain;
  config.timeout_max = 2s;
  config.peer_timeout = 200ms;
  config.lost_timeout = 600ms;
  config.stripe_bytes_min = 4096;
  config.stripe_align = 512;
  config.bulk_slice_bytes = 8192;
  config.peers_max = 256;
  config.counters_max = 1024;
  config.batches_max = 512;
  config.ops_max = 512;
  config.message_buffers = 64;
  config.engine_id = 1000 + node;
  config.reroute = plan.nodes[node].reroute;
  config.log_level = LogLevel::kOff;
  if (plan.job_key) config.job_key = "the same for all of them";
  if (plan.nodes[node].tight) {
    config.ops_max = 16;
    config.message_buffers = 4;
    config.message_credits = 2;
    config.index_arena_bytes = 16u << 10;
  }
  return config;
}

}  // namespace

Runner::Runner(const Plan& plan)
    : plan_(plan), violation_([this] { return world_.now(); }), world_(plan.world) {
  for (const NodePlan& node : plan.nodes) world_.add_node(node.networks);
  processes_.resize(plan.nodes.size());
  may_land_twice_ = std::ranges::any_of(plan.faults, [](const PlannedFault& planned) {
    return planned.fault.kind == FaultKind::kTwice;
  });
  arrivals_ = world_.each_arrival([this](const sim::Arrival& arrival) { on_arrival(arrival); });
  steps_ = world_.each_step([this] { after_step(); });
}

Runner::~Runner() = default;

void Runner::run() {
  for (uint32_t node = 0; node < processes_.size(); ++node) open(node);
  auto planned = plan_.faults.begin();
  for (auto action = plan_.actions.begin(); violation_.none();) {
    const bool faults_left = planned != plan_.faults.end();
    if (action == plan_.actions.end() && !faults_left) break;
    if (action == plan_.actions.end() || (faults_left && planned->at <= action->at)) {
      advance_to(planned->at);
      inject(*planned++);
    } else {
      advance_to(action->at);
      perform(*action++);
    }
  }
  advance_to(plan_.quiet_after);
  while (violation_.none() && !reopenings_.empty()) advance_to(reopenings_.begin()->first);
  if (violation_.none()) drain();
  if (violation_.none()) check_new_work_succeeds();
  if (violation_.none()) check_leaks();
  for (uint32_t i = 0; i < sim::Fault::kKinds; ++i) {
    const auto kind = static_cast<FaultKind>(i);
    coverage_.add("fault", to_string(kind), world_.faults(kind));
  }
  for (uint32_t node = 0; node < processes_.size() && violation_.none(); ++node) close(node);
  if (violation_.none()) check_arenas();
}

/// Runs the World until `time`, reopening nodes that are due on the way. Returns at once if a
/// blocking call of an action has already passed `time`.
void Runner::advance_to(Nanos time) {
  const auto run_to = [this](Nanos until) {
    if (until <= world_.now()) return;
    world_.run_until([this] { return !violation_.none(); }, until - world_.now());
  };
  while (!reopenings_.empty() && reopenings_.begin()->first <= time && violation_.none()) {
    const auto [when, node] = *reopenings_.begin();
    reopenings_.erase(reopenings_.begin());
    run_to(when);
    open(node);
  }
  run_to(time);
}

void Runner::inject(const PlannedFault& planned) {
  const sim::Fault& fault = planned.fault;
  if (fault.kind == FaultKind::kCrash) {
    crash(fault.node);
    return reopen_later(fault.node, world_.now() + planned.lasts);
  }
  // A blocking call may have delayed the fault: its duration is counted from now.
  const Nanos until = std::max(world_.now(), planned.at) + planned.lasts;
  if (!world_.at(world_.now(), fault)) return;  // the two nodes have no such rail in common
  if (const auto undone = sim::opposite(fault); undone && !world_.at(until, *undone)) {
    violated("a fault can be undone", to_string(fault.kind));
  }
  if (fault.kind == FaultKind::kStop || fault.kind == FaultKind::kSlow) {
    pauses_.push_back({world_.now(), planned.lasts, fault});
  }
  if (fault.kind == FaultKind::kSwallowCounts || fault.kind == FaultKind::kOverrun) {
    count_losing_nodes_.insert(fault.node);
  }
  if (fault.kind == FaultKind::kLateCounts || fault.kind == FaultKind::kLateBytes) {
    late_counting_nodes_.insert(fault.node);
  }
  if (fault.kind == FaultKind::kLateBytes) late_storing_nodes_.insert(fault.node);
}

void Runner::open(uint32_t node) {
  if (processes_[node]) return;
  auto engine = world_.open(node, config_of(plan_, node));
  if (!engine)
    return violated("an engine opens", fmt::format("node {}: {}", node, engine.error().what));
  Process& process = processes_[node].emplace();
  process.incarnation = ++next_incarnation_;
  process.node = node;
  process.sink = std::make_unique<EventSink>(EventSink{this, node, process.incarnation});
  process.engine.emplace(*std::move(engine));
  process.inbox.emplace(*process.engine->make_inbox(plan_.nodes[node].tight ? 4 : 64));
  process.events =
      *process.engine->subscribe(Notify::call(&EventSink::on_event, process.sink.get()));
  process.listener =
      *process.engine->listen(1, Notify::call(&EventSink::on_message, process.sink.get()));
}

void Runner::reopen_later(uint32_t node, Nanos when) { reopenings_.emplace(when, node); }

/// Closes the engine. When close() returns, every accepted operation has been reported and no write
/// can land any more.
void Runner::close(uint32_t node) {
  Process* leaving = process_on(node);
  if (leaving == nullptr) return;
  const Nanos begun = world_.now();
  closing_ = leaving->incarnation;
  const auto closed = leaving->engine->close();
  closing_ = kNone;
  coverage_.add_protocol_counters(leaving->engine->dump_json());
  poll_inboxes();
  const Nanos took = world_.now() - begun - paused(node, begun);
  // The drain timeout applies twice: to operations and to memory.
  if (took > 2 * kDrain + 100ms)
    violated("close() returns in time", fmt::format("node {}: {} ns", node, took.count()));
  for (const auto& [tag, op] : pending_ops_) {
    if (op.incarnation == leaving->incarnation && !op.silent) {
      violated("every operation is reported before close() returns", describe(op));
    }
  }
  forget_process(node, closed.has_value());
}

void Runner::crash(uint32_t node) {
  if (process_on(node) == nullptr) return;
  coverage_.add_protocol_counters(process_on(node)->engine->dump_json());
  const uint64_t before = world_.faults(FaultKind::kCrash);
  if (!world_.at(world_.now(), sim::Fault::crash(node))) return;
  world_.run_until([&] { return world_.faults(FaultKind::kCrash) > before; }, 1ms);
  forget_process(node, false);
}

/// Updates the model after the process has ended: its pending operations have unknown fate, its
/// counters and sessions no longer exist, and after a clean close its memory is sealed.
void Runner::forget_process(uint32_t node, bool closed_cleanly) {
  const uint32_t number = processes_[node]->incarnation;
  for (auto it = pending_ops_.begin(); it != pending_ops_.end();) {
    const PendingOp& op = it->second;
    if (op.incarnation != number) {
      ++it;
      continue;
    }
    for (const uint32_t part : op.parts) part_completed(parts_[part], Remote::kUnknown);
    report_deadlines_.erase({op.recheck_at, op.tag});
    it = pending_ops_.erase(it);
  }
  for (CounterModel& model : counters_) {
    if (model.node != node || !model.counter) continue;
    by_key_.erase({node, model.key});
    model.counter.reset();
  }
  std::erase_if(quiescent_keys_, [node](const auto& key) { return key.first == node; });
  for (GroupWait& group_wait : group_waits_) {
    if (group_wait.node == node) group_wait.group.reset();
  }
  for (Session& session : sessions_) {
    if (session.from_incarnation == number || session.to_incarnation == number)
      session.closed = true;
  }
  for (uint32_t i = 0; i < arenas_.size(); ++i) {
    if (arenas_[i].incarnation != number) continue;
    if (closed_cleanly && !arenas_[i].memory.is_sealed()) arena_fenced(i);
    arenas_[i].region.reset();
  }
  processes_[node].reset();
}

Runner::Process* Runner::process_on(uint32_t node) noexcept {
  return processes_[node] ? &*processes_[node] : nullptr;
}

bool Runner::is_running(uint32_t node, uint32_t number) const noexcept {
  return processes_[node] && processes_[node]->incarnation == number;
}

/// For how long the node's process was stopped or slowed since then.
Nanos Runner::paused(uint32_t node, Nanos since) const {
  Nanos sum{};
  for (const PlannedFault& pause : pauses_) {
    if (pause.fault.node != node) continue;
    const Nanos begin = std::max(pause.at, since), end = std::min(pause.at + pause.lasts, now());
    if (end > begin) sum += end - begin;
  }
  return sum;
}

}  // namespace fabric::swarm
