#include <fabric/kv_etcd.h>

#include <poll.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "kv/members.h"
#include "kv_etcd/etcd_server.h"
#include "kv_etcd/loopback_server.h"
#include "workloads/kv_etcd/base64_text.h"
#include "workloads/kv_etcd/etcd_members.h"

// The directory in etcd, against a real server that is killed, stopped, cut off and compacted, and
// against servers that send malformed or false answers.

namespace fabric::test::etcd_directory_test {
namespace {

using namespace std::chrono_literals;
using kv::EtcdDirectory;
using kv::EtcdOptions;
using kv::EtcdStats;
using kv::Member;
using kv::Role;
using Ids = std::vector<uint64_t>;

/// Short intervals, so that a test does not wait for them; but patience with each request and a
/// long lease, because a machine that is busy with other tests may not run this process for
/// seconds.
EtcdOptions quick(std::vector<std::string> endpoints) {
  EtcdOptions options;
  options.endpoints = std::move(endpoints);
  // Tests share a server, not their members.
  options.job = testing::UnitTest::GetInstance()->current_test_info()->name();
  options.lease_ttl = 60s;
  options.request_timeout = 5s;
  options.relist = 250ms;
  options.retry = 20ms;
  options.retry_max = 200ms;
  options.jitter_seed = 1;
  return options;
}

/// Polls until `done`, at most for a minute: a bound for the test, not a promise of the directory.
bool eventually(EtcdDirectory& directory, const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (true) {
    directory.poll();
    if (done()) return true;
    if (std::chrono::steady_clock::now() >= until) return false;
    pollfd ready{*directory.fd(), POLLIN, 0};
    ::poll(&ready, 1, 5);
  }
}

bool shows(EtcdDirectory& directory, const Ids& ids) {
  return eventually(directory, [&] {
    const kv::View view = directory.members();
    return !view.stale && ids_of(view) == ids;
  });
}

bool watches(EtcdDirectory& directory) {
  return eventually(directory, [&] { return directory.stats().watching; });
}

bool turns_stale(EtcdDirectory& directory) {
  return eventually(directory, [&] { return directory.members().stale; });
}

bool registers(EtcdDirectory& directory, uint64_t times = 1) {
  return eventually(directory, [&] {
    const EtcdStats stats = directory.stats();
    return stats.registered && stats.registrations >= times;
  });
}

std::unique_ptr<EtcdDirectory> open_etcd(const EtcdOptions& options) {
  auto opened = EtcdDirectory::open(options);
  EXPECT_TRUE(opened) << opened.error().what;
  return *std::move(opened);
}

class EtcdTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (EtcdServer::missing().empty()) server = new EtcdServer;
  }
  static void TearDownTestSuite() {
    delete server;
    server = nullptr;
  }
  void SetUp() override {
    if (server == nullptr) GTEST_SKIP() << EtcdServer::missing();
  }
  /// Writes a member without a lease: it stays until it is deleted.
  static void put(const Member& member) {
    const std::string job = testing::UnitTest::GetInstance()->current_test_info()->name();
    put_value(kv::etcd_key(job, member), *encode(member));
  }
  static void put_value(std::string_view key, std::span<const std::byte> value) {
    EXPECT_NE(server->post("/v3/kv/put", R"({"key":")" + kv::base64_encode(key) + R"(","value":")" +
                                             kv::base64_encode(value) + R"("})"),
              "");
  }
  static void remove(const Member& member) {
    const std::string job = testing::UnitTest::GetInstance()->current_test_info()->name();
    EXPECT_NE(server->post("/v3/kv/deleterange",
                           R"({"key":")" + kv::base64_encode(kv::etcd_key(job, member)) + R"("})"),
              "");
  }
  static EtcdOptions direct() { return quick({server->endpoint()}); }

  static inline EtcdServer* server = nullptr;
};

