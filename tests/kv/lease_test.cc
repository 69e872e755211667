#include "workloads/common/lease.h"

#include <cctype>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

// Every row of the state table of Lease, and everything that the table does not list: there the
// state does not change and nothing is done.

namespace fabric::workloads::lease_test {

void PrintTo(LeaseState state, std::ostream* out) { *out << to_string(state); }

namespace {

constexpr uint64_t kTotal = 10;

using S = LeaseState;

std::string text(const LeaseEffects& effects) {
  std::string out;
  for (const auto& [set, name] : {std::pair{effects.send_cancel, "cancel "},
                                  {effects.disarm, "disarm "},
                                  {effects.fence, "fence "},
                                  {effects.complete, "complete "},
                                  {effects.drain, "drain "},
                                  {effects.quiet, "quiet "},
                                  {effects.stale, "stale "}}) {
    if (set) out += name;
  }
  return out;
}

/// A lease in a state, by the shortest path to it. In kStopping and kDraining the expectation has
/// ended, in "armed" forms not yet.
Lease in(S state, bool armed = false) {
  Lease lease;
  if (state == S::kIdle) return lease;
  lease.start(kTotal);
  if (state == S::kAsked) return lease;
  lease.accepted();
  switch (state) {
    case S::kFull:
      lease.counted(false);
      break;
    case S::kDraining:
    case S::kStopping:
      lease.stop();
      if (!armed) lease.expectation_ended();
      if (state == S::kDraining) lease.confirmed(4, 0);
      break;
    case S::kFencing:
    case S::kQuarantined:
      lease.peer_lost();
      lease.expectation_ended();
      if (state == S::kQuarantined) lease.fence_unproved();
      break;
    case S::kQuiet:
      lease.counted(true);
      break;
    default:
      break;
  }
  EXPECT_EQ(lease.state(), state);
  return lease;
}

using LeaseEvent = std::function<LeaseEffects(Lease&)>;

struct TableRow {
  std::vector<S> from;
  std::string event;
  S next;
  std::string effects;
};

const std::map<std::string, LeaseEvent>& events() {
  static const std::map<std::string, LeaseEvent> all{
      {"not delivered", [](Lease& l) { return l.dispatch_failed(true); }},
      {"maybe delivered", [](Lease& l) { return l.dispatch_failed(false); }},
      {"accepted", [](Lease& l) { return l.accepted(); }},
      {"refused", [](Lease& l) { return l.refused(); }},
      {"counted", [](Lease& l) { return l.counted(false); }},
      {"counted, final", [](Lease& l) { return l.counted(true); }},
      {"poisoned", [](Lease& l) { return l.poisoned(); }},
      {"stop", [](Lease& l) { return l.stop(); }},
      {"confirmed 4", [](Lease& l) { return l.confirmed(4, 0); }},
      {"confirmed all", [](Lease& l) { return l.confirmed(Lease::kAll, 0); }},
      {"confirmed unknown", [](Lease& l) { return l.confirmed(4, 1); }},
      {"confirmed too many", [](Lease& l) { return l.confirmed(kTotal + 1, 0); }},
      {"counts 3", [](Lease& l) { return l.counts(3); }},
      {"counts 4", [](Lease& l) { return l.counts(4); }},
      {"counts 5", [](Lease& l) { return l.counts(5); }},
      {"quiet", [](Lease& l) { return l.quiet(0); }},
      {"quiet, unknown", [](Lease& l) { return l.quiet(2); }},
      {"cancel failed", [](Lease& l) { return l.cancel_failed(); }},
      {"expired", [](Lease& l) { return l.expired(); }},
      {"peer lost", [](Lease& l) { return l.peer_lost(); }},
      {"fence begun", [](Lease& l) { return l.fence_begun(); }},
      {"fence proved", [](Lease& l) { return l.fence_proved(); }},
      {"fence unproved", [](Lease& l) { return l.fence_unproved(); }},
  };
  return all;
}

const std::vector<TableRow>& rows() {
  const std::vector<S> flowing = {S::kAsked, S::kFlowing};
  static const std::vector<TableRow> all{
      {{S::kIdle}, "stop", S::kQuiet, "quiet "},
      {{S::kIdle}, "peer lost", S::kQuiet, "quiet "},
      {{S::kIdle}, "fence begun", S::kQuiet, "quiet "},
      {{S::kAsked}, "not delivered", S::kQuiet, "disarm quiet "},
      {{S::kStopping}, "not delivered", S::kQuiet, "quiet "},
      {{S::kAsked}, "maybe delivered", S::kFencing, "disarm fence "},
      {{S::kStopping}, "maybe delivered", S::kStopping, ""},
      {flowing, "refused", S::kQuiet, "disarm quiet "},
      {{S::kStopping}, "refused", S::kQuiet, "quiet "},
      {{S::kAsked}, "accepted", S::kFlowing, ""},
      {flowing, "counted", S::kFull, "complete "},
      {flowing, "counted, final", S::kQuiet, "complete quiet "},
      {{S::kStopping}, "counted", S::kFull, ""},
      {{S::kStopping}, "counted, final", S::kQuiet, "quiet "},
      {{S::kDraining}, "counted", S::kQuiet, "quiet "},
      {{S::kDraining}, "counted, final", S::kQuiet, "quiet "},
      {flowing, "poisoned", S::kStopping, "cancel "},
      {{S::kStopping}, "poisoned", S::kStopping, ""},
      {{S::kDraining}, "poisoned", S::kFencing, "fence "},
      {flowing, "stop", S::kStopping, "cancel disarm "},
      {flowing, "confirmed 4", S::kDraining, "disarm "},
      {flowing, "confirmed all", S::kDraining, "disarm "},
      {flowing, "confirmed unknown", S::kFencing, "disarm fence "},
      {flowing, "confirmed too many", S::kFencing, "disarm fence "},
      {{S::kStopping}, "confirmed 4", S::kDraining, "drain "},
      {{S::kStopping}, "confirmed all", S::kDraining, "drain "},
      {{S::kStopping}, "confirmed unknown", S::kFencing, "fence "},
      {{S::kStopping}, "confirmed too many", S::kFencing, "fence "},
      {{S::kFull}, "confirmed 4", S::kQuiet, "quiet "},
      {{S::kFull}, "confirmed all", S::kQuiet, "quiet "},
      {{S::kFull}, "confirmed too many", S::kQuiet, "quiet "},
      {{S::kFull}, "confirmed unknown", S::kFencing, "fence "},
      {{S::kDraining}, "counts 3", S::kDraining, ""},
      {{S::kDraining}, "counts 4", S::kQuiet, "quiet "},
      {{S::kDraining}, "counts 5", S::kFencing, "fence "},
      {{S::kFull}, "quiet", S::kQuiet, "quiet "},
      {{S::kFull}, "quiet, unknown", S::kFencing, "fence "},
      {flowing, "quiet, unknown", S::kFencing, "disarm fence "},
      {{S::kStopping}, "quiet, unknown", S::kFencing, "fence "},
      {{S::kAsked}, "quiet", S::kAsked, ""},
      {{S::kFlowing}, "quiet", S::kFlowing, ""},
      {{S::kStopping}, "quiet", S::kStopping, ""},
      {{S::kStopping}, "cancel failed", S::kFencing, "fence "},
      {{S::kStopping, S::kDraining, S::kFull}, "expired", S::kFencing, "fence "},
      {flowing, "peer lost", S::kFencing, "disarm fence "},
      {{S::kFull, S::kStopping, S::kDraining}, "peer lost", S::kFencing, "fence "},
      {flowing, "fence begun", S::kFencing, "disarm fence "},
      {{S::kFull, S::kStopping, S::kDraining}, "fence begun", S::kFencing, "fence "},
      {{S::kFencing}, "fence proved", S::kQuiet, "quiet "},
      {{S::kFencing}, "fence unproved", S::kQuarantined, ""},
      {{S::kQuarantined}, "fence proved", S::kQuiet, "quiet "},
  };
  return all;
}

constexpr S kStates[] = {S::kIdle,     S::kAsked,   S::kFlowing,     S::kFull, S::kStopping,
                         S::kDraining, S::kFencing, S::kQuarantined, S::kQuiet};

struct Cell {
  S from;
  std::string event;
  S next;
  std::string effects;
};

std::vector<Cell> cells() {
  std::vector<Cell> out;
  for (const TableRow& row : rows()) {
    for (const S from : row.from) out.push_back({from, row.event, row.next, row.effects});
  }
  return out;
}

/// "AskedNotDelivered".
std::string cell_name(const testing::TestParamInfo<Cell>& info) {
  std::string out = to_string(info.param.from);
  bool begins = true;
  for (const char c : info.param.event) {
    const bool part = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (part) out += begins ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    begins = !part;
  }
  return out;
}

class KvLeaseTable : public testing::TestWithParam<Cell> {};

TEST_P(KvLeaseTable, Row) {
  Lease lease = in(GetParam().from);
  const LeaseEffects effects = events().at(GetParam().event)(lease);
  EXPECT_EQ(lease.state(), GetParam().next);
  EXPECT_EQ(text(effects), GetParam().effects);
}
INSTANTIATE_TEST_SUITE_P(All, KvLeaseTable, testing::ValuesIn(cells()), cell_name);

TEST(KvLease, EveryStateAndEventFollowsTheTable) {
  for (const S state : kStates) {
    for (const auto& [name, event] : events()) {
      SCOPED_TRACE(std::string(to_string(state)) + ", " + name);
      const TableRow* row = nullptr;
      for (const TableRow& each : rows()) {
        const bool from = std::find(each.from.begin(), each.from.end(), state) != each.from.end();
        if (from && each.event == name) row = &each;
      }
      Lease lease = in(state);
      const LeaseEffects effects = event(lease);
      EXPECT_EQ(lease.state(), row == nullptr ? state : row->next);
      EXPECT_EQ(text(effects), row == nullptr ? "stale " : row->effects);
    }
  }
}

/// Each row by itself, so that a report names it.
struct RowParam {
  S from;
  TableRow row;
};

void PrintTo(const RowParam& one, std::ostream* out) {
  *out << to_string(one.from) << ", " << one.row.event;
}

std::vector<RowParam> row_params() {
  std::vector<RowParam> params;
  for (const TableRow& row : rows()) {
    for (const S from : row.from) params.push_back({from, row});
  }
  return params;
}

class KvLeaseRow : public testing::TestWithParam<RowParam> {};

TEST_P(KvLeaseRow, LeadsToItsStateWithItsEffects) {
  Lease lease = in(GetParam().from);
  const LeaseEffects effects = events().at(GetParam().row.event)(lease);
  EXPECT_EQ(lease.state(), GetParam().row.next);
  EXPECT_EQ(text(effects), GetParam().row.effects);
}

INSTANTIATE_TEST_SUITE_P(Rows, KvLeaseRow, testing::ValuesIn(row_params()), [](const auto& one) {
  std::string name = to_string(one.param.from);
  for (const char c : "_" + one.param.row.event) {
    if (c != ',') name += c == ' ' ? '_' : c;
  }
  return name;
});

TEST(KvLease, GivesTheMemoryBackOnceWhateverComesAfterwards) {
  for (const auto& [first, one] : events()) {
    for (const auto& [second, two] : events()) {
      for (const S state : kStates) {
        Lease lease = in(state);
        uint32_t quiet = state == S::kQuiet ? 1 : 0;
        for (const LeaseEvent* event : {&one, &two, &one, &two}) quiet += (*event)(lease).quiet;
        EXPECT_EQ(quiet, lease.state() == S::kQuiet ? 1u : 0u)
            << to_string(state) << ", " << first << ", " << second;
      }
    }
  }
}

TEST(KvLease, WaitsForTheReportOfADisarmedExpectation) {
  Lease met = in(S::kStopping, true);
  EXPECT_EQ(text(met.confirmed(kTotal, 0)), "disarm ");
  EXPECT_TRUE(met.counts(kTotal).stale) << "the expectation may have taken the counts";
  EXPECT_EQ(text(met.counted(false)), "quiet ");
  Lease ended = in(S::kStopping, true);
  ended.confirmed(4, 0);
  EXPECT_EQ(text(ended.expectation_ended()), "drain ");
  EXPECT_EQ(text(ended.counts(4)), "quiet ");
}

TEST(KvLease, AQuietThatOvertakesTheCountIsKept) {
  for (const bool stops : {false, true}) {
    Lease lease = in(S::kFlowing);
    lease.quiet(0);
    if (stops) lease.stop();
    EXPECT_EQ(text(lease.counted(false)), stops ? "quiet " : "complete quiet ");
  }
}

TEST(KvLease, APoisonedKeyProvesNothing) {
  Lease lease = in(S::kFlowing);
  lease.poisoned();
  EXPECT_EQ(text(lease.confirmed(kTotal, 0)), "fence ");
}

TEST(KvLease, KnowsWhatLanded) {
  Lease confirmed = in(S::kDraining);
  EXPECT_EQ(confirmed.landed(), 4u);
  EXPECT_FALSE(confirmed.full());
  Lease all = in(S::kStopping);
  all.confirmed(Lease::kAll, 0);
  EXPECT_EQ(all.landed(), kTotal);
  Lease full = in(S::kStopping);
  full.counted(true);
  EXPECT_TRUE(full.full());
  EXPECT_EQ(full.landed(), kTotal);
}

}  // namespace
}  // namespace fabric::workloads::lease_test
