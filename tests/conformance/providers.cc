#include <fabric/sim.h>

#include "conformance/verbs_cases.h"
#include "harness/nic_models.h"
#include "harness/real_time_env.h"
#include "providers/shm/copy.h"
#include "providers/shm/proof.h"
#include "providers/shm/pull.h"
#include "support/log_guard.h"

// Every network that the promises are tested on. A new one needs a TestEnv and an entry in the list
// at the end.

namespace fabric::test {
namespace {

using sim::Fault;

/// Rails of the three hosts, and what their NICs are like.
struct SimShape {
  std::array<uint32_t, TestEnv::kHosts> rails{};
  sim::NicModel model{};
};

class SimFaults final : public FaultInjector {
 public:
  SimFaults(sim::World& world, const std::vector<uint32_t>& nodes) : world_(world), nodes_(nodes) {}

  void cut(uint32_t one, uint32_t other, Phase phase) override {
    const uint32_t x = nodes_[one], y = nodes_[other];
    inject(phase == Phase::kBegin ? Fault::cut(x, y) : Fault::heal(x, y));
  }
  void lose_rail(uint32_t host, uint32_t rail, Phase phase) override {
    const uint32_t node = nodes_[host];
    inject(phase == Phase::kBegin ? Fault::nic_down(node, rail) : Fault::nic_up(node, rail));
  }
  void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side) override {
    inject(side == Side::kSender ? Fault::break_sender(nodes_[from], nodes_[to], rail)
                                 : Fault::break_target(nodes_[from], nodes_[to], rail));
  }
  void kill(uint32_t host) override { inject(Fault::crash(nodes_[host])); }
  void stop(uint32_t host, Phase phase) override {
    inject(phase == Phase::kBegin ? Fault::stop(nodes_[host]) : Fault::resume(nodes_[host]));
  }
  void lose_acks(uint32_t from, uint32_t to, Phase phase) override {
    const uint32_t x = nodes_[from], y = nodes_[to];
    inject(phase == Phase::kBegin ? Fault::lose_acks(x, y) : Fault::keep_acks(x, y));
  }
  void not_ready(uint32_t host, Phase phase) override {
    const uint32_t node = nodes_[host];
    inject(phase == Phase::kBegin ? Fault::receiver_not_ready(node) : Fault::receiver_ready(node));
  }
  void wrong_rkey(uint32_t from, uint32_t to) override {
    inject(Fault::wrong_rkey(nodes_[from], nodes_[to], 0));
  }
  void duplicate(uint32_t from, uint32_t to, Phase phase) override {
    const uint32_t x = nodes_[from], y = nodes_[to];
    inject(phase == Phase::kBegin ? Fault::twice(x, y) : Fault::once(x, y));
  }
  void delay_proofs(uint32_t host, Nanos by) override {
    inject(Fault::late_proof(nodes_[host], by));
  }

 private:
  void inject(const Fault& fault) {
    const auto taken = world_.at(world_.now(), fault);
    EXPECT_TRUE(taken) << to_string(fault.kind) << ": " << taken.error().what;
  }

  sim::World& world_;
  const std::vector<uint32_t>& nodes_;
};

class SimEnv final : public TestEnv {
 public:
  SimEnv(const SimShape& shape, const TestEnvOptions& options)
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
      clock_ =
          std::make_unique<RealTimeClock>(*world_.open(nodes_[0], {.log_sink = test_log_sink()}));
    }
  }

  Result<Engine> open(uint32_t host, const Config& config) override {
    return world_.open(nodes_[host], config);
  }
  bool run_until(const std::function<bool()>& done, Nanos limit) override {
    return clock_ == nullptr ? world_.run_until(done, limit) : clock_->run_until(done, limit);
  }
  void run_for(Nanos time) override {
    run_until([] { return false; }, time);
  }
  void wait_idle() override { run_for(clock_ == nullptr ? Nanos(1s) : Nanos(50ms)); }
  void each_step(std::function<void()> look) override {
    steps_ = world_.each_step(std::move(look));
  }
  FaultInjector& faults() override { return faults_; }

 private:
  sim::World world_;
  sim::Hook steps_;
  std::vector<uint32_t> nodes_;
  SimFaults faults_{world_, nodes_};
  std::unique_ptr<RealTimeClock> clock_;  ///< realtime only
};