TEST_F(EtcdTest, ListsMembersThatRegisterChangeAndLeave) {
  auto watcher = open_etcd(direct());
  auto first = open_etcd(direct());
  auto second = open_etcd(direct());
  Member member = listed_member(1);
  ASSERT_TRUE(first->announce(member));
  ASSERT_TRUE(second->announce(listed_member(0xfedcba9876543210)));
  ASSERT_TRUE(shows(*watcher, {1, 0xfedcba9876543210}));
  EXPECT_EQ(*watcher->members().find(1), member);
  const uint64_t revision = watcher->members().revision;
  member.load = 7;
  ASSERT_TRUE(first->announce(member));
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->members().find(1)->load == 7; }));
  EXPECT_GT(watcher->members().revision, revision);
  EXPECT_EQ(first->announce(listed_member(2)).error().code, Errc::kInvalidArgument);

  ASSERT_TRUE(second->leave());
  EXPECT_EQ(second->leave().error().code, Errc::kNotFound);
  ASSERT_TRUE(shows(*watcher, {1}));
  // Destroyed right after leave(), it leaves all the same; and all answers were understood.
  ASSERT_TRUE(first->leave());
  first.reset();
  ASSERT_TRUE(shows(*watcher, {}));
  EXPECT_EQ(watcher->stats().bad_answers + second->stats().bad_answers, 0u);
}

TEST_F(EtcdTest, ForgetsAMemberThatDiesWhenItsLeaseEnds) {
  auto watcher = open_etcd(direct());
  EtcdOptions options = direct();
  options.lease_ttl = 1s;
  {
    auto member = open_etcd(options);
    ASSERT_TRUE(member->announce(listed_member(1)));
    ASSERT_TRUE(shows(*watcher, {1}));
    // Longer than its lease: keep-alives hold it.
    ASSERT_TRUE(eventually(*member, [&] { return member->stats().keep_alives >= 4; }));
    ASSERT_TRUE(shows(*watcher, {1}));
  }
  ASSERT_TRUE(shows(*watcher, {}));
}

TEST_F(EtcdTest, KeepsItsViewAndItsRegistrationWhileTheServerIsKilled) {
  auto watcher = open_etcd(direct());
  EtcdOptions options = direct();
  options.lease_ttl = 3s;
  auto member = open_etcd(options);
  ASSERT_TRUE(member->announce(listed_member(1)));
  ASSERT_TRUE(shows(*watcher, {1}) && watches(*watcher));
  server->kill();
  ASSERT_TRUE(turns_stale(*watcher));
  EXPECT_EQ(ids_of(watcher->members()), Ids{1}) << "stale, and kept";
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->stats().failures >= 3; }));
  EXPECT_NE(watcher->stats().last_failure, "");
  EXPECT_EQ(ids_of(watcher->members()), Ids{1});
  server->start();
  ASSERT_TRUE(shows(*watcher, {1}));
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->stats().watches >= 2; }));
  const uint64_t before = member->stats().keep_alives;
  ASSERT_TRUE(eventually(*member, [&] { return member->stats().keep_alives > before; }));
}

TEST_F(EtcdTest, IsStaleWhileTheServerIsStoppedAndFreshWhenItContinues) {
  put(listed_member(1));
  EtcdOptions options = direct();
  options.request_timeout = 500ms;
  auto watcher = open_etcd(options);
  ASSERT_TRUE(shows(*watcher, {1}) && watches(*watcher));
  server->stop();
  const bool stale = turns_stale(*watcher);
  server->resume();
  ASSERT_TRUE(stale) << "its watch is open, and says nothing: only a list finds out";
  put(listed_member(2));
  ASSERT_TRUE(shows(*watcher, {1, 2}));
}

TEST_F(EtcdTest, RegistersAgainWhenItsLeaseIsLost) {
  auto watcher = open_etcd(direct());
  EtcdOptions options = direct();
  options.watch = false;  // only the keep-alive's answer without TTL says so
  options.lease_ttl = 2s;
  auto member = open_etcd(options);
  ASSERT_TRUE(member->announce(listed_member(1)));
  ASSERT_TRUE(shows(*watcher, {1}));
  server->revoke_leases();
  ASSERT_TRUE(registers(*member, 2));
  EXPECT_GE(member->stats().leases_lost, 1u);
  ASSERT_TRUE(shows(*watcher, {1}));
  EXPECT_GE(watcher->members().revision, 4u) << "it was seen to leave and to join";
}

