#include "harness/real_time_env.h"

#include "support/log_guard.h"

namespace fabric::test {

bool Clock::run_until(const std::function<bool()>& done, Nanos limit) {
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

void Process::go_on() {
  stopped_ = false;
  for (auto& [job, queue] : std::exchange(held_, {})) helper().offload(std::move(job), queue);
}

void Process::kill() noexcept {
  if (engine_ != nullptr) engine_->vanish();  // which gives up its seat
  go_on();                                    // the kernel takes away what it had
}

Result<void> Process::attach(Progress& engine, const AttachOptions& options) {
  engine_ = &engine;
  return host_->attach(*this, options);
}

void Process::detach(Progress&) noexcept {
  host_->detach(*this);
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
Config watch_config() { return {.networks = {{.provider = "shm"}}, .log_sink = test_log_sink()}; }
}  // namespace

RealTimeEnv::RealTimeEnv(const TestEnvOptions& options)
    : threaded_(options.realtime_threads), punctual_(options.trouble) {
  if (threaded_) clock_ = std::make_unique<Clock>(*Engine::open(watch_config()));
}

Result<Engine> RealTimeEnv::open(uint32_t place, const Config& config) {
  Config real = config;
  real.networks = networks(place);
  if (threaded_) return Engine::open(real);
  processes_[place].push_back(std::make_shared<Process>(host_, punctual_));
  return Engine::open(real, processes_[place].back());
}

bool RealTimeEnv::run_until(const std::function<bool()>& done, Nanos limit) {
  if (clock_ != nullptr) return clock_->run_until(done, limit);
  const int64_t end_ns = host_->now_ns() + limit.count();
  while (!done()) {
    if (host_->now_ns() >= end_ns) return false;
    host_->turn();
    if (look_) look_();
  }
  return true;
}

void RealTimeEnv::run_for(Nanos time) {
  run_until([] { return false; }, time);
}

void RealTimeEnv::settle() {
  run_for(threaded_ ? 50ms : punctual_ ? 200ms : 20ms);
  // Time passes on a busy machine while nobody turns; turns do not.
  for (uint32_t turn = 0; turn < 2000 && !threaded_; ++turn) host_->turn();
}

}  // namespace fabric::test
