#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "swarm/runner.h"

// Invariants that are checked after every step of the World, and those of a drained one.

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using Fate = Part::Fate;

}  // namespace

void Runner::violated(std::string_view invariant, std::string detail) {
  violation_.record(invariant, std::move(detail));
}

std::string Runner::describe(const PendingOp& op) const {
  return fmt::format("node {}: {} {} of {} parts, submitted at {} ns", op.node, to_string(op.kind),
                     op.tag, op.parts.size(), op.submitted.count());
}

/// Lists the parts that were sent to a counter.
std::string Runner::describe(const CounterModel& model) const {
  constexpr const char* kFates[] = {"in flight", "delivered", "not delivered", "unknown"};
  std::string out = fmt::format(" {} wanted", model.wanted);
  if (model.name != 0) out += fmt::format(", name {}", model.name);
  if (model.bound_session != kNone)
    out += fmt::format(", bound to node {}", sessions_[model.bound_session].from);
  for (const uint32_t number : model.parts) {
    const Part& part = parts_[number];
    out += fmt::format(" [operation {} of node {}: {}, {} of {} shards counted]", part.op,
                       sessions_[part.session].from, kFates[static_cast<size_t>(part.fate)],
                       part.shards_counted, part.shards_total);
  }
  return out;
}

void Runner::after_step() {
  if (!violation_.none()) return;
  poll_inboxes();
  check_report_deadlines();
  for (const uint32_t model : changed_counters_) check_count(counters_[model]);
  changed_counters_.clear();
  // One counter after the other as well: a value may change without an arrival.
  ++check_cursor_;
  if (!counters_.empty()) check_count(counters_[check_cursor_ % counters_.size()]);
  check_one_slot();
}

void Runner::check_report_deadlines() {
  while (!report_deadlines_.empty() && report_deadlines_.begin()->first < now()) {
    PendingOp& op = pending_ops_.at(report_deadlines_.begin()->second);
    report_deadlines_.erase(report_deadlines_.begin());
    const Nanos more = paused(op.node, op.submitted);
    const Nanos bound = op.report_by + more;
    if (op.silent) continue;  // its completion is not reported
    if (bound < now()) {
      const Process* owner = process_on(op.node);
      return violated("every operation completes in time",
                      describe(op) + "\n" + (owner == nullptr ? "" : owner->engine->dump()));
    }
    op.recheck_at = now() + 1ms;
    report_deadlines_.emplace(op.recheck_at, op.tag);
  }
}

/// Completed writes <= count <= writes started, at every instant. Arrivals at the NIC give the
/// exact value.
void Runner::check_count(const CounterModel& model) {
  if (!model.counter || !is_running(model.node, model.incarnation) || model.has_local_writes)
    return;
  const uint64_t count = model.counter->count();
  const int64_t there = model.units / kUnits - static_cast<int64_t>(model.taken);
  if (static_cast<int64_t>(count) > there) {
    return violated("count <= writes started",
                    fmt::format("counter {} of node {} has value {}; {} have arrived, {} were sent",
                                model.number, model.node, count, there, model.parts.size()));
  }
  if (model.units / kUnits > static_cast<int64_t>(model.parts.size())) {
    return violated("count <= writes started",
                    fmt::format("counter {} of node {}: {} counts of {} writes", model.number,
                                model.node, model.units / kUnits, model.parts.size()));
  }
  // A member passes its counts on to the group.
  if (model.group_wait != kNone || sender_may_be_lost(model)) return;
  if (static_cast<int64_t>(count) < there) {
    violated("completed writes <= count",
             fmt::format("counter {} of node {} has value {}; {} have arrived", model.number,
                         model.node, count, there));
  }
}

