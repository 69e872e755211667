#include "base/log.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace fabric::log_test {
namespace {

struct Kept {
  LogLevel level;
  std::string line;
  std::string file;
  int32_t place;
};

/// Collects the lines of one Log.
struct Collector {
  std::vector<Kept> kept;
  LogSink sink() {
    return {[](void* context, const LogRecord& record) {
              static_cast<Collector*>(context)->kept.push_back(
                  {record.level, log_line(record), record.file, record.line});
            },
            this};
  }
};

TEST(Log, WritesTextAndFieldsInOrder) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kTrace);
  FABRIC_LOG(log, kWarning, "core", "peer is silent", {"peer", PeerId(3, 7)}, {"turns", 12});
  const int32_t line = __LINE__ - 1;
  ASSERT_EQ(collector.kept.size(), 1u);
  EXPECT_EQ(collector.kept[0].line, "fabric[core] warning: peer is silent peer=3.7 turns=12");
  EXPECT_EQ(collector.kept[0].level, LogLevel::kWarning);
  EXPECT_EQ(collector.kept[0].place, line);
  EXPECT_NE(collector.kept[0].file.find("log_test.cc"), std::string::npos);
}

TEST(Log, DropsWhatIsBelowItsLevelWithoutEvaluatingTheValues) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kWarning);
  int evaluated = 0;
  FABRIC_LOG(log, kInfo, "core", "not wanted", {"n", ++evaluated});
  EXPECT_EQ(evaluated, 0);
  EXPECT_TRUE(collector.kept.empty());
  FABRIC_LOG(log, kWarning, "core", "wanted", {"n", ++evaluated});
  FABRIC_LOG(log, kError, "core", "wanted too");
  EXPECT_EQ(evaluated, 1);
  EXPECT_EQ(collector.kept.size(), 2u);
}

TEST(Log, SaysNothingWhenOff) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kOff);
  FABRIC_LOG(log, kError, "core", "no");
  FABRIC_LOG(log, kOff, "core", "not even this");
  EXPECT_TRUE(collector.kept.empty());
}

TEST(Log, FormatsEveryKindOfValue) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kTrace);
  FABRIC_LOG(log, kInfo, "t", "x", {"none", PeerId()}, {"code", Errc::kPeerLost}, {"yes", true},
             {"half", 0.5}, {"time", Nanos(1500)}, {"small", uint8_t{65}}, {"neg", int64_t{-1}},
             {"text", std::string("plain")}, {"error", fail(Errc::kPermission, "mmap", 13)});
  ASSERT_EQ(collector.kept.size(), 1u);
  EXPECT_EQ(collector.kept[0].line,
            "fabric[t] info: x none=none code=PeerLost yes=true half=0.5 time=1500ns small=65 "
            "neg=-1 text=plain error=\"Permission: mmap (13)\"");
}

// Texts of a peer end up here. A line break in one must not forge a line of its own.
TEST(Log, QuotesAndEscapesWhatCouldForgeALine) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kTrace);
  FABRIC_LOG(log, kInfo, "t", "x", {"a", "two words"}, {"b", "x\ny\x1b"}, {"c", "q\"\\"}, {"d", ""},
             {"e", "k=v"});
  ASSERT_EQ(collector.kept.size(), 1u);
  EXPECT_EQ(collector.kept[0].line,
            "fabric[t] info: x a=\"two words\" b=\"x\\x0ay\\x1b\" c=\"q\\\"\\\\\" d=\"\" "
            "e=\"k=v\"");
}

TEST(Log, LeavesOutFieldsBeyondItsBound) {
  Collector collector;
  Log log(collector.sink(), LogLevel::kTrace);
  FABRIC_LOG(log, kInfo, "t", "x", {"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"5", 5}, {"6", 6},
             {"7", 7}, {"8", 8}, {"9", 9}, {"10", 10}, {"11", 11}, {"12", 12}, {"13", 13},
             {"14", 14}, {"15", 15}, {"16", 16}, {"17", 17});
  ASSERT_EQ(collector.kept.size(), 1u);
  EXPECT_TRUE(collector.kept[0].line.ends_with(" 16=16")) << collector.kept[0].line;
}

TEST(Log, GoesToStandardErrorWithoutASink) {
  Log log({}, LogLevel::kWarning);
  testing::internal::CaptureStderr();
  FABRIC_LOG(log, kInfo, "core", "hidden");
  FABRIC_LOG(log, kError, "core", "shown", {"n", 1});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fabric[core] error: shown n=1\n");
}

TEST(LogLimiter, LetsOneThroughAnIntervalAndCountsTheRest) {
  LogLimiter limiter(100);
  EXPECT_TRUE(limiter.allow(5));
  EXPECT_EQ(limiter.suppressed(), 0u);
  EXPECT_FALSE(limiter.allow(5));
  EXPECT_FALSE(limiter.allow(104));
  EXPECT_TRUE(limiter.allow(105));
  EXPECT_EQ(limiter.suppressed(), 2u);
  EXPECT_TRUE(limiter.allow(205));
  EXPECT_EQ(limiter.suppressed(), 0u);
}

}  // namespace
}  // namespace fabric::log_test
