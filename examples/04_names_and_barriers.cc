// Names, groups and signals: four engines synchronize at a barrier, ten times. Each has one counter
// for every other member, under a name that both sides can compute, so no counter key has to be
// exchanged.

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

/// The value; prints the error and exits if there is none.
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

// Destroyed in reverse order: the group before its counters, everything before the engine.
struct Member {
  fabric::Engine engine;
  std::vector<fabric::Counter> counters{};       // one for each other member
  std::vector<fabric::CounterGroup> arrivals{};  // all of them as one wait
  fabric::PeerGroup others{};
  std::vector<fabric::CounterKey> keys{};  // this member's counters at the others
};

/// Connects to all others and resolves names to counter keys, once. The counter is made by the side
/// that names it first.
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
    // All signal but the last: no member may pass. The group knows which one is missing.
    for (uint32_t i = 0; i + 1 < kMembers; ++i) {
      need(members[i].engine.submit(
          fabric::Signal{.group = members[i].others, .keys = members[i].keys}));
    }
    const auto early = members[0].arrivals[0].wait(1ms);
    if (early || early.error().code != fabric::Errc::kTimeout) return 1;
    if (members[0].arrivals[0].missing().size() != 1) return 1;

    const Member& last = members.back();
    need(members.back().engine.submit(fabric::Signal{.group = last.others, .keys = last.keys}));
    for (Member& member : members) need(member.arrivals[0].wait(1s));
  }
  std::printf("%u members passed %u barriers in %lld us of simulated time\n", kMembers, kRounds,
              static_cast<long long>(world.now().count() / 1000));
  return 0;
}