/// Checks one slot for each step: sealed slots are untouched, open ones hold only their own bytes.
void Runner::check_one_slot() {
  if (arenas_.empty()) return;
  const OwnedArena& owned = arenas_[check_cursor_ % arenas_.size()];
  if (owned.memory.slots() == 0) return;
  const uint32_t slot =
      static_cast<uint32_t>(check_cursor_ / arenas_.size() % owned.memory.slots());
  if (owned.memory.slot(slot).size > 4096 && check_cursor_ % 16 != 0) return;
  if (!owned.memory.matches_state(slot)) {
    violated("no byte lands where none may",
             fmt::format(
                 "node {}: slot {} at {}, {}", owned.node, slot, owned.memory.slot(slot).offset,
                 owned.memory.slot(slot).state == TargetArena::State::kSealed ? "sealed" : "open"));
  }
}

// ---- After the drain ----------------------------------------------------------------------------

void Runner::drain() {
  const auto all_reported = [this] {
    return !violation_.none() ||
           std::ranges::all_of(pending_ops_, [](const auto& entry) { return entry.second.silent; });
  };
  world_.run_until(all_reported, 5s);
  // Time for broken sessions to be replaced, counter keys to be reconciled, rails to recover.
  world_.run_until([this] { return !violation_.none(); }, 3s);
  poll_inboxes();
  if (violation_.none()) complete_silent();
  if (violation_.none()) check_drained();
  if (violation_.none()) check_poisoned();
}

/// Operations without notification have succeeded: a failure would have gone to the subscribers.
void Runner::complete_silent() {
  for (const auto& process : processes_) {
    if (process && process->engine->stats().ops_in_flight != 0) {
      return violated("every operation completes", process->engine->dump());
    }
  }
  auto silent = std::move(pending_ops_);
  pending_ops_.clear();
  report_deadlines_.clear();
  coverage_.add("reported by", "none", silent.size());
  for (auto& [tag, op] : silent) op_completed(op, Event{.tag = tag});
}

/// Includes arenas of closed and crashed processes: their sealed slots must stay untouched.
void Runner::check_arenas() {
  for (const OwnedArena& owned : arenas_) {
    for (uint32_t i = 0; i < owned.memory.slots(); ++i) {
      bytes_checked_ += owned.memory.slot(i).size;
      if (!owned.memory.matches_state(i)) {
        return violated("memory holds exactly the bytes that were written",
                        fmt::format("node {}: slot {}", owned.node, i));
      }
    }
    if (!owned.memory.gaps_untouched()) {
      return violated("no byte lands outside its write", fmt::format("node {}", owned.node));
    }
  }
}

/// Delivered while the target's NIC delayed the bytes of counted writes: by now it has stored them.
void Runner::check_unseen() {
  for (const uint32_t number : unseen_) {
    const Part& part = parts_[number];
    OwnedArena& owned = arenas_[part.arena];
    if (!is_running(owned.node, owned.incarnation)) continue;
    if (!owned.memory.mark_complete(part.slot)) {
      return violated("delivered bytes are in memory",
                      fmt::format("a write of operation {}, when idle", part.op));
    }
  }
  unseen_.clear();
}

void Runner::check_drained() {
  for (const CounterModel& model : counters_) {
    if (!model.counter || !is_running(model.node, model.incarnation)) continue;
    if (model.armed_by != 0) {
      return violated("every operation completes exactly once",
                      fmt::format("expectation on counter {} is pending", model.number));
    }
    if (sender_may_be_lost(model) || count_losing_nodes_.contains(model.node)) continue;
    if (model.group_wait == kNone && !model.done &&
        model.counter->count() + model.taken != model.parts.size()) {
      return violated(
          "completed writes = count = writes started when idle",
          fmt::format("counter {} of node {}: {} counted, {} taken of{}", model.number, model.node,
                      model.counter->count(), model.taken, describe(model)));
    }
  }
  check_unseen();
  check_arenas();
  for (const auto& [session, message] : must_receive_) {
    const Session& by = sessions_[session];
    if (is_running(by.to, by.to_incarnation) && !received_.contains({session, message})) {
      return violated("a delivered message is received", fmt::format("number {}", message));
    }
  }
  for (const auto& process : processes_) {
    if (!process) continue;
    if (process->wants_room) {
      return violated("kExhausted is followed by kRoom", fmt::format("node {}", process->node));
    }
    if (process->watched != process->stored) {
      return violated(
          "a watcher reports the last value stored",
          fmt::format("node {}: {} of {}", process->node, process->watched, process->stored));
    }
  }
}

