#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "swarm/runner.h"

// Performs the actions of the plan through the public API, and records in the model what must
// follow from each. An action whose preconditions do not hold (the other node is down, no operation
// is pending that could be cancelled) does nothing.

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kArenaBytes = 1u << 20, kSourceBytes = 1u << 20;
constexpr uint64_t kWriteBytesMax = 64u << 10;
constexpr uint32_t kArenasMax = 8;
/// Allowed after timeout and drain: one turn, and a NIC that is slow to release the source.
constexpr Nanos kSlack = 30ms;
constexpr uint16_t kChannel = 1, kChannelWithoutListener = 9;

/// Favours sizes near zero and at or just above powers of two, where off-by-one errors show.
uint64_t draw_size(Rng& rng) {
  switch (rng.below(4)) {
    case 0:
      return rng.below(3);
    case 1:
      return rng.below(512);
    case 2: {
      const uint64_t edge = uint64_t{4096} << rng.below(4);
      // The min() is only a guard: at most 32 KiB and two bytes are drawn here.
      return std::min(kWriteBytesMax, edge + rng.below(3));
    }
    default:
      return rng.below(kWriteBytesMax + 1);
  }
}

Nanos draw_timeout(Rng& rng) {
  switch (rng.below(5)) {
    case 0:
      return 1us * static_cast<int64_t>(rng.between(1, 1000));
    case 1:
      return 1ms * static_cast<int64_t>(rng.between(1, 50));
    case 2:
      return 1500ms;
    default:
      return 500ms;
  }
}

/// At least one byte, so that no two slots start at the same address, even empty ones.
uint64_t draw_gap(Rng& rng) { return rng.between(1, 64); }

Priority draw_priority(Rng& rng) { return static_cast<Priority>(rng.below(3)); }

}  // namespace

/// A random timeout; in the strict phase one that no operation should reach.
Nanos Runner::draw_op_timeout(Rng& rng) const {
  const Nanos drawn = draw_timeout(rng);
  return strict_ ? Nanos(1500ms) : drawn;
}

void Runner::perform(const Action& action) {
  Process* actor = process_on(action.node);
  if (actor == nullptr) return;
  coverage_.add("action", to_string(action.kind));
  Rng rng(action.seed);
  switch (action.kind) {
    case Action::Kind::kWrite:
      return write(*actor, action.other, rng, 1);
    case Action::Kind::kWrites:
      return write(*actor, action.other, rng, static_cast<uint32_t>(rng.between(2, 12)));
    case Action::Kind::kPaged:
      return paged(*actor, action.other, rng);
    case Action::Kind::kScatter:
      return scatter(*actor, rng);
    case Action::Kind::kSignal:
      return signal(*actor, rng);
    case Action::Kind::kSend:
      return send(*actor, action.other, rng);
    case Action::Kind::kTimer:
      return start_timer(*actor, rng);
    case Action::Kind::kWatch:
      return store_watched(*actor);
    case Action::Kind::kExpect:
      return expect_one(*actor, rng);
    case Action::Kind::kTake:
      return take_one(*actor);
    case Action::Kind::kGroupWait:
      return start_group_wait(*actor, rng);
    case Action::Kind::kCancel:
      return cancel(*actor, rng);
    case Action::Kind::kWait:
      return wait_for_batch(*actor, rng);
    case Action::Kind::kRelease:
      return release_counter(*actor, rng);
    case Action::Kind::kFence:
      return fence(*actor, action.other, rng);
    case Action::Kind::kRevoke:
      return revoke(*actor, rng);
    case Action::Kind::kDeregister:
      return deregister(*actor, rng);
    case Action::Kind::kDisconnect:
      return disconnect(*actor, action.other);
    case Action::Kind::kRestart:
      close(action.node);
      return reopen_later(action.node, world_.now() + draw_timeout(rng) / 4);
    case Action::Kind::kMisuse:
      return misuse(*actor, action.other, rng);
    case Action::Kind::kDrop:
      return drop(*actor, action.other, rng);
    case Action::Kind::kDisarm:
      return disarm_one(*actor, rng);
    case Action::Kind::kListed:
      return listed(*actor, action.other, rng);
  }
}

