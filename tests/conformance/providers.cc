#include <fabric/sim.h>

#include "conformance/verbs_cases.h"
#include "harness/real_time_env.h"
#include "providers/shm/copy.h"
#include "providers/shm/proof.h"
#include "providers/shm/pull.h"
#include "support/log_guard.h"

// Every network that the promises are shown on. A new one is a Ground of its own and a line in the
// list at the end.

namespace fabric::test {
namespace {

/// Rails of the three hosts, and what their NICs are like.
struct SimShape {
  std::array<uint32_t, Ground::kPlaces> rails{};
  sim::NicModel model{};
};

class SimTrouble final : public Trouble {
 public:
  SimTrouble(sim::World& world, const std::vector<uint32_t>& nodes)
      : world_(world), nodes_(nodes) {}

  void cut(uint32_t one, uint32_t other, Phase phase) override {
    const uint32_t x = nodes_[one], y = nodes_[other];
    happens(phase == Phase::kBegin ? Fault::cut(x, y) : Fault::heal(x, y));
  }
  void lose_rail(uint32_t place, uint32_t rail, Phase phase) override {
    const uint32_t node = nodes_[place];
    happens(phase == Phase::kBegin ? Fault::nic_down(node, rail) : Fault::nic_up(node, rail));
  }
  void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side) override {
    happens(side == Side::kSender ? Fault::break_sender(nodes_[from], nodes_[to], rail)
                                  : Fault::break_target(nodes_[from], nodes_[to], rail));
  }
  void kill(uint32_t place) override { happens(Fault::crash(nodes_[place])); }
  void stop(uint32_t place, Phase phase) override {
    happens(phase == Phase::kBegin ? Fault::stop(nodes_[place]) : Fault::resume(nodes_[place]));
  }
  void lose_acks(uint32_t from, uint32_t to, Phase phase) override {
    const uint32_t x = nodes_[from], y = nodes_[to];
    happens(phase == Phase::kBegin ? Fault::lose_acks(x, y) : Fault::keep_acks(x, y));
  }
  void not_ready(uint32_t place, Phase phase) override {
    const uint32_t node = nodes_[place];
    happens(phase == Phase::kBegin ? Fault::receiver_not_ready(node) : Fault::receiver_ready(node));
  }
  void wrong_key(uint32_t from, uint32_t to) override {
    happens(Fault::wrong_key(nodes_[from], nodes_[to], 0));
  }
  void delay_proofs(uint32_t place, Nanos by) override {
    happens(Fault::late_proof(nodes_[place], by));
  }

 private:
  using Fault = sim::Fault;
  void happens(const Fault& fault) {
    const auto taken = world_.at(world_.now(), fault);
    EXPECT_TRUE(taken) << to_string(fault.kind) << ": " << taken.error().what;
  }

  sim::World& world_;
  const std::vector<uint32_t>& nodes_;
};

class SimGround final : public Ground {
 public:
  SimGround(const SimShape& shape, const GroundOptions& options)
      : world_({.seed = test_seed(),
                .realtime = options.realtime_threads,
                .drop_control = options.drop_control,
                .duplicate_control = options.duplicate_control,
                .reorder_control = options.reorder_control}) {
    for (const uint32_t rails : shape.rails) {
      std::vector<sim::NodeNetwork> networks{{.rails = rails, .model = shape.model}};
      if (options.second_network) {
        networks.push_back({.name = "second", .rails = 2, .model = shape.model});
      }
      nodes_.push_back(world_.add_node(std::move(networks)));
    }
    if (options.realtime_threads) {
      clock_ = std::make_unique<Clock>(*world_.open(nodes_[0], {.log_sink = test_log_sink()}));
    }
  }

  Result<Engine> open(uint32_t place, const Config& config) override {
    return world_.open(nodes_[place], config);
  }
  bool run_until(const std::function<bool()>& done, Nanos limit) override {
    return clock_ == nullptr ? world_.run_until(done, limit) : clock_->run_until(done, limit);
  }
  void run_for(Nanos time) override {
    run_until([] { return false; }, time);
  }
  void settle() override { run_for(clock_ == nullptr ? Nanos(1s) : Nanos(50ms)); }
  void each_step(std::function<void()> look) override { world_.each_step(std::move(look)); }
  Trouble& trouble() override { return trouble_; }

 private:
  sim::World world_;
  std::vector<uint32_t> nodes_;
  SimTrouble trouble_{world_, nodes_};
  std::unique_ptr<Clock> clock_;  ///< realtime only
};

/// What the machine has, as far as the network between its processes asks for it.
struct ShmShape {
  uint32_t lanes = 1;
  bool mapped = true;  ///< memory that senders map; otherwise the target fetches
  int ways = 2;        ///< to fetch: process_vm_readv, a memory file, or neither
  bool bare = false;   ///< no restartable sequences, no membarrier, no procfs
};

/// Processes that die and stop are the business of tests/process.
class ShmGround final : public RealGround {
 public:
  ShmGround(const ShmShape& shape, const GroundOptions& options) : RealGround(options) {
    use_shared_blocks(shape.mapped);
    shm::allow_read_methods(shape.ways > 1, shape.ways > 0);
    shm::disable_fence_support(shape.bare);
    shm::use_guard_kind(shape.bare ? shm::GuardKind::kPlain : shm::GuardKind::kRestartable);
    for (uint32_t lane = 0; lane < shape.lanes; ++lane) {
      network_.devices.push_back("lane" + std::to_string(lane));
    }
  }

