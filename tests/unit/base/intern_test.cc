#include "base/intern.h"

#include <string>

#include <gtest/gtest.h>

namespace fabric::intern_test {
namespace {

TEST(Intern, OutlivesWhatItWasMadeFromAndSharesEqualTexts) {
  const char* first = nullptr;
  {
    std::string text = "FABRICLIB_OPS_MAX";
    first = intern(text);
    text.assign("overwritten...");
  }
  EXPECT_STREQ(first, "FABRICLIB_OPS_MAX");
  EXPECT_EQ(intern("FABRICLIB_OPS_MAX"), first);
}

TEST(Intern, CutsLongTexts) {
  const std::string text(kInternedBytesMax + 10, 'x');
  EXPECT_EQ(intern(text), text.substr(0, kInternedBytesMax));
}

TEST(Intern, StopsGrowingAndKeepsWhatItHas) {
  const char* kept = intern("kept");
  for (uint32_t i = 0; i < kInternedMax; ++i) intern("filler" + std::to_string(i));
  EXPECT_STREQ(intern("one too many"), "(unnamed)");
  EXPECT_EQ(intern("kept"), kept);
  EXPECT_STREQ(intern("filler0"), "filler0");
}

}  // namespace
}  // namespace fabric::intern_test
