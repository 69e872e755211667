#include "harness/real_time_env.h"

#include "support/log_guard.h"

namespace fabric::test {

using namespace std::chrono_literals;

bool RealTimeClock::run_until(const std::function<bool()>& done, Nanos limit) {
  const Nanos end = engine_.now() + limit;
  while (!done()) {
    if (engine_.now() >= end) return false;
    Event tick[2];
    const auto timer = engine_.submit(Timer{.after = 1ms, .notify = Notify::inbox(ticks_)});
    if (!timer || !ticks_.wait(10s) || ticks_.poll(tick) != 1) return false;
  }
  return true;
}

// Process

void Process::resume() {
  stopped_ = false;
  for (auto& [job, queue] : std::exchange(held_, {})) helper().offload(std::move(job), queue);
}

void Process::kill() noexcept {
  if (engine_ != nullptr) engine_->simulate_crash();  // which detaches
  resume();                                           // its jobs run: the kernel frees what it held
}

Result<void> Process::attach(Progress& engine, const AttachOptions& options) {
  engine_ = &engine;
  return runtime_->attach(*this, options);
}

void Process::detach(Progress&) noexcept {
  runtime_->detach(*this);
  engine_ = nullptr;
}

void Process::offload(std::function<void()> job, uint32_t queue) {
  if (stopped_) {
    held_.emplace_back(std::move(job), queue);
  } else {
    helper().offload(std::move(job), queue);
  }
}

// RealTimeEnv

namespace {
/// On a network that costs little to open and to poll.
Config clock_config() { return {.networks = {{.provider = "shm"}}, .log_sink = test_log_sink()}; }
}  // namespace

RealTimeEnv::RealTimeEnv(const TestEnvOptions& options)
    : threaded_(options.realtime_threads), punctual_(options.faults) {
  if (threaded_) clock_ = std::make_unique<RealTimeClock>(*Engine::open(clock_config()));
}

Result<Engine> RealTimeEnv::open(uint32_t host, const Config& config) {
  Config real = config;
  real.networks = networks(host);
  if (threaded_) return Engine::open(real);
  const auto jobs = punctual_ ? Process::Jobs::kOwnThreads : Process::Jobs::kRuntime;
  processes_[host].push_back(std::make_shared<Process>(runtime_, punctual_, jobs));
  return Engine::open(real, processes_[host].back());
}

bool RealTimeEnv::run_until(const std::function<bool()>& done, Nanos limit) {
  if (clock_ != nullptr) return clock_->run_until(done, limit);
  const int64_t end_ns = runtime_->now_ns() + limit.count();
  while (!done()) {
    if (runtime_->now_ns() >= end_ns) return false;
    runtime_->turn();
    if (step_hook_) step_hook_();
  }
  return true;
}

void RealTimeEnv::run_for(Nanos time) {
  run_until([] { return false; }, time);
}

void RealTimeEnv::wait_idle() {
  run_for(threaded_ ? 50ms : punctual_ ? 200ms : 20ms);
  // On a busy machine that time may pass with few turns.
  for (uint32_t turn = 0; turn < 2000 && !threaded_; ++turn) runtime_->turn();
}

}  // namespace fabric::test
