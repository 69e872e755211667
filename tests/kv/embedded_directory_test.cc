#include <algorithm>
#include <deque>
#include <memory>
#include <set>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "kv/members.h"
#include "support/log_guard.h"
#include "workloads/kv/directory_messages.h"

// The embedded directory on the simulator: members, seeds and watchers that come, go, die and are
// cut off.

namespace fabric::test::embedded_directory_test {
namespace {

using kv::EmbeddedDirectory;
using kv::EmbeddedOptions;
using kv::Member;
using sim::Fault;

using Addresses = std::vector<std::vector<std::byte>>;
using Ids = std::vector<uint64_t>;

constexpr uint64_t kSeed = 1000;  // engine ids of seeds; members and watchers have small ones

/// Engines with directories, one node each; every step of the world polls all of them.
class DirectoryCluster {
 public:
  struct Process {
    uint32_t node = 0;
    uint64_t id = 0;
    std::unique_ptr<Engine> engine{};  ///< null: dead
    std::unique_ptr<EmbeddedDirectory> directory{};
    uint64_t changes = 0;

    kv::View view() const { return directory->members(); }
    Ids ids() const { return ids_of(view()); }
    bool lists(const Ids& wanted) const { return !view().stale && ids() == wanted; }
  };

  explicit DirectoryCluster(const sim::WorldOptions& options = {.seed = test_seed()})
      : world(options) {
    hook = world.each_step([this] {
      for (Process& one : processes) {
        if (one.directory != nullptr && one.directory->poll()) ++one.changes;
      }
    });
  }
  ~DirectoryCluster() {
    hook.end();
    for (Process& one : processes) one.directory.reset();
  }

  Process& add(uint64_t id, EmbeddedOptions options) {
    Process& one = processes.emplace_back();
    one.node = world.add_node();
    one.id = id;
    start(one, std::move(options));
    return one;
  }
  void start(Process& one, EmbeddedOptions options) {
    Config config = short_timeouts_config();
    config.engine_id = one.id;
    one.engine = std::make_unique<Engine>(*world.open(one.node, config));
    options.warm_up = 5s;
    one.directory = *EmbeddedDirectory::open(*one.engine, options);
  }
  void kill(Process& one) {
    one.directory.reset();
    ASSERT_TRUE(world.at(world.now(), Fault::crash(one.node)));
    world.run_for(1us);
    one.engine.reset();
  }

  Process& seed(uint64_t id = kSeed) { return add(id, {.serve = true}); }
  Process& prefiller(uint64_t id, const Addresses& seeds) {
    Process& one = add(id, {.seeds = seeds, .watch = false});
    announce(one);
    return one;
  }
  Process& decoder(uint64_t id, const Addresses& seeds) { return add(id, {.seeds = seeds}); }
  static void announce(Process& one, uint32_t load = 0) {
    Member self = *kv::describe(*one.engine);
    EXPECT_EQ(self.engine_id, one.id);
    self.capacity = 8;
    self.load = load;
    EXPECT_TRUE(one.directory->announce(self));
  }

  bool eventually(const std::function<bool()>& done, Nanos limit = 20s) {
    return world.run_until(done, limit);
  }

  sim::World world;
  std::deque<Process> processes;
  sim::Hook hook;
};

using Process = DirectoryCluster::Process;

TEST(EmbeddedDirectory, ShowsMembersToTheSeedAndToEveryWatcher) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  const Addresses seeds = {seed.engine->address()};
  Process& first = cluster.prefiller(1, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  Process& second = cluster.prefiller(2, seeds);
  EXPECT_TRUE(decoder.view().stale);
  const auto both = [&](const Ids& ids) {
    return cluster.eventually([&] { return seed.lists(ids) && decoder.lists(ids); });
  };
  ASSERT_TRUE(both({1, 2}));
  EXPECT_EQ(decoder.view().find(1)->address, first.engine->address());
  EXPECT_EQ(first.directory->stats().announced, 1u);
  EXPECT_EQ(decoder.directory->stats().seeds_connected, 1u);

  // A change reaches the watcher, and the revision says so.
  const uint64_t revision = decoder.view().revision;
  DirectoryCluster::announce(first, 5);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.view().find(1)->load == 5; }, 100ms));
  EXPECT_GT(decoder.view().revision, revision);

  ASSERT_TRUE(second.directory->leave());
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }, 100ms));
  EXPECT_EQ(second.directory->leave().error().code, Errc::kNotFound);
  DirectoryCluster::announce(second);
  ASSERT_TRUE(both({1, 2}));
  // An engine that closes in order says goodbye: its session ends at once.
  second.directory.reset();
  second.engine.reset();
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }, 100ms));
  const uint64_t changes = decoder.changes;
  cluster.world.run_for(120s);
  EXPECT_EQ(decoder.changes, changes) << "refreshing changes nothing";
}

