// Names, groups and signals: four hosts meet at a barrier, ten times. Each host has one counter per
// neighbour under a name that both sides can work out, so no key has to be sent around.

#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

namespace {

using namespace std::chrono_literals;

constexpr uint32_t kHosts = 4;
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
struct Host {
  fabric::Engine engine;
  std::vector<fabric::Counter> counters{};       // one per neighbour
  std::vector<fabric::CounterGroup> arrivals{};  // all of them as one wait
  fabric::PeerGroup neighbours{};
  std::vector<fabric::CounterKey> keys{};  // what each neighbour calls us by
};

/// Names to keys: once, ahead of time. Whichever side comes first makes the counter.
void meet(std::vector<Host>& hosts, uint32_t me) {
  Host& host = hosts[me];
  std::vector<fabric::PeerId> peers;
  host.arrivals.push_back(need(host.engine.make_counter_group()));
  for (uint32_t other = 0; other < kHosts; ++other) {
    if (other == me) continue;
    const fabric::PeerId peer = need(host.engine.connect(hosts[other].engine.address()));
    peers.push_back(peer);
    fabric::CounterKey key;
    const uint64_t name = name_of(me, other);
    need(host.engine.resolve(peer, {&name, 1}, {&key, 1}, 1s));
    host.keys.push_back(key);
    host.counters.push_back(need(host.engine.named_counter(name_of(other, me))));
    need(host.arrivals[0].add(host.counters.back(), peer));
  }
  host.neighbours = need(host.engine.make_group(peers));
}

}  // namespace

int main() {
  fabric::sim::World world({.seed = 3});
  std::vector<Host> hosts;
  for (uint32_t i = 0; i < kHosts; ++i) {
    hosts.push_back({.engine = need(world.open(world.add_node(1)))});
  }
  for (uint32_t i = 0; i < kHosts; ++i) meet(hosts, i);

  for (uint32_t round = 0; round < kRounds; ++round) {
    // All but the last: nobody may pass. The group knows whom it waits for.
    for (uint32_t i = 0; i + 1 < kHosts; ++i) {
      need(hosts[i].engine.submit(
          fabric::Signal{.group = hosts[i].neighbours, .keys = hosts[i].keys}));
    }
    const auto early = hosts[0].arrivals[0].wait(kHosts - 1, 1ms);
    if (early || early.error().code != fabric::Errc::kTimeout) return 1;
    if (hosts[0].arrivals[0].missing().size() != 1) return 1;

    const Host& last = hosts.back();
    need(hosts.back().engine.submit(fabric::Signal{.group = last.neighbours, .keys = last.keys}));
    for (Host& host : hosts) need(host.arrivals[0].wait(kHosts - 1, 1s));
  }
  std::printf("%u hosts met %u times, after %lld us of simulated time\n", kHosts, kRounds,
              static_cast<long long>(world.now().count() / 1000));
  return 0;
}
