#pragma once

#include <string_view>
#include <vector>

#include <fabric/kv_layout.h>
#include <fabric/layout.h>

namespace fabric::kv::planner {

// The axes of the block of a tensor in a full or window group. Its elements are whole head vectors:
// head_size is never divided.
inline constexpr uint32_t kPartAxis = 0;
inline constexpr uint32_t kHeadAxis = 1;
inline constexpr uint32_t kTokenAxis = 2;

/// A block in a page of one rank, and which of the ranks with the same content this one is.
struct PageBlock {
  std::string_view name{};  ///< of the state block; empty for tensors with tokens
  layout::Block block{};    ///< offset from the beginning of the page
  uint32_t replicas = 1;
  uint32_t replica = 0;
};

/// The blocks of one page of a tensor: one with `tokens` tokens in a full or window group, the
/// state blocks in a state group, an element of opaque_page_bytes for an opaque page.
///
/// Fails as layout::shard() does. The fields are in their ranges, or the strides may overflow.
Result<std::vector<PageBlock>> page_blocks(const Layout& layout, const CacheGroup& group,
                                           const Tensor& tensor, uint32_t tokens);

/// Where layer number `n` of the group begins.
TensorLocation location_of(const Tensor& tensor, size_t n);

}  // namespace fabric::kv::planner
