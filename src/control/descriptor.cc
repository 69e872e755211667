#include "control/descriptor.h"

#include <fabric/provider.h>

#include "base/base64.h"
#include "base/check.h"
#include "control/address.h"
#include "control/format.h"

namespace fabric::control {

namespace {

constexpr Format kDescFormat{magic("FABD"), 1, 0, "desc"};
constexpr uint16_t kRegionSection = 1;
constexpr uint16_t kDescNetworkSection = 2;

constexpr Format kOfferFormat{magic("FABO"), 1, 0, "offer"};
constexpr std::string_view kOfferPrefix = "fabric-offer1";
constexpr uint16_t kOfferAddressSection = 1;
constexpr uint16_t kDescSection = 2;
constexpr uint16_t kKeySection = 3;

std::vector<std::byte> encode_region(const RegionDesc& desc) {
  ByteWriter out;
  out.u64(desc.owner_engine);
  out.u64(desc.owner_incarnation);
  out.u32(desc.region.slot);
  out.u32(desc.region.generation);
  out.u64(desc.size_bytes);
  out.u8(static_cast<uint8_t>(desc.kind));
  out.i32(desc.gpu);
  out.u64(desc.granted_to);
  out.u32(desc.grant);
  out.u64(desc.session);
  return out.take();
}

void read_region(ByteReader& in, bool newer_minor, RegionDesc& desc) {
  desc.owner_engine = in.u64();
  desc.owner_incarnation = in.u64();
  in.require(desc.owner_engine != 0 && desc.owner_incarnation != 0);
  desc.region.slot = in.u32();
  desc.region.generation = in.u32();
  in.require(desc.region.generation != 0);
  desc.size_bytes = in.u64();
  desc.kind = read_enum(in, MemoryKind::kRocm);
  desc.gpu = in.i32();
  in.require(desc.gpu >= -1);
  desc.granted_to = in.u64();
  desc.grant = in.u32();
  desc.session = in.u64();
  in.require((desc.granted_to == 0) == (desc.grant == 0));
  in.require(desc.grant != 0 || desc.session == 0);
  read_end(in, newer_minor);
}

std::vector<std::byte> encode_network(const RegionDesc::Section& network) {
  FABRIC_CHECK(!network.rail_keys.empty() && network.rail_keys.size() <= kRailsMax);
  ByteWriter out;
  write_name(out, network.network);
  out.u8(static_cast<uint8_t>(network.rail_keys.size()));
  for (const auto& key : network.rail_keys) {
    FABRIC_CHECK(key.size() <= Rail::kWireRkeyBytesMax);
    out.u8(static_cast<uint8_t>(key.size()));
    out.bytes(key);
  }
  return out.take();
}

RegionDesc::Section read_desc_network(ByteReader& in, bool newer_minor) {
  RegionDesc::Section network;
  network.network = read_name(in);
  const uint8_t rails = in.u8();
  in.require(rails >= 1 && rails <= kRailsMax);
  for (uint8_t i = 0; i < rails && in.ok(); ++i) {
    const uint8_t length = in.u8();
    in.require(length <= Rail::kWireRkeyBytesMax);
    const auto key = in.bytes(length);
    network.rail_keys.emplace_back(key.begin(), key.end());
  }
  read_end(in, newer_minor);
  return network;
}

}  // namespace

Result<std::vector<std::byte>> encode(const RegionDesc& desc) {
  FABRIC_CHECK(desc.networks.size() <= kNetworksMax);
  ByteWriter sections(MemoryRegion::kDescBytesMax - kPrologueBytes);
  write_section(sections, kRegionSection, encode_region(desc));
  for (const RegionDesc::Section& network : desc.networks) {
    write_section(sections, kDescNetworkSection, encode_network(network));
  }
  if (!sections.ok()) return fail(Errc::kTooLarge, kDescFormat.what);
  ByteWriter out;
  write_prologue(out, kDescFormat, 0, kPrologueBytes + sections.size());
  out.bytes(sections.view());
  return out.take();
}

Result<RegionDesc> decode_desc(std::span<const std::byte> bytes) {
  auto opened = read_prologue(bytes, kDescFormat);
  if (!opened) return opened.error();
  ByteReader& in = opened->rest;
  const bool newer = opened->newer_minor;
  in.require(newer || opened->type == 0);
  in.require(bytes.size() <= MemoryRegion::kDescBytesMax);

  RegionDesc desc;
  bool has_region = false;
  while (in.remaining() > 0) {
    Section section = read_section(in);
    if (section.type == kRegionSection) {
      in.require(!has_region);
      has_region = true;
      read_region(section.body, newer, desc);
    } else if (section.type == kDescNetworkSection) {
      in.require(desc.networks.size() < kNetworksMax);
      desc.networks.push_back(read_desc_network(section.body, newer));
    }
    in.require(section.body.ok());
  }
  in.require(has_region);
  if (const auto status = in.status(kDescFormat.what); !status) return status.error();
  return desc;
}

std::string encode_offer(const OfferParts& offer) {
  ByteWriter key;
  key.u32(offer.key.wire());

  ByteWriter sections;
  write_section(sections, kOfferAddressSection, offer.address);
  write_section(sections, kDescSection, offer.desc);
  write_section(sections, kKeySection, key.view());
  ByteWriter out;
  write_prologue(out, kOfferFormat, 0, kPrologueBytes + sections.size());
  out.bytes(sections.view());
  return std::string(kOfferPrefix) + ':' + base64url_encode(out.view());
}

Result<OfferParts> decode_offer(std::string_view text) {
  const auto encoded = strip_prefix(text, kOfferPrefix, kOfferFormat.what);
  if (!encoded) return encoded.error();
  const auto bytes = base64url_decode(*encoded);
  if (!bytes) return fail(Errc::kBadFormat, kOfferFormat.what);
  auto opened = read_prologue(*bytes, kOfferFormat);
  if (!opened) return opened.error();
  ByteReader& in = opened->rest;
  const bool newer = opened->newer_minor;
  in.require(newer || opened->type == 0);

  OfferParts offer;
  uint32_t seen[4] = {};  // by section type
  while (in.remaining() > 0) {
    Section section = read_section(in);
    if (section.type == kOfferAddressSection || section.type == kDescSection) {
      const auto part = section.body.rest();
      auto& into = section.type == kOfferAddressSection ? offer.address : offer.desc;
      into.assign(part.begin(), part.end());
    } else if (section.type == kKeySection) {
      const uint32_t key = section.body.u32();
      section.body.require(key < (1u << CounterKey::kBits));  // 0: an offer without a counter
      offer.key = CounterKey::from_wire(key);
      read_end(section.body, newer);
    }
    in.require(section.body.ok());
    if (section.type < 4) ++seen[section.type];
  }
  in.require(seen[kOfferAddressSection] == 1 && seen[kDescSection] == 1 && seen[kKeySection] == 1);
  if (const auto status = in.status(kOfferFormat.what); !status) return status.error();
  return offer;
}

}  // namespace fabric::control
