#include "workloads/kv_etcd/etcd_answers.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/members.h"
#include "support/log_guard.h"
#include "workloads/kv_etcd/base64_text.h"
#include "workloads/kv_etcd/etcd_members.h"

// The parser of etcd's answers. The texts are those of etcd 3.4.23.

namespace fabric::test::etcd_answers_test {
namespace {

using kv::AnswerLimits;
using kv::EtcdEntry;
using kv::EtcdMembers;
using kv::Member;
using kv::Role;

constexpr std::string_view kHeader =
    R"("header":{"cluster_id":"10144879847569953045","member_id":"12428976124636271536",)"
    R"("revision":"5","raft_term":"2"})";

std::string object(std::string_view fields) {
  return "{" + std::string(kHeader) + std::string(fields) + "}";
}
std::string result(std::string_view fields) { return R"({"result":)" + object(fields) + "}"; }

const AnswerLimits kLimits{.entries_max = 4, .value_bytes_max = 8};

TEST(EtcdAnswers, OfAListHaveRevisionKeysAndValues) {
  const auto empty = kv::parse_list(object(""), kLimits);
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->revision, 5);
  EXPECT_TRUE(empty->entries.empty());
  const auto one = kv::parse_list(
      object(R"(,"kvs":[{"key":"YQ==","create_revision":"2","mod_revision":"2","version":"1",)"
             R"("value":"Yg==","lease":"1418811932125685257"}],"count":"1","more":true)"),
      kLimits);
  ASSERT_TRUE(one);
  EXPECT_TRUE(one->more);
  const EtcdEntry wanted{
      .key = "a", .value = {std::byte{'b'}}, .mod_revision = 2, .lease = 1418811932125685257};
  EXPECT_EQ(one->entries, std::vector<EtcdEntry>{wanted});
}

TEST(EtcdAnswers, OfAWatchHaveEventsAndHowItEnded) {
  EXPECT_TRUE(kv::parse_watch(result(R"(,"created":true)"), kLimits)->created);
  const auto cancelled = kv::parse_watch(
      R"({"result":{"header":{"raft_term":"2"},"canceled":true,"compact_revision":"4"}})", kLimits);
  ASSERT_TRUE(cancelled);
  EXPECT_TRUE(cancelled->cancelled);
  EXPECT_EQ(cancelled->compact_revision, 4);
  const auto events = kv::parse_watch(
      result(R"(,"events":[{"kv":{"key":"YQ==","mod_revision":"5","value":"Yg=="}},)"
             R"({"type":"DELETE","kv":{"key":"YQ==","mod_revision":"6"}}])"),
      kLimits);
  ASSERT_TRUE(events);
  ASSERT_EQ(events->events.size(), 2u);
  EXPECT_FALSE(events->events[0].deleted) << "a put has no type";
  EXPECT_TRUE(events->events[1].deleted);
  EXPECT_EQ(kv::parse_watch(R"({"error":{"grpc_code":14,"message":"gone"}})", kLimits)->failure,
            "gone");
  EXPECT_EQ(kv::parse_watch(R"({"error":"gone"})", kLimits)->failure, "gone");
  EXPECT_EQ(kv::parse_watch(R"({"error":{}})", kLimits)->failure, "error");
}

TEST(EtcdAnswers, OfLeasesSayByAMissingFieldThatOneIsGone) {
  const auto granted = kv::parse_lease(object(R"(,"ID":"1418811932125685255","TTL":"10")"));
  ASSERT_TRUE(granted);
  EXPECT_EQ(granted->id, 1418811932125685255);
  EXPECT_EQ(granted->ttl_s, 10);
  EXPECT_FALSE(kv::parse_lease(object(R"(,"ID":"7")"))) << "a grant without time is none";
  EXPECT_EQ(kv::parse_keep_alive(result(R"(,"ID":"7","TTL":"10")") + "\n")->ttl_s, 10);
  EXPECT_EQ(kv::parse_keep_alive(result(R"(,"ID":"7")"))->ttl_s, 0);
  EXPECT_FALSE(kv::parse_keep_alive(result("")));
  EXPECT_TRUE(kv::parse_put(object(R"(,"succeeded":true,"responses":[])"))->succeeded);
  EXPECT_FALSE(kv::parse_put(object(""))->succeeded);
  const auto failure = kv::parse_failure(
      R"({"error":"x","message":"etcdserver: requested lease not found","code":5})");
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, 5);
  EXPECT_EQ(kv::parse_failure(R"({"message":")" + std::string(5000, 'x') + R"("})")->message.size(),
            512u);
}

