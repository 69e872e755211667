// Small counted writes per second of real time that the simulator carries on one core: accepted by
// submit(), sent, landed, counted at the target and completed at the sender. The real clock is read
// only outside the world.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <fabric/fabric.h>
#include <fabric/sim.h>

namespace {

using namespace fabric;
using namespace std::chrono_literals;

struct Options {
  uint32_t nodes = 2;
  uint32_t rails = 1;
  uint64_t bytes = 64;
  uint32_t window = 512;
  uint32_t group = 32;
  uint64_t writes = 1'000'000;
  uint32_t repeat = 5;
  uint32_t idle = 0;
  uint32_t peers = 0;
  uint64_t packet = 64 << 10;
  bool no_bytes = false;
  bool cold = false;
  std::string model = "connectx7";
  bool json = false;
};

template <class T>
T need(Result<T> result, const char* doing) {
  if (!result) throw std::runtime_error(fmt::format("{}: {}", doing, result.error().what));
  return *std::move(result);
}

struct Node {
  Engine engine;
  MemoryRegion source, target;
  Counter counter;
  Batch batch;
  std::vector<RemoteRegion> remotes{};  ///< of the other nodes
  std::vector<CounterKey> keys{};       ///< of the other nodes, in the same order
  std::vector<Write> requests{};
  uint64_t submitted = 0;
};

/// Every node writes to all others, or to the next `peers` of them, in rotation and has at most a
/// window of writes in flight.
class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        world_({.seed = 1, .carry_bytes = !options.no_bytes, .packet_bytes_max = options.packet}) {
    const auto model = model_of(options.model);
    for (uint32_t i = 0; i < options.nodes; ++i) {
      world_.add_node(options.rails, model);
      Config config;
      config.peers_max += options.idle;
      Engine engine = need(world_.open(i, config), "open");
      auto source = need(engine.allocate({.size_bytes = options.bytes}), "allocate");
      auto target = need(engine.allocate({.size_bytes = options.bytes}), "allocate");
      auto counter = need(engine.make_counter(), "make_counter");
      auto batch = need(engine.make_batch(), "make_batch");
      nodes_.push_back({.engine = std::move(engine),
                        .source = std::move(source),
                        .target = std::move(target),
                        .counter = std::move(counter),
                        .batch = std::move(batch)});
    }
    for (uint32_t i = 0; i < options.nodes; ++i) introduce(i);
    for (uint32_t i = 0; i < options.idle; ++i) meet_idle(model);
    world_.run_for(100ms);
  }

  /// Carries `writes` per node and checks that all of them were counted.
  void carry(uint64_t writes) {
    for (Node& node : nodes_) node.submitted = 0;
    const auto fill_all = [&] {
      bool all = true;
      for (Node& node : nodes_) {
        fill(node, writes);
        all = all && node.submitted == writes;
      }
      return all;
    };
    if (!world_.run_until(fill_all, 600s)) throw std::runtime_error("no progress");
    for (Node& node : nodes_) {
      if (!node.engine.wait(node.batch, 60s)) throw std::runtime_error("a write failed");
    }
    for (Node& node : nodes_) {
      // Each is the target of as many as it sends: the rotations of all nodes are even.
      if (!node.counter.wait(writes, 60s)) throw std::runtime_error("a count is missing");
    }
  }

  uint64_t trace_hash() const { return world_.trace_hash(); }
  double virtual_ms() const { return static_cast<double>(world_.now().count()) / 1e6; }

 private:
  static sim::NicModel model_of(const std::string& name) {
    if (name == "efa_200g") return sim::NicModel::efa_200g();
    return name == "nvlink" ? sim::NicModel::nvlink() : sim::NicModel::connectx7();
  }

  void introduce(uint32_t number) {
    Node& node = nodes_[number];
    for (uint32_t i = 1; i <= options_.peers; ++i) {
      const Node& other = nodes_[(number + i) % nodes_.size()];
      const PeerId peer = need(node.engine.connect(other.engine.address()), "connect");
      const auto desc = need(other.target.desc(), "desc");
      node.remotes.push_back(need(node.engine.import_region(peer, desc), "import_region"));
      node.keys.push_back(other.counter.key());
    }
  }

  /// One more peer of the first node, without traffic.
  void meet_idle(const sim::NicModel& model) {
    Config config;
    config.ops_max = 4;
    config.batches_max = config.peers_max = config.regions_max = config.counters_max = 1;
    config.index_arena_bytes = 4096;
    idle_.push_back(need(world_.open(world_.add_node(1, model), config), "open"));
    need(nodes_[0].engine.connect(idle_.back().address()), "connect");
  }

  void fill(Node& node, uint64_t writes) {
    while (node.submitted < writes) {
      const uint64_t pending = node.batch.pending();
      if (pending + options_.group > options_.window) return;
      const auto n =
          static_cast<uint32_t>(std::min<uint64_t>(options_.group, writes - node.submitted));
      node.requests.clear();
      for (uint32_t i = 0; i < n; ++i) {
        const size_t to = (node.submitted + i) % node.remotes.size();
        node.requests.push_back({.source = node.source.at(0),
                                 .target = node.remotes[to].at(0),
                                 .size_bytes = options_.bytes,
                                 .imm = node.keys[to],
                                 .batch = node.batch});
      }
      if (n == 1) {
        need(node.engine.submit(node.requests[0]), "submit");
        ++node.submitted;
      } else {
        node.submitted += need(node.engine.submit(node.requests), "submit");
      }
    }
  }

