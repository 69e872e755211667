#include <algorithm>

#include <fabric/kv_layout.h>

#include "base/bytes.h"

// Layout: magic u32 "FKVL" | version u16 | fields in the order of the struct.
// Side:   magic u32 "FKVS" | version u16 | ranks u16 | for each: length u32 | layout
//
// Lists are a count and the items, names a length u8 and the text. A reader knows exactly its own
// version: both sides of a transfer must compute the same plan, so there is no skipping.

namespace fabric::kv {
namespace {

constexpr uint32_t kLayoutMagic = 0x4c564b46;  // "FKVL"
constexpr uint32_t kSideMagic = 0x53564b46;    // "FKVS"
constexpr uint16_t kLayoutVersion = 1;

void write_text(ByteWriter& out, const std::string& text) {
  out.u8(static_cast<uint8_t>(text.size()));
  out.text(text);
}

void write_block(ByteWriter& out, const StateBlock& block) {
  write_text(out, block.name);
  out.u64(block.offset_bytes);
  out.u8(static_cast<uint8_t>(block.lengths.size()));
  for (const uint32_t length : block.lengths) out.u32(length);
  for (const uint64_t stride : block.strides_bytes) out.u64(stride);
  out.u32(block.sharded_axis);
}

void write_tensor(ByteWriter& out, const Tensor& tensor) {
  write_text(out, tensor.name);
  write_text(out, tensor.dtype);
  out.u32(tensor.element_bytes);
  out.u32(tensor.region);
  out.u64(tensor.offset_bytes);
  out.u64(tensor.layer_stride_bytes);
  out.u64(tensor.page_stride_bytes);
  out.u16(static_cast<uint16_t>(tensor.locations.size()));
  for (const TensorLocation& at : tensor.locations) {
    out.u32(at.region);
    out.u64(at.offset_bytes);
  }
  out.u8(static_cast<uint8_t>(tensor.sharding));
  out.u32(tensor.heads_total);
  out.u32(tensor.head_size);
  out.u32(tensor.parts);
  out.u64(tensor.part_stride_bytes);
  out.u64(tensor.head_stride_bytes);
  out.u64(tensor.token_stride_bytes);
  out.u64(tensor.opaque_page_bytes);
  out.u8(static_cast<uint8_t>(tensor.blocks.size()));
  for (const StateBlock& block : tensor.blocks) write_block(out, block);
}

void write_group(ByteWriter& out, const CacheGroup& group) {
  write_text(out, group.name);
  out.u8(static_cast<uint8_t>(group.kind));
  out.u32(group.window_tokens);
  out.u32(group.page_tokens);
  out.u32(group.pages);
  out.u16(static_cast<uint16_t>(group.layers.size()));
  for (const uint32_t layer : group.layers) out.u32(layer);
  out.u8(static_cast<uint8_t>(group.tensors.size()));
  for (const Tensor& tensor : group.tensors) write_tensor(out, tensor);
}

/// A count that is in its range and whose items, of at least `bytes_min` each, can be there: memory
/// is allocated only for bytes that have arrived.
size_t read_count(ByteReader& in, uint64_t count, uint64_t most, size_t bytes_min) {
  in.require(count <= most && count * bytes_min <= in.remaining());
  return in.ok() ? static_cast<size_t>(count) : 0;
}

std::string read_text(ByteReader& in) {
  const uint8_t length = in.u8();
  in.require(length <= kNameBytesMax);
  return std::string(in.text(length));
}

StateBlock read_block(ByteReader& in) {
  StateBlock block{.name = read_text(in), .offset_bytes = in.u64()};
  const size_t axes = read_count(in, in.u8(), layout::kAxesMax, 12);
  for (size_t k = 0; k < axes; ++k) block.lengths.push_back(in.u32());
  for (size_t k = 0; k < axes; ++k) block.strides_bytes.push_back(in.u64());
  block.sharded_axis = in.u32();
  return block;
}

Tensor read_tensor(ByteReader& in) {
  Tensor tensor;
  tensor.name = read_text(in);
  tensor.dtype = read_text(in);
  tensor.element_bytes = in.u32();
  tensor.region = in.u32();
  tensor.offset_bytes = in.u64();
  tensor.layer_stride_bytes = in.u64();
  tensor.page_stride_bytes = in.u64();
  const size_t locations = read_count(in, in.u16(), kLayersMax, 12);
  for (size_t n = 0; n < locations; ++n) {
    const uint32_t region = in.u32();
    tensor.locations.push_back({region, in.u64()});
  }
  const uint8_t sharding = in.u8();
  in.require(sharding <= static_cast<uint8_t>(Sharding::kReplicated));
  tensor.sharding = static_cast<Sharding>(sharding);
  tensor.heads_total = in.u32();
  tensor.head_size = in.u32();
  tensor.parts = in.u32();
  tensor.part_stride_bytes = in.u64();
  tensor.head_stride_bytes = in.u64();
  tensor.token_stride_bytes = in.u64();
  tensor.opaque_page_bytes = in.u64();
  const size_t blocks = read_count(in, in.u8(), kStateBlocksMax, 14);
  for (size_t n = 0; n < blocks && in.ok(); ++n) tensor.blocks.push_back(read_block(in));
  return tensor;
}

CacheGroup read_group(ByteReader& in) {
  CacheGroup group;
  group.name = read_text(in);
  const uint8_t kind = in.u8();
  in.require(kind <= static_cast<uint8_t>(GroupKind::kState));
  group.kind = static_cast<GroupKind>(kind);
  group.window_tokens = in.u32();
  group.page_tokens = in.u32();
  group.pages = in.u32();
  const size_t layers = read_count(in, in.u16(), kLayersMax, 4);
  for (size_t n = 0; n < layers; ++n) group.layers.push_back(in.u32());
  const size_t tensors = read_count(in, in.u8(), kTensorsMax, 80);
  for (size_t n = 0; n < tensors && in.ok(); ++n) group.tensors.push_back(read_tensor(in));
  return group;
}

/// The fields after magic and version.
Layout read_layout(ByteReader& in) {
  Layout layout;
  layout.model_hash = in.u64();
  layout.tp_rank = in.u32();
  layout.tp_size = in.u32();
  layout.pp_rank = in.u32();
  layout.pp_size = in.u32();
  layout.dcp_size = in.u32();
  layout.pcp_size = in.u32();
  const size_t regions = read_count(in, in.u16(), kRegionsMax, 8);
  for (size_t n = 0; n < regions; ++n) layout.region_bytes.push_back(in.u64());
  const size_t groups = read_count(in, in.u8(), kGroupsMax, 17);
  for (size_t n = 0; n < groups && in.ok(); ++n) layout.groups.push_back(read_group(in));
  in.require(in.remaining() == 0);
  return layout;
}

Result<void> read_head(ByteReader& in, uint32_t magic, const char* what) {
  const uint32_t found = in.u32();
  const uint16_t version = in.u16();
  if (!in.ok() || found != magic) return fail(Errc::kBadFormat, what);
  if (version != kLayoutVersion) return fail(Errc::kVersion, what, kLayoutVersion);
  return {};
}

}  // namespace

Result<std::vector<std::byte>> encode(const Layout& layout) {
  if (auto valid = check(layout); !valid) return valid.error();
  ByteWriter out(kLayoutBytesMax);
  out.u32(kLayoutMagic);
  out.u16(kLayoutVersion);
  out.u64(layout.model_hash);
  out.u32(layout.tp_rank);
  out.u32(layout.tp_size);
  out.u32(layout.pp_rank);
  out.u32(layout.pp_size);
  out.u32(layout.dcp_size);
  out.u32(layout.pcp_size);
  out.u16(static_cast<uint16_t>(layout.region_bytes.size()));
  for (const uint64_t bytes : layout.region_bytes) out.u64(bytes);
  out.u8(static_cast<uint8_t>(layout.groups.size()));
  for (const CacheGroup& group : layout.groups) write_group(out, group);
  if (!out.ok()) return fail(Errc::kTooLarge, "layout: more than kLayoutBytesMax");
  return out.take();
}

Result<std::vector<std::byte>> encode(const Side& side) {
  if (side.ranks.empty()) return fail(Errc::kInvalidArgument, "side: no ranks");
  if (side.ranks.size() > kSideRanksMax) return fail(Errc::kTooLarge, "side: kSideRanksMax");
  ByteWriter out(kSideBytesMax);
  out.u32(kSideMagic);
  out.u16(kLayoutVersion);
  out.u16(static_cast<uint16_t>(side.ranks.size()));
  for (const Layout& rank : side.ranks) {
    const auto bytes = encode(rank);
    if (!bytes) return bytes.error();
    out.u32(static_cast<uint32_t>(bytes->size()));
    out.bytes(*bytes);
  }
  if (!out.ok()) return fail(Errc::kTooLarge, "side: more than kSideBytesMax");
  return out.take();
}

Result<Layout> decode_layout(std::span<const std::byte> bytes) {
  if (bytes.size() > kLayoutBytesMax) return fail(Errc::kTooLarge, "layout bytes");
  ByteReader in(bytes);
  if (auto head = read_head(in, kLayoutMagic, "layout bytes"); !head) return head.error();
  Layout layout = read_layout(in);
  if (auto status = in.status("layout bytes"); !status) return status.error();
  if (auto valid = check(layout); !valid) return valid.error();
  return layout;
}

Result<Side> decode_side(std::span<const std::byte> bytes) {
  if (bytes.size() > kSideBytesMax) return fail(Errc::kTooLarge, "side bytes");
  ByteReader in(bytes);
  if (auto head = read_head(in, kSideMagic, "side bytes"); !head) return head.error();
  const size_t ranks = read_count(in, in.u16(), kSideRanksMax, 4);
  in.require(ranks > 0);
  Side side;
  for (size_t n = 0; n < ranks && in.ok(); ++n) {
    const uint32_t length = in.u32();
    const auto one = in.bytes(length);
    if (!in.ok()) break;
    auto layout = decode_layout(one);
    if (!layout) return layout.error();
    side.ranks.push_back(*std::move(layout));
  }
  in.require(in.remaining() == 0);
  if (auto status = in.status("side bytes"); !status) return status.error();
  return side;
}

uint64_t layout_hash(const Layout& layout) {
  const auto bytes = encode(layout);
  return bytes ? layout::hash_bytes(*bytes) : 0;
}

}  // namespace fabric::kv
