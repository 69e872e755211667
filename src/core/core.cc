#include "core/core.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/registry.h"
#include "core/shard.h"

// Opening and closing an engine, and the turn of its worker. A turn holds the state lock from
// beginning to end, and so does everything that it calls. open() and close() run on a thread of the
// application; close() takes the lock for one step at a time, so that turns can run in between.

namespace fabric::core {

namespace {
constexpr uint32_t kSubmissionsPerTurn = 256;
constexpr uint32_t kDatagramsPerTurn = 64;
constexpr uint32_t kTimersPerTurn = 256;
[[maybe_unused]] constexpr uint32_t kTurnsPerCheck = 64;
// A watched word may change at any time without a wake-up; in virtual time it is polled this often.
constexpr int64_t kWatchIntervalNs = 1'000;
// Closing a path needs no answer from a peer, so this is long; it only bounds a broken provider.
constexpr int64_t kTearDownNs = 10'000'000'000;
constexpr int64_t kPollIntervalNs = 200'000;
constexpr int64_t kFarewellNs = 200'000'000;

/// What the generations of an engine's lists and grants count from, so that the handles of another
/// engine are not found. Engines of one process get ranges that are disjoint: the upper 12 bits
/// number them, and each slot has at least 2^19 generations before it reaches the next range. Those
/// of different processes differ by chance.
uint32_t first_generation(uint64_t seed) noexcept {
  // A count: pairs with nothing.
  static std::atomic<uint32_t> engines{0};
  const uint32_t number = engines.fetch_add(1, std::memory_order_relaxed);
  return number << 20 | static_cast<uint32_t>(Rng(seed).next() >> (64 - 19));
}
}  // namespace

void* EngineCore::leaked(size_t bytes) noexcept { return ::operator new(bytes, std::nothrow); }

EngineCore::EngineCore(const Config& checked, std::shared_ptr<Runtime> shared_runtime,
                       Driver* given, std::unique_ptr<Driver> own)
    : config(checked),
      log(checked.log_sink, checked.log_level),
      runtime(std::move(shared_runtime)),
      own_driver(std::move(own)),
      driver(own_driver != nullptr ? own_driver.get() : given),
      rng(driver->entropy()),
      ops(config.ops_max, config.peers_max),
      arena(config.index_arena_bytes),
      submissions(config.ops_max),
      completed_expectations(config.ops_max),
      timers(config.ops_max + config.peers_max),
      reporter(*this),
      regions(*this),
      transfers(*this),
      peers(*this),
      counters(*this, rng.next()),
      groups(config.peers_max * 16) {
  engine_id = config.engine_id != 0 ? config.engine_id : rng.next() | 1;
  incarnation = driver->incarnation();
  const uint32_t from = first_generation(engine_id ^ incarnation);
  page_lists.set_first_generation(from);
  write_lists.set_first_generation(from);
  regions.set_first_grant_generation(from);
  now_ns = driver->now_ns();
  for (uint32_t i = 0; i < ops.max(); ++i) {
    ops.at(i).timer.kind = HeapTimer::Kind::kOp;
    ops.at(i).timer.index = i;
  }
}

EngineCore::~EngineCore() = default;

Result<std::shared_ptr<EngineCore>> EngineCore::open(const Config& config,
                                                     std::shared_ptr<Runtime> runtime,
                                                     Driver* driver) {
  auto checked = effective_config(config);
  if (!checked) return checked.error();
  std::unique_ptr<Driver> own;
  if (driver == nullptr) own = make_threads_driver();
  std::shared_ptr<EngineCore> core;
  try {
    core = std::make_shared<EngineCore>(*checked, std::move(runtime), driver, std::move(own));
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "memory for the engine's tables");
  }
  if (auto ok = core->open_networks(); !ok) return ok.error();
  // `checked` includes FABRICLIB_SPIN and FABRICLIB_WORKER_CPUS.
  const AttachOptions options{.spin_ns = checked->spin.count(), .cpus = checked->worker_cpus};
  if (auto ok = core->driver->attach(*core, options); !ok) return ok.error();
  return core;
}