// ---- Sessions and memory ------------------------------------------------------------------------

Session* Runner::session_to(Process& process, uint32_t to) {
  Process* target = process_on(to);
  if (target == nullptr) return nullptr;
  if (const auto known = process.sessions.find(to); known != process.sessions.end()) {
    Session& session = sessions_[known->second];
    const auto info = process.engine->peer_info(session.peer);
    if (!session.closed && info && info->state < PeerState::kLost) {
      if (!session.peer_at_target && !pending_ops_.contains(session.session_number_op))
        send_session_number(process, session);
      return &session;
    }
  }
  const auto peer = process.engine->connect(target->engine->address());
  if (!peer) {
    coverage_.add("refusal", to_string(peer.error().code));
    return nullptr;
  }
  Session& session = sessions_.emplace_back();
  session.number = static_cast<uint32_t>(sessions_.size() - 1);
  session.from = process.node;
  session.to = to;
  session.from_incarnation = process.incarnation;
  session.to_incarnation = target->incarnation;
  session.peer = *peer;
  process.sessions[to] = session.number;
  send_session_number(process, session);
  return &session;
}

uint32_t Runner::arena_for(Session& session, uint64_t size) {
  Process& owner = *process_on(session.to);
  uint32_t owned = 0;
  for (uint32_t i = 0; i < arenas_.size(); ++i) {
    OwnedArena& arena = arenas_[i];
    if (arena.incarnation != owner.incarnation) continue;
    ++owned;
    if (!arena.closing && arena.region && arena.memory.bytes_left() >= size) return i;
  }
  if (owned >= kArenasMax) return kNone;
  OwnedArena& arena =
      arenas_.emplace_back(OwnedArena{owner.node, owner.incarnation, TargetArena(kArenaBytes)});
  auto region = owner.engine->register_memory(
      {.address = arena.memory.bytes().data(), .size_bytes = kArenaBytes});
  if (!region) {
    coverage_.add("refusal", to_string(region.error().code));
    return kNone;
  }
  arena.region.emplace(*std::move(region));
  return static_cast<uint32_t>(arenas_.size() - 1);
}

RemoteRegion Runner::remote_region(Session& session, uint32_t arena) {
  if (const auto known = session.regions.find(arena); known != session.regions.end())
    return known->second;
  if (plan_.grants && !session.peer_at_target) return {};  // the owner does not know the peer yet
  const auto desc = describe_arena(session, arena);
  if (!desc) {
    coverage_.add("refusal", to_string(desc.error().code));
    return {};
  }
  const auto imported = process_on(session.from)->engine->import_region(session.peer, *desc);
  if (!imported) {
    coverage_.add("refusal", to_string(imported.error().code));
    return {};
  }
  session.regions[arena] = *imported;
  stale_descriptors_.try_emplace(session.to, StaleDescriptor{session.to_incarnation, *desc});
  check_stale_descriptor(session);
  return *imported;
}

Runner::SourceRange Runner::source_for(Process& process, uint64_t size, uint64_t content_seed) {
  if (process.sources.empty() || process.sources.back().used + size > kSourceBytes) {
    SourceBuffer source{std::make_unique<std::byte[]>(kSourceBytes)};
    auto region = process.engine->register_memory(
        {.address = source.bytes.get(), .size_bytes = kSourceBytes, .remote_write = false});
    if (!region) return {};
    source.region.emplace(*std::move(region));
    process.sources.push_back(std::move(source));
  }
  SourceBuffer& source = process.sources.back();
  const SourceRange range{source.region->at(source.used), {source.bytes.get() + source.used, size}};
  source.used += size;
  fill_content(range.bytes, content_seed);
  return range;
}