TEST(EtcdAnswers, AreRefusedWhenTruncatedOrOfAnotherShape) {
  const std::string list = object(R"(,"kvs":[{"key":"YQ==","mod_revision":"2"}])");
  for (size_t size = 0; size < list.size(); ++size) {
    EXPECT_FALSE(kv::parse_list(list.substr(0, size), kLimits));
  }
  for (const char* fields :
       {R"(,"kvs":{})", R"(,"kvs":[1])", R"(,"kvs":[{}])", R"(,"kvs":[{"key":1}])",
        R"(,"kvs":[{"key":"Y"}])", R"(,"kvs":[{"key":"YR=="}])", R"(,"kvs":[{"key":"Y!=="}])",
        R"(,"kvs":[{"key":"YQ==","mod_revision":"1x"}])",
        R"(,"kvs":[{"key":"YQ==","mod_revision":"99999999999999999999"}])",
        R"(,"kvs":[{"key":"YQ==","mod_revision":1.5}])", R"(,"more":"true")",
        R"(,"kvs":[{"key":"YQ==","lease":18446744073709551615}])"}) {
    EXPECT_FALSE(kv::parse_list(object(fields), kLimits)) << fields;
  }
  for (const char* text : {"", "null", "[]", "1", "{}", R"({"header":{"revision":"0"}})",
                           R"({"header":{"revision":"-1"}})", R"({"header":"5"})"}) {
    EXPECT_FALSE(kv::parse_list(text, kLimits)) << text;
  }
  EXPECT_FALSE(
      kv::parse_watch(result(R"(,"events":[{"type":"MOVE","kv":{"key":"YQ=="}}])"), kLimits));
  EXPECT_FALSE(kv::parse_watch(result(R"(,"events":[{"type":"PUT"}])"), kLimits));
  EXPECT_FALSE(kv::parse_watch("{}", kLimits));
}

