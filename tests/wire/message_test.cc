#include "control/message.h"

#include <gtest/gtest.h>

#include "wire/samples.h"
#include "wire/wire_helpers.h"

namespace fabric::control::message_test {
namespace {

/// What holds for every body: its golden bytes both ways, no prefix, more bytes only from a newer
/// minor. Sections of a hello end where bytes would follow, so its own test covers that.
template <class T, class Decode>
void expect_golden(const char* golden, const T& sample, Decode decode) {
  EXPECT_EQ(to_hex(encode(sample)), to_hex(hex(golden)));
  const Bytes whole = hex(golden);
  const auto decoded = decode(whole);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(to_hex(encode(*decoded)), to_hex(whole));
  expect_no_prefix_decodes(whole, decode, false);

  const Bytes longer = whole + hex("abcd");
  EXPECT_EQ(decode(longer).error().code, Errc::kBadFormat);
  const auto newer = decode(Body(longer, true));
  ASSERT_TRUE(newer);
  EXPECT_EQ(to_hex(encode(*newer)), to_hex(whole));
}

TEST(MessageWire, Reject) {
  expect_golden("23 0807060504030201", samples::reject(), decode_reject);
  EXPECT_EQ(*decode_reject(encode(samples::reject())), samples::reject());
  EXPECT_FALSE(decode_reject(hex("00 0807060504030201"))) << "a rejection with no reason";
  EXPECT_FALSE(decode_reject(hex("12 0807060504030201"))) << "no such code";
}

TEST(MessageWire, Bye) {
  expect_golden("20", samples::bye(), decode_bye);
  EXPECT_EQ(*decode_bye(encode(samples::bye())), samples::bye());
  for (int code = 0; code < 256; ++code) {
    const bool known = code <= 17 || (code >= 32 && code <= 35) || code == 64;
    EXPECT_EQ(decode_bye(Bytes{static_cast<std::byte>(code)}).has_value(), known) << code;
  }
}

TEST(MessageWire, PathOpen) {
  const char* golden = "21000000 03 73696d 04 66617374 01 07 0200 7170";
  expect_golden(golden, samples::path_open(), decode_path_open);
  EXPECT_EQ(*decode_path_open(hex(golden)), samples::path_open());
  EXPECT_FALSE(decode_path_open(with(hex(golden), 13, 8))) << "rail";
  EXPECT_FALSE(decode_path_open(with(hex(golden), 14, 8))) << "remote rail";
  EXPECT_FALSE(decode_path_open(with(hex(golden), 5, 0x1f))) << "name";
  EXPECT_FALSE(decode_path_open(with(hex(golden), 15, 3))) << "longer than the bytes that follow";
}

TEST(MessageWire, PathAnswer) {
  expect_golden("21000000 21 0200 6e6f", samples::path_answer(), decode_path_answer);
  EXPECT_EQ(*decode_path_answer(encode(samples::path_answer())), samples::path_answer());
  EXPECT_FALSE(decode_path_answer(hex("21000000 1f 0200 6e6f"))) << "no such code";
}

TEST(MessageWire, UserMessage) {
  const char* golden = "31000000 0302 08000000 6869207468657265";
  expect_golden(golden, samples::user_message(), decode_user_message);
  const Bytes whole = hex(golden);
  const auto message = decode_user_message(whole);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->ref, 0x31u);
  EXPECT_EQ(message->channel, 0x0203u);
  EXPECT_EQ(message->bytes.data(), whole.data() + 10) << "the bytes were copied";
  EXPECT_EQ(message->bytes.size(), 8u);
  EXPECT_FALSE(decode_user_message(with(whole, 6, 0xffffffff, 4)));
  EXPECT_TRUE(decode_user_message(hex("31000000 0302 00000000"))) << "empty messages are legal";
}

TEST(MessageWire, MessagePart) {
  const char* golden = "32000000 0402 45230100 00400000 08000000 6869207468657265";
  expect_golden(golden, samples::message_part(), decode_message_part);
  const Bytes whole = hex(golden);
  const auto part = decode_message_part(whole);
  ASSERT_TRUE(part);
  EXPECT_EQ(part->ref, 0x32u);
  EXPECT_EQ(part->channel, 0x0204u);
  EXPECT_EQ(part->total_bytes, 0x12345u);
  EXPECT_EQ(part->offset, 0x4000u);
  EXPECT_EQ(part->bytes.data(), whole.data() + 18) << "not copied";
  EXPECT_FALSE(decode_message_part(with(whole, 6, 0x10000, 4))) << "would not need parts";
  EXPECT_FALSE(decode_message_part(with(whole, 6, 0x100001, 4))) << "above 1 MiB";
  EXPECT_TRUE(decode_message_part(with(whole, 6, 0x100000, 4)));
  EXPECT_FALSE(decode_message_part(with(whole, 10, 0x12345 - 7, 4))) << "ends beyond the message";
  EXPECT_TRUE(decode_message_part(with(whole, 10, 0x12345 - 8, 4)));
  EXPECT_FALSE(decode_message_part(with(whole, 10, 0xffffffff, 4)));
  EXPECT_FALSE(decode_message_part(with(whole, 14, 0xffffffff, 4)));
  EXPECT_TRUE(decode_message_part(hex("32000000 0402 45230100 00400000 00000000"))) << "withdrawn";
}

TEST(MessageWire, Done) {
  expect_golden("41000000 03", samples::done(), decode_done);
  EXPECT_EQ(*decode_done(encode(samples::done())), samples::done());
  EXPECT_FALSE(decode_done(hex("41000000 ff")));
}

TEST(MessageWire, ResolveNames) {
  const char* golden = "51000000 0200 0010000000000000 ffffffffffffffff";
  expect_golden(golden, samples::resolve(), decode_resolve);
  EXPECT_EQ(*decode_resolve(hex(golden)), samples::resolve());
  EXPECT_FALSE(decode_resolve(hex("51000000 0000"))) << "no names";
  const Bytes most = hex("51000000 0004") + Bytes(8 * kNamesPerMessageMax);
  EXPECT_TRUE(decode_resolve(most));
  EXPECT_FALSE(decode_resolve(with(most + Bytes(8), 4, kNamesPerMessageMax + 1, 2)));
}

TEST(MessageWire, ResolvedNames) {
  const char* golden = "51000000 00 0200 01000000 ffffff0f";
  expect_golden(golden, samples::resolved(), decode_resolved);
  EXPECT_EQ(*decode_resolved(hex(golden)), samples::resolved());
  EXPECT_TRUE(decode_resolved(hex("51000000 04 0000")));
  EXPECT_FALSE(decode_resolved(hex("51000000 00 0000"))) << "ok without counter keys";
  EXPECT_FALSE(decode_resolved(hex("51000000 04 0100 01000000"))) << "counter keys in a failure";
  EXPECT_FALSE(decode_resolved(hex("51000000 00 0100 00000000"))) << "counter key 0";
  EXPECT_FALSE(decode_resolved(hex("51000000 00 0100 00000010"))) << "29 bits";
  Bytes many = hex("51000000 00 0104");
  for (uint32_t i = 0; i <= kNamesPerMessageMax; ++i) many = std::move(many) + hex("01000000");
  EXPECT_FALSE(decode_resolved(many));
  many.resize(many.size() - 4);
  EXPECT_TRUE(decode_resolved(with(many, 5, kNamesPerMessageMax, 2)));
}

TEST(MessageWire, RevokeRegion) {
  expect_golden("61000000 05000000 09000000 11000000", samples::revoke_region(),
                decode_revoke_region);
  EXPECT_EQ(*decode_revoke_region(encode(samples::revoke_region())), samples::revoke_region());
  EXPECT_FALSE(decode_revoke_region(hex("61000000 05000000 00000000 11000000")));
}

TEST(MessageWire, FenceRequest) {
  expect_golden("71000000", samples::fence(), decode_fence);
  EXPECT_EQ(*decode_fence(encode(samples::fence())), samples::fence());
}

TEST(MessageWire, RevokeKey) {
  expect_golden("81000000 a9cbed0f", samples::revoke_key(), decode_revoke_key);
  EXPECT_EQ(*decode_revoke_key(encode(samples::revoke_key())), samples::revoke_key());
  EXPECT_FALSE(decode_revoke_key(hex("81000000 00000000")));
  EXPECT_FALSE(decode_revoke_key(hex("81000000 00000010")));
}

TEST(MessageWire, AbortKey) {
  expect_golden("a9cbed0f 09", samples::abort_key(), decode_abort_key);
  EXPECT_EQ(*decode_abort_key(encode(samples::abort_key())), samples::abort_key());
  EXPECT_FALSE(decode_abort_key(hex("a9cbed0f 00"))) << "a failure with no reason";
  EXPECT_FALSE(decode_abort_key(hex("00000000 09")));
}

TEST(MessageWire, PathsThatEnd) {
  expect_golden("91000000", samples::path_close(), decode_path_close);
  expect_golden("a1000000 01 18171615 14131211", samples::path_drained(), decode_path_drained);
  EXPECT_EQ(*decode_path_drained(encode(samples::path_drained())), samples::path_drained());
  EXPECT_FALSE(decode_path_drained(hex("a1000000 02 18171615 14131211")))
      << "a flag that is neither 0 nor 1";
  EXPECT_FALSE(decode_path_drained(hex("a1000000 01 18171615 141312")));
}

TEST(MessageWire, PingAndPong) {
  expect_golden("08070605 04030201", samples::ping(), decode_ping);
  EXPECT_EQ(*decode_ping(encode(samples::ping())), samples::ping());
}

// The address inside has golden bytes of its own.
const char* const kHelloTail =
    "0200 2900 9900000000000000 00000100 20000000"  // limits: incarnation, bytes, credits,
    "00b864d945000000 00f2052a01000000"             // 300 s, 5 s
    "00ac23fc06000000 01"                           // 30 s, inline
    "0300 0c00 6d6f64656c3d6d3b74703d38";           // "model=m;tp=8"

Bytes hello_golden() { return hex("0100 5200") + encode(samples::address()) + hex(kHelloTail); }
constexpr size_t kAddressAt = 4, kLimitsAt = 86, kAppInfoAt = 131;

TEST(HelloWire, HasItsGoldenBytes) {
  EXPECT_EQ(to_hex(encode(samples::hello())), to_hex(hello_golden()));
  const auto decoded = decode_hello(hello_golden());
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, samples::hello());
  expect_no_prefix_decodes(hello_golden(), decode_hello, false);
}