TEST(EmbeddedDirectory, ListsTheNextIncarnationOfAPrefillerThatRestarts) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  const Addresses seeds = {seed.engine->address()};
  Process& prefiller = cluster.prefiller(1, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }));
  const uint64_t incarnation = decoder.view().find(1)->incarnation;

  cluster.kill(prefiller);
  cluster.start(prefiller, {.seeds = seeds, .watch = false});
  DirectoryCluster::announce(prefiller);
  ASSERT_TRUE(cluster.eventually(
      [&] { return decoder.lists({1}) && decoder.view().find(1)->incarnation > incarnation; }, 1s))
      << "at once, not when the session of the earlier one is lost";
  cluster.world.run_for(10s);
  EXPECT_TRUE(decoder.lists({1})) << "the loss of the earlier session does not remove it";

  cluster.kill(prefiller);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({}); }, 5s))
      << "the end of the session is the end of the membership";
}

TEST(EmbeddedDirectory, KeepsTheViewWhileItsOnlySeedRestarts) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  Addresses seeds = {seed.engine->address()};
  Process& first = cluster.prefiller(1, seeds);
  Process& second = cluster.prefiller(2, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1, 2}); }));

  cluster.kill(seed);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.view().stale; }, 10s));
  EXPECT_EQ(decoder.ids(), (Ids{1, 2})) << "stale, and kept";
  EXPECT_GT(decoder.directory->stats().reconnects, 0u);

  cluster.start(seed, {.serve = true});
  seeds = {seed.engine->address()};
  EXPECT_TRUE(seed.view().stale);
  for (Process* one : {&first, &second, &decoder}) {
    ASSERT_TRUE(one->directory->set_seeds(seeds));
  }
  const auto complete = [&] { return decoder.ids() == Ids{1, 2}; };
  while (decoder.view().stale && cluster.world.now() < 60s) {
    ASSERT_TRUE(complete()) << "a seed that has just started empties no view";
    cluster.world.run_for(10ms);
  }
  EXPECT_TRUE(decoder.lists({1, 2}));
  EXPECT_TRUE(seed.lists({1, 2}));
}

TEST(EmbeddedDirectory, DropsAPrefillerThatDidNotComeBackToARestartedSeed) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  Addresses seeds = {seed.engine->address()};
  Process& first = cluster.prefiller(1, seeds);
  Process& second = cluster.prefiller(2, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1, 2}); }));
  cluster.kill(seed);
  cluster.kill(second);
  cluster.start(seed, {.serve = true});
  seeds = {seed.engine->address()};
  for (Process* one : {&first, &decoder}) ASSERT_TRUE(one->directory->set_seeds(seeds));
  cluster.world.run_for(1s);
  EXPECT_EQ(decoder.ids(), (Ids{1, 2})) << "still warming up: it might come back";
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }, 10s));
}

TEST(EmbeddedDirectory, SurvivesAPartitionOnEitherSideOfTheSeed) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  const Addresses seeds = {seed.engine->address()};
  Process& prefiller = cluster.prefiller(1, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }));

  const auto now = [&] { return cluster.world.now(); };
  ASSERT_TRUE(cluster.world.at(now(), Fault::cut(prefiller.node, seed.node)));
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({}); })) << "the session was lost";
  ASSERT_TRUE(cluster.eventually([&] { return prefiller.directory->stats().announced == 0; }));
  ASSERT_TRUE(cluster.world.at(now(), Fault::heal(prefiller.node, seed.node)));
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }));

  ASSERT_TRUE(cluster.world.at(now(), Fault::cut(decoder.node, seed.node)));
  ASSERT_TRUE(cluster.eventually([&] { return decoder.view().stale; }));
  EXPECT_EQ(decoder.ids(), Ids{1});
  Process& joined = cluster.prefiller(2, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return seed.lists({1, 2}); }));
  EXPECT_EQ(decoder.ids(), Ids{1});
  ASSERT_TRUE(cluster.world.at(now(), Fault::heal(decoder.node, seed.node)));
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1, 2}); }));
  EXPECT_EQ(joined.directory->stats().announced, 1u);
}

