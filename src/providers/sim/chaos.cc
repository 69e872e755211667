#include <algorithm>

#include "providers/sim/world.h"

// Random faults. The whole plan is drawn when plan() is called, from its own generator: it does not
// depend on the engines, and does not shift the draws of the network.

namespace fabric::sim {
namespace {

using Kind = Fault::Kind;

/// The longest delay of kSlow, kDelay, kLateCounts, kLateAcks, kLateProof and kLateBytes.
constexpr uint64_t kDelayMaxNs = 1'000'000;

bool lasts_by_time(Kind kind) noexcept {
  return kind == Kind::kSlow || kind == Kind::kDelay || kind == Kind::kLateCounts ||
         kind == Kind::kLateAcks || kind == Kind::kLateProof || kind == Kind::kLateBytes;
}

}  // namespace

std::optional<Fault> opposite(const Fault& of) noexcept {
  Fault fault = of;
  if (lasts_by_time(fault.kind)) {
    fault.time = Nanos(0);
    return fault;
  }
  switch (fault.kind) {
    case Kind::kNicDown:
    case Kind::kSwallowCounts:
    case Kind::kOverrun:
      fault.kind = Kind::kNicUp;
      break;
    case Kind::kCut:
      fault.kind = Kind::kHeal;
      break;
    case Kind::kControlCut:
      fault.kind = Kind::kControlHeal;
      break;
    case Kind::kStop:
      fault.kind = Kind::kContinue;
      break;
    case Kind::kLoseAcks:
      fault.kind = Kind::kKeepAcks;
      break;
    case Kind::kReceiverNotReady:
      fault.kind = Kind::kReceiverReady;
      break;
    case Kind::kRefusePosts:
      fault.kind = Kind::kTakePosts;
      break;
    case Kind::kTwice:
      fault.kind = Kind::kOnce;
      break;
    case Kind::kWrongRkey:
      fault.kind = Kind::kRightRkey;
      break;
    default:
      return std::nullopt;
  }
  return fault;
}

Result<void> Wire::plan(const Chaos& chaos) {
  const auto held = lock();
  if (chaos.gap.count() <= 0) return fail(Errc::kInvalidArgument, "gap");
  if (chaos.lasts.count() < 0) return fail(Errc::kInvalidArgument, "lasts");
  if (nodes_.empty()) return fail(Errc::kInvalidArgument, "node");
  std::vector<Kind> kinds = chaos.kinds;
  for (const Kind kind : kinds) {
    if (static_cast<uint32_t>(kind) >= Fault::kKinds) return fail(Errc::kInvalidArgument, "kinds");
    if (options_.realtime && is_for_engines(kind)) return fail(Errc::kUnsupported, "kinds");
  }
  for (uint32_t i = 0; chaos.kinds.empty() && i < Fault::kKinds; ++i) {
    Fault fault;
    fault.kind = static_cast<Kind>(i);
    const bool once = fault.kind == Kind::kBreakSender || fault.kind == Kind::kBreakTarget;
    if (options_.realtime && is_for_engines(fault.kind)) continue;
    if (once || opposite(fault)) kinds.push_back(fault.kind);
  }
  const int64_t until = chaos.until.count();
  const auto gap = 2 * static_cast<uint64_t>(chaos.gap.count());
  const auto lasts = 2 * static_cast<uint64_t>(chaos.lasts.count());
  int64_t time = options_.realtime ? std::max(now_ns_, real_now_ns_) : now_ns_;
  while (true) {
    const uint64_t wait = fault_rng_.between(0, gap);
    if (time >= until || wait >= static_cast<uint64_t>(until - time)) break;
    time += static_cast<int64_t>(wait);
    const Kind kind = kinds[fault_rng_.below(kinds.size())];
    const uint64_t left = static_cast<uint64_t>(until - time);
    const auto stays =
        static_cast<int64_t>(std::clamp<uint64_t>(fault_rng_.between(0, lasts), 1, left));
    const Fault fault = draw(kind, stays);
    if (!check(fault)) continue;  // the two nodes that were drawn share no network
    plan_now(time, fault);
    if (const auto undone = opposite(fault)) plan_now(time + stays, *undone);
  }
  return {};
}

Fault Wire::draw(Fault::Kind kind, int64_t lasts_ns) {
  Fault fault;
  fault.kind = kind;
  // Every member is drawn for every kind, so that the kind does not shift later draws.
  fault.node = static_cast<uint32_t>(fault_rng_.below(nodes_.size()));
  const auto step =
      static_cast<uint32_t>(fault_rng_.between(1, std::max<uint64_t>(2, nodes_.size()) - 1));
  fault.other = static_cast<uint32_t>((fault.node + step) % nodes_.size());
  const auto& networks = nodes_[fault.node].networks;
  if (networks.empty()) return fault;  // which check() refuses
  fault.network = static_cast<uint32_t>(fault_rng_.below(networks.size()));
  fault.rail = static_cast<uint32_t>(fault_rng_.below(networks[fault.network].rails));
  if (fault_rng_.chance(0.25)) fault.rail = Fault::kAllRails;
  fault.time = Nanos(static_cast<int64_t>(fault_rng_.between(1, kDelayMaxNs)));
  // The NIC must go down before the opposite brings it up.
  if (kind == Kind::kSwallowCounts) fault.time = Nanos(lasts_ns / 2);
  return fault;
}

}  // namespace fabric::sim
