#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fabric/kv.h>
#include <fabric/sim.h>

namespace fabric::kv::test {

inline constexpr const char* kRunId = "a request";

/// One request from a prefill side to a decode side on the simulator: an engine for each rank, with
/// its Prefiller or Decoder. Any layouts; kv_cluster.h has failures.
class DisaggregatedRun {
 public:
  /// The regions of one rank, in the order of its layout.
  using RankMemory = std::vector<std::span<std::byte>>;
  struct Options {
    PlanOptions plan{};
    sim::NicModel model = sim::NicModel::connectx7();
    bool per_layer = false;
    bool pages_with_passes = false;  ///< each pass brings its pages; else the offer has all
    uint32_t staging_slots = 4;      ///< of a prefill rank; with plan.staging
    uint32_t staging_records = 64;   ///< of a decode rank
  };
  /// By the names of groups: ranks may lack some of them.
  struct GroupRequest {
    uint32_t cached_tokens = 0;  ///< of the decode side
    std::vector<uint32_t> source_pages{};
    std::vector<uint32_t> target_pages{};
  };
  struct Request {
    uint32_t prompt_tokens = 0;
    std::map<std::string, GroupRequest> groups{};
  };

  /// Opens everything. Lifetime: the memory outlives the run.
  DisaggregatedRun(const Side& prefill, std::span<const RankMemory> prefill_memory,
                   const Side& decode, std::span<const RankMemory> decode_memory,
                   const Options& options);
  ~DisaggregatedRun();

  /// Starts the request on every decode rank and offers it on every prefill rank.
  void start(const Request& request, uint32_t attempt = 0);
  /// The same request by another name on the first decode rank; it is not offered.
  Result<void> start_another(const std::string& id, std::vector<uint32_t> target_pages);
  void begin_pass(TokenRange chunk);
  void layer_done(uint32_t layer);
  void all_layers_done();
  /// After the last pass.
  void end_prompt();
  /// end_prompt(), and then all pages are back on both sides, and as many counts came as planned.
  void finish();

  // Failures.
  void crash_prefill(uint32_t rank);
  bool decode_over() const;  ///< no lease is left
  Decoder& decoder(uint32_t rank) const;
  std::span<std::byte> staging(uint32_t rank);  ///< of a decode rank

 private:
  struct PrefillRank;
  struct DecodeRank;
  void poll();
  DecodeRequest decode_request(const DecodeRank& rank) const;
  std::vector<std::vector<uint32_t>> more_pages(PrefillRank& rank, uint32_t tokens) const;

  uint64_t largest_staged_bytes() const;
  uint64_t largest_record_bytes() const;

  Options options_;
  Request request_{};
  uint32_t attempt_ = 0;
  TransferPlan plan_{};  ///< for the sizes of the staging memory

 public:
  sim::World world;

 private:
  std::vector<std::unique_ptr<PrefillRank>> prefill_;
  std::vector<std::unique_ptr<DecodeRank>> decode_;
  uint64_t counts_ = 0;  ///< that all decode ranks together wait for
  sim::Hook hook_;       ///< last: ends first
};

}  // namespace fabric::kv::test