TEST_F(EtcdTest, WritesItsKeyAgainWhenItWasDeleted) {
  auto member = open_etcd(direct());
  ASSERT_TRUE(member->announce(listed_member(1)));
  ASSERT_TRUE(shows(*member, {1}));
  remove(listed_member(1));
  ASSERT_TRUE(registers(*member, 2));
  ASSERT_TRUE(shows(*member, {1}));
  EXPECT_EQ(member->stats().leases_lost, 0u) << "the lease is the same";
}

TEST_F(EtcdTest, AnEarlierIncarnationNeverReplacesALaterOne) {
  Member later = listed_member(1);
  ++later.incarnation;
  auto restarted = open_etcd(direct());
  ASSERT_TRUE(restarted->announce(later));
  ASSERT_TRUE(shows(*restarted, {1}));
  // The process that was stopped past its lease, and continues.
  auto late = open_etcd(direct());
  ASSERT_TRUE(late->announce(listed_member(1)));
  ASSERT_TRUE(eventually(*late, [&] { return late->stats().replaced; }));
  EXPECT_FALSE(late->stats().registered);
  EXPECT_EQ(late->members().find(1)->incarnation, later.incarnation);
  // And one that is registered when the later one comes gives way.
  Member latest = later;
  ++latest.incarnation;
  auto next = open_etcd(direct());
  ASSERT_TRUE(next->announce(latest));
  ASSERT_TRUE(eventually(*restarted, [&] { return restarted->stats().replaced; }));
  EXPECT_EQ(restarted->members().find(1)->incarnation, latest.incarnation);
}

TEST_F(EtcdTest, ListsAgainWhenItsWatchWasCompactedDuringAPartition) {
  put(listed_member(1));
  TcpRelay relay(server->port());
  EtcdOptions options = quick({relay.endpoint()});
  options.relist = 300s;
  options.request_timeout = 30s;
  // The list has come; the request for the watch is on its way when the network stops.
  relay.hold("/v3/watch");
  auto watcher = open_etcd(options);
  ASSERT_TRUE(eventually(*watcher, [&] { return relay.holding(); }));
  put(listed_member(2));
  remove(listed_member(1));
  put(listed_member(3));
  server->compact();
  relay.release();
  ASSERT_TRUE(shows(*watcher, {2, 3}));
  EXPECT_EQ(watcher->stats().compactions, 1u);
  EXPECT_EQ(watcher->stats().lists, 2u);
  put(listed_member(4));
  ASSERT_TRUE(shows(*watcher, {2, 3, 4})) << "and the next watch works";
  EXPECT_EQ(watcher->stats().compactions, 1u);
}

TEST_F(EtcdTest, FindsOutThatItIsCutOffAndCatchesUpAfterwards) {
  put(listed_member(1));
  put(listed_member(2));
  TcpRelay relay(server->port());
  EtcdOptions options = quick({relay.endpoint()});
  options.request_timeout = 500ms;
  auto watcher = open_etcd(options);
  ASSERT_TRUE(shows(*watcher, {1, 2}) && watches(*watcher));
  relay.pause();
  ASSERT_TRUE(turns_stale(*watcher));
  remove(listed_member(1));
  put(listed_member(3));
  server->compact();
  EXPECT_EQ(ids_of(watcher->members()), (Ids{1, 2}));
  relay.resume();
  ASSERT_TRUE(shows(*watcher, {2, 3}));
}

TEST_F(EtcdTest, TakesTheOtherEndpointWhenOneIsGone) {
  TcpRelay first(server->port()), second(server->port());
  EtcdOptions options = quick({first.endpoint(), second.endpoint()});
  auto watcher = open_etcd(options);
  options.lease_ttl = 6s;
  auto member = open_etcd(options);
  ASSERT_TRUE(member->announce(listed_member(1)));
  ASSERT_TRUE(shows(*watcher, {1}));
  EXPECT_EQ(watcher->stats().endpoint, first.endpoint());
  first.cut();
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->stats().endpoint == second.endpoint(); }));
  ASSERT_TRUE(shows(*watcher, {1}));
  const uint64_t before = member->stats().keep_alives;
  ASSERT_TRUE(eventually(*member, [&] { return member->stats().keep_alives > before; }));
  EXPECT_EQ(member->stats().leases_lost, 0u) << "the lease was kept by the other endpoint";
  first.mend();
  second.cut();
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->stats().endpoint == first.endpoint(); }));
  ASSERT_TRUE(shows(*watcher, {1}));
}

