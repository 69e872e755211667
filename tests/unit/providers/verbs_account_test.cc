#include "providers/verbs/account.h"

#include <vector>

#include <gtest/gtest.h>

namespace fabric::verbs::verbs_account_test {
namespace {

using Drain = ReceiveTracker::Drain;

TEST(VerbsReceives, AreDrainedWhenAllCompletedAndOneWithAnError) {
  ReceiveTracker receives;
  receives.post(3);
  receives.succeed();
  EXPECT_EQ(receives.drain(), Drain::kWait);
  receives.fail();
  EXPECT_EQ(receives.drain(), Drain::kWait);
  EXPECT_EQ(receives.outstanding(), 1u);
  receives.fail();
  EXPECT_EQ(receives.drain(), Drain::kDone);
}

TEST(VerbsReceives, EqualCountsProveNothingWithoutAnError) {
  ReceiveTracker none;
  EXPECT_EQ(none.drain(), Drain::kNeedsMarker);
  ReceiveTracker receives;
  receives.post(2);
  receives.succeed();
  receives.succeed();
  EXPECT_EQ(receives.drain(), Drain::kNeedsMarker);
  receives.post(1);
  EXPECT_EQ(receives.drain(), Drain::kWait);
  receives.succeed();  // the marker may still be taken by a write
  EXPECT_EQ(receives.drain(), Drain::kNeedsMarker);
  receives.post(1);
  receives.fail();
  EXPECT_EQ(receives.drain(), Drain::kDone);
}

std::vector<uint32_t> reported(SendTracker& sends) {
  std::vector<uint32_t> out;
  while (sends.has_delivered()) out.push_back(sends.report_delivered());
  return out;
}

TEST(VerbsSends, ASuccessCoversAllBeforeIt) {
  SendTracker sends;
  EXPECT_EQ(sends.post(4), 0u);
  EXPECT_FALSE(sends.has_delivered());
  sends.succeed(2);
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(sends.outstanding(), 1u);
  EXPECT_TRUE(sends.has_unreported());
  sends.succeed(3);
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{3}));
  EXPECT_FALSE(sends.has_unreported());
}

TEST(VerbsSends, AnErrorCoversOnlyItself) {
  SendTracker sends;
  sends.post(6);
  sends.succeed(1);
  EXPECT_TRUE(sends.fail(3, false));
  EXPECT_FALSE(sends.fail(4, false));
  sends.succeed(5);  // successes after an error are ignored
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(sends.report_lost(), 2u);
  EXPECT_TRUE(sends.has_unreported());
}

// A success and the marker of a drain may be polled together: what finish() has reported as lost
// must not be reported as delivered afterwards.
TEST(VerbsSends, WhatWasReportedAsLostIsNotReportedAsDelivered) {
  SendTracker sends(UINT32_MAX - 1);  // numbers wrap
  sends.post(6);
  sends.succeed(UINT32_MAX);
  EXPECT_TRUE(sends.fail(2, false));
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{UINT32_MAX - 1, UINT32_MAX}));
  while (sends.has_unreported()) sends.report_lost();
  EXPECT_FALSE(sends.has_delivered());
}

TEST(VerbsSends, ARefusalMeansThatAllBeforeItWereDelivered) {
  SendTracker sends;
  sends.post(6);
  EXPECT_TRUE(sends.fail(3, true));
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(sends.next_to_report(), 3u);  // a look that changes nothing
  EXPECT_EQ(sends.report_lost(), 3u);
  EXPECT_TRUE(sends.has_unreported());
}

TEST(VerbsSends, IfTheMarkerIsTheFirstErrorNothingIsKnownOfTheOthers) {
  SendTracker sends;
  sends.post(3);
  EXPECT_TRUE(sends.fail(sends.next(), false));
  EXPECT_FALSE(sends.has_delivered());
  EXPECT_EQ(sends.outstanding(), 3u);
}

TEST(VerbsSends, NumbersWrap) {
  SendTracker sends(UINT32_MAX - 1);
  EXPECT_EQ(sends.post(4), UINT32_MAX - 1);
  sends.succeed(0);
  EXPECT_EQ(reported(sends), (std::vector<uint32_t>{UINT32_MAX - 1, UINT32_MAX, 0}));
  EXPECT_TRUE(sends.fail(1, false));
  EXPECT_FALSE(sends.has_delivered());
  EXPECT_EQ(sends.outstanding(), 1u);
}

TEST(VerbsSends, ANumberThatIsNotOutstandingIsIgnored) {
  SendTracker sends;
  sends.post(2);
  sends.succeed(7);
  EXPECT_FALSE(sends.has_delivered());
  sends.succeed(1);
  EXPECT_EQ(reported(sends).size(), 2u);
  sends.succeed(0);  // of the past
  EXPECT_FALSE(sends.has_delivered());
}

TEST(VerbsSends, WhatWasRefusedDoesNotExist) {
  SendTracker sends;
  sends.post(5);
  sends.unpost(2);
  EXPECT_EQ(sends.next(), 3u);
  sends.succeed(2);
  EXPECT_EQ(reported(sends).size(), 3u);
  EXPECT_FALSE(sends.has_unreported());
}

}  // namespace
}  // namespace fabric::verbs::verbs_account_test
