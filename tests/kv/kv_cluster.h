#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fabric/kv.h>
#include <fabric/sim.h>

#include "harness/host.h"

// A decode rank and prefill ranks on the simulator, with real bytes in their pages. Every free page
// of the decoder holds a canary, and in every step of the world each page is in exactly one state.

namespace fabric::kv::test {

using namespace std::chrono_literals;

inline constexpr uint32_t kPageTokens = 16;
inline constexpr uint32_t kHeads = 4;
inline constexpr std::byte kCanary{0xcc};

struct ClusterOptions {
  sim::NicModel model = sim::NicModel::connectx7();
  uint64_t seed = 1;
  uint32_t sources = 1;  ///< tensor-parallel size of the prefill side
  uint32_t groups = 2;   ///< prefill engines of `sources` ranks each
  uint32_t layers = 4;
  uint32_t pages = 32;  ///< of the decoder's pool
  uint32_t chunks = 1;  ///< passes of a prompt
  bool per_layer = false;
  bool tail = true;
  bool offer_first = false;     ///< the prefill side does not wait for the dispatch
  bool retry = true;            ///< a failed request is sent again, to the next group
  bool watch_word = false;      ///< layers are done by a store to the word
  bool write_at_count = false;  ///< a decoder that is wrong: it writes at kComplete
  Nanos layer_time{20'000};
  Nanos patience = 300ms;
  Nanos deadline = 5s;
  Nanos offer_wait = 5s;
  Nanos fence_timeout = 1s;
  uint32_t grants_per_peer = 4;
  uint32_t reserve_pages = 0;
  uint32_t ops_max = 4096;       ///< of the prefill engines
  uint32_t requests_max = 4096;  ///< of a prefill rank: it refuses more
  uint32_t page_tokens = kPageTokens;
  uint32_t head_size = 4;
  bool bytes = true;  ///< false: prefill ranks do not fill their pages
  uint32_t inbox_depth = DecoderOptions{}.inbox_depth;
  sim::WorldOptions network{};
};

Layout cache_layout(uint32_t tp_rank, uint32_t tp_size, uint32_t pages, uint32_t layers,
                    uint32_t page_tokens = kPageTokens, uint32_t head_size = 4);
Side cache_side(uint32_t tp_size, uint32_t pages, uint32_t layers,
                uint32_t page_tokens = kPageTokens, uint32_t head_size = 4);
/// Whether these pages hold what a prefill side computes for the request.
bool holds_request(const Layout& layout, std::span<std::byte> memory, const std::string& id,
                   std::span<const uint32_t> pages);
void fill_whole_page(const Layout& layout, std::span<std::byte> memory, uint32_t page,
                     std::byte value);
/// An engine that is opened again on a node has the id of the one before.
Config engine_config(const ClusterOptions& options, uint32_t node);
inline constexpr uint64_t kTailBytes = 256;

/// One head of one page of one layer and tensor, in the memory of a rank.
std::span<std::byte> head_bytes(const Layout& layout, std::span<std::byte> memory, size_t tensor,
                                uint32_t layer, uint32_t page, uint32_t head);

/// One prefill rank: computes what its decoders ask for.
class PrefillRank {
 public:
  PrefillRank(sim::World& world, uint32_t node, uint32_t rank, const ClusterOptions& options);
  ~PrefillRank();
  void close();
  /// Opens the prefiller again, on the same engine; or closes it, until then.
  void open_prefiller();
  void close_prefiller();
  void poll();
  void offer(const std::string& id, uint32_t attempt, uint32_t prompt_tokens);
  bool idle() const { return jobs_.empty() && pool.free() == pool.size(); }

  std::optional<Engine> engine;
  std::optional<MemoryRegion> memory;
  std::optional<MemoryRegion> tail;
  std::optional<Prefiller> prefiller;
  PagePool pool;
  std::vector<PrefillEvent> events;
  std::function<void(const PrefillEvent&)> then;
  bool computes = true;  ///< false: the test makes the passes itself
  bool polls = true;     ///< false: a process that does not come to call poll()

