#include "providers/verbs/gids.h"

#include <arpa/inet.h>

#include <gtest/gtest.h>

namespace fabric::verbs::verbs_gids_test {
namespace {

Gid gid(uint32_t index, const char* text, GidType type = GidType::kRoceV2) {
  Gid out{.type = type, .index = index};
  EXPECT_EQ(::inet_pton(AF_INET6, text, out.bytes.data()), 1) << text;
  return out;
}

uint32_t best(std::vector<Gid> table) {
  const auto chosen = choose_gid(table, -1);
  EXPECT_TRUE(chosen);
  return chosen ? chosen->index : UINT32_MAX;
}

TEST(VerbsGids, TheUsualTableOfANic) {
  // As mlx5 lists them: link-local and routable, each as v1 and v2.
  const std::vector<Gid> table{gid(0, "fe80::1", GidType::kRoceV1), gid(1, "fe80::1"),
                               gid(2, "::ffff:10.0.0.1", GidType::kRoceV1),
                               gid(3, "::ffff:10.0.0.1"), gid(4, "2001:db8::1")};
  EXPECT_EQ(best(table), 3u);
  const auto ranked = rank_gids(table);
  ASSERT_EQ(ranked.size(), 5u);
  EXPECT_EQ(ranked[1].index, 4u);
}

TEST(VerbsGids, NeverLinkLocalWhenSomethingRoutableIsThere) {
  // A routable address of the old kind still reaches further than a local one of the new kind.
  EXPECT_EQ(best({gid(0, "fe80::1"), gid(1, "::ffff:10.0.0.1", GidType::kRoceV1)}), 1u);
  EXPECT_EQ(best({gid(0, "::ffff:169.254.3.4"), gid(1, "2001:db8::1")}), 1u);
  EXPECT_EQ(best({gid(0, "fe80::1"), gid(1, "fd00::1")}), 1u);
  EXPECT_EQ(best({gid(0, "febf::1"), gid(1, "fec0::1")}), 1u);
}

TEST(VerbsGids, TheFirstOfEqualOnesAndTheLastResort) {
  EXPECT_EQ(best({gid(5, "::ffff:10.0.0.2"), gid(3, "::ffff:10.0.0.1")}), 3u);
  EXPECT_EQ(best({gid(0, "fe80::1")}), 0u);
  EXPECT_EQ(best({gid(0, "fe80::1", GidType::kRoceV1), gid(1, "fe80::1")}), 1u);
  EXPECT_EQ(best({gid(0, "fe80::2:c903:1", GidType::kInfiniband)}), 0u);
}

TEST(VerbsGids, EmptyEntriesAreNotThere) {
  const std::vector<Gid> empty{gid(0, "::"), gid(1, "::")};
  const auto none = choose_gid(empty, -1);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kUnsupported);
  EXPECT_FALSE(choose_gid({}, -1));
}

TEST(VerbsGids, AnIndexOverridesAndMustExist) {
  const std::vector<Gid> table{gid(0, "fe80::1"), gid(1, "::ffff:10.0.0.1"), gid(2, "::")};
  ASSERT_TRUE(choose_gid(table, 0));
  EXPECT_EQ(choose_gid(table, 0)->index, 0u);
  for (const int32_t index : {2, 7}) {
    const auto chosen = choose_gid(table, index);
    ASSERT_FALSE(chosen) << index;
    EXPECT_EQ(chosen.error().code, Errc::kInvalidArgument);
    EXPECT_STREQ(chosen.error().what, "gid_index");
  }
}

TEST(VerbsGids, AnAddressThatMovesIsFollowed) {
  const Gid now = gid(3, "::ffff:10.0.0.1");
  const auto next = [&](std::vector<Gid> table, int32_t index = -1) {
    const auto chosen = choose_gid_again(table, index, now);
    return chosen ? static_cast<int>(chosen->index) : -1;
  };
  const Gid local = gid(0, "fe80::1"), other = gid(1, "::ffff:10.0.0.9");
  EXPECT_EQ(next({local, other, gid(7, "::ffff:10.0.0.1")}), 7);
  EXPECT_EQ(next({local, gid(7, "::ffff:10.0.0.1", GidType::kRoceV1), other}), 1)
      << "the same address of another GID type is not the same";
  EXPECT_EQ(next({local, other}), 1) << "the address was removed";
  EXPECT_EQ(next({local}), -1) << "the address may come back, and a link-local one is not routable";
  EXPECT_EQ(next({}), -1);
  EXPECT_EQ(next({local, other, gid(7, "::ffff:10.0.0.1")}, 1), 1) << "a configured index is kept";
}

TEST(VerbsGids, OnlyRoutableOnesCarryDatagrams) {
  EXPECT_TRUE(is_routable_ip(gid(0, "::ffff:10.0.0.1")));
  EXPECT_TRUE(is_routable_ip(gid(0, "2001:db8::1")));
  EXPECT_FALSE(is_routable_ip(gid(0, "fe80::1")));
  EXPECT_FALSE(is_routable_ip(gid(0, "fec0::2:c903:1", GidType::kInfiniband)));
  EXPECT_FALSE(is_routable_ip(gid(0, "::")));
}

TEST(VerbsGids, AreReadable) {
  EXPECT_EQ(to_text(gid(3, "::ffff:10.0.0.1")), "3: 10.0.0.1 (RoCE v2)");
  EXPECT_EQ(to_text(gid(0, "fe80::1", GidType::kRoceV1)), "0: fe80::1 (RoCE v1)");
}

}  // namespace
}  // namespace fabric::verbs::verbs_gids_test