// ---- Counters -----------------------------------------------------------------------------------

CounterModel* Runner::make_counter_model(uint32_t node, uint64_t wanted, uint64_t name) {
  Engine& engine = *process_on(node)->engine;
  auto counter = name == 0 ? engine.make_counter() : engine.named_counter(name);
  if (!counter) {
    coverage_.add("refusal", to_string(counter.error().code));
    return nullptr;
  }
  CounterModel& model = counters_.emplace_back();
  model.number = static_cast<uint32_t>(counters_.size() - 1);
  model.node = node;
  model.incarnation = process_on(node)->incarnation;
  model.wanted = wanted;
  model.name = name;
  model.key = counter->key();
  model.counter.emplace(*std::move(counter));
  by_key_[{node, model.key}] = model.number;
  quiescent_keys_.erase({node, model.key});
  return &model;
}

/// A counter at the session's target that `counts` more writes may be sent to: one of the open
/// ones, or a new one. A null pointer means an uncounted write: none is left, or its name is not
/// resolved.
CounterModel* Runner::counter_for(Process& process, Session& session, Rng& rng, uint32_t counts) {
  std::vector<uint32_t> fitting;
  for (const CounterModel& model : counters_) {
    if (model.node != session.to || !model.open()) continue;
    if (model.only_from != kNone && model.only_from != session.from) continue;
    if (model.parts.size() + counts <= model.wanted) fitting.push_back(model.number);
  }
  CounterModel* model = nullptr;
  if (!fitting.empty() && rng.chance(0.8)) {
    model = &counters_[fitting[rng.below(fitting.size())]];
  } else {
    const uint64_t name = rng.chance(0.2) ? ++next_name_ : 0;
    model = make_counter_model(session.to, counts + rng.below(4), name);
    if (model != nullptr && rng.chance(0.5)) expect(*model, rng);
  }
  if (model != nullptr && model->name != 0 && !model->resolved.contains(session.number)) {
    resolve(process, session, *model, rng);
    return nullptr;
  }
  return model;
}

void Runner::expect(CounterModel& model, Rng& rng) {
  Process& owner = *process_on(model.node);
  // A bound expectation fails with its peer.
  if (rng.chance(0.3)) {
    for (const Session& session : sessions_) {
      if (session.to_incarnation == owner.incarnation && session.peer_at_target &&
          !session.closed && model.only_from == kNone) {
        model.only_from = session.from;
        model.bound_session = session.number;
        // Binding to a lost peer poisons the counter at once.
        if (model.counter->bind(session.peer_at_target).error().code == Errc::kPeerLost)
          model.may_miss_counts = true;
        break;
      }
    }
  }
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(owner, PendingOp::Kind::kExpect, timeout);
  op.subject = model.number;
  const Notify how = Notify::call(&EventSink::on_completion, owner.sink.get(), op.tag);
  submitting_ = true;
  const auto id = model.counter->expect(model.wanted, how, timeout);
  submitting_ = false;
  if (!id) {
    coverage_.add("refusal", to_string(id.error().code));
    if (id.error().code == Errc::kBusy) {
      violated("a counter is busy only while an expectation is armed",
               fmt::format("counter {} of node {}", model.number, model.node));
    }
    if (id.error().code == Errc::kPeerLost) model.may_miss_counts = true;
    return refused(owner, op, id.error());
  }
  model.armed_by = op.tag;
  accepted(std::move(op), *id);
  mark_met(model);
}

void Runner::expect_one(Process& process, Rng& rng) {
  for (CounterModel& model : counters_) {
    if (model.incarnation != process.incarnation || !model.open() || model.armed_by != 0) continue;
    if (model.group_wait != kNone || rng.chance(0.3)) continue;
    return expect(model, rng);
  }
}