Result<void> EngineCore::open_networks() {
  std::vector<Network> wanted = config.networks;
  if (wanted.empty()) {
    for (const std::string& provider : built_providers()) {
      if (provider != "self") wanted.push_back({.provider = provider, .required = false});
    }
  }
  wanted.push_back({.provider = "self"});
  uint32_t largest = 0;
  for (Network& spec : wanted) {
    if (spec.name.empty()) spec.name = spec.provider;
    const OpenContext context{.driver = driver,
                              .engine_id = engine_id,
                              .wake = [this] { driver->wake(*this); },
                              .progress = this,
                              .log = &log};
    auto network = open_network(spec, context);
    if (!network && !spec.required) {
      FABRIC_LOG(log, kInfo, "core", "a network is left out", {"network", spec.name},
                 {"error", network.error()});
      continue;
    }
    if (!network) {
      FABRIC_LOG(log, kInfo, "core", "a network is not available", {"network", spec.name},
                 {"error", network.error()});
      return network.error();
    }
    NetworkSlot slot{.provider = spec.provider, .name = spec.name, .network = *std::move(network)};
    slot.is_self = spec.provider == "self";
    const uint32_t rails = std::min(slot.network->rail_count(), spec.rails_max);
    slot.memory_kinds = UINT32_MAX;
    for (uint32_t i = 0; i < rails; ++i) {
      Rail& rail = slot.network->rail(i);
      slot.rails.push_back({.rail = &rail,
                            .caps = rail.caps(),
                            .network = static_cast<uint8_t>(networks.size()),
                            .index = static_cast<uint8_t>(i)});
      slot.rails.back().arrived_imms.reserve(256);
      slot.memory_kinds &= rail.caps().memory_kinds;
      maps_memory = maps_memory || rail.caps().maps_memory;
      slot.count_is_final = slot.count_is_final && rail.caps().count_is_final;
    }
    slot.fence = slot.rails[0].caps.fence;
    slot.stripe_bytes_min = stripe_bytes_min(config, spec, slot.rails[0].caps);
    largest = std::max(largest, slot.network->control_bytes_max());
    networks.push_back(std::move(slot));
  }
  // Left uninitialised: most of these pages are never touched.
  datagram_ = std::make_unique_for_overwrite<std::byte[]>(largest);
  datagram_bytes_max_ = largest;
  return {};
}

NetworkSlot* EngineCore::network_named(std::string_view provider, std::string_view name) noexcept {
  for (NetworkSlot& network : networks) {
    if (network.provider == provider && network.name == name) return &network;
  }
  return nullptr;
}

/// Whether the state is as the last turn left it, without work that is due.
inline bool EngineCore::nothing_new() noexcept {
  pending_network_.network = SIZE_MAX;
  if (!state_mutex.undisturbed() || now_ns >= idle_until_ns_) return false;
  // Inputs that come without the lock. Acquire as in turn().
  if (kicked.load(std::memory_order_acquire) || room_due.load(std::memory_order_acquire) ||
      !submissions.empty() || !completed_expectations.empty()) {
    return false;
  }
  for (size_t n = 0; n < networks.size(); ++n) {
    const OpenNetwork::PendingWork what = networks[n].network->pending_work();
    if (!what) continue;
    pending_network_ = {n, what};
    return false;
  }
  return true;
}

TurnResult EngineCore::turn(int64_t now) noexcept {
  state_mutex.lock_for_turn();
  const StateGuard lock(state_mutex, std::adopt_lock);
  advance_clock(now);
  ++turns;
  return nothing_new() ? TurnResult{.next_ns = idle_until_ns_} : full_turn();
}

