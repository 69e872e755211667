#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/driver.h"
#include "base/rng.h"
#include "fake_verbs/fake_nics.h"

namespace fabric::test {

/// A runtime whose engines share one virtual clock with the fake NICs, so that silences of seconds
/// cost nothing and a seed repeats a run. drive() makes the turns of all engines, runs callbacks
/// and offloaded jobs and moves the packets, on the thread that waits. The clock advances by a
/// fixed amount for each such round; when no engine and no NIC has work, it jumps to the next
/// timer, packet or job.
///
/// virtual_time() stays false: that is for clocks which stop while the network goes on, and these
/// NICs stop too.
///
/// Threads: one at a time.
class SteppedDriver final : public Driver {
 public:
  /// `nics` have FakeNicOptions::stepped, and outlive the driver.
  SteppedDriver(FakeNics& nics, uint64_t seed) noexcept : nics_(nics), rng_(seed) {}
  ~SteppedDriver() override;

  int64_t now_ns() const noexcept override { return now_ns_; }
  uint64_t entropy() noexcept override { return rng_.next(); }
  uint64_t incarnation() noexcept override { return ++incarnations_; }
  Result<void> attach(Progress& progress, const AttachOptions& options) override;
  void detach(Progress& progress) noexcept override;
  void wake(Progress&) noexcept override { idle_rounds_ = 0; }
  void wake_callbacks(Progress&) noexcept override { idle_rounds_ = 0; }
  bool threaded() const noexcept override { return false; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override;
  uint32_t turn_one(Progress& progress) noexcept override;
  /// Jobs run one after another, each some time after it was offloaded.
  void offload(std::function<void()> job, uint32_t queue = 0) override;

  void each_step(std::function<void()> hook) { step_hook_ = std::move(hook); }

 private:
  struct Job {
    int64_t due_ns = 0;
    std::function<void()> call{};
  };

  bool step(int64_t deadline_ns);
  uint32_t turn_all(int64_t& next_ns);
  uint32_t run_due_jobs();
  bool arm_all() noexcept;

  FakeNics& nics_;
  Rng rng_;
  int64_t now_ns_ = 1'000'000'000;  // any, but not 0
  uint64_t incarnations_ = 0;
  std::vector<Progress*> engines_;  // null: detached during a round
  std::deque<Job> jobs_;            // in the order in which they are due
  std::function<void()> step_hook_;
  uint32_t idle_rounds_ = 0;
  bool inside_ = false;  // a turn, a callback or a job is running
};

}  // namespace fabric::test