void Runner::take_one(Process& process) {
  for (CounterModel& model : counters_) {
    if (model.incarnation != process.incarnation || !model.open() || model.armed_by != 0) continue;
    if (model.group_wait != kNone || model.parts.size() < model.wanted) continue;
    const bool enough = model.units / kUnits >= static_cast<int64_t>(model.taken + model.wanted);
    const bool took = model.counter->try_take(model.wanted);
    if (took != enough && !model.has_local_writes && !sender_may_be_lost(model)) {
      violated("try_take() succeeds exactly when enough counts have arrived",
               fmt::format("counter {}", model.number));
    }
    if (!took) continue;
    model.taken += model.wanted;
    return check_all_landed(model);
  }
}

// ---- Submitting ---------------------------------------------------------------------------------

PendingOp Runner::begin(Process& process, PendingOp::Kind kind, Nanos timeout) {
  PendingOp op;
  op.tag = ++next_tag_;
  op.kind = kind;
  op.node = process.node;
  op.incarnation = process.incarnation;
  op.submitted = world_.now();
  op.deadline = op.submitted + timeout;
  op.report_by =
      kind == PendingOp::Kind::kTimer ? op.deadline + kSlack : op.deadline + kDrain + kSlack;
  return op;
}

/// How the completion is reported: by callback, by inbox, or (`silent`) only if it fails, to
/// subscribers. An operation of several parts gets a batch of its own, and so do a few others.
Notify Runner::notify(Process& process, PendingOp& op, Rng& rng, bool may_be_silent) {
  const uint64_t choice = rng.below(10);
  const bool batched = op.parts.size() > 1 || rng.chance(0.2);
  may_be_silent &= !strict_;
  if (batched) {
    if (auto batch = process.engine->make_batch()) op.batch.emplace(*std::move(batch));
  }
  if (choice < 6 || op.parts.size() > 1 || op.kind == PendingOp::Kind::kResolve) {
    return Notify::call(&EventSink::on_completion, process.sink.get(), op.tag);
  }
  if (choice < 9 || batched || !may_be_silent) return Notify::inbox(*process.inbox, op.tag);
  op.silent = true;
  return {};
}

uint32_t Runner::add_part(PendingOp& op, const Session& session, uint32_t arena, uint64_t size,
                          uint64_t content_seed, CounterModel* model, uint64_t gap) {
  Part& part = parts_.emplace_back();
  part.number = static_cast<uint32_t>(parts_.size() - 1);
  part.op = op.tag;
  part.submitted = op.submitted;
  part.session = session.number;
  if (arena != kNone) {
    part.arena = arena;
    if (const auto grant = session.grants.find(arena); grant != session.grants.end()) {
      part.grant = grant->second;
    }
    part.slot = arenas_[arena].memory.take(size, content_seed, gap);
    const TargetArena& memory = arenas_[arena].memory;
    by_address_[memory.bytes(memory.slot(part.slot)).data()] = part.number;
  }
  if (model != nullptr) {
    part.counter = model->number;
    model->parts.push_back(part.number);
    if (session.from == session.to) model->has_local_writes = true;
  }
  op.parts.push_back(part.number);
  return part.number;
}

void Runner::refused(Process& process, PendingOp& op, const Error& error) {
  if (error.code == Errc::kExhausted && error.what != nullptr &&
      std::strcmp(error.what, "notify") != 0) {
    process.wants_room = true;
  }
  // A refused operation must have no effect.
  if (op.kind == PendingOp::Kind::kSend) must_not_receive_.emplace(op.subject, op.message);
  for (const uint32_t part : op.parts) part_completed(parts_[part], Remote::kNotDelivered);
}

void Runner::accepted(PendingOp op, OpId id) {
  op.id = id;
  op.recheck_at = op.report_by;
  report_deadlines_.emplace(op.recheck_at, op.tag);
  const uint64_t tag = op.tag;
  pending_ops_.emplace(tag, std::move(op));
}

// ---- Transfers ----------------------------------------------------------------------------------