 private:
  struct Job {
    uint32_t prompt_tokens = 0;
    uint32_t done = 0;
    std::vector<uint32_t> pages;
    bool stopped = false;
  };
  using JobId = std::pair<std::string, uint32_t>;
  void handle(const PrefillEvent& event);
  void tick(const Event&);
  void schedule();
  void begin_pass();
  void compute_layer();
  void end_pass();

  ClusterOptions options_;
  Layout layout_;
  uint32_t rank_;
  std::map<JobId, Job> jobs_;
  std::vector<std::pair<JobId, TokenRange>> pass_;
  uint64_t first_step_ = 0;
  uint32_t layer_ = 0;
  bool scheduled_ = false;
};

/// The outcome of an attempt, from its events.
struct AttemptRecord {
  std::vector<uint32_t> pages;
  uint32_t prompt_tokens = 0;
  uint32_t group = 0;
  std::vector<DecodeEvent> events;
  bool over = false;
  bool count(DecodeEvent::Kind kind) const;
  const DecodeEvent* find(DecodeEvent::Kind kind) const;
};

class KvCluster {
 public:
  explicit KvCluster(const ClusterOptions& options);
  ~KvCluster();

  /// Takes pages and starts the request with the ranks of a group.
  Result<void> start(const std::string& id, uint32_t prompt_tokens, uint32_t attempt = 0,
                     uint32_t group = 0);
  DecodeRequest request(const std::string& id, uint32_t prompt_tokens, uint32_t attempt,
                        uint32_t group, std::vector<uint32_t> pages) const;
  /// Follows an attempt that the test has started itself.
  void adopt(const std::string& id, uint32_t attempt, std::vector<uint32_t> pages,
             uint32_t prompt_tokens);
  const AttemptRecord& attempt(const std::string& id, uint32_t number = 0) const;
  bool over(const std::string& id, uint32_t number = 0) const;
  bool all_over() const;  ///< no attempt holds pages
  bool run_until(const std::function<bool()>& done, Nanos limit = 60s);
  /// No live prefill rank has a request or source pages in use.
  bool prefills_idle() const;
  /// All pages are free again, here and on the live prefill ranks.
  void expect_all_back();
  PrefillRank& prefill(uint32_t group, uint32_t rank = 0);
  uint32_t node_of(uint32_t group, uint32_t rank = 0) const;
  void happens(const sim::Fault& fault);
  /// The decoder's process dies and is started again, with the same engine id and an empty cache.
  void restart_decoder();
  /// Opens the decoder again on its engine, which goes on. No write may be on its way.
  void reopen_decoder();
  /// The same for a prefill rank, which has crashed.
  void restart_prefill(uint32_t group, uint32_t rank = 0);

  ClusterOptions options;
  sim::World world;
  Layout layout;
  std::optional<Engine> engine;
  std::optional<MemoryRegion> memory;
  std::optional<MemoryRegion> tail;
  std::optional<Decoder> decoder;
  uint32_t side = 0;
  PagePool pool;
  std::function<void(const DecodeEvent&)> then;
  uint64_t steps = 0;
  uint64_t wrong = 0;  ///< pages with other bytes than the prefill rank computed
  /// Steps in which the decoder's own bytes had been overwritten. A failure without
  /// write_at_count.
  uint64_t overwritten = 0;
  bool decoder_polls = true;
  bool drained = false;  ///< kDrained came

 private:
  void open_decoder();
  void make_decoder();
  void close_crashed();
  void step();
  void handle(const DecodeEvent& event);
  void check_pages();
  bool holds_cache(const AttemptRecord& record, const std::string& id) const;
  void fill_page(uint32_t page, std::byte value);
  bool page_is(uint32_t page, std::byte value) const;
  void write_own(AttemptRecord& record, const std::string& id);

  std::map<std::pair<std::string, uint32_t>, AttemptRecord> attempts_;
  std::vector<std::unique_ptr<PrefillRank>> prefills_;
  std::vector<uint32_t> appended_;  ///< pages into which the decoder has written
  bool failed_ = false;
  uint64_t events_seen_ = 0;
  uint64_t crashes_ = 0;  ///< faults that were handled
  sim::Hook hook_;        ///< last: ends first
};

}  // namespace fabric::kv::test
