#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/export.h>
#include <fabric/kv_layout.h>
#include <fabric/layout.h>
#include <fabric/result.h>

/// Which bytes of a prefill side go where on a decode side, and how many counts that makes.
///
/// plan() is a pure function of the two sides and the options. Both sides compute it, and a
/// dispatch carries the hash: if the hashes are equal, so are the plan slices and the counts, and
/// the decoder can arm its counters before the prefiller has sent anything.
///
/// **Unit.** Tokens move in units: the greatest common divisor of the two page sizes. Unit i of a
/// request is tokens [i * unit_tokens, (i + 1) * unit_tokens) of its prompt. It lies within one
/// page on either side. A request that ends inside a unit sends the unit whole: the rows past the
/// end are garbage in the request's own page, and a prefix hash must not include them.
///
/// **Lists.** `PagedWrite` addresses a page as offset + index * stride. The index of unit number u
/// of the prompt, in a page of `page_tokens` tokens with the id `page`, is
///
///     page * page_step + (u % (page_tokens / unit_tokens)) * unit_step
///
/// The steps are the same for nearly all tensors of a group, so a request needs one pair of
/// prepared page lists for a pair of ranks and group: one UnitList. Equal page sizes on both sides
/// give page_step 1 and unit_step 0: the indices are the page ids.
///
/// **To push one layer of one request** from prefill rank s to decode rank d, after a chunk of the
/// prompt, [from, to) tokens, has passed the layer:
///
///     const PairPlan& pair = plan.pairs[*find_pair(plan, s, d)];
///     for (const PairGroup& group : pair.groups) {
///       UnitRange range = *chunk_units(plan, group.group, tokens, {from, to});  // may be empty
///       for (uint32_t n = 0; n < group.lists.size(); ++n)                  // mostly one
///         if (dealt_units(pair, group.lists[n], range, tokens.seed) > 0) { // once for all layers:
///           UnitIndices at = *unit_indices(plan, pair, group, n, range, tokens.seed,
///                                          {.source = page_ids, .target = their_page_ids});
///           source_list[n] = engine.make_page_list(at.source);
///           target_list[n] = engine.make_page_list(at.target);
///         }
///       const LayerSlices* layer = find_layer(group, id);            // nullptr: not in this pair
///       for (const PageSlice& slice : slices_of(group, *layer))
///         if (source_list[slice.list])
///           submit(PagedWrite{
///               .source = my_regions[slice.source_region],
///               .source_pages = {.stride_bytes = slice.source_stride_bytes,
///                                .offset_bytes = slice.source_offset_bytes,
///                                .list = source_list[slice.list],
///                                .inner_stride_bytes = slice.source_inner_stride_bytes},
///               .target = their_regions[slice.target_region],
///               .target_pages = {...the same with target...},
///               .page_bytes = slice.bytes, .inner_count = slice.inner_count, .imm = key});
///     }
///
/// Each plan slice is one PagedWrite and makes dealt_units() * inner_count counts. The chunks of a
/// prompt divide its units without a rest: the counts of all chunks add up to counts(), whatever
/// the chunks were, so the decoder need not know them. The first chunk of a request begins at 0,
/// also when the prefiller had a part of the prompt in its own cache.
///
/// A **state** group has one unit, its only page, and sends it with the chunk that ends the prompt:
/// every chunk overwrites it. Push it when the last chunk has passed the layer.
///
/// **Staged** writes (PlanOptions::staging) take the place of plan slices where one would write
/// token by token. Unit number k of a list (k counts the dealt units of the request on this list,
/// from 0) has staging record number k of that (request, pair, list) at the target. For each
/// StagedWrite of the layer: gather() the unit into a slot of `bytes` contiguous bytes of
/// registered memory here; then one PagedWrite for all units with page_bytes = StagedWrite::bytes,
/// one count for each unit: source index = the slot, target index = the record's number among the
/// records of the decoder, target stride = the decoder's DecoderOptions::staging_record_bytes, at
/// least UnitList::staging_record_bytes, target offset StagedWrite::record_offset_bytes. When the
/// counts are there, the decoder calls scatter() for each unit and staged write. The record stays
/// with the lease: while a count is not final, bytes may land in it once more.
namespace fabric::kv {

inline constexpr uint32_t kPromptTokensMax = 1u << 30;
inline constexpr uint32_t kPlanSlicesMax = 1u << 20;  ///< plan slices and staged copies

struct PlanOptions {
  /// Where a plan slice would write token by token (NHD with a head cut, HND to NHD): gather at the
  /// source, one write for each unit, scatter at the target. Needs staging memory on both sides.
  bool staging = false;
  /// Write token by token there. Measured 17 to 90 times slower than whole pages; for comparison.
  bool per_token_writes = false;
};

/// One PagedWrite of one layer and tensor; its page lists come from UnitList `list`.
struct PageSlice {
  uint32_t list = 0;           ///< index in PairGroup::lists
  uint32_t tensor = 0;         ///< index in GroupPlan::tensors
  uint32_t source_region = 0;  ///< index in Layout::region_bytes of the prefill rank
  uint32_t target_region = 0;  ///< of the decode rank
  uint64_t source_offset_bytes = 0;
  uint64_t target_offset_bytes = 0;
  uint64_t source_stride_bytes = 0;  ///< of one index
  uint64_t target_stride_bytes = 0;
  uint64_t bytes = 0;        ///< PagedWrite::page_bytes
  uint32_t inner_count = 1;  ///< writes, and counts, of one unit
  uint64_t source_inner_stride_bytes = 0;
  uint64_t target_inner_stride_bytes = 0;
};

/// One tensor, or state block, of a staged write. The offsets of `copy` are from the address of the
/// unit, region + index * stride, of each side.
struct StagedCopy {
  uint32_t tensor = 0;
  uint32_t source_region = 0;
  uint32_t target_region = 0;
  uint64_t source_stride_bytes = 0;
  uint64_t target_stride_bytes = 0;
  uint64_t packed_offset_bytes = 0;  ///< in the bytes of the StagedWrite
  layout::StridedCopy copy{};
};

/// One contiguous write for each unit, packed from the copies of one layer.
struct StagedWrite {
  uint32_t list = 0;
  uint64_t record_offset_bytes = 0;  ///< in the staging record of a unit at the target
  uint64_t bytes = 0;
  std::vector<StagedCopy> copies{};
};

/// The units that a source sends and how their indices are formed. Plan slices of a group with
/// equal steps and holders share a list.
struct UnitList {
  uint64_t source_page_step = 1;
  uint64_t source_unit_step = 0;
  uint64_t target_page_step = 1;
  uint64_t target_unit_step = 0;
  /// This many source ranks hold the same bytes, and this source is number `holder` of them. The
  /// units are dealt out, so that the NICs of all of them work.
  uint32_t holders = 1;
  uint32_t holder = 0;
  uint64_t staging_record_bytes = 0;  ///< of one unit, all layers; 0: nothing is staged
  friend constexpr bool operator==(const UnitList&, const UnitList&) = default;
};

/// What one layer of a group sends.
struct LayerSlices {
  uint32_t layer = 0;        ///< global id
  uint32_t first_slice = 0;  ///< in PairGroup::slices
  uint32_t slices = 0;
  uint32_t first_staged = 0;  ///< in PairGroup::staged
  uint32_t staged = 0;
};

/// A group, between one prefill and one decode rank.
struct PairGroup {
  uint32_t group = 0;         ///< index in TransferPlan::groups
  uint32_t source_group = 0;  ///< index in Layout::groups of the prefill rank
  uint32_t target_group = 0;  ///< of the decode rank
  uint32_t source_pages = 0;  ///< pages of the pool; ids are below it
  uint32_t target_pages = 0;
  std::vector<UnitList> lists{};
  std::vector<LayerSlices> layers{};  ///< ascending
  std::vector<PageSlice> slices{};
  std::vector<StagedWrite> staged{};
};

/// All that one prefill rank sends to one decode rank. A pair without a common byte is not in the
/// plan.
struct PairPlan {
  uint32_t source = 0;       ///< index in Side::ranks of the prefill side
  uint32_t target = 0;       ///< of the decode side
  uint32_t deal_offset = 0;  ///< shifts the dealing, so that replicas at the target begin elsewhere
  std::vector<PairGroup> groups{};  ///< by ascending PairGroup::group
};

struct GroupPlan {
  std::string name{};
  GroupKind kind = GroupKind::kFull;
  uint32_t window_tokens = 0;
  uint32_t unit_tokens = 0;         ///< 0 in a state group
  uint32_t source_page_tokens = 0;  ///< 0 in a state group
  uint32_t target_page_tokens = 0;
  std::vector<std::string> tensors{};  ///< ascending
};

struct TransferPlan {
  /// Over the canonical bytes of everything below. Equal on both sides or the dispatch is refused.
  uint64_t hash = 0;
  /// For each decode rank the hash of what it receives: the same value, also in a plan for this
  /// decode rank alone. A decoder that knows only itself compares this one.
  std::vector<uint64_t> target_hashes{};
  uint64_t model_hash = 0;
  PlanOptions options{};
  std::vector<GroupPlan> groups{};  ///< ascending by name
  std::vector<PairPlan> pairs{};    ///< ascending by (target, source)
};

/// The plan, or a refusal: Error::what has the reason in general and the name of the switch, if
/// there is one; `refusal`, if given, names both sides' values and the way out.
///
/// Cost: 1 to 10 ms for 100 layers and 8 x 8 ranks. Once for a pair of layouts, not per request.
/// Fails with kInvalidArgument (a layout that check() refuses, Side order), kUnsupported (all that
/// RefusalCode names from kContextParallel on) and kTooLarge.
FABRIC_EXPORT Result<TransferPlan> plan(const Side& prefill, const Side& decode,
                                        const PlanOptions& options = {},
                                        Refusal* refusal = nullptr);

/// What is to be moved of one request.
struct RequestTokens {
  uint32_t prompt_tokens = 0;  ///< tokens whose cache is moved, cached ones included
  /// For each group of the plan, the tokens from the beginning that the decoder has already; empty:
  /// none. A multiple of the unit, or all of prompt_tokens: a decoder rounds its hit down to whole
  /// pages. In a state group 0 or prompt_tokens.
  std::vector<uint32_t> cached_tokens{};
  /// Equal on both sides; request_seed(id).
  uint64_t seed = 0;
};

/// Spreads requests over the holders of replicated bytes. The same id gives the same value on every
/// machine and in every attempt.
FABRIC_EXPORT uint64_t request_seed(std::string_view request_id) noexcept;

/// Units `first` to `end - 1` of a request.
struct UnitRange {
  uint32_t first = 0;
  uint32_t end = 0;
  uint32_t size() const noexcept { return end - first; }
  friend constexpr bool operator==(const UnitRange&, const UnitRange&) = default;
};

/// Tokens `from` to `to - 1` of a prompt.
struct TokenRange {
  uint32_t from = 0;
  uint32_t to = 0;
};

/// Index in TransferPlan::groups, or kNotFound.
FABRIC_EXPORT Result<uint32_t> find_group(const TransferPlan& plan, std::string_view name);
/// Index in TransferPlan::pairs, or kNotFound: the two ranks have nothing in common.
FABRIC_EXPORT Result<uint32_t> find_pair(const TransferPlan& plan, uint32_t source,
                                         uint32_t target);
/// nullptr: this pair sends nothing of the layer.
FABRIC_EXPORT const LayerSlices* find_layer(const PairGroup& group, uint32_t layer) noexcept;
FABRIC_EXPORT std::span<const PageSlice> slices_of(const PairGroup& group,
                                                   const LayerSlices& layer) noexcept;
FABRIC_EXPORT std::span<const StagedWrite> staged_of(const PairGroup& group,
                                                     const LayerSlices& layer) noexcept;

/// Every unit of the request that some source must send: what the window covers and the decoder has
/// not. Empty when everything is cached.
///
/// Fails with kInvalidArgument: prompt_tokens 0 or past kPromptTokensMax, cached_tokens that is
/// neither empty nor one for each group, past the prompt or not a multiple of the unit
/// (Error::native is the unit); `group` out of range.
FABRIC_EXPORT Result<UnitRange> request_units(const TransferPlan& plan, uint32_t group,
                                              const RequestTokens& tokens);

/// Those of them that are complete with this chunk: they end in (from, to], or hold the last token
/// of the prompt when the chunk ends it. Fails as request_units() does, and for a chunk that is
/// empty or past the prompt.
FABRIC_EXPORT Result<UnitRange> chunk_units(const TransferPlan& plan, uint32_t group,
                                            const RequestTokens& tokens, TokenRange chunk);

/// How many units of the range this source sends: those with
/// (unit + seed % holders + pair.deal_offset) % holders == holder.
FABRIC_EXPORT uint32_t dealt_units(const PairPlan& pair, const UnitList& list, UnitRange range,
                                   uint64_t seed) noexcept;

/// The pages of a request that hold its units, as positions in its page list: entries outside may
/// hold anything, such as the null page that an engine puts before a window.
struct PagePositions {
  uint32_t first = 0;
  uint32_t end = 0;
};
FABRIC_EXPORT PagePositions source_positions(const GroupPlan& group, UnitRange range) noexcept;
FABRIC_EXPORT PagePositions target_positions(const GroupPlan& group, UnitRange range) noexcept;

/// Entry n of the three vectors is the same unit.
struct UnitIndices {
  std::vector<uint32_t> units{};   ///< of the request, ascending
  std::vector<uint32_t> source{};  ///< for the PagedWrites, see PageSlice
  std::vector<uint32_t> target{};
};

/// The page ids of a request: entry n is the page of tokens [n * page_tokens, (n + 1) *
/// page_tokens). A state group has one entry.
struct RequestPages {
  std::span<const uint32_t> source{};
  std::span<const uint32_t> target{};
  uint32_t target_first = 0;  ///< target[0] is entry target_first; those before it are not there
};

/// The indices of the units of `range` that this source sends.
///
/// Cost: linear in the units; allocates.
/// Fails with kInvalidArgument (`list`: not in the group) and kOutOfBounds (`source_pages` or
/// `target_pages`: too few, or an id at or past the pool's pages, which is Error::native).
FABRIC_EXPORT Result<UnitIndices> unit_indices(const TransferPlan& plan, const PairPlan& pair,
                                               const PairGroup& group, uint32_t list,
                                               UnitRange range, uint64_t seed,
                                               const RequestPages& pages);

struct LayerCount {
  uint32_t layer = 0;
  uint64_t count = 0;
  friend constexpr bool operator==(const LayerCount&, const LayerCount&) = default;
};

/// Immediates that one source sends for one request: exactly these, if the request completes. The
/// tail of a request is not a part of the plan and comes on top.
struct PairCounts {
  uint64_t total = 0;
  std::vector<LayerCount> layers{};  ///< ascending; all layers of the pair, also with count 0
};

/// Fails as request_units() does.
FABRIC_EXPORT Result<PairCounts> counts(const TransferPlan& plan, const PairPlan& pair,
                                        const RequestTokens& tokens);
/// The same for the units of one chunk only.
FABRIC_EXPORT Result<PairCounts> chunk_counts(const TransferPlan& plan, const PairPlan& pair,
                                              const RequestTokens& tokens, TokenRange chunk);

/// Packs one unit of a staged write into `packed`, which has `write.bytes` bytes. `regions`: the
/// bytes of the rank's regions, host memory, in the order of Layout::region_bytes. `index`: the
/// unit's entry in UnitIndices::source.
///
/// Fails with kOutOfBounds: a region or offset that is not there, `packed` too short.
FABRIC_EXPORT Result<void> gather(const StagedWrite& write, uint32_t index,
                                  std::span<const std::span<const std::byte>> regions,
                                  std::span<std::byte> packed);
/// The reverse at the target; `index`: the unit's entry in UnitIndices::target.
FABRIC_EXPORT Result<void> scatter(const StagedWrite& write, uint32_t index,
                                   std::span<const std::byte> packed,
                                   std::span<const std::span<std::byte>> regions);

}  // namespace fabric::kv