void Runner::write(Process& process, uint32_t to, Rng& rng, uint32_t how_many) {
  Session* session = session_to(process, to);
  if (session == nullptr) return;
  std::vector<PendingOp> ops;
  std::vector<Write> requests;
  for (uint32_t i = 0; i < how_many; ++i) {
    const uint64_t size = how_many > 1 ? rng.below(2048) : draw_size(rng);
    const uint32_t arena = arena_for(*session, size + 64);
    if (arena == kNone) break;  // writes before it are in the model, and must be submitted
    const RemoteRegion region = remote_region(*session, arena);
    if (!region) break;
    CounterModel* model = rng.chance(0.1) ? nullptr : counter_for(process, *session, rng, 1);
    const Nanos timeout = draw_op_timeout(rng);
    PendingOp op = begin(process, PendingOp::Kind::kWrite, timeout);
    const uint64_t content_seed = ++next_content_seed_;
    const Part& part =
        parts_[add_part(op, *session, arena, size, content_seed, model, draw_gap(rng))];
    const SourceRange source = source_for(process, size, content_seed);
    op.source = source.bytes;
    op.bytes = size;
    requests.push_back({.source = source.ref,
                        .target = region.at(arenas_[arena].memory.slot(part.slot).offset),
                        .size_bytes = size,
                        .imm = model == nullptr ? CounterKey{} : model->key,
                        .priority = draw_priority(rng),
                        .unsplit = rng.chance(0.2),
                        .timeout = timeout});
    ops.push_back(std::move(op));
  }
  if (how_many == 1 && !requests.empty()) {
    return submit(process, std::move(ops[0]), requests[0], rng);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    // submit() of a list returns no operation ids: completions are matched by tag only.
    requests[i].notify = notify(process, ops[i], rng, false);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (ops[i].batch) requests[i].batch = *ops[i].batch;
  }
  if (requests.empty()) return;
  submitting_ = true;
  const auto taken = process.engine->submit(std::span<const Write>(requests));
  submitting_ = false;
  if (!taken) coverage_.add("refusal", to_string(taken.error().code));
  const uint32_t count = taken ? *taken : 0;
  for (uint32_t i = 0; i < count; ++i) accepted(std::move(ops[i]), {});
  for (uint32_t i = count; i < ops.size(); ++i) {
    refused(process, ops[i],
            taken ? Error{.code = Errc::kExhausted, .what = "ops"} : taken.error());
  }
}

void Runner::scatter(Process& process, Rng& rng) {
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kScatter, timeout);
  std::vector<ScatterTarget> targets;
  const auto nodes = static_cast<uint32_t>(processes_.size());
  const auto count = static_cast<uint32_t>(rng.between(1, 2 * nodes));
  std::vector<uint64_t> sizes(count);
  uint64_t total = 0;
  // Some are cut over several rails.
  for (uint64_t& size : sizes) total += size = rng.below(rng.chance(0.3) ? 40'000 : 8192);
  const SourceRange source = source_for(process, total, 0);
  if (source.bytes.empty() && total > 0) return;
  op.source = source.bytes;
  op.bytes = total;
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto to = static_cast<uint32_t>(rng.below(nodes));
    Session* session = to == process.node ? nullptr : session_to(process, to);
    if (session == nullptr) continue;
    const uint32_t arena = arena_for(*session, sizes[i] + 64);
    const RemoteRegion region = arena == kNone ? RemoteRegion{} : remote_region(*session, arena);
    if (!region) continue;
    CounterModel* model = counter_for(process, *session, rng, 1);
    const uint64_t content_seed = ++next_content_seed_;
    const Part& part =
        parts_[add_part(op, *session, arena, sizes[i], content_seed, model, draw_gap(rng))];
    fill_content(source.bytes.subspan(at, sizes[i]), content_seed);
    targets.push_back({.target = region.at(arenas_[arena].memory.slot(part.slot).offset),
                       .source_offset = source.ref.offset + at,
                       .size_bytes = sizes[i],
                       .imm = model == nullptr ? CounterKey{} : model->key});
    at += sizes[i];
  }
  if (targets.empty()) return;
  submit(process, std::move(op),
         Scatter{.source = source.ref.region,
                 .targets = targets,
                 .priority = draw_priority(rng),
                 .unsplit = rng.chance(0.1),
                 .timeout = timeout},
         rng);
}

