#include "control/address.h"

#include <fabric/provider.h>

#include "base/base64.h"
#include "base/check.h"
#include "control/format.h"

namespace fabric::control {

namespace {

constexpr Format kAddressFormat{magic("FABA"), 1, 0, "address"};
constexpr std::string_view kTextPrefix = "fabric1";

constexpr uint16_t kIdentitySection = 1;
constexpr uint16_t kAddressNetworkSection = 2;

constexpr uint32_t kKnownKinds =
    kind_bit(MemoryKind::kHost) | kind_bit(MemoryKind::kCuda) | kind_bit(MemoryKind::kRocm);

std::vector<std::byte> encode_network(const NetworkSection& network) {
  FABRIC_CHECK(network.rails >= 1 && network.rails <= kRailsMax);
  FABRIC_CHECK(network.address.size() <= OpenNetwork::kAddressBytesMax);
  ByteWriter out;
  write_name(out, network.provider);
  write_name(out, network.name);
  out.u8(network.rails);
  out.u8(static_cast<uint8_t>(network.fence));
  out.u32(network.memory_kinds);
  write_blob(out, network.address);
  return out.take();
}

NetworkSection read_address_network(ByteReader& in, bool newer_minor) {
  NetworkSection network;
  network.provider = read_name(in);
  network.name = read_name(in);
  network.rails = in.u8();
  in.require(network.rails >= 1 && network.rails <= kRailsMax);
  network.fence = read_enum(in, FenceKind::kHost);
  network.memory_kinds = in.u32();
  // A newer version may have more kinds, which this one cannot use.
  in.require(newer_minor || (network.memory_kinds & ~kKnownKinds) == 0);
  network.memory_kinds &= kKnownKinds;
  network.address = read_blob(in, OpenNetwork::kAddressBytesMax);
  read_end(in, newer_minor);
  return network;
}

}  // namespace

std::vector<std::byte> encode(const Address& address) {
  FABRIC_CHECK(address.networks.size() <= kNetworksMax);
  ByteWriter identity;
  identity.u64(address.engine_id);
  identity.u64(address.incarnation);

  ByteWriter sections;
  write_section(sections, kIdentitySection, identity.view());
  for (const NetworkSection& network : address.networks) {
    write_section(sections, kAddressNetworkSection, encode_network(network));
  }
  ByteWriter out;
  write_prologue(out, kAddressFormat, 0, kPrologueBytes + sections.size());
  out.bytes(sections.view());
  return out.take();
}

Result<Address> decode_address(std::span<const std::byte> bytes) {
  auto opened = read_prologue(bytes, kAddressFormat);
  if (!opened) return opened.error();
  ByteReader& in = opened->rest;
  const bool newer = opened->newer_minor;
  in.require(newer || opened->type == 0);

  Address address;
  bool has_identity = false;
  while (in.remaining() > 0) {
    Section section = read_section(in);
    if (section.type == kIdentitySection) {
      in.require(!has_identity);
      has_identity = true;
      address.engine_id = section.body.u64();
      address.incarnation = section.body.u64();
      section.body.require(address.engine_id != 0 && address.incarnation != 0);
      read_end(section.body, newer);
    } else if (section.type == kAddressNetworkSection) {
      in.require(address.networks.size() < kNetworksMax);
      address.networks.push_back(read_address_network(section.body, newer));
    }
    in.require(section.body.ok());
  }
  in.require(has_identity);
  if (const auto status = in.status(kAddressFormat.what); !status) return status.error();
  return address;
}

std::string address_to_text(std::span<const std::byte> bytes) {
  return std::string(kTextPrefix) + ':' + base64url_encode(bytes);
}

Result<std::vector<std::byte>> address_from_text(std::string_view text) {
  const auto encoded = strip_prefix(text, kTextPrefix, kAddressFormat.what);
  if (!encoded) return encoded.error();
  auto bytes = base64url_decode(*encoded);
  if (!bytes) return fail(Errc::kBadFormat, kAddressFormat.what);
  return bytes;
}

}  // namespace fabric::control