TEST_F(EtcdTest, IgnoresValuesThatAreNoMembersAndKeepsItsBound) {
  EtcdOptions options = direct();
  options.members_max = 2;
  const std::string prefix = kv::etcd_prefix(options.job, Role::kPrefill);
  const std::vector<std::byte> one = *encode(listed_member(1));
  put(listed_member(1));
  put_value(prefix + "0000000000000002", one);  // another's key
  put_value(prefix + "0000000000000003", std::vector<std::byte>(20'000));
  auto watcher = open_etcd(options);
  ASSERT_TRUE(shows(*watcher, {1}));
  EXPECT_GE(watcher->stats().bad_members, 2u);
  put_value(prefix + "000000000000000A", one);
  put_value(prefix + "1", one);
  put_value(kv::etcd_key(options.job, listed_member(1)), {});  // no longer a member
  ASSERT_TRUE(shows(*watcher, {}));
  for (const char* key : {"0000000000000002", "0000000000000003", "000000000000000A", "1"}) {
    server->post("/v3/kv/deleterange", R"({"key":")" + kv::base64_encode(prefix + key) + R"("})");
  }
  for (uint64_t id : {1, 2, 3, 4}) put(listed_member(id));
  ASSERT_TRUE(shows(*watcher, {1, 2}));
  ASSERT_TRUE(eventually(*watcher, [&] { return watcher->stats().members_dropped >= 2; }));
  remove(listed_member(1));
  ASSERT_TRUE(shows(*watcher, {2, 3})) << "the next list has room";
}

/// The good server comes second: whatever the first one answers, the view is found in the end.
TEST_F(EtcdTest, SurvivesAServerThatAnswersGarbage) {
  put(listed_member(1));
  const std::string header = R"("header":{"revision":"9"})";
  const std::string list = "{" + header + "}";
  const std::string created = R"({"result":{)" + header + R"(,"created":true}})";
  const std::string deep(1'000'000, '[');
  struct Lie {
    const char* name;
    std::string range, watch;
  };
  const std::vector<Lie> lies = {
      {"no HTTP", "\x00\x01\x02garbage", ""},
      {"an end", "", ""},
      {"a status", http_answer("{}", 500), ""},
      {"no JSON", http_answer("hello"), ""},
      {"half of it", http_answer(list.substr(0, 10)), ""},
      {"no revision", http_answer("{}"), ""},
      {"another type", http_answer(R"({"header":[],"kvs":{}})"), ""},
      {"too deep", http_answer(deep), ""},
      {"too long", http_answer(std::string(20'000'000, ' ') + list), ""},
      {"too many headers", "HTTP/1.1 200 X\r\n" + std::string(200'000, 'a') + ": b\r\n\r\n", ""},
      {"a redirection", "HTTP/1.1 302 X\r\nLocation: file:///etc/passwd\r\n\r\n", ""},
      {"a watch of garbage", http_answer(list), http_answer("garbage\n")},
      {"a watch that ends", http_answer(list), http_answer(created + "\n")},
      {"an error", http_answer(list),
       http_answer(R"({"error":{"message":"no"}})"
                   "\n")},
      {"a text without end", http_answer(list), http_answer(std::string(20'000'000, 'x'))},
      {"wrong events", http_answer(list),
       http_answer(R"({"result":{"events":[{"kv":{"key":"?"}}]}})"
                   "\n")},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    ScriptedHttpServer liar(
        [&](const std::string& path) { return path == "/v3/watch" ? lie.watch : lie.range; });
    auto watcher = open_etcd(quick({liar.endpoint(), server->endpoint()}));
    ASSERT_TRUE(shows(*watcher, {1}));
    EXPECT_GE(liar.requests(), 1u);
    EXPECT_GE(watcher->stats().failures, 1u);
    EXPECT_EQ(watcher->stats().endpoint, server->endpoint());
  }
}

/// A registration is not misled by such answers either.
TEST_F(EtcdTest, RegistersAtTheNextServerWhenOneLies) {
  const std::string header = R"("header":{"revision":"9"})";
  for (const std::string& lie :
       {std::string("garbage"), std::string("{}"), "{" + header + R"(,"ID":"0","TTL":"5"})",
        "{" + header + R"(,"ID":"7","TTL":"-5"})", "{" + header + R"(,"ID":"7"})",
        "{" + header + R"(,"ID":"7","TTL":"9999999999"})",
        "{" + header + R"(,"ID":"7","TTL":"1"})"}) {  // a grant, then nothing that fits
    SCOPED_TRACE(lie);
    ScriptedHttpServer liar([&](const std::string& path) {
      return http_answer(path == "/v3/lease/grant" ? lie : "nothing");
    });
    EtcdOptions options = quick({liar.endpoint(), server->endpoint()});
    options.watch = false;
    auto member = open_etcd(options);
    ASSERT_TRUE(member->announce(listed_member(1)));
    ASSERT_TRUE(registers(*member));
    EXPECT_GE(member->stats().bad_answers, 1u);
  }
}

TEST(EtcdOptionsTest, AreRefusedWhenTheyCannotWork) {
  const auto refused = [](auto change, const char* what) {
    EtcdOptions options = quick({"http://127.0.0.1:1"});
    change(options);
    const auto opened = EtcdDirectory::open(options);
    ASSERT_FALSE(opened) << what;
    EXPECT_EQ(opened.error().code, Errc::kInvalidArgument);
    EXPECT_TRUE(std::string(opened.error().what).starts_with(what)) << opened.error().what;
  };
  refused([](EtcdOptions& o) { o.endpoints.clear(); }, "endpoints");
  refused([](EtcdOptions& o) { o.endpoints.resize(17, o.endpoints[0]); }, "endpoints");
  for (const char* bad : {"127.0.0.1:2379", "file:///etc/passwd", "http://a b", "http://a/"}) {
    refused([&](EtcdOptions& o) { o.endpoints = {bad}; }, "endpoints");
  }
  for (const char* bad : {"", "a/b", "a b", "\xff"}) {
    refused([&](EtcdOptions& o) { o.job = bad; }, "job");
  }
  refused([](EtcdOptions& o) { o.job.assign(129, 'x'); }, "job");
  refused([](EtcdOptions& o) { o.cert_file = "/c"; }, "cert_file");
  refused([](EtcdOptions& o) { o.lease_ttl = 1500ms; }, "lease_ttl");
  refused([](EtcdOptions& o) { o.lease_ttl = 0s; }, "lease_ttl");
  refused([](EtcdOptions& o) { o.request_timeout = 0s; }, "request_timeout");
  refused([](EtcdOptions& o) { o.relist = 0s; }, "relist");
  refused([](EtcdOptions& o) { o.retry = 0s; }, "retry");
  refused([](EtcdOptions& o) { o.retry_max = 1ms; }, "retry_max");
  refused([](EtcdOptions& o) { o.members_max = 0; }, "members_max");
}

TEST(EtcdOptionsTest, ADirectoryWithoutAServerOpensIsStaleAndCloses) {
  EtcdOptions options = quick({"http://127.0.0.1:" + std::to_string(free_port())});
  auto directory = open_etcd(options);
  ASSERT_TRUE(directory->announce(listed_member(1)));
  EXPECT_EQ(directory->announce({}).error().code, Errc::kInvalidArgument);
  ASSERT_TRUE(eventually(*directory, [&] { return directory->stats().failures >= 2; }));
  EXPECT_TRUE(directory->members().stale);
  EXPECT_TRUE(directory->members().members.empty());
  ASSERT_TRUE(directory->leave());
}

}  // namespace
}  // namespace fabric::test::etcd_directory_test
