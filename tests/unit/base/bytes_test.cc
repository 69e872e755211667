#include "base/bytes.h"

#include <array>

#include <gtest/gtest.h>

namespace fabric::bytes_test {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(ByteWriter, WritesLittleEndian) {
  ByteWriter out;
  out.u8(0x01);
  out.u16(0x0203);
  out.u32(0x04050607);
  out.u64(0x08090a0b0c0d0e0f);
  out.i32(-2);
  out.i64(-3);
  EXPECT_TRUE(out.ok());
  EXPECT_EQ(out.take(), bytes_of({0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e,
                                  0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0xfe, 0xff, 0xff,
                                  0xff, 0xfd, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}));
}

TEST(ByteWriter, FailsForGoodAtItsLimitAndWritesNoPart) {
  ByteWriter out(5);
  out.u32(1);
  EXPECT_TRUE(out.ok());
  out.u16(2);
  EXPECT_FALSE(out.ok());
  EXPECT_EQ(out.size(), 4u);
  out.u8(3);
  EXPECT_FALSE(out.ok());
  EXPECT_EQ(out.size(), 4u);
}

TEST(ByteReader, ReadsBackWhatWasWritten) {
  ByteWriter out;
  out.u8(0xff);
  out.u16(0xfffe);
  out.u32(0xfffffffd);
  out.u64(0xfffffffffffffffc);
  out.i32(INT32_MIN);
  out.i64(INT64_MIN);
  out.text("name");
  ByteReader in(out.view());
  EXPECT_EQ(in.u8(), 0xffu);
  EXPECT_EQ(in.u16(), 0xfffeu);
  EXPECT_EQ(in.u32(), 0xfffffffdu);
  EXPECT_EQ(in.u64(), 0xfffffffffffffffcu);
  EXPECT_EQ(in.i32(), INT32_MIN);
  EXPECT_EQ(in.i64(), INT64_MIN);
  EXPECT_EQ(in.text(4), "name");
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_TRUE(in.ok());
  EXPECT_TRUE(in.status("x").has_value());
}

TEST(ByteReader, ReadsNumbersAtAnyAlignment) {
  alignas(8) std::array<std::byte, 16> buffer{};
  for (size_t offset = 0; offset < 8; ++offset) {
    buffer.fill(std::byte{0});
    buffer[offset] = std::byte{0x2a};
    ByteReader in(std::span<const std::byte>(buffer).subspan(offset, 8));
    EXPECT_EQ(in.u64(), 0x2au);
  }
}

TEST(ByteReader, StaysFailedAfterOneReadPastTheEnd) {
  const auto bytes = bytes_of({1, 2, 3});
  ByteReader in(bytes);
  EXPECT_EQ(in.u16(), 0x0201u);
  EXPECT_EQ(in.u16(), 0u);
  EXPECT_FALSE(in.ok());
  EXPECT_EQ(in.u8(), 0u) << "no read may succeed after a failed one";
  EXPECT_EQ(in.remaining(), 0u);
  EXPECT_TRUE(in.bytes(0).empty());
  const auto status = in.status("thing");
  EXPECT_EQ(status.error().code, Errc::kBadFormat);
  EXPECT_STREQ(status.error().what, "thing");
}

TEST(ByteReader, RefusesLengthsThatNoBufferHas) {
  const auto bytes = bytes_of({1, 2, 3});
  ByteReader in(bytes);
  EXPECT_TRUE(in.bytes(SIZE_MAX).empty());
  EXPECT_FALSE(in.ok());
}

TEST(ByteReader, RequireFailsItLikeBeingCutShort) {
  const auto bytes = bytes_of({1, 2, 3});
  ByteReader in(bytes);
  in.require(true);
  EXPECT_TRUE(in.ok());
  in.require(false);
  EXPECT_FALSE(in.ok());
  EXPECT_TRUE(in.rest().empty());
}

}  // namespace
}  // namespace fabric::bytes_test
