#include "providers/sim/faults.h"

#include <algorithm>
#include <string_view>

#include "providers/sim/world.h"

// Faults are checked, planned and applied here. Applying one mostly changes the FaultTable, which
// the other files of Wire consult.

namespace fabric::sim {
namespace {

using Kind = Fault::Kind;

constexpr std::array<const char*, Fault::kKinds> kNames = {
    "nic down",       "nic up",       "cut",        "heal",
    "control cut",    "control heal", "crash",      "stop",
    "continue",       "slow",         "delay",      "break sender",
    "break target",   "lose acks",    "keep acks",  "receiver not ready",
    "receiver ready", "late counts",  "late acks",  "swallow counts",
    "overrun",        "refuse posts", "take posts", "twice",
    "once",           "wrong rkey",   "right rkey", "late proof",
    "late bytes"};

}  // namespace

const char* to_string(Fault::Kind kind) noexcept {
  const auto index = static_cast<size_t>(kind);
  return index < kNames.size() ? kNames[index] : "?";
}

bool is_for_pairs(Fault::Kind kind) noexcept {
  switch (kind) {
    case Kind::kCut:
    case Kind::kHeal:
    case Kind::kControlCut:
    case Kind::kControlHeal:
    case Kind::kBreakSender:
    case Kind::kBreakTarget:
    case Kind::kLoseAcks:
    case Kind::kKeepAcks:
    case Kind::kTwice:
    case Kind::kOnce:
    case Kind::kWrongRkey:
    case Kind::kRightRkey:
      return true;
    default:
      return false;
  }
}

// ---- Planning -----------------------------------------------------------------------------------

Result<void> Wire::check(const Fault& fault) const {
  if (static_cast<uint32_t>(fault.kind) >= Fault::kKinds) {
    return fail(Errc::kInvalidArgument, "kind");
  }
  if (options_.realtime && is_for_engines(fault.kind)) {
    return fail(Errc::kUnsupported, "sim: crash, stop and slow need virtual time");
  }
  if (fault.node >= nodes_.size()) return fail(Errc::kInvalidArgument, "node");
  const auto& networks = nodes_[fault.node].networks;
  if (fault.network >= networks.size()) return fail(Errc::kInvalidArgument, "network");
  const NodeNetwork& network = networks[fault.network];
  if (fault.rail != Fault::kAllRails && fault.rail >= network.rails) {
    return fail(Errc::kInvalidArgument, "rail");
  }
  if (fault.time.count() < 0) return fail(Errc::kInvalidArgument, "time");
  if (!is_for_pairs(fault.kind)) return {};
  if (fault.other >= nodes_.size()) return fail(Errc::kInvalidArgument, "other");
  const auto& others = nodes_[fault.other].networks;
  const bool connected = std::any_of(others.begin(), others.end(), [&](const NodeNetwork& other) {
    return other.name == network.name;
  });
  return connected ? Result<void>{} : fail(Errc::kInvalidArgument, "other");
}

Result<void> Wire::plan(int64_t time_ns, const Fault& fault) {
  const auto held = lock();
  if (auto checked = check(fault); !checked) return checked;
  plan_now(time_ns, fault);
  return {};
}

Result<void> Wire::plan_by_event(uint64_t events, const Fault& fault) {
  const auto held = lock();
  if (auto checked = check(fault); !checked) return checked;
  if (events <= events_) {
    plan_now(now_ns_, fault);
  } else {
    faults_.by_event.emplace(events, fault);
  }
  return {};
}

void Wire::plan_now(int64_t time_ns, const Fault& fault) {
  const uint32_t planned = faults_.planned.take();
  faults_.planned[planned] = fault;
  schedule(time_ns, SimEventKind::kFault, planned);
}

void Wire::apply_planned(uint32_t planned) {
  const Fault fault = faults_.planned[planned];
  faults_.planned.give(planned);
  apply(fault);
}

/// Called after every network event: applies the faults planned by event count.
void Wire::after_event() {
  ++events_;
  while (!faults_.by_event.empty() && faults_.by_event.begin()->first <= events_) {
    const Fault fault = faults_.by_event.begin()->second;
    faults_.by_event.erase(faults_.by_event.begin());
    apply(fault);
  }
}

uint64_t Wire::applied(Fault::Kind kind) const noexcept {
  const auto held = lock();
  const auto index = static_cast<size_t>(kind);
  return index < faults_.applied.size() ? faults_.applied[index] : 0;
}

std::vector<Fault> Wire::take_for_engines() {
  const auto held = lock();
  return std::exchange(faults_.for_engines, {});
}

std::vector<Progress*> Wire::engines_of(uint32_t node) const {
  const auto held = lock();
  std::vector<Progress*> engines;
  for (const auto& attachment : attachments_) {
    if (attachment == nullptr || attachment->node != node ||
        attachment->context.progress == nullptr)
      continue;
    // An engine has an attachment on each of its networks.
    const auto found = std::find(engines.begin(), engines.end(), attachment->context.progress);
    if (found == engines.end()) engines.push_back(attachment->context.progress);
  }
  return engines;
}

// ---- Applying -----------------------------------------------------------------------------------

void Wire::apply(const Fault& fault) {
  ++faults_.applied[static_cast<size_t>(fault.kind)];
  hash_.add(static_cast<uint64_t>(now_ns_)).add(static_cast<uint64_t>(fault.kind));
  hash_.add(uint64_t{fault.node} << 32 | fault.other)
      .add(uint64_t{fault.rail} << 32 | fault.network);
  hash_.add(static_cast<uint64_t>(fault.time.count()));

  const Node& node = nodes_[fault.node];
  const uint32_t first = node.first_nic[fault.network];
  if (is_for_engines(fault.kind)) return faults_.for_engines.push_back(fault);
  if (is_for_pairs(fault.kind)) return apply_to_pair(fault, nics_[first].fabric);
  apply_to_node(fault);
  for (uint32_t rail = 0; rail < node.networks[fault.network].rails; ++rail) {
    if ((rail_mask(fault.rail) & rail_mask(rail)) != 0) apply_to_nic(fault, nics_[first + rail]);
  }
}

void Wire::apply_to_pair(const Fault& fault, uint32_t fabric) {
  if (fault.kind == Kind::kBreakSender || fault.kind == Kind::kBreakTarget) {
    return break_ends(fault, fabric);
  }
  const bool all = fault.rail == Fault::kAllRails;
  const uint32_t mask = rail_mask(fault.rail);
  PairFaults& there = faults_.pairs[{fault.node, fault.other, fabric}];
  PairFaults& back = faults_.pairs[{fault.other, fault.node, fabric}];
  switch (fault.kind) {
    case Kind::kCut:
    case Kind::kHeal:
      for (PairFaults* pair : {&there, &back}) {
        const bool cut = fault.kind == Kind::kCut;
        pair->cut = cut ? pair->cut | mask : pair->cut & ~mask;
        if (all) pair->datagrams_cut = cut;
      }
      return;
    case Kind::kControlCut:
    case Kind::kControlHeal:
      there.control_cut = back.control_cut = fault.kind == Kind::kControlCut;
      return;
    case Kind::kLoseAcks:
      there.lost_acks |= mask;
      return;
    case Kind::kKeepAcks:
      there.lost_acks &= ~mask;
      return;
    case Kind::kTwice:
    case Kind::kOnce:
      there.twice = fault.kind == Kind::kTwice;
      return;
    case Kind::kRightRkey:
      there.wrong_rkey &= ~mask;
      return;
    default:
      there.wrong_rkey |= mask;
      return;
  }
}

void Wire::apply_to_node(const Fault& fault) {
  NodeFaults& faults = nodes_[fault.node].faults;
  const int64_t time_ns = fault.time.count();
  if (fault.kind == Kind::kDelay) faults.delay_ns = time_ns;
  if (fault.kind == Kind::kLateCounts) faults.late_counts_ns = time_ns;
  if (fault.kind == Kind::kLateAcks) faults.late_acks_ns = time_ns;
  if (fault.kind == Kind::kLateProof) faults.late_proof_ns = time_ns;
  if (fault.kind == Kind::kLateBytes) faults.late_bytes_ns = time_ns;
}

void Wire::apply_to_nic(const Fault& fault, Nic& nic) {
  switch (fault.kind) {
    case Kind::kNicDown:
      return set_down(nic, true);
    case Kind::kNicUp:
      return set_down(nic, false);
    case Kind::kOverrun:
      return overrun(nic);
    case Kind::kReceiverNotReady:
    case Kind::kReceiverReady:
      nic.faults.not_ready = fault.kind == Kind::kReceiverNotReady;
      return;
    case Kind::kSwallowCounts:
      nic.faults.swallows_counts = true;
      nic.faults.fails_ns = now_ns_ + fault.time.count();
      return schedule(nic.faults.fails_ns, SimEventKind::kNicFails, nic.index);
    case Kind::kRefusePosts:
      nic.faults.refuses_posts = true;
      return;
    case Kind::kTakePosts:
      nic.faults.refuses_posts = false;
      return each_rail(
          nic, [&](const PathRef& at, RailState&) { wake_later(*find_attachment(at.attachment)); });
    default:
      return;  // handled by apply_to_node()
  }
}

// ---- Effects ------------------------------------------------------------------------------------

/// Calls f for every engine's RailState on the NIC.
template <class F>
void Wire::each_rail(const Nic& nic, F&& f) {
  for (const auto& attachment : attachments_) {
    if (attachment == nullptr || attachment->node != nic.node) continue;
    for (uint32_t i = 0; i < attachment->rails.size(); ++i) {
      if (attachment->rails[i].nic == &nic)
        f(PathRef{attachment->number, i, 0}, attachment->rails[i]);
    }
  }
}

const PairFaults& Wire::pair_faults(const AttachmentLocation& from,
                                    uint32_t to_attachment) const noexcept {
  return faults_.pair(from.node, locations_[to_attachment - 1].node, from.fabric);
}

void Wire::set_down(Nic& nic, bool down) {
  // Counts that it swallowed are lost, so it must go down before it is up again.
  if (std::exchange(nic.faults.swallows_counts, false) && !down) set_down(nic, true);
  if (nic.faults.down == down) return;
  nic.faults.down = down;
  each_rail(nic, [&](const PathRef& at, RailState& rail) {
    if (!down) rail.overran = false;
    report_nic(at, down);
  });
  kick(nic);
}

void Wire::report_nic(const PathRef& at, bool down) {
  RailEvent event;
  event.kind = down ? RailEvent::Kind::kRailDown : RailEvent::Kind::kRailUp;
  event.code = down ? Errc::kRailLost : Errc::kOk;
  report(at, event);
}

/// The end of kSwallowCounts, unless the NIC went down before.
void Wire::nic_fails(Nic& nic) {
  if (!nic.faults.swallows_counts || nic.faults.fails_ns != now_ns_) return;
  set_down(nic, true);
}

void Wire::overrun(Nic& nic) {
  set_down(nic, true);
  each_rail(nic, [&](const PathRef& at, RailState& rail) { overrun(rail, at); });
}

/// Delayed events of this queue are lost, and none of its path ends can be drained. Posted writes
/// still complete, once, when their path is closed.
void Wire::overrun(RailState& rail, const PathRef& at) {
  rail.overran = true;
  rail.in.each([](uint32_t, InPath& path) { path.undrained = true; });
  rail.out.each([](uint32_t, OutPath& path) { path.undrained = true; });
  while (!rail.late_counts.items.empty()) {
    RailEvent event = rail.late_counts.items.pop().event;
    if (event.kind == RailEvent::Kind::kImm) {
      --rail.immediates;
      // Acknowledged, but never reported to the engine.
      if (event.cookie != 0) store_late(rail, event.cookie);
      if (InPath* in = find_in({at.attachment, at.rail, event.path})) --in->received;
      continue;
    }
    if (const InPath* in = find_in({at.attachment, at.rail, event.path}))
      event.value = in->received;
    event.remote = Remote::kUnknown;
    enqueue(at, rail, event);
  }
  while (!rail.late_acks.items.empty()) {
    RailEvent event = rail.late_acks.items.pop().event;
    if (event.kind == RailEvent::Kind::kCompletion) {
      event.code = Errc::kRailLost;
      event.remote = Remote::kUnknown;
      rail.hidden.push_back(event);
      continue;
    }
    report_hidden({at.attachment, at.rail, event.path});
    enqueue(at, rail, event);
  }
}

/// The path is down: reports the completions that the overrun held back. They are not delayed
/// again, or a second overrun would report them after their path's kPathDown.
void Wire::report_hidden(const PathRef& at) {
  RailState* rail = find_rail(at);
  if (rail == nullptr || rail->hidden.empty()) return;
  std::vector<RailEvent> others;
  for (const RailEvent& event : std::exchange(rail->hidden, {})) {
    if (event.path == at.path) {
      enqueue(at, *rail, event);
    } else {
      others.push_back(event);
    }
  }
  rail->hidden = std::move(others);
}

/// Breaks the ends of the paths fault.node -> fault.other, on one side.
void Wire::break_ends(const Fault& fault, uint32_t fabric) {
  const bool senders = fault.kind == Kind::kBreakSender;
  const uint32_t here = senders ? fault.node : fault.other;
  const auto meant = [&](uint32_t far_attachment, uint32_t sender_rail) {
    const uint32_t far = senders ? fault.other : fault.node;
    // A target has the attachment number from a hello, which may be hostile.
    return far_attachment - 1 < locations_.size() && locations_[far_attachment - 1].node == far &&
           (rail_mask(fault.rail) & rail_mask(sender_rail)) != 0;
  };
  for (const auto& attachment : attachments_) {
    if (attachment == nullptr || attachment->node != here) continue;
    if (locations_[attachment->number - 1].fabric != fabric) continue;
    for (uint32_t rail = 0; rail < attachment->rails.size(); ++rail) {
      RailState& state = attachment->rails[rail];
      if (senders) {
        state.out.each([&](uint32_t number, OutPath& path) {
          const PathRef at{attachment->number, rail, number};
          if (path.up() && meant(path.to.attachment, rail)) break_path(path, at, Remote::kUnknown);
        });
        continue;
      }
      state.in.each([&](uint32_t number, InPath& path) {
        if (path.down || path.undrained || !meant(path.from.attachment, path.from.rail)) return;
        path.down = true;
        in_down({attachment->number, rail, number});
      });
    }
  }
}

/// kWrongRkey: the next write with bytes carries an rkey that was never issued.
void Wire::corrupt_key(Flight& flight, const OutPath& path) {
  if (faults_.pairs.empty()) return;
  const Nic& nic = *flight.nic;
  const auto found =
      faults_.pairs.find({nic.node, locations_[path.to.attachment - 1].node, nic.fabric});
  if (found == faults_.pairs.end()) return;
  uint32_t& rails = found->second.wrong_rkey;
  if ((rails & rail_mask(nic.rail)) == 0) return;
  // One write only, also for kAllRails.
  rails = rails == UINT32_MAX ? 0 : rails & ~rail_mask(nic.rail);
  flight.op.rkey ^= uint64_t{1} << 63;
}

}  // namespace fabric::sim
