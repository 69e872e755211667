// Operations on the shm network, both ends on one thread, so without cache misses between cores.
// Items are writes, pages, targets or messages.

#include <chrono>
#include <cstdint>

#include <benchmark/benchmark.h>

#include "bench/bench_engines.h"

namespace {

using fabric::bench::BenchEngines;

constexpr uint32_t kTargets = 56;

/// The whole operation, from submit() until it is complete on both sides.
void whole(benchmark::State& state, void (BenchEngines::*operation)(), uint32_t items,
           uint32_t receivers = 1) {
  BenchEngines engines(receivers);
  (engines.*operation)();  // the paths are open
  for (auto _ : state) (engines.*operation)();
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * items));
}

/// One step of 64 writes; the steps before and after it are not timed.
void step(benchmark::State& state, void (*before)(BenchEngines&), void (BenchEngines::*timed)()) {
  using Clock = std::chrono::steady_clock;
  BenchEngines engines;
  engines.span();
  for (auto _ : state) {
    before(engines);
    const auto begin = Clock::now();
    (engines.*timed)();
    const std::chrono::duration<double> took = Clock::now() - begin;
    state.SetIterationTime(took.count());
    engines.finish_span();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * BenchEngines::kSpan));
}

void nothing(BenchEngines&) {}
void submitted(BenchEngines& engines) { engines.submit_span(); }
void posted(BenchEngines& engines) {
  engines.submit_span();
  engines.turn_sender();
}

BENCHMARK_CAPTURE(step, submit, nothing, &BenchEngines::submit_singly)->UseManualTime();
BENCHMARK_CAPTURE(step, submit_span, nothing, &BenchEngines::submit_span)->UseManualTime();
// The network copies by CPU, so the turn that posts takes the completions as well.
BENCHMARK_CAPTURE(step, post_and_completions, submitted, &BenchEngines::turn_sender)
    ->UseManualTime();
BENCHMARK_CAPTURE(step, poll_arrivals, posted, &BenchEngines::turn_receiver)->UseManualTime();

BENCHMARK_CAPTURE(whole, write, &BenchEngines::write, 1);
BENCHMARK_CAPTURE(whole, span64, &BenchEngines::span, BenchEngines::kSpan);
BENCHMARK_CAPTURE(whole, expectation, &BenchEngines::expectation, 1);
BENCHMARK_CAPTURE(whole, message, &BenchEngines::message, 1);
BENCHMARK_CAPTURE(whole, scatter56, &BenchEngines::scatter, kTargets, kTargets);
BENCHMARK_CAPTURE(whole, paged1024, &BenchEngines::paged, BenchEngines::kPages);

}  // namespace
