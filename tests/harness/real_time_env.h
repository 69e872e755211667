#pragma once

#include <functional>
#include <memory>

#include "conformance/conformance.h"
#include "runtime/inline.h"
#include "runtime/threads.h"

// Grounds whose engines live in this process, in real time.

namespace fabric::test {

/// Real time from an engine of its own, whose alarms let the waiting thread sleep.
class Clock {
 public:
  explicit Clock(Engine engine) : engine_(std::move(engine)), ticks_(*engine_.make_inbox(2)) {}
  bool run_until(const std::function<bool()>& done, Nanos limit);

 private:
  Engine engine_;
  Inbox ticks_;
};

/// What one engine takes for its runtime: a seat in the common one, which can be stopped as a
/// process is, and killed. The network beneath it is neither.
class Process final : public Runtime, private Driver, private Progress {
 public:
  /// `punctual`: it passes for a process with threads, of which nobody expects long pauses; it has
  /// one for its kernel calls, which hold up no other process then.
  Process(std::shared_ptr<runtime::InlineDriver> runtime, bool punctual)
      : host_(std::move(host)), punctual_(punctual) {}
  void stop() noexcept { stopped_ = true; }
  void go_on();
  void kill() noexcept;

 private:
  Driver& driver() noexcept override { return *this; }

  // Towards the engine.
  int64_t now_ns() const noexcept override { return host_->now_ns(); }
  uint64_t entropy() noexcept override { return host_->entropy(); }
  uint64_t incarnation() noexcept override { return host_->incarnation(); }
  Result<void> attach(Progress& engine, const AttachOptions& options) override;
  void detach(Progress& engine) noexcept override;
  void wake(Progress&) noexcept override { host_->wake(*this); }
  void wake_callbacks(Progress&) noexcept override { host_->wake_callbacks(*this); }
  bool threaded() const noexcept override { return false; }
  bool by_application() const noexcept override { return !punctual_; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override {
    return host_->drive(done, deadline_ns);
  }
  uint32_t turn_one(Progress&) noexcept override { return host_->turn_one(*this); }
  void offload(std::function<void()> job, uint32_t queue) override;
  Driver& helper() noexcept { return punctual_ ? static_cast<Driver&>(helpers_) : *host_; }

  // Towards the common runtime.
  bool runs() const noexcept { return engine_ != nullptr && !stopped_; }
  TurnResult turn(int64_t now_ns) noexcept override {
    return runs() ? engine_->turn(now_ns) : TurnResult{};
  }
  uint32_t run_callbacks() noexcept override { return runs() ? engine_->run_callbacks() : 0; }
  bool arm() noexcept override { return !runs() || engine_->arm(); }
  void wait_fds(std::vector<int>& out) const override { engine_->wait_fds(out); }

  const std::shared_ptr<runtime::InlineDriver> host_;
  const bool punctual_;
  Progress* engine_ = nullptr;
  bool stopped_ = false;
  std::vector<std::pair<std::function<void()>, uint32_t>> held_;  ///< jobs of a stopped one
  runtime::ThreadsDriver helpers_;                                ///< for jobs, and nothing else
};

/// Engines of this process on a network of this machine.
class RealTimeEnv : public TestEnv {
 public:
  explicit RealTimeEnv(const TestEnvOptions& options);

  Result<Engine> open(uint32_t place, const Config& config) override;
  bool run_until(const std::function<bool()>& done, Nanos limit) override;
  void run_for(Nanos time) override;
  void settle() override;
  void each_step(std::function<void()> look) override { look_ = std::move(look); }

 protected:
  virtual std::vector<Network> networks(uint32_t place) const = 0;
  /// Those opened on a host, the dead ones too.
  const std::vector<std::shared_ptr<Process>>& processes(uint32_t place) const {
    return processes_[place];
  }

 private:
  const bool threaded_, punctual_;
  const std::shared_ptr<runtime::InlineDriver> host_ = std::make_shared<runtime::InlineDriver>();
  std::array<std::vector<std::shared_ptr<Process>>, kPlaces> processes_;
  std::unique_ptr<Clock> clock_;
  std::function<void()> look_;
};

}  // namespace fabric::test
