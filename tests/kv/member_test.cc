#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "kv/members.h"
#include "workloads/kv/directory_messages.h"

// What a directory lists: bytes, text, differences between views, and the list that never changes.

namespace fabric::test::member_test {
namespace {

using kv::Change;
using kv::Member;
using kv::Role;

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[static_cast<uint8_t>(b) >> 4];
    text += "0123456789abcdef"[static_cast<uint8_t>(b) & 15];
  }
  return text;
}

Member sample() {
  Member member;
  member.engine_id = 0x1122334455667788;
  member.incarnation = 9;
  member.address = {std::byte{0xaa}, std::byte{0xbb}};
  member.layout_hash = 0x0102030405060708;
  member.capacity = 64;
  member.load = 3;
  member.role = Role::kDecode;
  member.label = "a1";
  return member;
}

TEST(MemberBytes, AreTheseForEver) {
  EXPECT_EQ(hex(*encode(sample())),
            "464b564d"          // magic
            "0100"              // version
            "3000"              // length
            "8877665544332211"  // engine_id
            "0900000000000000"  // incarnation
            "0807060504030201"  // layout_hash
            "40000000"          // capacity
            "03000000"          // load
            "01"                // role
            "0200aabb"          // address
            "026131");          // label
}

TEST(MemberBytes, AndTextDecodeToTheSameMember) {
  EXPECT_EQ(*kv::decode_member(*encode(sample())), sample());
  EXPECT_EQ(*kv::member_from_text(*to_text(sample())), sample());
  Member largest = sample();
  largest.address.assign(kv::kMemberAddressBytesMax, std::byte{7});
  largest.label.assign(kv::kMemberLabelBytesMax, '~');
  EXPECT_EQ(encode(largest)->size(), kv::kMemberBytesMax);
  EXPECT_EQ(*kv::decode_member(*encode(largest)), largest);
  EXPECT_EQ(*kv::member_from_text(*to_text(largest)), largest);
}

TEST(MemberBytes, AreRefusedWhenTruncatedOrExtended) {
  const auto bytes = *encode(sample());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(kv::decode_member(std::span(bytes).first(size)).error().code, Errc::kBadFormat);
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_EQ(kv::decode_member(longer).error().code, Errc::kBadFormat) << "the length differs";
  longer[6] = static_cast<std::byte>(longer.size());
  EXPECT_EQ(kv::decode_member(longer).error().code, Errc::kBadFormat) << "unknown fields";
  longer[5] = std::byte{1};
  EXPECT_EQ(*kv::decode_member(longer), sample()) << "a later minor version may add fields";
  longer[4] = std::byte{2};
  EXPECT_EQ(kv::decode_member(longer).error().code, Errc::kVersion);
  longer.resize(kv::kMemberBytesMax + 1);
  EXPECT_FALSE(kv::decode_member(longer));
}

TEST(MemberBytes, DecodeOnlyToWhatTheEncoderAccepts) {
  const auto bytes = *encode(sample());
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (uint32_t value = 0; value < 256; ++value) {
      auto changed = bytes;
      changed[at] = static_cast<std::byte>(value);
      const auto member = kv::decode_member(changed);
      if (!member) continue;
      const auto again = encode(*member);
      ASSERT_TRUE(again) << "byte " << at << " = " << value;
      if (changed[5] == std::byte{0}) {
        EXPECT_EQ(*again, changed) << "two texts of one member, byte " << at;
      }
    }
  }
}

TEST(MemberBytes, AreNotMadeOfAMemberThatBreaksTheRules) {
  const auto refused = [](auto change) {
    Member member = sample();
    change(member);
    const auto bytes = encode(member);
    EXPECT_FALSE(bytes);
    EXPECT_FALSE(to_text(member));
    return bytes.error().code;
  };
  EXPECT_EQ(refused([](Member& m) { m.engine_id = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Member& m) { m.incarnation = 0; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Member& m) { m.address.clear(); }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Member& m) { m.role = static_cast<Role>(3); }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Member& m) { m.label = "two\nlines"; }), Errc::kInvalidArgument);
  EXPECT_EQ(refused([](Member& m) { m.address.resize(4097); }), Errc::kTooLarge);
  EXPECT_EQ(refused([](Member& m) { m.label.assign(256, 'x'); }), Errc::kTooLarge);
}

