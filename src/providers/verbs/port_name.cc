#include "providers/verbs/port_name.h"

#include <algorithm>
#include <charconv>

namespace fabric::verbs {

Result<PortName> parse_port_name(std::string_view text) {
  const size_t colon = text.find(':');
  PortName name{.device = std::string(text.substr(0, colon))};
  // The characters that the kernel allows in device names.
  const bool known = std::all_of(name.device.begin(), name.device.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (name.device.empty() || !known) return fail(Errc::kInvalidArgument, "networks.devices");
  if (colon == std::string_view::npos) return name;
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), name.port);
  if (error != std::errc{} || end != port.data() + port.size() || name.port == 0) {
    return fail(Errc::kInvalidArgument, "networks.devices");
  }
  return name;
}

}  // namespace fabric::verbs