TurnResult EngineCore::full_turn() noexcept {
  TurnResult result;
  // An inline application may call this while another thread closes: there are no networks then.
  if (closed.load(std::memory_order_relaxed)) return result;
  // First: a kick from here on causes another full turn. Pairs with kick().
  if (kicked.load(std::memory_order_relaxed)) kicked.exchange(false, std::memory_order_acquire);
  // New work that finds room is posted at once; the rest gets the room that the polls below make.
  if (has_submissions()) result.done += take_submissions(Take::kTransfers);
  transfers.begin_polls();
  for (size_t n = 0; n < networks.size(); ++n) {
    const bool asked = n == pending_network_.network;
    const OpenNetwork::PendingWork work =
        asked ? pending_network_.what : networks[n].network->pending_work();
    if (work.control) result.done += poll_control(networks[n], static_cast<uint8_t>(n));
    // Always after control: its messages may concern the rails, and writes that landed after
    // pending_work() was read.
    if (work) result.done += transfers.poll(networks[n]);
  }
  // Components that rarely have work are called only if they report some.
  if (counters.has_confirmations()) counters.apply_confirmations(transfers.polls_exhausted());
  if (!completed_expectations.empty()) result.done += take_completed_expectations();
  if (!popped_.empty()) result.done += take_submissions(Take::kAll);
  if (timers.next_ns() <= now_ns) result.done += fire_timers();
  if (transfers.next_ns() <= now_ns) result.done += transfers.tick(now_ns);
  if (transfers.may_post()) result.done += transfers.post_all();
  if (transfers.posted()) {
    for (NetworkSlot& network : networks) result.done += transfers.poll_again(network);
  }
  if (counters.next_expiry_ns() <= now_ns) counters.expire_names(now_ns);
  if (peers.holds_messages()) peers.deliver_held();
  reporter.flush_deferred();
  if (reporter.has_watchers()) result.done += reporter.poll_watchers();
  if (reporter.has_waiting()) result.done += reporter.flush();
  if (room_due.load(std::memory_order_relaxed) &&
      room_due.exchange(false, std::memory_order_acq_rel)) {
    reporter.publish(Event{.kind = EventKind::kRoom});
  }
  peers.flush(now_ns);
  result.next_ns = std::min({timers.next_ns(), counters.next_expiry_ns(), transfers.next_ns()});
  if (reporter.has_polled_watchers()) {
    result.keep_polling = true;
    result.next_ns = std::min(result.next_ns, now_ns + kWatchIntervalNs);
  }
  // Work that the next turn must look at again.
  const bool unfinished = result.done != 0 || has_submissions() || transfers.may_post() ||
                          transfers.posted() || counters.has_confirmations() ||
                          peers.holds_messages() || peers.has_unsent() || reporter.has_watchers() ||
                          reporter.has_waiting();
#ifndef NDEBUG
  if (!unfinished || turns % kTurnsPerCheck == 0) transfers.check_invariants();
#endif
  state_mutex.watch(!unfinished);
  idle_until_ns_ = result.next_ns;
  return result;
}

uint32_t EngineCore::poll_control(NetworkSlot& network, uint8_t index) {
  uint32_t done = 0;
  const std::span<std::byte> datagram(datagram_.get(), datagram_bytes_max_);
  for (; done < kDatagramsPerTurn; ++done) {
    const uint32_t size = network.network->receive(datagram);
    if (size == 0) break;
    peers.on_datagram(index, datagram.first(size), now_ns);
  }
  for (uint32_t link = 0; network.network->take_lost(link); ++done) peers.on_link_lost(index, link);
  return done;
}

/// kTransfers: stops at the first operation of another kind. Those depend on control messages,
/// which are not read yet.
uint32_t EngineCore::take_submissions(Take what) {
  uint32_t done = 0;
  while (done < kSubmissionsPerTurn) {
    if (popped_.empty()) {
      popped_.at = 0;
      popped_.count = submissions.pop_all(popped_.slots);
      if (popped_.empty()) break;
    }
    if (const uint32_t added = transfers.try_add(popped_.rest()); added != 0) {
      popped_.at += added;
      done += added;
      continue;
    }
    Op& op = ops.at(popped_.rest().front());
    if (what == Take::kTransfers && !is_transfer(op.kind) && op.kind != OpKind::kExpect) break;
    ++popped_.at;
    ++done;
    begin(op);
  }
  transfers.flush_staged();
  return done;
}

