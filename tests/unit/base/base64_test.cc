#include "base/base64.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::base64_test {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span(text.data(), text.size()));
  return {view.begin(), view.end()};
}

// The vectors of RFC 4648, section 10, with the padding taken off.
TEST(Base64Url, GivesTheVectorsOfTheStandard) {
  const std::pair<const char*, const char*> vectors[] = {
      {"", ""},           {"f", "Zg"},          {"fo", "Zm8"},          {"foo", "Zm9v"},
      {"foob", "Zm9vYg"}, {"fooba", "Zm9vYmE"}, {"foobar", "Zm9vYmFy"},
  };
  for (const auto& [plain, text] : vectors) {
    EXPECT_EQ(base64url_encode(bytes_of(plain)), text);
    const auto decoded = base64url_decode(text);
    ASSERT_TRUE(decoded) << text;
    EXPECT_EQ(*decoded, bytes_of(plain));
  }
}

TEST(Base64Url, UsesTheAlphabetForUrls) {
  EXPECT_EQ(base64url_encode(bytes_of("\xfb\xff\xbf")), "-_-_");
  ASSERT_TRUE(base64url_decode("-_-_"));
  EXPECT_FALSE(base64url_decode("+/+/"));
}

TEST(Base64Url, RefusesEverythingThatItWouldNotWrite) {
  for (const char* text : {"Z", "Zm9vY", "Zg==", "Zm9v=", "Zm 9", "Zm9v\n", "Zm\x80v", "Zm.v"}) {
    const auto decoded = base64url_decode(text);
    ASSERT_FALSE(decoded) << text;
    EXPECT_EQ(decoded.error().code, Errc::kBadFormat);
  }
}

// "Zh" has the bits of 'f' and one more: two texts for the same bytes would defeat comparisons.
TEST(Base64Url, RefusesBitsThatAreLeftOver) {
  EXPECT_TRUE(base64url_decode("Zg"));
  EXPECT_FALSE(base64url_decode("Zh"));
  EXPECT_TRUE(base64url_decode("Zm8"));
  EXPECT_FALSE(base64url_decode("Zm9"));
}

TEST(Base64Url, ComesBackForEveryLength) {
  Rng rng(7);
  for (size_t size = 0; size < 70; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
    const auto decoded = base64url_decode(base64url_encode(bytes));
    ASSERT_TRUE(decoded) << size;
    EXPECT_EQ(*decoded, bytes);
  }
}

}  // namespace
}  // namespace fabric::base64_test