void Runner::signal(Process& process, Rng& rng) {
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kSignal, timeout);
  std::vector<PeerId> peers;
  std::vector<CounterKey> keys;
  for (uint32_t to = 0; to < processes_.size(); ++to) {
    Session* session = to == process.node ? nullptr : session_to(process, to);
    CounterModel* model = session == nullptr ? nullptr : counter_for(process, *session, rng, 1);
    if (model == nullptr) continue;
    peers.push_back(session->peer);
    keys.push_back(model->key);
    add_part(op, *session, kNone, 0, 0, model, 0);
  }
  if (peers.empty()) return;
  const auto group = process.engine->make_group(peers);
  if (!group) {
    coverage_.add("refusal", to_string(group.error().code));
    return refused(process, op, group.error());
  }
  submit(process, std::move(op), Signal{.group = *group, .keys = keys, .timeout = timeout}, rng);
}

// ---- Messages, timers, cancel, fence and release ------------------------------------------------

/// Sends the session's number, from which the target learns which PeerId belongs to the session.
void Runner::send_session_number(Process& process, Session& session) {
  PendingOp op = begin(process, PendingOp::Kind::kSend, 500ms);
  const uint64_t words[2] = {session.number, ++next_message_};
  op.subject = session.number;
  op.message = words[1];
  const Send request{.peer = session.peer,
                     .channel = kChannel,
                     .bytes = std::as_bytes(std::span(words)),
                     .timeout = Nanos(500ms),
                     .notify = Notify::call(&EventSink::on_completion, process.sink.get(), op.tag)};
  submitting_ = true;
  const auto id = process.engine->submit(request);
  submitting_ = false;
  if (!id) return refused(process, op, id.error());
  session.session_number_op = op.tag;
  accepted(std::move(op), *id);
}