uint32_t EngineCore::take_completed_expectations() {
  uint32_t done = 0;
  CompletedExpectation item;
  for (; done < kSubmissionsPerTurn && completed_expectations.pop(item); ++done) {
    Op& op = ops.at(item.op);
    if (op.state.load(std::memory_order_relaxed) == OpState::kRunning) {
      complete_expectation(op, item.code);
    } else {
      // It completed before the worker took it: it is in the submission ring, or about to be.
      op.early_code = item.code;
      op.completed_early = true;
    }
  }
  return done;
}

void EngineCore::begin(Op& op) {
  // admit_writes() does not reset it.
  if (op.kind == OpKind::kWrite) static_cast<OpProgress&>(op) = {};
  op.state.store(OpState::kRunning, std::memory_order_relaxed);
  if (op.kind == OpKind::kExpect) waiting_ops.fetch_add(1, std::memory_order_relaxed);
  add_running(op);
  const bool cancelled =
      op.cancel_requested.load(std::memory_order_relaxed) || reporter.batch_cancelled(op.batch);
  const Errc stopped = closing.load(std::memory_order_relaxed) ? Errc::kClosed
                       : cancelled                             ? Errc::kCancelled
                                                               : Errc::kOk;
  if (op.kind == OpKind::kExpect) {
    if (op.completed_early) {
      complete_expectation(op, op.early_code);
    } else if (stopped != Errc::kOk) {
      stop(op, stopped);
    }
    return;
  }
  transfers.flush_staged();
  if (stopped != Errc::kOk) {
    // Nothing was started: there is no part to withdraw.
    if (is_transfer(op.kind)) {
      op.stop_code = stopped;
      op.code = stopped;
      op.parts_completed = op.parts_failed = op.parts;
      for (uint32_t i = 0; i < op.parts; ++i) {
        reporter.report_part(op, {.part = i, .code = stopped, .remote = Remote::kNotDelivered});
      }
      complete_transfer(op);
    } else {
      complete(op, stopped, Remote::kNotDelivered);
    }
    return;
  }
  switch (op.kind) {
    case OpKind::kSend:
      peers.start_send(op);
      return;
    case OpKind::kResolve:
      peers.start_resolve(op);
      return;
    case OpKind::kFence:
      peers.start_fence(op);
      return;
    case OpKind::kDrop:
      peers.start_drop(op);
      return;
    case OpKind::kDeregister:
      regions.start_deregister(op);
      return;
    case OpKind::kRevoke:
      regions.start_revoke(op);
      return;
    case OpKind::kTimer:
      return;  // its timer is set
    default:
      transfers.start(op);
      return;
  }
}

uint32_t EngineCore::fire_timers() {
  uint32_t fired = 0;
  for (; fired < kTimersPerTurn; ++fired) {
    HeapTimer* timer = timers.pop_due(now_ns);
    if (timer == nullptr) break;
    if (timer->kind == HeapTimer::Kind::kPeer) {
      peers.on_timer(*peers.at(timer->index), now_ns);
      continue;
    }
    if (timer->kind == HeapTimer::Kind::kPostBatch) {
      transfers.expand_post_batch(timer->index);  // sets a timer for every write in it
      continue;
    }
    Op& op = ops.at(timer->index);
    if (op.state.load(std::memory_order_relaxed) == OpState::kDraining) {
      transfers.force_drain(op);
    } else if (op.kind == OpKind::kTimer) {
      complete(op, Errc::kOk, Remote::kDelivered);
    } else if (op.kind == OpKind::kDeregister && now_ns < op.deadline_ns) {
      timers.set(op.timer, op.deadline_ns);
      regions.skip_answers(op.source.slot);
    } else if (op.kind == OpKind::kRevoke && now_ns < op.deadline_ns) {
      timers.set(op.timer, op.deadline_ns);
      regions.skip_answer(op);
    } else if (op.kind == OpKind::kFence && now_ns < op.deadline_ns) {
      peers.fence_without_peer(op);
    } else {
      stop(op, Errc::kTimeout);
    }
  }
  return fired;
}

