#include "providers/verbs/wire.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "providers/verbs/datagram_parts.h"

namespace fabric::verbs::verbs_wire_test {
namespace {

using Bytes = std::vector<std::byte>;

const GidBytes kIp{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1};

Endpoint endpoint() {
  return {.nonce = 0x1122334455667788,
          .queue_pair = 0x010203,
          .psn = 0xfffffe,
          .gid = kIp,
          .lid = 7,
          .mtu = 5};
}
Address address() { return {.instance = 0xa1, .rails = 2, .control = {{kIp, 4711}, {kIp, 4712}}}; }
PathHello hello() { return {.from = 1, .to = 2, .to_rail = 1, .end = endpoint()}; }

std::string hex(std::span<const std::byte> bytes) {
  std::string out;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[static_cast<uint8_t>(b) >> 4];
    out += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return out;
}

TEST(VerbsWire, GoldenBytes) {
  EXPECT_EQ(hex(encode(address())),
            "a101a100000000000000020200000000000000000000ffff0a0900016712"
            "00000000000000000000ffff0a0900016812");
  EXPECT_EQ(hex(encode(hello())),
            "a2010100000000000000020000000000000001"
            "887766554433221103020100feffff0000000000000000000000ffff0a09000107000501");
  EXPECT_EQ(hex(encode(PathAnswer{.hello_nonce = 3, .end = endpoint()})),
            "a3010300000000000000"
            "887766554433221103020100feffff0000000000000000000000ffff0a09000107000501");
  EXPECT_EQ(hex(encode(WireKey{.key = 0x01020304, .base = 0x3fffffff})), "a40104030201ffffff3f");
  EXPECT_EQ(hex(encode(DatagramPartHead{
                .from = 1, .number = 2, .index = 3, .count = 4, .address_index = 1})),
            "56564246010000000000000002000000"
            "0300040001");
}

TEST(VerbsWire, GoesThereAndBack) {
  EXPECT_EQ(*decode_address(encode(address())), address());
  const auto there = decode_hello(encode(hello()));
  ASSERT_TRUE(there);
  EXPECT_EQ(there->end, endpoint());
  EXPECT_EQ(there->to_rail, 1);
  const auto answer = decode_answer(encode(PathAnswer{.hello_nonce = 3, .end = endpoint()}));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->end, endpoint());
  EXPECT_EQ(decode_key(encode(WireKey{.key = 9, .base = 4096}))->packed(), (4096ull << 32) | 9);
}

TEST(VerbsWire, FitsWhereItHasToGo) {
  Address full = address();
  full.control.assign(kRailsMax, {kIp, 1});  // control lives as long as any rail does
  EXPECT_EQ(*decode_address(encode(full)), full);
  EXPECT_LE(encode(full).size(), OpenNetwork::kAddressBytesMax);
  EXPECT_LE(encode(WireKey{}).size(), Rail::kWireRkeyBytesMax);
}

TEST(VerbsWire, CutShortOrLongerIsRefused) {
  const auto all_refused = [](const Bytes& good, auto decode) {
    for (size_t size = 0; size < good.size(); ++size) {
      const auto cut = decode(std::span(good).first(size));
      EXPECT_FALSE(cut) << size;
      EXPECT_EQ(cut.error().code, Errc::kBadFormat);
    }
    Bytes longer = good;
    longer.push_back({});
    EXPECT_FALSE(decode(longer));
    Bytes other = good;
    other[1] ^= std::byte{2};
    EXPECT_FALSE(decode(other)) << "another version";
  };
  all_refused(encode(address()), [](auto b) { return decode_address(b); });
  all_refused(encode(hello()), [](auto b) { return decode_hello(b); });
  all_refused(encode(PathAnswer{.end = endpoint()}), [](auto b) { return decode_answer(b); });
  all_refused(encode(WireKey{.key = 1}), [](auto b) { return decode_key(b); });
}

TEST(VerbsWire, OutOfRangeIsRefused) {
  const auto refused = [](auto change) {
    PathHello bad = hello();
    change(bad);
    return !decode_hello(encode(bad));
  };
  EXPECT_TRUE(refused([](PathHello& h) { h.from = 0; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.to_rail = kRailsMax; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.nonce = 0; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.queue_pair = 0; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.queue_pair = kQpnPsnMax + 1; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.psn = kQpnPsnMax + 1; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.mtu = 0; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.mtu = 6; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.gid = {}; }));
  EXPECT_TRUE(refused([](PathHello& h) { h.end.grh = false, h.end.lid = 0; }));
  EXPECT_FALSE(refused([](PathHello& h) { h.end.grh = false, h.end.gid = {}; }));

  const auto address_refused = [](auto change) {
    Address bad = address();
    change(bad);
    return !decode_address(encode(bad));
  };
  EXPECT_TRUE(address_refused([](Address& a) { a.instance = 0; }));
  EXPECT_TRUE(address_refused([](Address& a) { a.rails = 0; }));
  EXPECT_TRUE(address_refused([](Address& a) { a.rails = kRailsMax + 1; }));
  EXPECT_TRUE(address_refused([](Address& a) { a.control.clear(); }));
  EXPECT_TRUE(address_refused([](Address& a) { a.control.resize(kRailsMax + 1, {kIp, 1}); }));
  EXPECT_TRUE(address_refused([](Address& a) { a.control[1].port = 0; }));
  EXPECT_TRUE(address_refused([](Address& a) { a.control[0].ip = {}; }));
  EXPECT_FALSE(decode_key(encode(WireKey{.key = 1, .base = WireKey::kBaseMax + 1})));
}

// ---- Datagram parts -----------------------------------------------------------------------------

Bytes pattern(size_t size) {
  Bytes out(size);
  Rng rng(size);
  for (std::byte& b : out) b = static_cast<std::byte>(rng.next());
  return out;
}

struct Sent {
  DatagramPartHead head{};
  Bytes bytes{};
};

std::vector<Sent> cut(const Bytes& datagram, uint32_t number, uint64_t from = 1) {
  std::vector<Sent> out;
  const uint32_t count = datagram_parts_of(datagram.size());
  for (uint32_t i = 0; i < count; ++i) {
    const auto begin = datagram.begin() + static_cast<std::ptrdiff_t>(i * kDatagramPartBytes);
    const auto size = std::min<std::ptrdiff_t>(kDatagramPartBytes, datagram.end() - begin);
    out.push_back({{.from = from,
                    .number = number,
                    .index = static_cast<uint16_t>(i),
                    .count = static_cast<uint16_t>(count)},
                   Bytes(begin, begin + size)});
  }
  return out;
}

TEST(VerbsDatagramParts, InAnyOrderAndRepeatedTheyMakeTheDatagramOnce) {
  Rng rng(7);
  for (const size_t size : {size_t{1}, size_t{kDatagramPartBytes}, size_t{kDatagramPartBytes + 1},
                            size_t{3 * kDatagramPartBytes}, size_t{kControlBytesMax}}) {
    const Bytes datagram = pattern(size);
    std::vector<Sent> sent = cut(datagram, 1);
    for (size_t i = sent.size(); i > 1; --i) std::swap(sent[i - 1], sent[rng.below(i)]);
    Assembler assembler;
    uint32_t whole = 0;
    for (size_t i = 0; i < sent.size(); ++i) {
      const auto got = assembler.take(sent[i].head, sent[i].bytes);
      EXPECT_EQ(got.empty(), i + 1 < sent.size());
      if (!got.empty()) {
        ++whole;
        EXPECT_TRUE(std::equal(got.begin(), got.end(), datagram.begin(), datagram.end()));
      } else {
        EXPECT_TRUE(assembler.take(sent[i].head, sent[i].bytes).empty()) << "a repeat";
      }
    }
    EXPECT_EQ(whole, 1u) << size;
  }
}

TEST(VerbsDatagramParts, ThoseOfDifferentSendersAndDatagramsDoNotMix) {
  const Bytes one = pattern(2000), two = pattern(2001);
  const auto a = cut(one, 1, 1), b = cut(two, 1, 2), c = cut(two, 2, 1);
  Assembler assembler;
  EXPECT_TRUE(assembler.take(a[0].head, a[0].bytes).empty());
  EXPECT_TRUE(assembler.take(b[1].head, b[1].bytes).empty());
  EXPECT_TRUE(assembler.take(c[0].head, c[0].bytes).empty());
  EXPECT_EQ(assembler.take(a[1].head, a[1].bytes).size(), 2000u);
  EXPECT_EQ(assembler.take(b[0].head, b[0].bytes).size(), 2001u);
  EXPECT_EQ(assembler.take(c[1].head, c[1].bytes).size(), 2001u);
}

TEST(VerbsDatagramParts, WhatIsIncompleteIsPushedOut) {
  Assembler assembler;
  const Bytes datagram = pattern(2000);
  const auto first = cut(datagram, 0);
  assembler.take(first[0].head, first[0].bytes);
  for (uint32_t i = 1; i <= Assembler::kOpenMax; ++i) {
    const auto more = cut(datagram, i);
    assembler.take(more[0].head, more[0].bytes);
  }
  EXPECT_TRUE(assembler.take(first[1].head, first[1].bytes).empty());
  const auto last = cut(datagram, Assembler::kOpenMax);
  EXPECT_EQ(assembler.take(last[1].head, last[1].bytes).size(), 2000u);
}

TEST(VerbsDatagramParts, SizesThatDoNotFitAreDropped) {
  Assembler assembler;
  const Bytes full(kDatagramPartBytes), more(kDatagramPartBytes + 1), less(10);
  EXPECT_TRUE(assembler.take({.from = 1, .index = 0, .count = 2}, less).empty());
  EXPECT_TRUE(assembler.take({.from = 1, .index = 1, .count = 2}, more).empty());
  EXPECT_TRUE(assembler.take({.from = 1, .index = 0, .count = 1}, more).empty());
  EXPECT_TRUE(assembler.take({.from = 1, .index = 0, .count = 1}, {}).empty());
  const auto count = static_cast<uint16_t>(datagram_parts_of(kControlBytesMax) + 1);
  EXPECT_TRUE(assembler.take({.from = 1, .index = 0, .count = count}, full).empty());
  // None of them has left state that would break a valid one.
  EXPECT_TRUE(assembler.take({.from = 1, .index = 0, .count = 2}, full).empty());
  EXPECT_EQ(assembler.take({.from = 1, .index = 1, .count = 2}, less).size(),
            kDatagramPartBytes + 10);
}

}  // namespace
}  // namespace fabric::verbs::verbs_wire_test