TEST(MemberText, IsRefusedWhenItIsNoMember) {
  const std::string text = *to_text(sample());
  for (const std::string& bad :
       {std::string(), std::string("fabric-kv1:"), text + "A", text.substr(1),
        "fabric-kv2" + text.substr(10), text + "\n", std::string(100'000, 'A')}) {
    EXPECT_EQ(kv::member_from_text(bad).error().code, Errc::kBadFormat) << bad.substr(0, 20);
  }
}

TEST(DirectoryMessages, AreRefusedWhenTruncatedOrExtended) {
  kv::ViewMessage view{.from = 3, .upto = 9, .last = true, .warmed_up = true};
  view.left = {4, 5};
  view.members = {sample(), listed_member(7)};
  const std::vector<kv::DirectoryMessage> all = {kv::AnnounceMessage{7, sample()},
                                                 kv::AnswerMessage{7, Errc::kExhausted},
                                                 kv::LeaveMessage{}, kv::WatchMessage{12}, view};
  for (const kv::DirectoryMessage& message : all) {
    auto bytes = encode(message);
    const auto decoded = kv::decode_directory_message(bytes);
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, message);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(kv::decode_directory_message(std::span(bytes).first(size)));
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(kv::decode_directory_message(bytes));
  }
  kv::ViewMessage empty;
  EXPECT_EQ(encode(kv::DirectoryMessage(empty)).size(), kv::kViewHeaderBytes);
}

TEST(Changes, NameEveryDifferenceOnce) {
  Member restarted = listed_member(3), busier = listed_member(4);
  ++restarted.incarnation;
  ++busier.load;
  const auto found = changes(view_of({listed_member(1), listed_member(3), listed_member(4)}),
                             view_of({listed_member(2), restarted, busier}));
  ASSERT_EQ(found.size(), 4u);
  const auto is = [&](size_t i, Change::Kind kind, uint64_t id) {
    return found[i].kind == kind && found[i].member.engine_id == id;
  };
  EXPECT_TRUE(is(0, Change::Kind::kLeft, 1));
  EXPECT_TRUE(is(1, Change::Kind::kJoined, 2));
  EXPECT_TRUE(is(2, Change::Kind::kChanged, 3) && found[2].restarted);
  EXPECT_TRUE(is(3, Change::Kind::kChanged, 4) && !found[3].restarted);
  EXPECT_TRUE(changes(view_of({busier}), view_of({busier})).empty());
}

TEST(StaticDirectory, ListsItsMembersSortedAndNeverChanges) {
  const std::vector<Member> members = {listed_member(9), listed_member(2)};
  auto directory = *kv::make_static_directory(members);
  EXPECT_TRUE(directory->poll());
  EXPECT_FALSE(directory->poll());
  const kv::View view = directory->members();
  EXPECT_FALSE(view.stale);
  EXPECT_EQ(ids_of(view), (std::vector<uint64_t>{2, 9}));
  EXPECT_EQ(*view.find(9), members[0]);
  EXPECT_EQ(view.find(3), nullptr);
  EXPECT_GE(*directory->fd(), 0);
}

TEST(StaticDirectory, RefusesAnIdTwiceAndABadMember) {
  const std::vector<Member> twice = {listed_member(2), listed_member(2)};
  EXPECT_EQ(kv::make_static_directory(twice).error().code, Errc::kInvalidArgument);
  const std::vector<Member> bad = {Member{}};
  EXPECT_EQ(kv::make_static_directory(bad).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace fabric::test::member_test
