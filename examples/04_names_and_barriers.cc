// Names, groups and signals: four members connect_all at a barrier, ten times. Each member has one counter per
// member under a name that both sides can work out, so no key has to be sent around.

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

namespace {

using namespace std::chrono_literals;

constexpr uint32_t kMembers = 4;
constexpr uint32_t kRounds = 10;

/// Prints an error and ends: good enough for an example.
template <class T>
T need(fabric::Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s: %s\n", to_string(result.error().code), result.error().what);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// The counter at `to` for signals of `from`.
uint64_t name_of(uint32_t from, uint32_t to) { return uint64_t{from} << 32 | to; }

// Members end in reverse order: the group before its counters, everything before the engine.
struct Member {
  fabric::Engine engine;
  std::vector<fabric::Counter> counters{};       // one per member
  std::vector<fabric::CounterGroup> arrivals{};  // all of them as one wait
  fabric::PeerGroup others{};
  std::vector<fabric::CounterKey> keys{};  // what each member calls us by
};

/// Names to keys: once, ahead of time. Whichever side comes first makes the counter.
void connect_all(std::vector<Member>& members, uint32_t me) {
  Member& member = members[me];
  std::vector<fabric::PeerId> peers;
  member.arrivals.push_back(need(member.engine.make_counter_group()));
  for (uint32_t other = 0; other < kMembers; ++other) {
    if (other == me) continue;
    const fabric::PeerId peer = need(member.engine.connect(members[other].engine.address()));
    peers.push_back(peer);
    fabric::CounterKey key;
    const uint64_t name = name_of(me, other);
    need(member.engine.resolve(peer, {&name, 1}, {&key, 1}, 1s));
    member.keys.push_back(key);
    member.counters.push_back(need(member.engine.named_counter(name_of(other, me))));
    need(member.arrivals[0].add(member.counters.back(), peer));
  }
  member.others = need(member.engine.make_group(peers));
}

}  // namespace

int main() {
  fabric::sim::World world({.seed = 3});
  std::vector<Member> members;
  for (uint32_t i = 0; i < kMembers; ++i) {
    members.push_back({.engine = need(world.open(world.add_node(1)))});
  }
  for (uint32_t i = 0; i < kMembers; ++i) connect_all(members, i);

  for (uint32_t round = 0; round < kRounds; ++round) {
    // All but the last: nobody may pass. The group knows whom it waits for.
    for (uint32_t i = 0; i + 1 < kMembers; ++i) {
      need(members[i].engine.submit(
          fabric::Signal{.group = members[i].others, .keys = members[i].keys}));
    }
    const auto early = members[0].arrivals[0].wait(kMembers - 1, 1ms);
    if (early || early.error().code != fabric::Errc::kTimeout) return 1;
    if (members[0].arrivals[0].missing().size() != 1) return 1;

    const Member& last = members.back();
    need(members.back().engine.submit(fabric::Signal{.group = last.others, .keys = last.keys}));
    for (Member& member : members) need(member.arrivals[0].wait(kMembers - 1, 1s));
  }
  std::printf("%u members met %u times, after %lld us of simulated time\n", kMembers, kRounds,
              static_cast<long long>(world.now().count() / 1000));
  return 0;
}
