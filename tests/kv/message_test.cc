#include "workloads/kv/message.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "support/log_guard.h"

// What decoders and prefillers send each other: golden bytes, and bytes that are truncated, hostile
// or of another version.

namespace fabric::kv::wire::message_test {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<uint8_t>(b) >> 4];
    out += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return out;
}

Dispatch sample_dispatch() {
  Dispatch dispatch{.serial = 9, .id = "r1", .attempt = 2, .per_layer = true};
  dispatch.wants_quiet = true;
  dispatch.has_tail = true;
  dispatch.plan_hash = 0x1122334455667788;
  dispatch.prompt_tokens = 100;
  dispatch.set = 1;
  dispatch.set_generation = 3;
  dispatch.tail_offset = 512;
  dispatch.tail_bytes_max = 256;
  dispatch.cached_tokens = {16, 0};
  dispatch.counter_keys = {5, 6};
  dispatch.staging_record_bytes = 640;
  dispatch.staging_records.ids = {3, 8};
  dispatch.pages = {{.first = 1, .ids = {4, 5, 6, 7, 8}}, {.ids = {9, 2}}};
  dispatch.info = {std::byte{1}, std::byte{2}};
  return dispatch;
}

TEST(KvMessage, GoldenBytes) {
  const std::byte layout[2] = {std::byte{0xaa}, std::byte{0xbb}};
  EXPECT_EQ(hex(encode_hello(0x4b44, {.next_serial = (uint64_t{3} << 40) + 1, .layout = layout})),
            "4b0101444b0100000000030000aabb");
  EXPECT_EQ(hex(encode_cancel(0x4b44, 7)), "4b0104444b0700000000000000");
  EXPECT_EQ(hex(encode_quiet(1, 7, 0)), "4b0109010007000000000000000000000000000000");
  EXPECT_EQ(hex(encode_accept(1, {.serial = 2, .load = {3, 4, 5}})),
            "4b01050100020000000000000003000000040000000500000000000000");
  EXPECT_EQ(hex(encode_dispatch(1, sample_dispatch())),
            "4b01030100090000000000000002007231020000000788776655443322116400000001000000030000"
            "0000020000000000000001000000000000020000001000000000000000020000000500000006000000"
            "8002000000000000000000000002000000030000000800000002000000010000000101000000040000"
            "00050000000000000000020000000900000002000000020000000102");
}

TEST(KvMessage, ADispatchComesBackAsItWas) {
  const auto bytes = encode_dispatch(1, sample_dispatch());
  const auto head = decode_head(bytes);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->kind, MessageKind::kDispatch);
  EXPECT_EQ(head->channel, 1u);
  const auto back = decode_dispatch(bytes, 100);
  ASSERT_TRUE(back) << back.error().what;
  EXPECT_EQ(encode_dispatch(1, *back), bytes);
  EXPECT_EQ(back->pages[0].ids, sample_dispatch().pages[0].ids);
  EXPECT_EQ(back->pages[1].ids, sample_dispatch().pages[1].ids);
  EXPECT_EQ(back->staging_records.ids, sample_dispatch().staging_records.ids);
  Dispatch far = sample_dispatch();  // record numbers times this would not fit in 64 bits
  far.staging_record_bytes = UINT64_MAX / 2;
  EXPECT_EQ(decode_dispatch(encode_dispatch(1, far), 100).error().code, Errc::kBadFormat);
}