void EngineCore::stop(Op& op, Errc code) {
  switch (op.kind) {
    case OpKind::kSend:
    case OpKind::kResolve:
    case OpKind::kFence:
    case OpKind::kDrop:
      peers.stop_control_op(op, code);
      return;
    case OpKind::kDeregister:
      regions.stop_deregister(op, code);
      return;
    case OpKind::kRevoke:
      regions.stop_revoke(op, code);
      return;
    case OpKind::kTimer:
      complete(op, code, Remote::kNotDelivered);
      return;
    case OpKind::kExpect:
      // If another thread completes it at the same time, that result is in the ring, and wins.
      counters.table.cancel(op.expectation, code);
      return;
    default:
      transfers.stop(op, code);
      return;
  }
}

void EngineCore::complete_expectation(Op& op, Errc code) {
  complete(op, code, code == Errc::kOk ? Remote::kDelivered : Remote::kNotDelivered,
           code == Errc::kOk ? op.expected : 0);
}

void EngineCore::complete(Op& op, Errc code, Remote remote, uint64_t value) {
  state_mutex.assert_held();
  reporter.report_part(op, {.part = 0,
                            .peer = op.failed_peer ? op.failed_peer : op.peer,
                            .code = code,
                            .remote = code == Errc::kOk ? Remote::kDelivered : remote});
  Event event{.kind = EventKind::kDone, .code = code, .remote = remote};
  event.op = op.id();
  event.peer = op.failed_peer ? op.failed_peer : op.peer;
  event.value = value;
  event.parts_failed = code == Errc::kOk ? 0 : 1;
  event.parts_unknown = remote == Remote::kUnknown ? 1 : 0;
  report_completion(op, event);
}

void EngineCore::add_running(Op& op) {
  link_running(op);
  if (op.deadline_ns != kNeverNs && !op.completed_early) timers.set(op.timer, op.deadline_ns);
}

void EngineCore::report_write(Op& op) {
  Event event{.kind = EventKind::kDone};
  event.op = op.id();
  event.value = op.size_bytes;
  reporter.report_op(op, event);
  room_made();
}

void EngineCore::complete_transfer(Op& op) {
  if (op.parts_failed == 0 && Reporter::is_silent(op.notify)) {
    timers.clear(op.timer);
    unlink_running(op);
    if (op.has_lists()) release_lists(op);
    reporter.defer_op(op);
    return;
  }
  Event event{.kind = EventKind::kDone};
  event.op = op.id();
  event.value = op.bytes_delivered;
  event.parts_unknown = op.parts_unknown;
  event.parts_failed = op.parts_failed;
  if (op.parts_failed > 0) {
    event.code = op.stop_code != Errc::kOk ? op.stop_code : op.code;
    event.peer = op.failed_peer;
    event.first_failed = op.first_failed;
    const bool nothing = op.parts_failed == op.parts && op.parts_unknown == 0;
    event.remote = nothing ? Remote::kNotDelivered : Remote::kUnknown;
  }
  report_completion(op, event);
}

void EngineCore::report_completion(Op& op, const Event& event) {
  timers.clear(op.timer);
  if (op.kind == OpKind::kExpect) waiting_ops.fetch_sub(1, std::memory_order_relaxed);
  unlink_running(op);
  release_lists(op);
  reporter.report_op(op, event);
  room_made();
}

