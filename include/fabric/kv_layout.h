#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fabric/export.h>
#include <fabric/layout.h>
#include <fabric/result.h>

/// How one rank stores its KV cache: what an inference engine tells the planner (kv_plan.h).
///
/// A cache has groups; all layers of a group share one page table. A group has tensors; every layer
/// of the group has each of them. Groups are paired by name, layers by their global id, tensors by
/// name: never by their position in a list, which differs between pipeline stages.
namespace fabric::kv {

// Limits of what a peer may send. Far above known models; they bound memory and time.
inline constexpr uint32_t kNameBytesMax = 64;          ///< group, tensor, state block, dtype
inline constexpr uint32_t kGroupsMax = 32;             ///< of a layout
inline constexpr uint32_t kLayersMax = 1024;           ///< of a group
inline constexpr uint32_t kTensorsMax = 16;            ///< of a group
inline constexpr uint32_t kStateBlocksMax = 16;        ///< of a tensor
inline constexpr uint32_t kRegionsMax = 4096;          ///< of a layout
inline constexpr uint32_t kPageTokensMax = 1u << 16;   ///< tokens of a page
inline constexpr uint32_t kHeadsMax = 1u << 16;        ///< heads, rows of a state axis
inline constexpr uint32_t kRanksMax = 1024;            ///< tensor-parallel size, pipeline stages
inline constexpr uint32_t kSideRanksMax = 1024;        ///< ranks of a Side
inline constexpr uint64_t kLayoutBytesMax = 1u << 20;  ///< of encode(Layout)
inline constexpr uint64_t kSideBytesMax = 16u << 20;   ///< of encode(Side)

enum class GroupKind : uint8_t {
  kFull = 0,    ///< every token of the prompt
  kWindow = 1,  ///< the last window_tokens tokens
  kState = 2,   ///< recurrent state: one page a request, whatever its length
};

/// Order of heads and tokens in a page: H heads, N tokens, D elements.
enum class PageOrder : uint8_t { kHND = 0, kNHD = 1 };

enum class Sharding : uint8_t {
  kHeads = 0,       ///< heads (or the sharded axis) divided over the tensor-parallel ranks
  kReplicated = 1,  ///< every rank has everything: MLA latents, indexer keys
};

/// A sub-block of a state tensor, with axes and a shard of its own: the q, k, v or x, B, C of a
/// convolution state. Wrong slicing here shows only as a small loss of accuracy, so each block says
/// its true lengths.
struct StateBlock {
  static constexpr uint32_t kNotSharded = UINT32_MAX;

  std::string name{};
  uint64_t offset_bytes = 0;  ///< in the page
  /// Lengths of the axes in the model, before sharding. The sharded axis counts what cannot be
  /// divided: groups, not elements, when a rank holds whole groups.
  std::vector<uint32_t> lengths{};
  std::vector<uint64_t> strides_bytes{};  ///< one for each length, here
  uint32_t sharded_axis = kNotSharded;
};

/// Where a tensor of one layer begins.
struct TensorLocation {
  uint32_t region = 0;  ///< index in Layout::region_bytes
  uint64_t offset_bytes = 0;
};

/// One tensor of every layer of a group.
///
/// In a full or window group the byte offset of element e of head h (counted from this rank's first
/// head), token t of the page, part p, in page i of the layer at position n of CacheGroup::layers:
///
///     offset_bytes + n * layer_stride_bytes + i * page_stride_bytes + p * part_stride_bytes
///       + h * head_stride_bytes + t * token_stride_bytes + e * element_bytes
///
/// or, with `locations`, locations[n].offset_bytes for the first two terms. Strides larger than
/// needed are padding, which is never sent. HND and NHD, K and V in one page or in two halves of
/// the memory, are strides; place_tensor() computes the dense ones.
///
/// In a state group a page is a request's state, the strides of parts, heads and tokens are unused,
/// and `blocks` says where things are.
struct Tensor {
  std::string name{};          ///< "k", "v", "kv", "latent", "k_scale", "conv"
  std::string dtype{};         ///< compared as bytes, never interpreted
  uint32_t element_bytes = 0;  ///< bytes that are never divided

  uint32_t region = 0;  ///< index in Layout::region_bytes
  uint64_t offset_bytes = 0;
  uint64_t layer_stride_bytes = 0;
  uint64_t page_stride_bytes = 0;
  /// Empty, or one for each layer of the group, in place of region, offset and layer stride: layers
  /// that were allocated one by one.
  std::vector<TensorLocation> locations{};

  // Full and window groups.
  Sharding sharding = Sharding::kHeads;
  uint32_t heads_total = 0;  ///< of the model; 1 for MLA
  uint32_t head_size = 0;    ///< elements of one head and token
  uint32_t parts = 1;        ///< 2: K and V in one tensor
  uint64_t part_stride_bytes = 0;
  uint64_t head_stride_bytes = 0;
  uint64_t token_stride_bytes = 0;
  /// Not 0: a page also holds what the strides do not describe, such as scales between the tokens.
  /// Then pages of this many bytes are copied as they are, and both sides must have the same page
  /// size, heads and strides.
  uint64_t opaque_page_bytes = 0;