TEST(EmbeddedDirectory, NeedsOneOfTwoSeeds) {
  DirectoryCluster cluster;
  Process& a = cluster.seed(kSeed);
  Process& b = cluster.seed(kSeed + 1);
  const Addresses seeds = {a.engine->address(), b.engine->address()};
  cluster.prefiller(1, seeds);
  Process& second = cluster.prefiller(2, seeds);
  Process& decoder = cluster.decoder(7, seeds);
  ASSERT_TRUE(cluster.eventually([&] {
    return decoder.lists({1, 2}) && decoder.directory->stats().seeds_connected == 2;
  }));
  EXPECT_EQ(second.directory->stats().announced, 2u);

  cluster.kill(a);
  const Nanos until = cluster.world.now() + 15s;
  while (cluster.world.now() < until) {
    ASSERT_TRUE(decoder.lists({1, 2})) << "the other seed's view is complete";
    cluster.world.run_for(50ms);
  }
  EXPECT_EQ(second.directory->stats().announced, 1u);
  cluster.kill(second);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1}); }, 10s));
  Process& third = cluster.prefiller(3, seeds);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({1, 3}); }));
  EXPECT_EQ(third.directory->stats().announced, 1u);
}

TEST(EmbeddedDirectory, SeedRefusesWhatASessionMayNotSay) {
  DirectoryCluster cluster;
  Process& seed = cluster.seed();
  Process& honest = cluster.prefiller(1, {seed.engine->address()});
  Process& liar = cluster.add(66, {});
  ASSERT_TRUE(cluster.eventually([&] { return seed.lists({1}); }));
  const PeerId to_seed = *liar.engine->connect(seed.engine->address());
  const auto say = [&](std::span<const std::byte> bytes) {
    Batch batch = *liar.engine->make_batch();
    ASSERT_TRUE(liar.engine->submit(
        Send{.peer = to_seed, .channel = kv::kDirectoryChannel, .bytes = bytes, .batch = batch}));
    ASSERT_TRUE(liar.engine->wait(batch));
    cluster.world.run_for(1ms);
  };
  Member forged = *kv::describe(*honest.engine);
  say(encode(kv::DirectoryMessage(kv::AnnounceMessage{1, forged})));
  Member later = *kv::describe(*liar.engine);
  ++later.incarnation;
  say(encode(kv::DirectoryMessage(kv::AnnounceMessage{2, later})));
  EXPECT_EQ(seed.directory->stats().members_refused, 2u);
  say(encode(kv::DirectoryMessage(kv::LeaveMessage{})));
  kv::ViewMessage view{.upto = 5, .last = true, .warmed_up = true, .members = {listed_member(5)}};
  say(encode(kv::DirectoryMessage(view)));
  say(encode(kv::DirectoryMessage(kv::AnswerMessage{})));
  const std::byte garbage[] = {std::byte{1}, std::byte{5}, std::byte{0xff}};
  for (size_t size = 0; size <= 3; ++size) say(std::span(garbage).first(size));
  EXPECT_EQ(seed.directory->stats().bad_messages, 6u);
  ASSERT_TRUE(seed.lists({1}));
  EXPECT_EQ(seed.view().find(1)->address, honest.engine->address());

  // Its own directory refuses such announcements before they are sent.
  EXPECT_EQ(liar.directory->announce(forged).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(liar.directory->announce(later).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(liar.directory->announce({}).error().code, Errc::kInvalidArgument);
}

TEST(EmbeddedDirectory, IsBoundedAndSaysSo) {
  DirectoryCluster cluster;
  Process& seed = cluster.add(kSeed, {.serve = true, .members_max = 2, .watchers_max = 1});
  const Addresses seeds = {seed.engine->address()};
  std::vector<Process*> members;
  for (uint64_t id = 1; id <= 3; ++id) {
    members.push_back(&cluster.prefiller(id, seeds));
    cluster.world.run_for(100ms);
  }
  Process& decoder = cluster.decoder(7, seeds);
  cluster.world.run_for(1s);
  Process& second = cluster.decoder(8, seeds);
  cluster.world.run_for(10s);
  EXPECT_TRUE(seed.lists({1, 2}));
  EXPECT_TRUE(decoder.lists({1, 2}));
  EXPECT_GE(seed.directory->stats().members_refused, 1u);
  EXPECT_EQ(members[2]->directory->stats().announced, 0u);
  EXPECT_GE(seed.directory->stats().watchers_refused, 1u);
  EXPECT_TRUE(second.view().stale);
  // It asks again, and gets the room of one that goes.
  cluster.kill(*members[0]);
  ASSERT_TRUE(cluster.eventually([&] { return decoder.lists({2, 3}); }, 60s));
}

TEST(EmbeddedDirectory, RefusesOptionsThatCannotWork) {
  sim::World world;
  auto engine = *world.open(world.add_node(), test_config());
  const auto refused = [&](EmbeddedOptions options, const char* what) {
    const auto opened = EmbeddedDirectory::open(engine, options);
    EXPECT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Errc::kInvalidArgument);
    EXPECT_TRUE(std::string(opened.error().what).starts_with(what)) << opened.error().what;
  };
  refused({.seeds = Addresses(kv::kSeedsMax + 1, {std::byte{1}})}, "seeds");
  refused({.seeds = {{}}}, "seeds");
  refused({.members_max = 0}, "members_max");
  refused({.watchers_max = 65537}, "watchers_max");
  refused({.retry = 0s}, "retry");
  refused({.retry = 2s, .retry_max = 1s}, "retry_max");
  refused({.refresh = 0s}, "refresh");
  refused({.warm_up = -1s}, "warm_up");
  auto first = *EmbeddedDirectory::open(engine, {.serve = true});
  EXPECT_EQ(EmbeddedDirectory::open(engine, {}).error().code, Errc::kBusy) << "one for an engine";
  EXPECT_EQ(first->set_seeds({{}}).error().code, Errc::kInvalidArgument);
  EXPECT_GE(*first->fd(), 0);
  // Bytes that are no address are known only when connecting: it goes on trying.
  ASSERT_TRUE(first->set_seeds({{std::byte{1}}}));
  first->poll();
  EXPECT_EQ(first->stats().reconnects, 1u);
}

struct ChurnResult {
  uint64_t trace = 0;
  uint64_t changes = 0;
  bool operator==(const ChurnResult&) const = default;
};

/// Members die, restart, leave and join under faults of every kind; then the faults end.
ChurnResult run_churn(uint64_t seed_number) {
  expect_fault_logs();
  Rng rng(seed_number);
  DirectoryCluster cluster(
      {.seed = seed_number, .drop_control = 0.1, .duplicate_control = 0.1, .reorder_control = 0.2});
  Process& a = cluster.seed(kSeed);
  Process& b = cluster.seed(kSeed + 1);
  const Addresses seeds = {a.engine->address(), b.engine->address()};
  std::vector<Process*> members;
  for (uint64_t id = 1; id <= 6; ++id) members.push_back(&cluster.prefiller(id, seeds));
  std::vector<Process*> decoders;
  for (uint64_t id = 11; id <= 13; ++id) decoders.push_back(&cluster.decoder(id, seeds));
  std::set<uint64_t> announced = {1, 2, 3, 4, 5, 6};
  const sim::Chaos chaos{.until = 40s,
                         .gap = 500ms,
                         .lasts = 2s,
                         .kinds = {Fault::Kind::kCut, Fault::Kind::kControlCut, Fault::Kind::kSlow,
                                   Fault::Kind::kDelay, Fault::Kind::kStop}};
  EXPECT_TRUE(cluster.world.chaos(chaos));
  for (int step = 0; step < 40; ++step) {
    cluster.world.run_for(1s);
    Process& one = *members[rng.below(members.size())];
    const uint64_t action = rng.below(4);
    if (one.engine == nullptr || action == 0) {
      if (one.engine != nullptr) cluster.kill(one);
      cluster.start(one, {.seeds = seeds, .watch = false});
      DirectoryCluster::announce(one, static_cast<uint32_t>(step));
      announced.insert(one.id);
    } else if (action == 1) {
      cluster.kill(one);
      announced.erase(one.id);
    } else if (announced.contains(one.id) && action == 2) {
      EXPECT_TRUE(one.directory->leave());
      announced.erase(one.id);
    } else {
      DirectoryCluster::announce(one, static_cast<uint32_t>(step));
      announced.insert(one.id);
    }
  }
  const Ids wanted(announced.begin(), announced.end());
  const auto same = [&](const Process* one) {
    return one->lists(wanted) && one->view().members == a.view().members;
  };
  const auto current = [&](const Process* one) {
    if (!announced.contains(one->id)) return true;
    const kv::View view = a.view();
    const Member* listed = view.find(one->id);
    return listed != nullptr && listed->address == one->engine->address() &&
           one->directory->stats().announced == 2;
  };
  const auto converged = [&] {
    return same(&a) && same(&b) && std::ranges::all_of(decoders, same) &&
           std::ranges::all_of(members, current);
  };
  EXPECT_TRUE(cluster.eventually(converged, 60s)) << "views differ after the faults have ended";
  ChurnResult result{.trace = cluster.world.trace_hash()};
  for (const Process* one : decoders) result.changes += one->changes;
  return result;
}

TEST(EmbeddedDirectory, AllViewsConvergeAfterChurnAndFaults) {
  for (const uint64_t seed : seeds(4)) {
    SCOPED_TRACE(replay(seed));
    run_churn(seed);
  }
}

TEST(EmbeddedDirectory, RepeatsARunEventByEvent) {
  EXPECT_EQ(run_churn(test_seed()), run_churn(test_seed()));
}

}  // namespace
}  // namespace fabric::test::embedded_directory_test