void EngineCore::release_lists(Op& op) noexcept {
  arena.free(op.list.data);
  op.list = {};
  for (PageSide* const side : {&op.source_pages, &op.target_pages}) {
    if (side->list != nullptr) page_lists.release(*std::exchange(side->list, nullptr));
  }
  if (op.write_list != nullptr) write_lists.release(*std::exchange(op.write_list, nullptr));
}

void EngineCore::room_made() noexcept {
  // One kRoom event after a refusal, once a quarter is free, not one per operation. Sequentially
  // consistent, and after the room was made: see exhausted_error().
  if (!room_wanted.load(std::memory_order_seq_cst)) return;
  // Expectations may hold their slots forever: the quarter is of the other slots.
  const uint32_t others =
      ops.max() - std::min(ops.max(), waiting_ops.load(std::memory_order_relaxed));
  if (ops.free_count() < std::max(1u, others / 4)) return;
  if (!room_wanted.exchange(false, std::memory_order_acq_rel)) return;
  room_due.store(true, std::memory_order_release);  // pairs with turn()
  kick();
}

void EngineCore::inbox_read() noexcept {
  if (!inbox_room_wanted.load(std::memory_order_seq_cst)) return;  // pairs with admit()
  if (!inbox_room_wanted.exchange(false, std::memory_order_acq_rel)) return;
  room_due.store(true, std::memory_order_release);  // pairs with turn()
  kick();
}

void EngineCore::link_running(Op& op) noexcept {
  op.running_prev = kNone;
  op.running_next = running_head;
  if (running_head != kNone) ops.at(running_head).running_prev = op.slot;
  running_head = op.slot;
}

void EngineCore::unlink_running(Op& op) noexcept {
  (op.running_prev == kNone ? running_head : ops.at(op.running_prev).running_next) =
      op.running_next;
  if (op.running_next != kNone) ops.at(op.running_next).running_prev = op.running_prev;
  op.running_prev = op.running_next = kNone;
}

bool EngineCore::arm() noexcept {
  const StateGuard lock(state_mutex);
  // Acquire pairs with kick().
  if (kicked.load(std::memory_order_acquire)) return false;
  if (has_submissions() || !completed_expectations.empty()) return false;
  uint32_t needed = arrivals_needed();
  bool quiet = true;
  for (NetworkSlot& network : networks) {
    // One network counts: two could each have some of the immediates and wake for neither.
    if (network.network->sleep_through(needed)) needed = 1;
    quiet = network.network->arm() && quiet;
  }
  return quiet;
}

void EngineCore::wait_fds(std::vector<int>& out) const {
  for (const NetworkSlot& network : networks) {
    if (const int fd = network.network->wait_fd(); fd >= 0) out.push_back(fd);
  }
}

void EngineCore::stop_where(const std::function<bool(const Op&)>& wanted, Errc code) {
  transfers.expand_all();
  // By id, because stopping one may complete others.
  std::vector<OpId> found;
  for (uint32_t slot = running_head; slot != kNone; slot = ops.at(slot).running_next) {
    if (wanted(ops.at(slot))) found.push_back(ops.at(slot).id());
  }
  for (const OpId id : found) {
    Op* op = ops.find(id);
    if (op != nullptr && op->state.load(std::memory_order_relaxed) == OpState::kRunning) {
      stop(*op, code);
    }
  }
}

void EngineCore::offload(std::function<void()> job) {
  outside.fetch_add(1, std::memory_order_seq_cst);
  driver->offload([this, work = std::move(job)] {
    work();
    outside.fetch_sub(1, std::memory_order_seq_cst);  // pairs with close()
  });
}

void EngineCore::destroy_group(GroupId id) {
  dying_groups.push_back(id.slot);
  groups.hide(id.slot);
  sweep_groups();
}

void EngineCore::sweep_groups() {
  std::erase_if(dying_groups, [&](uint32_t slot) {
    // A read-modify-write that adds nothing: pairs with GroupReader.
    if (groups.at(slot)->readers.fetch_add(0, std::memory_order_acq_rel) != 0) return false;
    groups.at(slot)->peers = {};
    groups.recycle(slot);
    return true;
  });
}

