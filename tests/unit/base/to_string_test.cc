#include <set>
#include <string>

#include <fabric/counter.h>
#include <fabric/log.h>
#include <fabric/memory.h>
#include <fabric/notify.h>
#include <fabric/peer.h>
#include <fabric/result.h>
#include <gtest/gtest.h>

namespace fabric::to_string_test {
namespace {

/// How many of the 256 values have a name; each name stands for one value.
template <class E>
size_t named() {
  std::set<std::string> names;
  size_t count = 0;
  for (int value = 0; value < 256; ++value) {
    const std::string name = to_string(static_cast<E>(value));
    if (name == "?") continue;
    ++count;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  return count;
}

TEST(ToString, NamesEveryEnumeratorAndNothingElse) {
  EXPECT_EQ(named<Errc>(), 18u + 4u + 1u);
  EXPECT_EQ(named<LogLevel>(), 6u);
  EXPECT_EQ(named<EventKind>(), 8u);
  EXPECT_EQ(named<Remote>(), 3u);
  EXPECT_EQ(named<Priority>(), 3u);
  EXPECT_EQ(named<MemoryKind>(), 3u);
  EXPECT_EQ(named<Quiescence>(), 2u);
  EXPECT_EQ(named<PeerState>(), 5u);
  EXPECT_EQ(named<FenceKind>(), 4u);
}

TEST(ToString, SpellsTheNamesOfTheHeaders) {
  EXPECT_STREQ(to_string(Errc::kOk), "Ok");
  EXPECT_STREQ(to_string(Errc::kPermission), "Permission");
  EXPECT_STREQ(to_string(Errc::kWrongJob), "WrongJob");
  EXPECT_STREQ(to_string(Errc::kRailLost), "RailLost");
  EXPECT_STREQ(to_string(LogLevel::kWarning), "warning");
  EXPECT_STREQ(to_string(PeerState::kStalled), "Stalled");
  EXPECT_STREQ(to_string(Remote::kNotDelivered), "NotDelivered");
}

}  // namespace
}  // namespace fabric::to_string_test
