// Operations on the network of this host, both ends on one thread, so without what a cache line
// costs that travels between cores. Items are writes, pages, targets or messages.

#include <chrono>
#include <cstdint>

#include <benchmark/benchmark.h>

#include "bench/bench_engines.h"

namespace {

using fabric::bench::Stage;

constexpr uint32_t kTargets = 56;

/// The whole operation, from submit() until both ends know that it is over.
void whole(benchmark::State& state, void (Stage::*operation)(), uint32_t items,
           uint32_t receivers = 1) {
  Stage stage(receivers);
  (stage.*operation)();  // the paths are open
  for (auto _ : state) (stage.*operation)();
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * items));
}

/// One step of the way of 64 writes; the steps before and after it are not timed.
void step(benchmark::State& state, void (*before)(Stage&), void (Stage::*timed)()) {
  using Clock = std::chrono::steady_clock;
  Stage stage;
  stage.span();
  for (auto _ : state) {
    before(stage);
    const auto begin = Clock::now();
    (stage.*timed)();
    const std::chrono::duration<double> took = Clock::now() - begin;
    state.SetIterationTime(took.count());
    stage.finish_span();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * Stage::kSpan));
}

void nothing(Stage&) {}
void submitted(Stage& stage) { stage.submit_span(); }
void posted(Stage& stage) {
  stage.submit_span();
  stage.turn_sender();
}

BENCHMARK_CAPTURE(step, submit, nothing, &Stage::submit_singly)->UseManualTime();
BENCHMARK_CAPTURE(step, submit_span, nothing, &Stage::submit_span)->UseManualTime();
// The network copies by CPU, so the turn that posts takes the completions as well.
BENCHMARK_CAPTURE(step, post_and_completions, submitted, &Stage::turn_sender)->UseManualTime();
BENCHMARK_CAPTURE(step, poll_arrivals, posted, &Stage::turn_receiver)->UseManualTime();

BENCHMARK_CAPTURE(whole, write, &Stage::write, 1);
BENCHMARK_CAPTURE(whole, span64, &Stage::span, Stage::kSpan);
BENCHMARK_CAPTURE(whole, expectation, &Stage::expectation, 1);
BENCHMARK_CAPTURE(whole, message, &Stage::message, 1);
BENCHMARK_CAPTURE(whole, scatter56, &Stage::scatter, kTargets, kTargets);
BENCHMARK_CAPTURE(whole, paged1024, &Stage::paged, Stage::kPages);

}  // namespace