TEST(KvMessage, PagesTakeTheShorterForm) {
  Dispatch dispatch = sample_dispatch();
  dispatch.pages = {{}};
  for (uint32_t i = 0; i < 10'000; ++i) dispatch.pages[0].ids.push_back(i + 7);
  const auto together = encode_dispatch(1, dispatch);
  EXPECT_LT(together.size(), 200u) << "one run";
  EXPECT_EQ(decode_dispatch(together, 10'000)->pages[0].ids, dispatch.pages[0].ids);
  for (uint32_t i = 0; i < 10'000; ++i) dispatch.pages[0].ids[i] = i * 2;
  const auto apart = encode_dispatch(1, dispatch);
  EXPECT_LT(apart.size(), 40'200u) << "4 bytes a page, not 8";
  EXPECT_EQ(decode_dispatch(apart, 10'000)->pages[0].ids, dispatch.pages[0].ids);
}

TEST(KvMessage, ShortMessagesOfLongRunsAreRefused) {
  Dispatch dispatch = sample_dispatch();
  EXPECT_EQ(decode_dispatch(encode_dispatch(1, dispatch), 6).error().code, Errc::kBadFormat)
      << "7 pages where 6 are allowed";
  dispatch.pages = {{.first = 0, .ids = {}}};
  auto bytes = encode_dispatch(1, dispatch);
  // The page list is before the 6 bytes of the info: make it one run of 2^32 - 1 pages.
  const size_t at = bytes.size() - 6 - 5;
  bytes[at] = std::byte{1};
  bytes[at + 1] = std::byte{1};
  const std::byte run[8] = {std::byte{0},    std::byte{0},    std::byte{0},    std::byte{0},
                            std::byte{0xff}, std::byte{0xff}, std::byte{0xff}, std::byte{0xff}};
  bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at) + 5, std::begin(run), std::end(run));
  EXPECT_EQ(decode_dispatch(bytes, 1 << 20).error().code, Errc::kBadFormat);
}

TEST(KvMessage, AHelloWithoutASerialNumberIsRefused) {
  EXPECT_EQ(decode_hello(encode_hello(1, {.next_serial = 0})).error().code, Errc::kBadFormat);
  const auto bytes = encode_hello(1, {.next_serial = 9});
  ASSERT_TRUE(decode_hello(bytes));
  EXPECT_EQ(decode_hello(bytes)->next_serial, 9u);
  EXPECT_FALSE(decode_hello(std::span(bytes).first(bytes.size() - 1)));
}

TEST(KvMessage, OtherVersionsAndForeignBytesAreRefused) {
  auto bytes = encode_cancel(1, 7);
  bytes[1] = std::byte{2};
  EXPECT_EQ(decode_head(bytes).error().code, Errc::kVersion);
  bytes[1] = std::byte{1};
  bytes[2] = std::byte{10};
  EXPECT_EQ(decode_head(bytes).error().code, Errc::kBadFormat);
  bytes[0] = std::byte{0};
  EXPECT_EQ(decode_head(bytes).error().code, Errc::kBadFormat);
  EXPECT_EQ(decode_head({}).error().code, Errc::kBadFormat);
}

/// Every decoder, on whatever bytes.
bool decodes(std::span<const std::byte> bytes) {
  const auto head = decode_head(bytes);
  if (!head) return false;
  switch (head->kind) {
    case MessageKind::kHello:
      return decode_hello(bytes).has_value();
    case MessageKind::kGrants:
      return decode_grants(bytes).has_value();
    case MessageKind::kDispatch:
      return decode_dispatch(bytes, 1000).has_value();
    case MessageKind::kCancel:
      return decode_cancel(bytes).has_value();
    case MessageKind::kAccept:
      return decode_accept(bytes).has_value();
    case MessageKind::kRefuse:
      return decode_refuse(bytes).has_value();
    case MessageKind::kConfirm:
    case MessageKind::kFailed:
      return decode_ended(bytes).has_value();
    case MessageKind::kQuiet:
      return decode_quiet(bytes).has_value();
  }
  return false;
}

std::vector<std::vector<std::byte>> sample_messages() {
  const std::byte desc[3] = {};
  return {encode_grants(1, {.total = 2, .first = 1, .descs = {desc}}),
          encode_dispatch(1, sample_dispatch()),
          encode_cancel(1, 7),
          encode_accept(1, {.serial = 2}),
          encode_refuse(1, {.serial = 2, .code = RefuseCode::kLayout, .text = "no"}),
          encode_ended(1, MessageKind::kConfirm, {.serial = 2}),
          encode_ended(1, MessageKind::kFailed, {.serial = 2}),
          encode_quiet(1, 7, 0)};
}

TEST(KvMessage, TruncatedAndLongerMessagesAreRefused) {
  for (const auto& bytes : sample_messages()) {
    EXPECT_TRUE(decodes(bytes)) << hex(bytes);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decodes(std::span(bytes).first(size))) << hex(bytes) << " cut at " << size;
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decodes(longer)) << hex(bytes);
  }
}

TEST(KvMessage, ChangedBytesAreRefusedOrGiveValuesWithinTheLimits) {
  Rng rng(fabric::test::test_seed());
  for (const auto& bytes : sample_messages()) {
    for (uint32_t i = 0; i < 2000; ++i) {
      auto changed = bytes;
      for (uint32_t k = 0; k <= rng.below(3); ++k) {
        changed[rng.below(changed.size())] = static_cast<std::byte>(rng.below(256));
      }
      if (!decodes(changed) || decode_head(changed)->kind != MessageKind::kDispatch) continue;
      const auto dispatch = decode_dispatch(changed, 1000);
      EXPECT_LE(dispatch->id.size(), kRequestIdBytesMax);
      EXPECT_LE(dispatch->pages.size(), kGroupsMax);
      size_t pages = 0;
      for (const GroupPages& group : dispatch->pages) pages += group.ids.size();
      EXPECT_LE(pages, 1000u);
    }
  }
}

}  // namespace
}  // namespace fabric::kv::wire::message_test