TEST(EtcdAnswers, AreBoundedInDepthEntriesAndValues) {
  const auto entries = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += R"({"key":"YQ=="},)";
    text.pop_back();
    return object(R"(,"kvs":[)" + text + "]");
  };
  EXPECT_TRUE(kv::parse_list(entries(4), kLimits));
  EXPECT_FALSE(kv::parse_list(entries(5), kLimits));
  EXPECT_FALSE(
      kv::parse_list(object(",\"x\":" + std::string(16, '[') + std::string(16, ']')), kLimits));
  EXPECT_FALSE(kv::parse_list(std::string(100'000'000, '['), kLimits)) << "before it is parsed";
  std::string wide = ",\"x\":[0";
  for (int i = 0; i < 1000; ++i) wide += ",0";
  EXPECT_FALSE(kv::parse_list(object(wide + "]"), kLimits));
  EXPECT_TRUE(kv::parse_list(object(R"(,"x":"[[[[[[[[[[[[[[[[[[[[[[\"{{{{{{{{{{{{{{{")"), kLimits))
      << "brackets in texts do not count";
  const auto large =
      kv::parse_list(object(R"(,"kvs":[{"key":"YQ==","value":"YWFhYWFhYWFh"}])"), kLimits);
  ASSERT_TRUE(large);
  EXPECT_TRUE(large->entries[0].value.empty()) << "nine bytes where eight are allowed";
}

TEST(TextSplitter, GivesTheSameTextsHoweverTheStreamIsCut) {
  for (uint64_t seed = test_seed(); seed < test_seed() + 50; ++seed) {
    Rng rng(seed);
    std::string stream;
    std::vector<std::string> wanted;
    for (uint64_t i = rng.below(20); i > 0; --i) {
      const std::string text(rng.below(9), static_cast<char>('a' + i));
      if (!text.empty()) wanted.push_back(text);
      stream += text + "\n";
    }
    kv::TextSplitter splitter(8);
    std::vector<std::string> got;
    while (!stream.empty()) {
      const size_t size = rng.between(1, stream.size());
      ASSERT_TRUE(splitter.add(stream.substr(0, size),
                               [&](std::string_view text) { got.emplace_back(text); }));
      stream.erase(0, size);
    }
    EXPECT_EQ(got, wanted);
  }
  kv::TextSplitter splitter(8);
  const auto none = [](std::string_view) { ADD_FAILURE() << "no text is complete"; };
  EXPECT_TRUE(splitter.add("12345678", none));
  EXPECT_FALSE(splitter.add("9", none));
}

TEST(Base64Text, IsThatOfTheStandardAndHasOneTextForEachValue) {
  EXPECT_EQ(kv::base64_encode(std::string_view("")), "");
  EXPECT_EQ(kv::base64_encode(std::string_view("f")), "Zg==");
  EXPECT_EQ(kv::base64_encode(std::string_view("fo")), "Zm8=");
  EXPECT_EQ(kv::base64_encode(std::string_view("foobar")), "Zm9vYmFy");
  EXPECT_EQ(kv::base64_encode(std::string_view("\xfb\xff")), "+/8=");
  Rng rng(test_seed());
  for (size_t size = 0; size < 40; ++size) {
    std::vector<std::byte> bytes(size);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next());
    EXPECT_EQ(*kv::base64_decode(kv::base64_encode(bytes)), bytes);
  }
  for (const char* bad : {"Zg", "Zg=", "Zh==", "Zm9=", "=", "====", "Z===", "Zg==Zg==", "Zm-_"}) {
    EXPECT_FALSE(kv::base64_decode(bad)) << bad;
  }
}

EtcdEntry entry_of(const Member& member, int64_t revision) {
  return {.key = kv::etcd_key("job", member), .value = *encode(member), .mod_revision = revision};
}

std::vector<uint64_t> ids(const EtcdMembers& members) {
  std::vector<uint64_t> all;
  for (const auto& [engine_id, member] : members.members()) all.push_back(engine_id);
  return all;
}

TEST(EtcdMembers, HasKeysAsTheDesignSays) {
  EXPECT_EQ(kv::etcd_key("j", listed_member(0xab)), "fabric/j/kv/prefill/00000000000000ab");
  EXPECT_EQ(kv::etcd_prefix("j", Role::kDecode), "fabric/j/kv/decode/");
  EXPECT_EQ(kv::etcd_range_end("fabric/j/kv/prefill/"), "fabric/j/kv/prefill0");
}

TEST(EtcdMembers, IgnoresWhatAListHasCoveredAlready) {
  EtcdMembers members("job", Role::kPrefill, 8);
  members.list({.revision = 10, .entries = {entry_of(listed_member(1), 4)}}, true);
  // The watch lags: these changes are in the list.
  EtcdEntry gone = entry_of(listed_member(1), 9);
  gone.deleted = true;
  members.watch({.events = {entry_of(listed_member(2), 8), gone}});
  EXPECT_EQ(ids(members), std::vector<uint64_t>{1});
  gone.mod_revision = 11;
  members.watch({.events = {entry_of(listed_member(2), 11), gone}});
  EXPECT_EQ(ids(members), std::vector<uint64_t>{2}) << "two changes of one transaction";
  EXPECT_EQ(members.revision(), 11);
  members.list({.revision = 10}, false);
  EXPECT_EQ(ids(members), std::vector<uint64_t>{2}) << "a list that was slower than the watch";
  members.list({.revision = 3}, true);
  EXPECT_TRUE(members.members().empty()) << "the server has lost its data";
  EXPECT_EQ(members.revision(), 3);
}

}  // namespace
}  // namespace fabric::test::etcd_answers_test
