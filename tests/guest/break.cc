#include "guest/break.h"

#include <cstdlib>

#include <gtest/gtest.h>

#include "guest/links.h"

namespace fabric::test {
namespace {

using namespace std::chrono_literals;
using End = VerbsInterposer::End;

constexpr auto kLongCable = 20ms;  // a round trip is much shorter than a NIC's timeout
constexpr auto kSlowNic = 40ms;    // longer than a packet's flight
constexpr auto kLateAcks = 20ms;
constexpr char kHosts[] = {'a', 'b'};
constexpr uint32_t kA = 0, kB = 1;

const char* description(Break kind) {
  switch (kind) {
    case Break::kOwnLink:
      return "link of A down";
    case Break::kOtherLink:
      return "link of B down";
    case Break::kBothLinks:
      return "links of A and B down";
    case Break::kDataLost:
      return "all lost that A sends";  // its acknowledgements too
    case Break::kOtherDataLost:
      return "all lost that B sends";
    case Break::kBothLost:
      return "all lost that A and B send";
    case Break::kMangled:
      return "delayed, out of order, twice, then B's link down";
    case Break::kAcksLost:
      return "acknowledgements lost";
    case Break::kTargets:
      return "targets in the error state";
    case Break::kSenders:
      return "senders in the error state";
    case Break::kBothEnds:
      return "targets and senders in the error state";
    case Break::kAcksLostThenTargets:
      return "acknowledgements lost, then targets in the error state";
    case Break::kLossyThenSenders:
      return "5% lost, then senders in the error state";
    case Break::kMangledThenSenders:
      return "delayed, out of order, twice, 1% lost, then senders in the error state";
    case Break::kAcksLateThenSenders:
      return "acknowledgements late, then senders in the error state";
    case Break::kTargetsWithEvent:
      return "targets in the error state, after an event of their NICs";
    case Break::kPort:
      return "an event of B's NIC: port down";
    case Break::kRefused:
      return "a key refused each way";
  }
  return "?";
}

/// netem's parameters at the switch ports before the break; not together with a long cable.
const char* before(Break kind) {
  switch (kind) {
    case Break::kMangled:
      return "delay 5ms 4ms reorder 50% duplicate 10%";
    case Break::kLossyThenSenders:
      return "loss 5%";
    case Break::kMangledThenSenders:
      return "delay 15ms 5ms reorder 25% duplicate 10% loss 1%";
    default:
      return nullptr;
  }
}

/// The hosts that see their own port down, one bit each.
uint32_t ports_down(Break kind) {
  switch (kind) {
    case Break::kOwnLink:
      return 1 << kA;
    case Break::kOtherLink:
    case Break::kMangled:
    case Break::kPort:
      return 1 << kB;
    case Break::kBothLinks:
      return 1 << kA | 1 << kB;
    default:
      return 0;
  }
}

bool loses_acks(Break kind) {
  return kind == Break::kAcksLost || kind == Break::kAcksLostThenTargets;
}

}  // namespace

BreakDeck::BreakDeck(Rng& rng) : rng_(rng) {
  const char* text = std::getenv("FABRICLIB_TEST_BREAK");
  for (uint32_t kind = 0; kind < kBreaks; ++kind) {
    if (text == nullptr || std::to_string(kind) == text) all_.push_back(static_cast<Break>(kind));
  }
}

Break BreakDeck::next() {
  if (left_.empty()) left_ = all_;
  const auto at = left_.begin() + static_cast<std::ptrdiff_t>(rng_.below(left_.size()));
  const Break kind = *at;
  left_.erase(at);
  return kind;
}

RailBreak::BreakPlan RailBreak::random(Break kind, Rng& rng) {
  BreakPlan plan{.kind = kind, .rail = rng.chance(0.5) ? '0' : '1'};
  plan.is_long = before(kind) == nullptr && kind != Break::kAcksLateThenSenders && rng.chance(0.5);
  plan.is_slow = rng.chance(0.5);
  return plan;
}

RailBreak::BreakPlan RailBreak::hard(Break kind, Rng& rng) {
  BreakPlan plan = random(kind, rng);
  switch (kind) {
    case Break::kOwnLink:
    case Break::kBothLinks:
      // A host that loses its own link reports it at once, while its packets are still in flight.
      plan.is_long = true;
      break;
    case Break::kSenders:
      plan.is_long = plan.is_slow = true;
      break;
    case Break::kTargetsWithEvent:
    case Break::kPort:
      plan.is_slow = true;
      break;
    default:
      break;
  }
  return plan;
}

RailBreak::RailBreak(const BreakPlan& plan) : plan_(plan) {
  for (const char host : kHosts) {
    if (plan_.is_long) set_delay(far_port(host), kLongCable);
    if (const char* parameters = before(plan_.kind)) set_netem(far_port(host), parameters);
    if (loses_acks(plan_.kind) && !plan_.has_bands) set_control_netem(port(host), "");
    if (plan_.kind == Break::kAcksLateThenSenders) {
      set_control_netem(far_port(host), "");
      set_band_delay(far_port(host), Band::kAcks, kLateAcks);
    }
  }
  if (!plan_.is_slow) return;
  for (const uint32_t host : {kA, kB}) VerbsInterposer::get().delay_error_state(host, kSlowNic);
}

void RailBreak::lose(char host) const {
  if (plan_.has_bands) return set_data_lost(port(host), true);
  lose_all(port(host));
}

void RailBreak::lose_acks(bool lost) const {
  for (const char host : kHosts) set_band_lost(port(host), Band::kAcks, lost);
}

void RailBreak::break_ends(End end) {
  ends_ = VerbsInterposer::get().break_path(kA, kB, rail(), end) +
          VerbsInterposer::get().break_path(kB, kA, rail(), end);
}

void RailBreak::strike(Rng& rng, const std::function<void(std::chrono::nanoseconds)>& wait,
                       const std::function<void()>& refuse) {
  switch (plan_.kind) {
    case Break::kOwnLink:
      return set_link(port('a'), false);
    case Break::kOtherLink:
    case Break::kMangled:
      return set_link(port('b'), false);
    case Break::kBothLinks:
      set_link(port('a'), false);
      return set_link(port('b'), false);
    case Break::kDataLost:
      return lose('a');
    case Break::kOtherDataLost:
      return lose('b');
    case Break::kBothLost:
      lose('a');
      return lose('b');
    case Break::kAcksLost:
      return lose_acks(true);
    case Break::kTargets:
      return break_ends(End::kTarget);
    case Break::kSenders:
    case Break::kLossyThenSenders:
    case Break::kMangledThenSenders:
    case Break::kAcksLateThenSenders:
      return break_ends(End::kSender);
    case Break::kBothEnds:
      break_ends(End::kTarget);
      return break_ends(End::kSender);
    case Break::kAcksLostThenTargets:
      lose_acks(true);
      wait(std::chrono::milliseconds(rng.between(0, 10)));
      return break_ends(End::kTarget);
    case Break::kTargetsWithEvent:
      VerbsInterposer::get().raise_qp_fatal(kA, kB, rail(), End::kTarget);
      VerbsInterposer::get().raise_qp_fatal(kB, kA, rail(), End::kTarget);
      return break_ends(End::kTarget);
    case Break::kPort:
      return VerbsInterposer::get().raise_port_event(kB, rail(), false);
    case Break::kRefused:
      return refuse();
  }
}

void RailBreak::mend() const {
  for (const uint32_t host : {kA, kB}) VerbsInterposer::get().delay_error_state(host, {});
  if (plan_.kind == Break::kPort) VerbsInterposer::get().raise_port_event(kB, rail(), true);
  for (const char host : kHosts) {
    clear_netem(far_port(host));
    if (plan_.has_bands) {
      set_data_lost(port(host), false);
    } else {
      clear_netem(port(host));
    }
    set_link(port(host), true);
  }
}

bool RailBreak::leave_a_rail(Break one, Break other) {
  return (ports_down(one) & ports_down(other)) == 0;
}

std::string RailBreak::describe() const {
  return std::string("rail ") + plan_.rail + (plan_.is_long ? " (long)" : "") +
         (plan_.is_slow ? " (slow NICs)" : "") + ", " + description(plan_.kind);
}

bool RailBreak::is_sudden() const {
  switch (plan_.kind) {
    case Break::kAcksLost:
    case Break::kOtherLink:
    case Break::kDataLost:
    case Break::kOtherDataLost:
    case Break::kBothLost:
    case Break::kMangled:
      return false;
    default:
      return true;
  }
}

}  // namespace fabric::test