TEST(HelloWire, SkipsUnknownSectionsAndTakesLongerOnesOfANewerMinor) {
  const auto unknown = decode_hello(hello_golden() + hex("0400 0200 abcd"));
  ASSERT_TRUE(unknown);
  EXPECT_EQ(*unknown, samples::hello());

  Bytes longer = with(hello_golden(), kLimitsAt + 2, 0x2a);
  longer.insert(longer.begin() + kAppInfoAt, std::byte{0xff});
  EXPECT_EQ(decode_hello(longer).error().code, Errc::kBadFormat);
  const auto newer = decode_hello(Body(longer, true));
  ASSERT_TRUE(newer);
  EXPECT_EQ(*newer, samples::hello());
}

TEST(HelloWire, RefusesFieldsOutOfRange) {
  const Bytes whole = hello_golden();
  const auto code = [](const Bytes& bytes) { return decode_hello(bytes).error().code; };
  EXPECT_EQ(code(with(whole, kAddressAt + kMajorAt, 2)), Errc::kVersion)
      << "the version of the address";
  EXPECT_EQ(code(with(whole, kAddressAt, 0)), Errc::kBadFormat);
  EXPECT_EQ(code(with(whole, kLimitsAt + 4 + 16 + 7, 0x80)), Errc::kBadFormat) << "timeout < 0";
  EXPECT_EQ(code(with(whole, kLimitsAt + 4 + 24 + 7, 0x80)), Errc::kBadFormat) << "drain < 0";
  EXPECT_EQ(code(with(whole, kLimitsAt + 4 + 32 + 7, 0x80)), Errc::kBadFormat) << "lost < 0";
  EXPECT_EQ(code(with(whole, kLimitsAt + 4 + 40, 2)), Errc::kBadFormat)
      << "a flag that is neither 0 nor 1";
  EXPECT_EQ(code(with(whole, kLimitsAt, 9, 2)), Errc::kBadFormat) << "no limits";
  EXPECT_EQ(code(with(whole, kAppInfoAt, 9, 2)), Errc::kBadFormat) << "no text";
  EXPECT_EQ(code(whole + Bytes(whole.begin() + kAppInfoAt, whole.end())), Errc::kBadFormat);
}

TEST(HelloWire, BoundsTheTextOfTheApplication) {
  Hello hello = samples::hello();
  hello.app_info.assign(kAppInfoBytesMax, 'x');
  const Bytes most = encode(hello);
  EXPECT_EQ(*decode_hello(most), hello);
  EXPECT_FALSE(decode_hello(with(most + hex("78"), kAppInfoAt + 2, kAppInfoBytesMax + 1, 2)));
}

}  // namespace
}  // namespace fabric::control::message_test
