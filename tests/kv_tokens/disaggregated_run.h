#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fabric/kv.h>
#include <fabric/sim.h>

#include "paged_cache.h"

namespace fabric::test {

/// One request from a prefill side to a decode side on the simulator: an engine for each rank of
/// the two caches, with its Prefiller or Decoder.
class DisaggregatedRun {
 public:
  struct Request {
    uint32_t prompt_tokens = 0;
    uint32_t cached_tokens = 0;  ///< of the decode side
    std::vector<uint32_t> source_pages{};
    std::vector<uint32_t> target_pages{};
  };

  /// Opens everything. Lifetime: the caches outlive the run.
  DisaggregatedRun(transformer::ShardedCache& source, transformer::ShardedCache& target);
  ~DisaggregatedRun();

  /// Whether the layouts of the two sides have a plan. Else `refusal()` says why.
  bool has_plan() const { return refusal_.code == kv::RefusalCode::kNone; }
  const kv::Refusal& refusal() const { return refusal_; }

  /// Starts the request on every decode rank and offers it on every prefill rank.
  void start(const Request& request);
  void begin_pass(kv::TokenRange chunk);
  void layer_done(uint32_t layer);
  /// After the last pass. All pages are back on both sides, and as many counts came as planned.
  void finish();

 private:
  struct PrefillRank;
  struct DecodeRank;
  void poll();

  sim::World world_;
  std::vector<std::unique_ptr<PrefillRank>> prefill_;
  std::vector<std::unique_ptr<DecodeRank>> decode_;
  kv::Refusal refusal_{};
  uint64_t counts_ = 0;  ///< that all decode ranks together wait for
  sim::Hook hook_;       ///< last: ends first
};

}  // namespace fabric::test