/// A counted write of unknown fate must have poisoned its counter key if both processes still run:
/// otherwise some of its shards and some of another write's could add up to one count.
void Runner::check_poisoned() {
  for (CounterModel& model : counters_) {
    if (!model.counter || model.done || model.has_local_writes || model.group_wait != kNone)
      continue;
    const bool must = std::ranges::any_of(model.parts, [&](uint32_t number) {
      const Part& part = parts_[number];
      const Session& session = sessions_[part.session];
      return part.fate == Fate::kUnknown && !is_lost(session) &&
             is_running(session.from, session.from_incarnation);
    });
    if (!must) continue;
    const auto waited = model.counter->wait(1, 1us);
    if (waited.error().code == Errc::kAborted || waited.error().code == Errc::kPeerLost) continue;
    return violated("a write of unknown fate poisons its counter key",
                    fmt::format("counter {} of node {}: {}, {}", model.number, model.node,
                                to_string(waited.error().code), describe(model)));
  }
}

/// A descriptor of an earlier incarnation of the target must not import into this session.
void Runner::check_stale_descriptor(const Session& session) {
  const auto old = stale_descriptors_.find(session.to);
  if (old == stale_descriptors_.end() || old->second.incarnation == session.to_incarnation) return;
  const auto imported =
      process_on(session.from)->engine->import_region(session.peer, old->second.bytes);
  if (imported.error().code == Errc::kPeerLost || imported.error().code == Errc::kPermission)
    return;
  violated("a descriptor of an earlier incarnation is refused",
           fmt::format("node {} to node {}: {}", session.from, session.to,
                       to_string(imported.error().code)));
}

/// No resources are held for completed operations. With lost datagrams a probe or a retransmission
/// may be in flight at any instant, so the check repeats: a real leak persists.
void Runner::check_leaks() {
  for (auto& process : processes_) {
    if (!process) continue;
    process->page_lists.clear();
    process->write_lists.clear();
  }
  std::string leak;
  for (uint32_t attempts = 10; attempts > 0; --attempts) {
    leak.clear();
    for (auto& process : processes_) {
      if (process && leak.empty()) leak = find_leak(*process);
    }
    if (leak.empty()) return;
    world_.run_until([this] { return !violation_.none(); }, 10ms);
  }
  violated("nothing leaks", leak);
}

/// Names a resource of which the process holds too many; empty if there is none.
std::string Runner::find_leak(const Process& process) {
  const EngineStats stats = process.engine->stats();
  uint32_t counters = 0, regions = static_cast<uint32_t>(process.sources.size());
  uint32_t names = 0;  // of released counters: a late resolve may have recreated them
  for (const CounterModel& model : counters_) {
    counters += model.incarnation == process.incarnation && model.counter;
    names += model.incarnation == process.incarnation && !model.counter && model.name != 0;
  }
  // A group has a counter key of its own.
  for (const GroupWait& group_wait : group_waits_)
    counters += group_wait.node == process.node && group_wait.group;
  for (const OwnedArena& arena : arenas_) {
    regions +=
        arena.incarnation == process.incarnation && arena.region && !arena.memory.is_sealed();
  }
  const auto dump = nlohmann::json::parse(process.engine->dump_json());
  const auto held = dump.find("held");
  if (held == dump.end()) return "the dump has no section \"held\"";

  std::string found;
  const auto at_most = [&](std::string_view what, uint64_t count, uint64_t limit) {
    if (count <= limit || !found.empty()) return;
    found = fmt::format("node {}: {} {}, expected at most {}\n{}", process.node, count, what, limit,
                        process.engine->dump());
  };
  at_most("operations", stats.ops_in_flight, 0);
  at_most("counters", stats.counters, counters + names);
  at_most("peers", stats.peers, processes_.size());  // one session with every node, itself included
  at_most("fragments queued", stats.tx.queued, 0);
  at_most("work requests posted", stats.tx.posted, 0);
  at_most("regions", stats.regions, regions);
  for (const auto& [name, value] : held->items()) at_most(name, value.get<uint64_t>(), 0);
  return found;
}