/// The features of the machine that the network between its processes uses.
struct ShmShape {
  uint32_t lanes = 1;
  bool mapped = true;  ///< memory that senders map; otherwise the target fetches
  int ways = 2;        ///< to fetch: 2 = process_vm_readv, 1 = a memory file, 0 = neither
  bool bare = false;   ///< no restartable sequences, no membarrier, no procfs
};

/// Processes that die and stop are tested in tests/process.
class ShmEnv final : public RealTimeEnv {
 public:
  ShmEnv(const ShmShape& shape, const TestEnvOptions& options) : RealTimeEnv(options) {
    use_shared_pages(shape.mapped);
    shm::allow_read_methods(shape.ways > 1, shape.ways > 0);
    shm::disable_fence_support(shape.bare);
    shm::use_guard_kind(shape.bare ? shm::GuardKind::kPlain : shm::GuardKind::kRestartable);
    network_.options = shm::Options{.lanes = shape.lanes};
  }

  ~ShmEnv() override {
    use_shared_pages(false);
    shm::allow_read_methods(true, true);
    shm::disable_fence_support(false);
    shm::use_guard_kind(shm::GuardKind::kRestartable);
  }

  std::optional<SilentPeer> silent_peer(const Config& config) override {
    auto silent = std::make_unique<SilentEngine>();  // its runtime makes no turns
    Config shm = config;
    shm.networks = {network_};
    silent->engine = *Engine::open(shm, std::make_shared<InlineRuntime>());
    silent->region = *silent->engine->allocate({.size_bytes = 1u << 20});
    silent_.push_back(std::move(silent));
    return SilentPeer{silent_.back()->engine->address(), *silent_.back()->region->desc()};
  }

 private:
  struct SilentEngine {
    std::optional<Engine> engine{};
    std::optional<MemoryRegion> region{};
  };

  std::vector<Network> networks(uint32_t) const override { return {network_}; }

  Network network_{.provider = "shm"};
  std::vector<std::unique_ptr<SilentEngine>> silent_;
};

ProviderCase shm_case(const ShmShape& shape, std::string name) {
  return {
      std::move(name),
      {.realtime_threads = true, .several_rails = shape.lanes > 1, .counted_slices = true},
      [shape](const TestEnvOptions& options) { return std::make_unique<ShmEnv>(shape, options); }};
}

constexpr CaseCaps kSimCaps{.virtual_time = true,
                            .step_hooks = true,
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
                            .wrong_rkeys = true,
                            .late_proofs = true,
                            .duplicates = true};

/// Connections with request, exact replay and a fence of their own, as verbs RC.
ProviderCase sim_rc(std::array<uint32_t, TestEnv::kHosts> rails, std::string name) {
  CaseCaps caps = kSimCaps;
  caps.several_rails = rails[0] > 1;
  caps.counted_slices = true;
  caps.exact_replay = true;
  SimShape shape{rails, rc_model()};
  shape.model.jitter = 2us;  // so that the shards of one write land at different times
  return {std::move(name), caps, [shape](const TestEnvOptions& options) {
            return std::make_unique<SimEnv>(shape, options);
          }};
}

/// Datagrams without request or replay, as EFA's SRD.
ProviderCase sim_srd(std::array<uint32_t, TestEnv::kHosts> rails, std::string name) {
  CaseCaps caps = kSimCaps;
  caps.several_rails = rails[0] > 1;
  caps.overtaking = true;
  caps.final_counts = false;
  const SimShape shape{rails, srd_model()};
  return {std::move(name), caps, [shape](const TestEnvOptions& options) {
            return std::make_unique<SimEnv>(shape, options);
          }};
}

/// The engine's own address: no network at all, the engine copies.
ProviderCase self_copy() {
  ProviderCase provider = sim_rc({1, 1, 1}, "self");
  provider.caps = {.two_engines = false,  // and no network that could fail
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