/// Every accepted operation is reported, and every callback has run.
bool EngineCore::all_reported() {
  if (ops.in_flight() != 0) return false;
  const StateGuard lock(state_mutex);
  return reporter.handed_over() && reporter.callbacks_idle();
}

bool EngineCore::wait_until(int64_t limit_ns, const std::function<bool()>& done) {
  const int64_t deadline_ns = driver->now_ns() + limit_ns;
  if (!driver->threaded()) return driver->drive(done, deadline_ns);
  // There is no wake-up for these conditions, so they are polled.
  while (!done()) {
    if (driver->now_ns() >= deadline_ns) return false;
    close_event_count.sleep(close_event_count.prepare(), kPollIntervalNs);
  }
  return true;
}

Result<void> EngineCore::close(Timeout timeout) {
  if (forked()) return fail(Errc::kClosed, "engine");
  if (in_callback()) return fail(Errc::kWouldDeadlock, "close");
  auto limit = timeout.ns == Timeout::kDefault ? config.drain_timeout.count() : timeout.ns;
  limit = std::clamp<int64_t>(limit, 1, config.timeout_max.count());
  // Sequentially consistent, and before the operations are counted: see OpTable::take().
  if (closing.exchange(true, std::memory_order_seq_cst)) return fail(Errc::kClosed, "engine");
  {
    const StateGuard lock(state_mutex);
    advance_clock(driver->now_ns());
    stop_where([](const Op&) { return true; },
               Errc::kClosed);  // begin() completes what is still in the ring
  }
  kick();
  const bool drained = wait_until(limit, [&] { return all_reported(); });
  {
    const StateGuard lock(state_mutex);
    advance_clock(driver->now_ns());
    peers.close_all();  // closes every path, which retires what is still in flight
  }
  kick();
  const auto paths_closed = [&] {
    const StateGuard lock(state_mutex);
    return transfers.idle() && peers.inbound_closed();
  };
  wait_until(kTearDownNs, paths_closed);
  {
    // After the paths: a write that is still arriving must not fail with an access error, which its
    // sender would take for a mistake of its own.
    const StateGuard lock(state_mutex);
    advance_clock(driver->now_ns());
    regions.close_all();
  }
  kick();
  const bool torn_down = wait_until(kTearDownNs, [&] {
    // `outside` pairs with OutsideCall.
    if (!all_reported() || outside.load(std::memory_order_seq_cst) != 0) return false;
    if (!paths_closed()) return false;
    const StateGuard lock(state_mutex);
    return regions.live() == 0;
  });
  // A lost goodbye is repeated for a short time, so that peers need not detect the end by silence.
  wait_until(kFarewellNs, [&] {
    const StateGuard lock(state_mutex);
    return peers.byes_sent();
  });
  driver->detach(*this);
  closed.store(true, std::memory_order_release);
  {
    const StateGuard lock(state_mutex);
    reporter.wake_readers();  // after `closed`, which is what they check
  }
  if (!torn_down) {
    FABRIC_LOG(log, kError, "core", "a network did not shut down: its memory is leaked",
               {"operations", ops.in_flight()});
    return fail(Errc::kTimeout, "close");
  }
  const StateGuard lock(state_mutex);
  drop_networks();  // frees ports, queues and descriptors now, not with the last handle
  if (!drained) return fail(Errc::kTimeout, "close");
  return {};
}

void EngineCore::simulate_crash() noexcept {
  // As if the process had been killed: nothing is reported, and the kernel frees ports, queues and
  // descriptors.
  closing.store(true, std::memory_order_seq_cst);
  if (closed.exchange(true, std::memory_order_acq_rel)) return;
  driver->detach(*this);
  const StateGuard lock(state_mutex);
  drop_networks();
}

}  // namespace fabric::core