/// After the faults every node can write to every node, and other operations succeed too.
void Runner::check_new_work_succeeds() {
  // Some plans lose datagrams throughout: even now a session may be given up occasionally.
  const uint32_t attempts = plan_.world.drop_control > 0 ? 4 : 1;
  for (uint32_t from = 0; from < processes_.size(); ++from) {
    for (uint32_t to = 0; to < processes_.size() && violation_.none(); ++to) {
      std::string why = "not tried";
      for (uint32_t left = attempts; left > 0 && !why.empty(); --left) why = try_write(from, to);
      if (why.empty()) continue;
      violated(
          "new operations succeed after the faults",
          fmt::format("{} writes to {}: {}\n{}", from, to, why, process_on(from)->engine->dump()));
    }
  }
  // Then all other operations, except expectations, which may lack writes, and fences, which some
  // networks cannot prove.
  const auto all_do = [this](std::initializer_list<Action::Kind> kinds, Rng rng) {
    for (uint32_t node = 0; node < processes_.size(); ++node) {
      const auto other = static_cast<uint32_t>((node + 1) % processes_.size());
      for (const Action::Kind kind : kinds) {
        if (violation_.none()) perform({now(), kind, node, other, rng.next()});
      }
    }
    world_.run_until([this] { return !violation_.none() || pending_ops_.empty(); }, 4s);
  };
  strict_ = plan_.world.drop_control == 0;
  strict_since_ = now();
  all_do(
      {Action::Kind::kPaged, Action::Kind::kListed, Action::Kind::kWrites, Action::Kind::kScatter,
       Action::Kind::kSignal, Action::Kind::kSend, Action::Kind::kTimer, Action::Kind::kPaged},
      Rng(plan_.seed));
  all_do({Action::Kind::kDeregister}, Rng(plan_.seed));
  strict_ = false;
}

/// A session that the target has identified, or that has failed before that.
Session* Runner::established_session(uint32_t from, uint32_t to) {
  Session* session = session_to(*process_on(from), to);
  if (session == nullptr) return nullptr;
  world_.run_until([&] { return !violation_.none() || session->peer_at_target || session->closed; },
                   600ms);
  return session;
}

/// Why a counted write failed; empty: it succeeded.
std::string Runner::try_write(uint32_t from, uint32_t to) {
  constexpr uint64_t kSize = 20'000;
  constexpr Nanos kPatience = 1500ms;
  Session* session = established_session(from, to);
  if (session == nullptr) return "cannot connect";
  const uint32_t arena = arena_for(*session, kSize + 64);
  const RemoteRegion region = arena == kNone ? RemoteRegion{} : remote_region(*session, arena);
  CounterModel* model = make_counter_model(to, 1, 0);
  if (!region || model == nullptr) return "no target memory or counter";
  Process& sender = *process_on(from);
  PendingOp op = begin(sender, PendingOp::Kind::kWrite, kPatience);
  const uint64_t content_seed = ++next_content_seed_, tag = op.tag;
  const Part& part = parts_[add_part(op, *session, arena, kSize, content_seed, model, 1)];
  const SourceRange source = source_for(sender, kSize, content_seed);
  op.source = source.bytes;
  const auto id = sender.engine->submit(
      Write{.source = source.ref,
            .target = region.at(arenas_[arena].memory.slot(part.slot).offset),
            .size_bytes = kSize,
            .imm = model->key,
            .timeout = kPatience,
            .notify = Notify::call(&EventSink::on_completion, sender.sink.get(), tag)});
  if (!id) {
    refused(sender, op, id.error());
    return to_string(id.error().code);
  }
  accepted(std::move(op), *id);
  model->armed_by = tag;
  const bool counted = model->counter->wait(1, kPatience).has_value();
  model->armed_by = 0;
  world_.run_until([&] { return !violation_.none() || !pending_ops_.contains(tag); },
                   kDrain + 100ms);
  if (!counted) return "not counted";
  if (part.fate != Fate::kDelivered) return "not reported";
  check_all_landed(*model);
  return {};
}

}  // namespace fabric::swarm