  ~ShmGround() override {
    use_shared_blocks(false);
    shm::allow_read_methods(true, true);
    shm::disable_fence_support(false);
    shm::use_guard_kind(shm::GuardKind::kRestartable);
  }

  std::optional<Ghost> mute(const Config& config) override {
    auto mute = std::make_unique<Mute>();  // nobody turns its runtime
    Config shm = config;
    shm.networks = {network_};
    mute->engine = *Engine::open(shm, std::make_shared<InlineRuntime>());
    mute->region = *mute->engine->allocate({.size_bytes = 1u << 20});
    mutes_.push_back(std::move(mute));
    return Ghost{mutes_.back()->engine->address(), *mutes_.back()->region->desc()};
  }

 private:
  struct Mute {
    std::optional<Engine> engine{};
    std::optional<MemoryRegion> region{};
  };

  std::vector<Network> networks(uint32_t) const override { return {network_}; }

  Network network_{.provider = "shm"};
  std::vector<std::unique_ptr<Mute>> mutes_;
};

ProviderCase shm_case(const ShmShape& shape, std::string name) {
  return {std::move(name),
          {.realtime_threads = true, .several_rails = shape.lanes > 1, .counted_slices = true},
          [shape](const GroundOptions& options) {
            return std::make_unique<ShmGround>(shape, options);
          }};
}

constexpr CaseCaps kSimCaps{.virtual_time = true,
                            .looks = true,
                            .every_step = true,
                            .lossy_control = true,
                            .realtime_threads = true,
                            .second_network = true,
                            .cuts = true,
                            .lost_rails = true,
                            .control_apart = true,
                            .broken_paths = true,
                            .kills = true,
                            .stops = true,
                            .lost_acks = true,
                            .not_ready = true,
                            .wrong_keys = true,
                            .late_proofs = true};

/// Connections with request, exact replay and a fence of their own, as verbs RC.
ProviderCase sim_rc(std::array<uint32_t, Ground::kPlaces> rails, std::string name) {
  CaseCaps caps = kSimCaps;
  caps.several_rails = rails[0] > 1;
  caps.counted_slices = true;
  caps.exact_replay = true;
  SimShape shape{rails, sim::NicModel::connectx7()};
  shape.model.jitter = 2us;  // so that the shards of one write land at different times
  return {std::move(name), caps, [shape](const GroundOptions& options) {
            return std::make_unique<SimGround>(shape, options);
          }};
}

/// Datagrams without request or replay, as EFA's SRD.
ProviderCase sim_srd(std::array<uint32_t, Ground::kPlaces> rails, std::string name) {
  CaseCaps caps = kSimCaps;
  caps.several_rails = rails[0] > 1;
  caps.overtaking = true;
  const SimShape shape{rails, sim::NicModel::efa_200g()};
  return {std::move(name), caps, [shape](const GroundOptions& options) {
            return std::make_unique<SimGround>(shape, options);
          }};
}

/// The own address: no network at all, the engine copies.
ProviderCase self_copy() {
  ProviderCase provider = sim_rc({1, 1, 1}, "self");
  provider.caps = {.two_engines = false,  // and nothing between two engines that could go wrong
                   .virtual_time = true,
                   .lossy_control = true,
                   .realtime_threads = true,
                   .counted_slices = true};
  return provider;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(
    AllProviders, Conformance,
    testing::Values(sim_rc({1, 1, 1}, "sim_rc_1"), sim_rc({2, 2, 2}, "sim_rc_2"),
                    sim_rc({3, 3, 3}, "sim_rc_3"), sim_rc({8, 8, 8}, "sim_rc_8"),
                    sim_rc({8, 3, 2}, "sim_rc_8_to_3"), sim_srd({1, 1, 1}, "sim_srd_1"),
                    sim_srd({2, 2, 2}, "sim_srd_2"), sim_srd({3, 3, 3}, "sim_srd_3"),
                    sim_srd({8, 8, 8}, "sim_srd_8"), sim_srd({3, 8, 1}, "sim_srd_3_to_8"),
                    self_copy(), shm_case({}, "shm_1"), shm_case({.lanes = 3}, "shm_3"),
                    shm_case({.bare = true}, "shm_bare"),
                    shm_case({.mapped = false}, "shm_fetched"),
                    shm_case({.lanes = 3, .mapped = false}, "shm_fetched_3"),
                    shm_case({.mapped = false, .ways = 1}, "shm_memory_file"),
                    shm_case({.mapped = false, .ways = 0}, "shm_bounced")),
    [](const auto& provider) { return provider.param.name; });

#ifdef FABRIC_HAS_VERBS
INSTANTIATE_TEST_SUITE_P(Verbs, Conformance, testing::ValuesIn(verbs_cases()),
                         [](const auto& provider) { return provider.param.name; });
INSTANTIATE_TEST_SUITE_P(Soft, Conformance, testing::ValuesIn(fake_verbs_cases()),
                         [](const auto& provider) { return provider.param.name; });
#endif

}  // namespace fabric::test
