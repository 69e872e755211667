// Counter updates: immediates as a poll returns them, compared with bare atomic adds on as many
// words in the same order. A single counter key comes in bursts, which are merged; several come in
// random order.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/bench_engines.h"
#include "core/counter_table.h"

namespace {

using namespace fabric;
using bench::need;

constexpr size_t kPoll = 256;  // as many as one poll() returns

/// 0 .. n - 1 in an order that defeats prefetching, repeated until kPoll divides the length.
std::vector<uint32_t> random_order(size_t n) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  uint64_t state = 1;
  for (size_t i = n; i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  while (order.size() % kPoll != 0) order.push_back(order[order.size() - n]);
  return order;
}

void count_items(benchmark::State& state) {
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kPoll));
}

void count(benchmark::State& state) {
  const auto keys = static_cast<uint32_t>(state.range(0));
  core::CounterTable table({.live_max = std::max(keys, 64u)});
  std::vector<uint32_t> immediates(keys);
  for (uint32_t& immediate : immediates) {
    immediate = core::make_imm(need(table.acquire(0, 0), "acquire"), 1);
  }
  std::vector<uint32_t> sequence = random_order(keys);
  for (uint32_t& place : sequence) place = immediates[place];
  size_t at = 0;
  for (auto _ : state) {
    need(table.arrive(std::span(sequence).subspan(at, kPoll)) == 0, "a stale immediate");
    at = at + kPoll == sequence.size() ? 0 : at + kPoll;
  }
  count_items(state);
}

void bare_atomic_add(benchmark::State& state) {
  const auto words = static_cast<uint32_t>(state.range(0));
  // Twice as many, as in the table: half of its slots are in quarantine.
  const auto memory = std::make_unique<std::atomic<uint64_t>[]>(size_t{words} * 2);
  const std::vector<uint32_t> sequence = random_order(words);
  size_t at = 0;
  for (auto _ : state) {
    for (size_t i = at; i < at + kPoll; ++i) {
      memory[sequence[i]].fetch_add(1, std::memory_order_relaxed);  // pairs with nothing
    }
    at = at + kPoll == sequence.size() ? 0 : at + kPoll;
  }
  count_items(state);
}

BENCHMARK(count)->Arg(1)->Arg(1'000)->Arg(1'000'000);
BENCHMARK(bare_atomic_add)->Arg(1)->Arg(1'000)->Arg(1'000'000);

}  // namespace