  const Options options_;
  sim::World world_;
  std::vector<Node> nodes_;
  std::vector<Engine> idle_;
};

/// CPU time of the process, which has one thread: not affected by other load on the machine.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Rate {
  double of_wall = 0;
  double of_cpu = 0;
};

Rate rate_of(Bench& bench, uint64_t writes, uint64_t nodes) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = cpu_seconds();
  bench.carry(writes);
  const double cpu = cpu_seconds() - cpu_begin;
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  const auto all = static_cast<double>(writes * nodes);
  return {all / wall.count(), all / cpu};
}

void run(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  Bench bench(options);
  // Even over the others, so that every node is the target of as many.
  const uint64_t others = options.peers;
  const uint64_t each = (options.writes / options.nodes + others - 1) / others * others;
  const std::chrono::duration<double> set_up = std::chrono::steady_clock::now() - begin;
  if (!options.cold)
    bench.carry(std::min<uint64_t>(each, options.window * others));  // paths open, pools grow
  std::vector<double> wall, rates;
  for (uint32_t i = 0; i < options.repeat; ++i) {
    const Rate rate = rate_of(bench, each, options.nodes);
    wall.push_back(rate.of_wall);
    rates.push_back(rate.of_cpu);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(rates.begin(), rates.end());
  const double median = rates[rates.size() / 2];
  const double wall_median = wall[wall.size() / 2];
  if (options.json) {
    const nlohmann::ordered_json report{{"nodes", options.nodes},
                                        {"rails", options.rails},
                                        {"bytes", options.bytes},
                                        {"window", options.window},
                                        {"group", options.group},
                                        {"model", options.model},
                                        {"peers", options.peers},
                                        {"idle_peers", options.idle},
                                        {"carry_bytes", !options.no_bytes},
                                        {"packet_bytes_max", options.packet},
                                        {"set_up_s", set_up.count()},
                                        {"virtual_ms", bench.virtual_ms()},
                                        {"writes", each * options.nodes},
                                        {"writes_per_wall_s", wall_median},
                                        {"writes_per_cpu_s", median},
                                        {"least", rates.front()},
                                        {"most", rates.back()},
                                        {"trace_hash", fmt::format("{:016x}", bench.trace_hash())}};
    fmt::print("{}\n", report.dump(2));
    return;
  }
  fmt::print("{} nodes with {} rails ({}), {} peers each, {} bytes{}, window {}, submitted by {}\n",
             options.nodes, options.rails, options.model, options.peers, options.bytes,
             options.no_bytes ? " that are not carried" : "", options.window, options.group);
  fmt::print("set up in {:.2f} s; {} writes a repetition; {:.3f} ms of virtual time\n",
             set_up.count(), each * options.nodes, bench.virtual_ms());
  fmt::print("{:.3f} million writes per second of one core (median of {}; {:.3f} to {:.3f})\n",
             median / 1e6, rates.size(), rates.front() / 1e6, rates.back() / 1e6);
  fmt::print("{:.3f} million per second of wall time\n", wall_median / 1e6);
  fmt::print("trace hash {:016x}\n", bench.trace_hash());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Simulated writes per second of real time, on one core");
  app.add_option("--nodes", options.nodes)->check(CLI::Range(2, 1024))->capture_default_str();
  app.add_option("--rails", options.rails)->check(CLI::Range(1, 8))->capture_default_str();
  app.add_option("--bytes", options.bytes, "Of one write")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--peers", options.peers, "That a node writes to; 0: all others")
      ->capture_default_str();
  app.add_option("--packet", options.packet, "WorldOptions::packet_bytes_max")
      ->capture_default_str();
  app.add_flag("--no-bytes", options.no_bytes, "WorldOptions::carry_bytes = false");
  app.add_flag("--cold", options.cold, "Measure the first writes too, which open the paths");
  app.add_option("--window", options.window, "Writes in flight per node")
      ->check(CLI::Range(1, 2048))
      ->capture_default_str();
  app.add_option("--group", options.group, "Writes per submit()")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--writes", options.writes, "Of all nodes together, per repetition")
      ->capture_default_str();
  app.add_option("--repeat", options.repeat)->check(CLI::Range(1, 100))->capture_default_str();
  app.add_option("--model", options.model)
      ->check(CLI::IsMember({"connectx7", "efa_200g", "nvlink"}))
      ->capture_default_str();
  app.add_option("--idle", options.idle, "Further peers of the first node, which do nothing")
      ->check(CLI::Range(0, 60'000))
      ->capture_default_str();
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  options.group = std::min(options.group, options.window);
  if (options.peers == 0 || options.peers >= options.nodes) options.peers = options.nodes - 1;
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sim_speed: {}\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
