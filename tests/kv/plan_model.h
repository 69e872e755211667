#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fabric/kv_plan.h>

#include "base/rng.h"

// An element-by-element model of a transfer: every word of the caches is written and looked up by
// the address formula of <fabric/kv_layout.h>, one at a time, without anything of the planner. It
// shares no code with src/workloads.

namespace fabric::kv::test {

inline constexpr uint32_t kWordBytes = 4;  ///< all elements of the model are words

/// A block of a state tensor: `groups` indivisible groups of `width`, and `rows` of each.
struct StateSpec {
  std::string name{};
  uint32_t groups = 1;
  uint32_t width = 1;
  uint32_t rows = 1;
  bool sharded = true;
};

struct TensorSpec {
  std::string name{};
  uint32_t heads = 1;
  uint32_t head_size = 2;
  uint32_t parts = 1;
  Sharding sharding = Sharding::kHeads;
  std::vector<StateSpec> blocks{};  ///< not empty in a state group
  bool rows_first = false;          ///< state: [row][block], else [block][row]
  uint32_t state_padding_words = 0;
  uint64_t opaque_page_bytes = 0;
};

struct GroupSpec {
  std::string name = "full";
  GroupKind kind = GroupKind::kFull;
  uint32_t window = 0;
  uint32_t page_tokens = 16;
  uint32_t pages = 12;
  std::vector<uint32_t> layers = {0, 1};  ///< of all stages
  std::vector<TensorSpec> tensors{};
};

struct SideSpec {
  uint32_t tp = 1;
  uint32_t pp = 1;  ///< stages get equal shares of the layers, in their order
  PageOrder order = PageOrder::kHND;
  bool parts_in_page = true;
  bool layers_in_page = false;
  bool region_per_layer = false;
  uint64_t page_align_bytes = 1;
  std::vector<GroupSpec> groups{};
};

Side make_side(const SideSpec& spec);

/// What is to be moved, and where it lies.
struct ModelRequest {
  RequestTokens tokens{};
  std::vector<std::vector<uint32_t>> source_pages{};  ///< by group of the plan
  std::vector<std::vector<uint32_t>> target_pages{};
};

/// Draws page ids for a request of `tokens` tokens: as many as the prompt needs, in any order.
ModelRequest draw_request(const TransferPlan& plan, const Side& prefill, const Side& decode,
                          const RequestTokens& tokens, Rng& rng);

/// Executes the plan for the request in random chunks, with memcpy in place of the network, and
/// compares every word of every decode rank with the model. Returns what is wrong, or "".
///
/// Exactly once: every expected word has the right value, no other word was changed, and the bytes
/// written are as many as the bytes expected.
std::string compare_with_model(const TransferPlan& plan, const Side& prefill, const Side& decode,
                               const ModelRequest& request, Rng& rng);

/// The words of one rank's regions.
using RankWords = std::vector<std::vector<uint32_t>>;
struct ModelMemory {
  std::vector<RankWords> sources{};  ///< by prefill rank: every word of the request's pages
  std::vector<RankWords> targets{};  ///< by decode rank: canaries
};

/// The same for bytes that `move` has taken from the sources to the targets.
std::string compare_with_model(const TransferPlan& plan, const Side& prefill, const Side& decode,
                               const ModelRequest& request,
                               const std::function<void(ModelMemory&)>& move);

}  // namespace fabric::kv::test
