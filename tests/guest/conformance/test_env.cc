#include <algorithm>
#include <filesystem>

#include <fabric/verbs.h>

#include "conformance/verbs_cases.h"
#include "conformance/verbs_networks.h"
#include "guest/conformance/interposer.h"
#include "guest/links.h"
#include "harness/real_time_env.h"

// The conformance suite on RDMA devices: in the guest on three hosts, with every fault that can be
// injected between them; on a machine with NICs the engines use those, without faults.

namespace fabric::test {
namespace {

/// One-way delay while faults are injected. Long enough for an engine of the guest to act while its
/// writes are in flight, and short compared with a NIC's timeout.
constexpr Nanos kCable = 4ms;

std::string port_of(uint32_t host, uint32_t rail) {
  return {static_cast<char>('a' + host), static_cast<char>('0' + rail)};
}

class GuestFaults final : public FaultInjector {
 public:
  using Processes = std::function<std::vector<std::shared_ptr<Process>>(uint32_t host)>;

  GuestFaults(uint32_t rails, Processes processes)
      : rails_(rails), processes_(std::move(processes)) {}

  void begin() {
    each_rail([](uint32_t rail) {
      for (const uint32_t host : {0, 1, 2}) set_delay("s" + port_of(host, rail), kCable);
      // So that a band can be dropped without starting a program.
      for (const uint32_t host : {0, 1}) set_control_netem(port_of(host, rail), "");
    });
    active_ = true;
  }
  void lose_control(const std::string& parameters) {
    each_rail([&](uint32_t rail) {
      for (const uint32_t host : {0, 1}) set_control_netem(port_of(host, rail), parameters);
    });
    active_ = true;
  }
  ~GuestFaults() override {
    if (!active_) return;
    VerbsInterposer::get().withhold_receives(0, false);
    heal_all();
  }

  /// At the second host's ends of its cables; only these two hosts use them in such a test.
  void cut(uint32_t, uint32_t other, Phase phase) override {
    each_rail([&](uint32_t rail) {
      const std::string port = port_of(other, rail);
      for (const Band band : {Band::kData, Band::kControl, Band::kAcks}) {
        set_band_lost(port, band, phase == Phase::kBegin);
      }
      if (phase == Phase::kBegin) {
        lose_all("s" + port);
      } else {
        set_delay("s" + port, kCable);
      }
    });
  }
  void lose_rail(uint32_t host, uint32_t rail, Phase phase) override {
    set_link(port_of(host, rail), phase == Phase::kEnd);
  }
  void break_path(uint32_t from, uint32_t to, uint32_t rail, Side side) override {
    const auto end =
        side == Side::kSender ? VerbsInterposer::End::kSender : VerbsInterposer::End::kTarget;
    EXPECT_GT(VerbsInterposer::get().break_path(from, to, rail, end), 0u)
        << "there is no such path";
  }
  void kill(uint32_t host) override {
    for (const auto& process : processes_(host)) process->kill();
  }
  void stop(uint32_t host, Phase phase) override {
    for (const auto& process : processes_(host)) {
      phase == Phase::kBegin ? process->stop() : process->resume();
    }
  }
  void lose_acks(uint32_t, uint32_t to, Phase phase) override {
    each_rail([&](uint32_t rail) {
      set_band_lost(port_of(to, rail), Band::kAcks, phase == Phase::kBegin);
    });
  }
  void not_ready(uint32_t host, Phase phase) override {
    VerbsInterposer::get().withhold_receives(host, phase == Phase::kBegin);
  }
  void wrong_rkey(uint32_t from, uint32_t to) override {
    VerbsInterposer::get().corrupt_rkey(from, to);
  }

 private:
  void each_rail(const std::function<void(uint32_t)>& act) const {
    for (uint32_t rail = 0; rail < rails_; ++rail) act(rail);
  }

  const uint32_t rails_;
  const Processes processes_;
  bool active_ = false;
};

class GuestEnv final : public RealTimeEnv {
 public:
  GuestEnv(uint32_t rails, const TestEnvOptions& options)
      : RealTimeEnv(options), options_(options), rails_(rails) {
    VerbsInterposer::get();  // before the first network is opened
    if (options.faults) faults_.begin();
    std::string parameters;
    const auto percent = [](double part) { return std::to_string(100 * part) + "% "; };
    if (options.drop_control > 0) parameters += "loss " + percent(options.drop_control);
    if (options.duplicate_control > 0)
      parameters += "duplicate " + percent(options.duplicate_control);
    if (options.reorder_control > 0) {
      parameters += "delay 3ms reorder " + percent(1 - options.reorder_control);
    }
    if (!parameters.empty()) faults_.lose_control(parameters);
  }

  FaultInjector& faults() override { return faults_; }
  Nanos wire_time(Nanos simulated) const override { return 1000 * simulated; }

 private:
  std::vector<Network> networks(uint32_t host) const override {
    std::vector<std::string> ports;
    for (uint32_t rail = 0; rail < rails_; ++rail) ports.push_back("x" + port_of(host, rail));
    return verbs_networks(std::move(ports), {.timeout_code = kTimeoutCode, .retry_count = kRetries},
                          options_);
  }

  const TestEnvOptions options_;
  const uint32_t rails_;
  GuestFaults faults_{rails_, [this](uint32_t host) { return processes(host); }};
};

std::vector<std::string> all_devices() {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", none)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class HardwareEnv final : public RealTimeEnv {
 public:
  HardwareEnv(uint32_t rails, const TestEnvOptions& options)
      : RealTimeEnv(options), rails_(rails) {}

 private:
  std::vector<Network> networks(uint32_t) const override {
    auto devices = all_devices();
    devices.resize(rails_);
    return {{.provider = "verbs", .devices = devices}};
  }

  const uint32_t rails_;
};

CaseCaps hardware_caps(uint32_t rails) {
  return {.realtime_threads = true,
          .several_rails = rails > 1,
          .counted_slices = true,
          .exact_replay = true};
}

CaseCaps guest_caps(uint32_t rails) {
  CaseCaps caps = hardware_caps(rails);
  caps.step_hooks = caps.lossy_control = caps.second_network = true;
  caps.cuts = caps.lost_rails = caps.broken_paths = caps.kills = caps.stops = true;
  caps.lost_acks = caps.not_ready = caps.wrong_rkeys = true;
  return caps;
}

template <class G>
ProviderCase verbs_case(uint32_t rails, const CaseCaps& caps) {
  return {"verbs_" + std::to_string(rails), caps,
          [rails](const TestEnvOptions& options) { return std::make_unique<G>(rails, options); }};
}

}  // namespace

std::vector<ProviderCase> verbs_cases() {
  std::vector<ProviderCase> cases;
  for (uint32_t rails = 1; rails <= 2 && rails <= all_devices().size(); ++rails) {
    cases.push_back(in_guest() ? verbs_case<GuestEnv>(rails, guest_caps(rails))
                               : verbs_case<HardwareEnv>(rails, hardware_caps(rails)));
  }
  return cases;
}

}  // namespace fabric::test
