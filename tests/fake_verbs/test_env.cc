#include <fabric/verbs.h>

#include "fake_verbs/card.h"
#include "conformance/verbs_cases.h"
#include "harness/real_time_env.h"
#include "conformance/verbs_networks.h"
#include "support/log_guard.h"

// The conformance suite on cards made of software, with the trouble that it asks for.

namespace fabric::test {
namespace {

/// One way, while there is trouble: long enough for an engine to do something while its writes are
/// under way.
constexpr Nanos kCable = 300us;

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
  void wrong_key(uint32_t from, uint32_t to) override { nics_.corrupt_rkey(from, to); }

 private:
  FakeNics& nics_;
  const Processes processes_;
};

FakeNicOptions nic_options_of(uint32_t rails, const TestEnvOptions& options) {
  FakeNicOptions nic_options{.hosts = TestEnv::kHosts, .rails = rails, .seed = test_seed()};
  nic_options.dmabuf = false;  // the bodies know host memory only
  if (options.faults) nic_options.cable = kCable;
  return nic_options;
}

/// The cards are there before the first engine is opened, and when the last job of one has ended.
struct OwnsFakeNics {
  explicit OwnsFakeNics(const FakeNicOptions& nic_options) : nics(nic_options) {}
  FakeNics nics;
};

class FakeNicEnv final : private OwnsFakeNics, public RealTimeEnv {
 public:
  FakeNicEnv(uint32_t rails, const TestEnvOptions& options)
      : OwnsFakeNics(nic_options_of(rails, options)), RealTimeEnv(options), options_(options), rails_(rails) {
    nics.lossy_control({.drop = options.drop_control,
                         .duplicate = options.duplicate_control,
                         .reorder = options.reorder_control});
  }

  FaultInjector& faults() override { return faults_; }
  Nanos wire_time(Nanos simulated) const override { return 100 * simulated; }

 private:
  std::vector<Network> networks(uint32_t host) const override {
    verbs::Options usual;
    for (uint32_t rail = 0; rail < rails_; ++rail) {
      usual.devices.push_back(FakeNics::name(host, rail));
    }
    return verbs_networks(usual, options_);
  }

  const TestEnvOptions options_;
  const uint32_t rails_;
  FakeNicFaults faults_{nics, [this](uint32_t host) { return processes(host); }};
};

ProviderCase fake_verbs_case(uint32_t rails) {
  const CaseCaps caps{.step_hooks = true,
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
                      .wrong_keys = true};
  return {"verbs_soft_" + std::to_string(rails), caps, [rails](const TestEnvOptions& options) {
            return std::make_unique<FakeNicEnv>(rails, options);
          }};
}

}  // namespace

std::vector<ProviderCase> fake_verbs_cases() { return {fake_verbs_case(1), fake_verbs_case(2)}; }

}  // namespace fabric::test
