#include <gtest/gtest.h>

#include "control/message.h"
#include "wire/samples.h"
#include "wire/wire_helpers.h"

namespace fabric::control::frame_test {
namespace {

const char* const kHeaderGolden =
    "4641424d 01 00 1b00 4d000000 00000000"  // FABM 1.0, Fenced, 77 bytes, reserved
    "a8a7a6a5a4a3a2a1 b8b7b6b5b4b3b2b1"      // to, from
    "0700000000000000 0500000000000000"      // seq, ack
    "0180000000000000";                      // ack bits
const char* const kBodyGolden = "41000000 03";
const char* const kNoMac = "00000000000000000000000000000000";
// hashlib.blake2b(header + 16 zeros + body, digest_size=16,
//                 key=hashlib.blake2b(b"secret", digest_size=32).digest())
const char* const kMac = "156fcaed644c4141d5649123a53ba58d";
constexpr size_t kReservedAt = 12, kSeqAt = 32, kMacAt = 56;

Bytes golden(const char* mac) { return hex(kHeaderGolden) + hex(mac) + hex(kBodyGolden); }

TEST(FrameWire, HasItsGoldenBytes) {
  const Header header = samples::header(MessageType::kFenced);
  EXPECT_EQ(to_hex(encode_frame(header, hex(kBodyGolden), "")), to_hex(golden(kNoMac)));
  EXPECT_EQ(to_hex(encode_frame(header, hex(kBodyGolden), "secret")), to_hex(golden(kMac)));

  const Bytes whole = golden(kMac);
  const auto frame = decode_frame(whole, "secret");
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->header, header);
  EXPECT_EQ(to_hex(frame->body), to_hex(hex(kBodyGolden)));
  EXPECT_EQ(frame->body.data(), whole.data() + kFrameHeaderBytes);
  EXPECT_FALSE(frame->body.newer_minor);
}

TEST(FrameWire, CarriesEveryType) {
  for (const auto& sample : samples::messages()) {
    const Header header = samples::header(sample.type);
    const Bytes datagram = encode_frame(header, sample.body, "k");
    const auto frame = decode_frame(datagram, "k");
    ASSERT_TRUE(frame) << to_string(sample.type);
    EXPECT_EQ(frame->header, header);
    EXPECT_EQ(to_hex(frame->body), to_hex(sample.body));
  }
}

TEST(FrameWire, RefusesEveryPrefix) {
  for (size_t size = 0; size < golden(kMac).size(); ++size) {
    Bytes cut = golden(kMac);
    cut.resize(size);
    EXPECT_EQ(decode_frame(cut, "secret").error().code, Errc::kBadFormat) << size;
    // A length that admits to it leaves only the hash to find it.
    if (size < 12) continue;
    const Errc expected = size < kFrameHeaderBytes ? Errc::kBadFormat : Errc::kWrongJob;
    EXPECT_EQ(decode_frame(with_length(cut), "secret").error().code, expected) << size;
  }
}

TEST(FrameWire, FindsEveryChangedBit) {
  const Bytes whole = golden(kMac);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      Bytes changed = whole;
      changed[at] ^= static_cast<std::byte>(1 << bit);
      const auto frame = decode_frame(changed, "secret");
      ASSERT_FALSE(frame) << "byte " << at << " bit " << bit;
      if (at < kReservedAt) continue;  // the prologue speaks first
      EXPECT_EQ(frame.error().code, Errc::kWrongJob) << at;
    }
  }
}

TEST(FrameWire, RefusesOtherJobs) {
  EXPECT_EQ(decode_frame(golden(kMac), "Secret").error().code, Errc::kWrongJob);
  EXPECT_EQ(decode_frame(golden(kMac), "").error().code, Errc::kWrongJob);
  EXPECT_EQ(decode_frame(golden(kNoMac), "secret").error().code, Errc::kWrongJob);
  EXPECT_TRUE(decode_frame(golden(kNoMac), ""));
}

TEST(FrameWire, CanBeLookedAtWithoutAKeyAndIsStillChecked) {
  const Bytes foreign = golden(kMac);
  const auto seen = peek_frame(foreign);
  ASSERT_TRUE(seen);
  EXPECT_EQ(seen->header, samples::header(MessageType::kFenced));
  EXPECT_EQ(to_hex(seen->body), to_hex(hex(kBodyGolden)));
  for (size_t size = 0; size < foreign.size(); ++size) {
    const auto cut = peek_frame(std::span(foreign).first(size));
    EXPECT_EQ(cut.error().code, Errc::kBadFormat) << size;
  }
  EXPECT_EQ(peek_frame(with(foreign, kMajorAt, 2)).error().code, Errc::kVersion);
  EXPECT_EQ(peek_frame(with(foreign, kReservedAt, 1, 4)).error().code, Errc::kBadFormat);
  EXPECT_EQ(peek_frame(with(foreign, kSeqAt, 0, 8)).error().code, Errc::kBadFormat);
}

TEST(FrameWire, RefusesAnotherMajorBeforeItLooksAtTheHash) {
  EXPECT_EQ(decode_frame(with(golden(kMac), kMajorAt, 2), "secret").error().code, Errc::kVersion);
}

TEST(FrameWire, TakesANewerMinorAndReturnsTheBody) {
  const Bytes newer = with(with(golden(kNoMac), kMinorAt, 1), kReservedAt, 1, 4);
  const auto frame = decode_frame(newer, "");
  ASSERT_TRUE(frame);
  EXPECT_TRUE(frame->body.newer_minor);
}

TEST(FrameWire, RefusesFieldsOutOfRange) {
  const Bytes whole = golden(kNoMac);
  const auto code = [](const Bytes& bytes) { return decode_frame(bytes, "").error().code; };
  EXPECT_EQ(code(with(whole, kReservedAt, 1, 4)), Errc::kBadFormat);
  for (const uint64_t type : {0, 9, 15, 32, 0xffff}) {
    EXPECT_EQ(code(with(whole, kTypeAt, type, 2)), Errc::kBadFormat) << type;
  }
  EXPECT_EQ(code(with(whole, kSeqAt, 0, 8)), Errc::kBadFormat) << "numbered type without number";
  EXPECT_EQ(code(with(whole, kTypeAt, 7, 2)), Errc::kBadFormat) << "numbered ping";
  EXPECT_EQ(code(whole + hex("00")), Errc::kBadFormat) << "longer than its length field";
  EXPECT_EQ(code(with(whole, kMacAt, 1)), Errc::kWrongJob);
}

}  // namespace
}  // namespace fabric::control::frame_test