void Runner::send(Process& process, uint32_t to, Rng& rng) {
  Session* session = session_to(process, to);
  if (session == nullptr) return;
  const Nanos timeout = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kSend, timeout);
  const uint64_t words[2] = {session->number, ++next_message_};
  // Some go in parts; the arena of a node with small limits has no room for those.
  const bool large = !plan_.nodes[process.node].tight && rng.chance(0.1);
  std::vector<std::byte> bytes(sizeof words + rng.below(large ? 300'000 : 4096));
  std::memcpy(bytes.data(), words, sizeof words);
  fill_content(std::span(bytes).subspan(sizeof words), words[1]);
  op.subject = session->number;
  op.message = words[1];
  op.no_listener = !strict_ && rng.chance(0.05);
  const uint16_t channel = op.no_listener ? kChannelWithoutListener : kChannel;
  submit(process, std::move(op),
         Send{.peer = session->peer, .channel = channel, .bytes = bytes, .timeout = timeout}, rng);
}

void Runner::start_timer(Process& process, Rng& rng) {
  const Nanos after = draw_op_timeout(rng);
  PendingOp op = begin(process, PendingOp::Kind::kTimer, after);
  submit(process, std::move(op), Timer{.after = after}, rng);
}

void Runner::store_watched(Process& process) {
  if (!process.watcher) {
    // A polled watcher would need a turn at every instant of virtual time.
    auto watcher = process.engine->make_watcher(
        Notify::call(&EventSink::on_watch, process.sink.get()), {.polled = false});
    if (!watcher) return;
    process.watcher.emplace(*std::move(watcher));
    process.watcher->arm();
  }
  process.watcher->store(++process.stored);
}

void Runner::cancel(Process& process, Rng& rng) {
  std::vector<uint64_t> mine;
  for (const auto& [tag, op] : pending_ops_) {
    // The send of the session's number is never cancelled: the target could not identify it.
    const bool session_number_op =
        op.kind == PendingOp::Kind::kSend && sessions_[op.subject].session_number_op == tag;
    if (op.incarnation == process.incarnation && op.id && !session_number_op) mine.push_back(tag);
  }
  if (mine.empty()) return;
  PendingOp& op = pending_ops_.at(mine[rng.below(mine.size())]);
  op.cancelled = true;
  const auto accepted_cancel =
      op.batch ? process.engine->cancel(op.batch->id()) : process.engine->cancel(op.id);
  if (!accepted_cancel) coverage_.add("refusal", to_string(accepted_cancel.error().code));
}

void Runner::wait_for_batch(Process& process, Rng& rng) {
  for (const auto& [tag, op] : pending_ops_) {
    if (op.incarnation != process.incarnation || !op.batch) continue;
    const BatchId batch = op.batch->id();
    const uint64_t number = tag;
    // The completion destroys the batch while wait() blocks on it: wait() must still return.
    const auto waited = process.engine->wait(batch, 1ms * static_cast<int64_t>(rng.between(1, 5)));
    coverage_.add("wait", to_string(waited.error().code));
    const auto still = pending_ops_.find(number);
    if (waited && still != pending_ops_.end() && still->second.batch->pending() > 0) {
      violated("a wait on a batch returns after its last operation", describe(still->second));
    }
    return;
  }
}

void Runner::release_counter(Process& process, Rng& rng) {
  for (CounterModel& model : counters_) {
    if (model.incarnation != process.incarnation || !model.counter || model.group_wait != kNone)
      continue;
    if (!model.done && rng.chance(0.7)) continue;
    by_key_.erase({model.node, model.key});
    Counter counter = *std::move(model.counter);
    model.counter.reset();
    if (rng.chance(0.5)) return counter.release();
    const auto quiescence = counter.close(1ms * static_cast<int64_t>(rng.between(1, 20)));
    if (quiescence && *quiescence == Quiescence::kProved)
      quiescent_keys_.emplace(model.node, model.key);
    coverage_.add("counter close",
                  quiescence ? to_string(*quiescence) : to_string(quiescence.error().code));
    return;
  }
}

void Runner::deregister(Process& process, Rng& rng) {
  for (uint32_t i = 0; i < arenas_.size(); ++i) {
    OwnedArena& arena = arenas_[i];
    if (arena.incarnation != process.incarnation || arena.closing || !arena.region ||
        rng.chance(0.5))
      continue;
    const Nanos timeout = draw_op_timeout(rng);
    PendingOp op = begin(process, PendingOp::Kind::kDeregister, timeout);
    op.subject = i;
    arena.closing = true;
    return submit(process, std::move(op),
                  Deregister{.region = arena.region->id(), .timeout = timeout}, rng);
  }
}

void Runner::disconnect(Process& process, uint32_t other) {
  const auto known = process.sessions.find(other);
  if (known == process.sessions.end() || other == process.node) return;
  sessions_[known->second].closed = true;
  (void)process.engine->disconnect(sessions_[known->second].peer);
  process.sessions.erase(known);
}

void Runner::resolve(Process& process, const Session& session, CounterModel& model, Rng& rng) {
  PendingOp op = begin(process, PendingOp::Kind::kResolve, 500ms);
  op.subject = model.number;
  op.session = session.number;
  op.answer = std::make_unique<CounterKey>();
  const uint64_t name = model.name;
  const Resolve request{.peer = session.peer,
                        .names = std::span(&name, 1),
                        .out = std::span(op.answer.get(), 1),
                        .timeout = Nanos(500ms)};
  submit(process, std::move(op), request, rng);
}

}  // namespace fabric::swarm
