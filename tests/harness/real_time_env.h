#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "harness/test_env.h"
#include "runtime/inline.h"
#include "runtime/threads.h"

// Test environments whose engines run in this process, in real time.

namespace fabric::test {

/// Real time from an engine of its own, whose timers let the waiting thread sleep.
class RealTimeClock {
 public:
  explicit RealTimeClock(Engine engine)
      : engine_(std::move(engine)), ticks_(*engine_.make_inbox(2)) {}
  bool run_until(const std::function<bool()>& done, Nanos limit);

 private:
  Engine engine_;
  Inbox ticks_;
};

/// The runtime of one engine, attached to the common runtime. It can be stopped and killed as a
/// process can; the network below the engine keeps running.
class Process final : public Runtime, private Driver, private Progress {
 public:
  /// Where the jobs run that the engine offloads: between the runtime's turns, or on threads of the
  /// process, where a call that blocks delays no other process.
  enum class Jobs : uint8_t { kRuntime, kOwnThreads };
  /// `punctual`: the engine counts as one with threads, whose turns have no long pauses.
  Process(std::shared_ptr<Driver> runtime, bool punctual, Jobs jobs)
      : runtime_(std::move(runtime)), punctual_(punctual), jobs_(jobs) {}
  void stop() noexcept { stopped_ = true; }
  void resume();
  void kill() noexcept;

 private:
  Driver& driver() noexcept override { return *this; }

  // Towards the engine.
  int64_t now_ns() const noexcept override { return runtime_->now_ns(); }
  uint64_t entropy() noexcept override { return runtime_->entropy(); }
  uint64_t incarnation() noexcept override { return runtime_->incarnation(); }
  Result<void> attach(Progress& engine, const AttachOptions& options) override;
  void detach(Progress& engine) noexcept override;
  void wake(Progress&) noexcept override { runtime_->wake(*this); }
  void wake_callbacks(Progress&) noexcept override { runtime_->wake_callbacks(*this); }
  bool threaded() const noexcept override { return false; }
  bool by_application() const noexcept override { return !punctual_; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override {
    return runtime_->drive(done, deadline_ns);
  }
  uint32_t turn_one(Progress&) noexcept override { return runtime_->turn_one(*this); }
  void offload(std::function<void()> job, uint32_t queue) override;
  Driver& helper() noexcept {
    return jobs_ == Jobs::kOwnThreads ? static_cast<Driver&>(helpers_) : *runtime_;
  }

  // Towards the common runtime.
  bool runs() const noexcept { return engine_ != nullptr && !stopped_; }
  TurnResult turn(int64_t now_ns) noexcept override {
    return runs() ? engine_->turn(now_ns) : TurnResult{};
  }
  uint32_t run_callbacks() noexcept override { return runs() ? engine_->run_callbacks() : 0; }
  bool arm() noexcept override { return !runs() || engine_->arm(); }
  void wait_fds(std::vector<int>& out) const override { engine_->wait_fds(out); }

  const std::shared_ptr<Driver> runtime_;
  const bool punctual_;
  const Jobs jobs_;
  Progress* engine_ = nullptr;
  bool stopped_ = false;
  std::vector<std::pair<std::function<void()>, uint32_t>> held_;  ///< jobs offloaded while stopped
  runtime::ThreadsDriver helpers_;                                ///< for jobs only
};

/// Engines of this process on a network of this machine.
class RealTimeEnv : public TestEnv {
 public:
  explicit RealTimeEnv(const TestEnvOptions& options);

  Result<Engine> open(uint32_t host, const Config& config) override;
  bool run_until(const std::function<bool()>& done, Nanos limit) override;
  void run_for(Nanos time) override;
  void wait_idle() override;
  void each_step(std::function<void()> hook) override { step_hook_ = std::move(hook); }

 protected:
  virtual std::vector<Network> networks(uint32_t host) const = 0;
  /// All that were opened on a host, including the dead ones.
  const std::vector<std::shared_ptr<Process>>& processes(uint32_t host) const {
    return processes_[host];
  }

 private:
  const bool threaded_, punctual_;
  const std::shared_ptr<runtime::InlineDriver> runtime_ = std::make_shared<runtime::InlineDriver>();
  std::array<std::vector<std::shared_ptr<Process>>, kHosts> processes_;
  std::unique_ptr<RealTimeClock> clock_;
  std::function<void()> step_hook_;
};

}  // namespace fabric::test
