#include "topology/pci_address.h"

#include <charconv>

#include <fmt/format.h>

namespace fabric::topology {

namespace {

/// A hexadecimal number of `least` to `most` digits that is at most `largest`.
bool read_hex(std::string_view text, size_t least, size_t most, uint32_t largest, uint32_t& out) {
  if (text.size() < least || text.size() > most) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, 16);
  return error == std::errc{} && end == text.data() + text.size() && out <= largest;
}

}  // namespace

std::optional<PciAddress> parse_pci_address(std::string_view text) {
  uint32_t domain = 0, bus = 0, device = 0, function = 0;
  const size_t dot = text.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  if (!read_hex(text.substr(dot + 1), 1, 1, 7, function)) return std::nullopt;
  text = text.substr(0, dot);
  const size_t last = text.rfind(':');
  if (last == std::string_view::npos) return std::nullopt;
  if (!read_hex(text.substr(last + 1), 2, 2, 31, device)) return std::nullopt;
  text = text.substr(0, last);
  if (const size_t first = text.rfind(':'); first != std::string_view::npos) {
    if (!read_hex(text.substr(0, first), 4, 8, UINT32_MAX, domain)) return std::nullopt;
    text = text.substr(first + 1);
  }
  if (!read_hex(text, 2, 2, 255, bus)) return std::nullopt;
  return PciAddress{.domain = domain,
                    .bus = static_cast<uint8_t>(bus),
                    .device = static_cast<uint8_t>(device),
                    .function = static_cast<uint8_t>(function)};
}

std::string to_string(const PciAddress& address) {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", address.domain, address.bus, address.device,
                     address.function);
}

}  // namespace fabric::topology
