#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kv/kv_cluster.h"

// Many prefillers and decoders on the simulator, and a router that places requests. Members crash,
// are stopped and continued, drain and leave, and come back.

namespace fabric::kv::test {

/// A decode rank that gives pages back as soon as they are its own.
class DecodeNode {
 public:
  DecodeNode(sim::World& world, uint32_t node, uint32_t pages, const ClusterOptions& options);
  ~DecodeNode();
  void close();
  /// Moves what has happened to `out`.
  void poll(std::vector<DecodeEvent>& out);
  /// Takes pages and starts an attempt. False: no pages, or start() refused.
  bool start(const std::string& id, uint32_t attempt, uint32_t prompt_tokens,
             const Engine& prefiller);
  /// The pages of an attempt are this decoder's again.
  void give_back(const std::string& id, uint32_t attempt);
  bool holds(const std::string& id, uint32_t attempt);  ///< the bytes of a complete attempt
  /// No page is leased or lost, and no free page was written.
  void expect_all_back();

  std::optional<Engine> engine;
  std::optional<MemoryRegion> memory;
  std::optional<MemoryRegion> tail;
  std::optional<Decoder> decoder;
  PagePool pool;
  bool drained = false;

 private:
  ClusterOptions options_;
  Layout layout_;
  uint32_t side_ = 0;
  std::map<std::pair<std::string, uint32_t>, std::vector<uint32_t>> pages_;
};

struct ScaleOptions {
  ClusterOptions cache{};  ///< `pages`: of a prefill rank
  uint32_t prefillers = 16;
  uint32_t decoders = 64;
  uint32_t decoder_pages = 320;
  uint32_t requests = 128;
  uint32_t prompt_tokens_min = 1u << 17;
  uint32_t prompt_tokens_max = 1u << 17;
  Nanos request_gap{};     ///< between two requests, on average
  Nanos churn_gap = 60ms;  ///< between two events of a member, on average
  Nanos tick{1'000'000};   ///< how often every member polls
  Nanos churn_ends = 3s;   ///< what is away then, comes back
};

/// What happened, for the report and for checks that it did.
struct ScaleTotals {
  uint64_t complete = 0, sent_again = 0, refused = 0, failed = 0, fences_proved = 0;
  uint64_t prefiller_crashes = 0, decoder_crashes = 0, prefiller_stops = 0, decoder_stops = 0,
           prefiller_drains = 0, decoder_drains = 0, joins = 0, wrong = 0;
};

class ScaleCluster {
 public:
  explicit ScaleCluster(const ScaleOptions& options);
  ~ScaleCluster();
  /// Serves all requests. False: not within `limit` of virtual time.
  bool run(Nanos limit);
  /// Every member is back and at rest; all pages are.
  void expect_all_back();
  const ScaleTotals& totals() const { return totals_; }
  sim::World& world() { return world_; }

 private:
  struct Request {
    std::string id{};
    uint32_t prompt_tokens = 0;
    uint32_t attempt = 0;
    bool placed = false;
    bool done = false;
    size_t decoder = 0;
  };
  enum class Away : uint8_t { kNo, kStopped, kDraining, kClosed };
  struct Member {
    Away away = Away::kNo;
    Nanos back{};  ///< when it continues or is opened again
  };
  void step();
  void poll_prefiller(size_t i);
  void poll_decoder(size_t i);
  void take(size_t decoder, const DecodeEvent& event);
  void place(Request& request);
  void send_again(Request& request);
  void churn();
  void bring_back();
  void crash_decoder(size_t i);
  uint32_t prefiller_node(size_t i) const { return static_cast<uint32_t>(i); }
  uint32_t decoder_node(size_t i) const { return options_.prefillers + static_cast<uint32_t>(i); }
  void inject(const sim::Fault& fault);
  void open_prefiller(size_t i);
  void open_decoder(size_t i);
  void count_stats(const DecodeNode& node);

  ScaleOptions options_;
  Rng rng_;
  sim::World world_;
  std::vector<std::unique_ptr<PrefillRank>> prefillers_;
  std::vector<std::unique_ptr<DecodeNode>> decoders_;
  std::vector<Member> prefill_members_, decode_members_;
  std::vector<Request> requests_;
  std::map<std::string, size_t> by_id_;
  size_t arrived_ = 0;
  Nanos next_request_{}, next_churn_{};
  std::vector<uint32_t> next_kinds_;  ///< of churn
  ScaleTotals totals_;
};

}  // namespace fabric::kv::test