  // State groups.
  std::vector<StateBlock> blocks{};
};

struct CacheGroup {
  std::string name{};
  GroupKind kind = GroupKind::kFull;
  uint32_t window_tokens = 0;      ///< kWindow only
  uint32_t page_tokens = 0;        ///< tokens of a page; 0 in a state group
  uint32_t pages = 0;              ///< pages of the pool; page ids are below it
  std::vector<uint32_t> layers{};  ///< global ids that this rank holds, ascending
  std::vector<Tensor> tensors{};
};

/// The KV cache of one rank. Plain data: fill it in, check() it, send encode() of it to the peers.
struct Layout {
  /// What both sides must agree on and the tensors do not show: the model, its revision, static
  /// scales. 0 is a value like any other.
  uint64_t model_hash = 0;
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t pp_rank = 0;  ///< pipeline stage; the layers of its groups are those of the stage
  uint32_t pp_size = 1;
  uint32_t dcp_size = 1;  ///< decode context parallel; only 1 is supported
  uint32_t pcp_size = 1;  ///< prefill context parallel; only 1 is supported
  /// Registered regions and their sizes. A region index of this layout counts this list, in the
  /// order in which the rank gives its descriptors to a peer.
  std::vector<uint64_t> region_bytes{};
  std::vector<CacheGroup> groups{};
};

/// The ranks of one side, ordered by (pp_rank, tp_rank).
///
/// A prefill side has all its ranks. A decode side may be any part of them, because what one decode
/// rank receives does not depend on the others: a decoder that is alone in its process plans for
/// Side{{its layout}}, and so do its prefillers.
struct Side {
  std::vector<Layout> ranks{};
};

/// What is wrong with a layout, or why two sides have no plan.
enum class RefusalCode : uint8_t {
  kNone = 0,
  kBadLayout,  ///< a field out of its range, or memory outside its region; see Refusal::reason
  kTooLarge,   ///< more ranks, plan slices or bytes than the limits allow
  kSideOrder,  ///< ranks not ordered by (pp_rank, tp_rank), or twice the same one
  kContextParallel,    ///< dcp_size or pcp_size is not 1: tokens would be interleaved over ranks
  kUnevenHeads,        ///< neither of heads (or rows) and tp_size divides the other
  kModelDiffers,       ///< model_hash
  kGroupsDiffer,       ///< a group that the other side does not have, or of another kind or window
  kLayersDiffer,       ///< a layer that the other side does not have
  kRankMissing,        ///< a prefill rank that holds a part of the layer is not in the side
  kKvApartTogether,    ///< K and V in one tensor on one side and in two on the other
  kTensorsDiffer,      ///< a tensor or state block that the other side does not have
  kDtypeDiffers,       ///< dtype or element_bytes
  kShapeDiffers,       ///< heads_total, head_size, parts, sharding, lengths of a state block
  kOpaquePageDiffers,  ///< a page with inline scales that would have to be divided
  kPerTokenWrites,  ///< NHD with a head cut, HND to NHD: each token would take a write of its own
  kIndexRange,      ///< page indices would not fit in 32 bits: the padding divides too finely
};

/// "PerTokenWrites" for kPerTokenWrites.
FABRIC_EXPORT const char* to_string(RefusalCode code) noexcept;
FABRIC_EXPORT const char* to_string(GroupKind kind) noexcept;
FABRIC_EXPORT const char* to_string(PageOrder order) noexcept;

/// A human-readable refusal: Error::what is static text, this has the names and numbers.
struct Refusal {
  RefusalCode code = RefusalCode::kNone;
  std::string reason{};  ///< what, where (side, rank, group, layer, tensor), both values
  std::string remedy{};  ///< what to change
};

/// A layout that plan() would accept by itself: every field in its range, names unique and
/// printable, layers ascending, every page inside its region, no two elements of a tensor on one
/// byte, no two layers or tensors of a group at one address. (Groups may share memory.)
///
/// Fails with kInvalidArgument or kUnsupported (context parallel, uneven heads); `refusal`, if
/// given, says which field, its value and the limit.
FABRIC_EXPORT Result<void> check(const Layout& layout, Refusal* refusal = nullptr);

/// Canonical bytes: little-endian, versioned, the same on every machine.
///
/// Fails as check() does, and with kTooLarge past kLayoutBytesMax or kSideBytesMax.
FABRIC_EXPORT Result<std::vector<std::byte>> encode(const Layout& layout);
FABRIC_EXPORT Result<std::vector<std::byte>> encode(const Side& side);

/// The layout again, checked: bytes of a peer never give a layout that check() refuses.
///
/// Fails with kBadFormat (truncated, foreign, trailing or out of range), kVersion, kTooLarge, and
/// as check() does.
FABRIC_EXPORT Result<Layout> decode_layout(std::span<const std::byte> bytes);
FABRIC_EXPORT Result<Side> decode_side(std::span<const std::byte> bytes);

/// hash_bytes() of encode(). 0 for a layout that check() refuses.
FABRIC_EXPORT uint64_t layout_hash(const Layout& layout);

/// The heads (of the model) that a rank holds of a tensor. Fails as layout::shard() does.
FABRIC_EXPORT Result<layout::ShardRange> heads_of(const Layout& layout, const Tensor& tensor);

/// What place_tensor() needs beyond the fields of the tensor itself.
struct DensePlacement {
  PageOrder order = PageOrder::kHND;
  uint32_t page_tokens = 0;
  uint32_t tp_rank = 0;
  uint32_t tp_size = 1;
  uint32_t pages = 0;
  uint32_t layers = 1;
  /// Memory is [layer][page], or [page][layer] when layers are together in a page.
  bool layers_in_page = false;
  /// A layer is [part][page], or [page][part] when the parts are together in a page.
  bool parts_in_page = true;
  uint64_t page_align_bytes = 1;  ///< pages begin at multiples of this
};

/// Fills in the strides of a dense tensor of a full or window group: page, layer, part, head and
/// token strides from name, sizes and `placement`. Returns the bytes that it takes from
/// tensor.offset_bytes on, so that the next tensor can be put after it.
///
/// Fails with kInvalidArgument (a size of 0) and as layout::shard() does.
FABRIC_EXPORT Result<uint64_t> place_tensor(Tensor& tensor, const DensePlacement& placement);

}  // namespace fabric::kv
