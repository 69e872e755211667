#include <fabric/verbs.h>

#include "conformance/verbs_cases.h"
#include "conformance/verbs_networks.h"
#include "fake_verbs/fake_nics.h"
#include "fake_verbs/stepped_driver.h"
#include "harness/real_time_env.h"
#include "support/log_guard.h"

// The conformance suite on fake NICs, with the faults that its bodies inject.

namespace fabric::test {
namespace {

/// One-way delay: long enough for an engine to make some turns while its writes are in flight.
constexpr Nanos kCable = 3us;

class FakeNicFaults final : public FaultInjector {
 public:
  using Processes = std::function<std::vector<std::shared_ptr<Process>>(uint32_t host)>;

  FakeNicFaults(FakeNics& nics, Processes processes)
      : nics_(nics), processes_(std::move(processes)) {}

  void cut(uint32_t one, uint32_t other, Phase phase) override {
    nics_.lose(one, other, FakeNics::kAll, phase == Phase::kBegin);
    nics_.lose(other, one, FakeNics::kAll, phase == Phase::kBegin);
  }
  void lose_rail(uint32_t host, uint32_t rail, Phase phase) override {
    nics_.port(host, rail, phase == Phase::kEnd);
  }
  void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side) override {
    const auto end = side == Side::kSender ? FakeNics::End::kSender : FakeNics::End::kTarget;
    EXPECT_GT(nics_.break_path(from, to, rail, end), 0u) << "there is no such path";
  }
  void kill(uint32_t host) override {
    for (const auto& process : processes_(host)) process->kill();
  }
  void stop(uint32_t host, Phase phase) override {
    for (const auto& process : processes_(host)) {
      phase == Phase::kBegin ? process->stop() : process->resume();
    }
  }
  void lose_acks(uint32_t from, uint32_t to, Phase phase) override {
    nics_.lose(to, from, FakeNics::kAcks, phase == Phase::kBegin);
  }
  void not_ready(uint32_t host, Phase phase) override {
    nics_.not_ready(host, phase == Phase::kBegin);
  }
  void wrong_rkey(uint32_t from, uint32_t to) override { nics_.corrupt_rkey(from, to); }

 private:
  FakeNics& nics_;
  const Processes processes_;
};

FakeNicOptions nic_options_of(uint32_t rails, const TestEnvOptions& options) {
  FakeNicOptions nic_options{.hosts = TestEnv::kHosts, .rails = rails, .seed = test_seed()};
  nic_options.dmabuf = false;  // the bodies use host memory only
  if (options.realtime_threads) return nic_options;
  nic_options.wire_thread = false;
  nic_options.stepped = true;
  nic_options.cable = kCable;
  return nic_options;
}

/// Constructed before the first engine is opened, and destroyed after the last job has run.
class OwnsFakeNics {
 protected:
  OwnsFakeNics(uint32_t rails, const TestEnvOptions& options)
      : nics_(nic_options_of(rails, options)), options_(options), rails_(rails) {
    nics_.lossy_control({.drop = options.drop_control,
                         .duplicate = options.duplicate_control,
                         .reorder = options.reorder_control});
  }
  std::vector<Network> networks_of(uint32_t host) const {
    std::vector<std::string> ports;
    for (uint32_t rail = 0; rail < rails_; ++rail) ports.push_back(FakeNics::name(host, rail));
    verbs::Options verbs;
    // With the default, infinite, a receiver that is not ready only delays its senders. This way
    // their paths break, and what it has not counted is sent again.
    if (options_.faults) verbs.rnr_retry = 6;
    return verbs_networks(std::move(ports), verbs, options_);
  }

  FakeNics nics_;

 private:
  const TestEnvOptions options_;
  const uint32_t rails_;
};

/// Engines with threads and NICs with a thread, in real time.
class ThreadedFakeNicEnv final : private OwnsFakeNics, public RealTimeEnv {
 public:
  ThreadedFakeNicEnv(uint32_t rails, const TestEnvOptions& options)
      : OwnsFakeNics(rails, options), RealTimeEnv(options) {}

 private:
  std::vector<Network> networks(uint32_t host) const override { return networks_of(host); }
};

/// Engines and NICs on one virtual clock.
class SteppedFakeNicEnv final : private OwnsFakeNics, public TestEnv {
 public:
  SteppedFakeNicEnv(uint32_t rails, const TestEnvOptions& options) : OwnsFakeNics(rails, options) {}

  Result<Engine> open(uint32_t host, const Config& config) override {
    Config on_nics = config;
    on_nics.networks = networks_of(host);
    processes_[host].push_back(
        std::make_shared<Process>(driver_, /*punctual=*/true, Process::Jobs::kRuntime));
    return Engine::open(on_nics, processes_[host].back());
  }
  bool run_until(const std::function<bool()>& done, Nanos limit) override {
    return driver_->drive(done, driver_->now_ns() + limit.count());
  }
  void run_for(Nanos time) override {
    run_until([] { return false; }, time);
  }
  void wait_idle() override { run_for(1s); }
  void each_step(std::function<void()> hook) override { driver_->each_step(std::move(hook)); }
  FaultInjector& faults() override { return faults_; }

 private:
  const std::shared_ptr<SteppedDriver> driver_ =
      std::make_shared<SteppedDriver>(nics_, test_seed());
  std::array<std::vector<std::shared_ptr<Process>>, kHosts> processes_;
  FakeNicFaults faults_{nics_, [this](uint32_t host) { return processes_[host]; }};
};

std::unique_ptr<TestEnv> make_env(uint32_t rails, const TestEnvOptions& options) {
  if (options.realtime_threads) return std::make_unique<ThreadedFakeNicEnv>(rails, options);
  return std::make_unique<SteppedFakeNicEnv>(rails, options);
}

ProviderCase fake_verbs_case(uint32_t rails) {
  const CaseCaps caps{.virtual_time = true,
                      .step_hooks = true,
                      .lossy_control = true,
                      .realtime_threads = true,
                      .second_network = true,
                      .several_rails = rails > 1,
                      .counted_slices = true,
                      .exact_replay = true,
                      .cuts = true,
                      .lost_rails = true,
                      .broken_paths = true,
                      .kills = true,
                      .stops = true,
                      .lost_acks = true,
                      .not_ready = true,
                      .wrong_rkeys = true};
  return {"verbs_soft_" + std::to_string(rails), caps,
          [rails](const TestEnvOptions& options) { return make_env(rails, options); }};
}

}  // namespace

std::vector<ProviderCase> fake_verbs_cases() { return {fake_verbs_case(1), fake_verbs_case(2)}; }

}  // namespace fabric::test
