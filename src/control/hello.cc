#include "base/check.h"
#include "control/format.h"
#include "control/message.h"

// Encoding and decoding of the hello. Pure functions, any thread.

namespace fabric::control {

namespace {

constexpr const char* kWhat = "hello";
constexpr uint16_t kHelloAddressSection = 1;
constexpr uint16_t kLimitsSection = 2;  // and session fields: to_incarnation, is_inline
constexpr uint16_t kAppInfoSection = 3;

std::vector<std::byte> encode_limits(const Hello& hello) {
  ByteWriter out;
  out.u64(hello.to_incarnation);
  out.u32(hello.message_bytes_max);
  out.u32(hello.message_credits);
  out.i64(hello.timeout_max_ns);
  out.i64(hello.drain_ns);
  out.i64(hello.lost_ns);
  out.u8(hello.is_inline ? 1 : 0);
  return out.take();
}

void read_limits(ByteReader& in, bool newer_minor, Hello& hello) {
  hello.to_incarnation = in.u64();
  hello.message_bytes_max = in.u32();
  hello.message_credits = in.u32();
  hello.timeout_max_ns = in.i64();
  hello.drain_ns = in.i64();
  hello.lost_ns = in.i64();
  in.require(hello.timeout_max_ns >= 0 && hello.drain_ns >= 0 && hello.lost_ns >= 0);
  hello.is_inline = read_bool(in);
  read_end(in, newer_minor);
}

}  // namespace

std::vector<std::byte> encode(const Hello& body) {
  FABRIC_CHECK(body.app_info.size() <= kAppInfoBytesMax);
  ByteWriter out;
  write_section(out, kHelloAddressSection, encode(body.address));
  write_section(out, kLimitsSection, encode_limits(body));
  write_section(out, kAppInfoSection,
                std::as_bytes(std::span<const char>(body.app_info.data(), body.app_info.size())));
  return out.take();
}

Result<Hello> decode_hello(const Body& body) {
  ByteReader in(body);
  Hello hello;
  uint32_t seen[4] = {};  // by section type
  while (in.remaining() > 0) {
    Section section = read_section(in);
    if (section.type == kHelloAddressSection) {
      auto address = decode_address(section.body.rest());
      // kVersion of the address is reported as such: the peer is newer, not hostile.
      if (!address && in.ok()) return address.error();
      if (address) hello.address = *std::move(address);
    } else if (section.type == kLimitsSection) {
      read_limits(section.body, body.newer_minor, hello);
    } else if (section.type == kAppInfoSection) {
      const size_t length = section.body.remaining();
      section.body.require(length <= kAppInfoBytesMax);
      hello.app_info = std::string(section.body.text(length));
    }
    in.require(section.body.ok());
    if (section.type < 4) ++seen[section.type];
  }
  in.require(seen[kHelloAddressSection] == 1 && seen[kLimitsSection] == 1 &&
             seen[kAppInfoSection] == 1);
  if (const auto status = in.status(kWhat); !status) return status.error();
  return hello;
}

}  // namespace fabric::control
