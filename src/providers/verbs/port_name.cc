#include "providers/verbs/port_name.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <string_view>

namespace fabric::verbs {

namespace {

struct Number {
  const char* name;
  uint32_t Options::*field;
  uint32_t least, most;
};

constexpr std::array<Number, 12> kNumbers{{
    {"mtu_bytes", &Options::mtu_bytes, 0, 4096},
    {"traffic_class", &Options::traffic_class, 0, 255},
    {"service_level", &Options::service_level, 0, 15},
    {"pkey_index", &Options::pkey_index, 0, 65535},
    {"timeout_code", &Options::timeout_code, 1, 22},
    {"retry_count", &Options::retry_count, 0, 6},
    {"rnr_retry", &Options::rnr_retry, 0, 7},
    {"rnr_timer", &Options::rnr_timer, 0, 31},
    {"send_depth", &Options::send_depth, 16, 8192},
    {"receive_depth", &Options::receive_depth, 4, 16384},
    {"inline_bytes", &Options::inline_bytes, 0, 512},
    {"control_port", &Options::control_port, 0, 65535},
}};

constexpr int32_t kGidIndexMax = 255;  // an address handle has eight bits for it

template <class T>
bool parse(std::string_view text, T least, T most, T& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  if (value < least || value > most) return false;
  out = value;
  return true;
}

/// "name" or "name:port", in the letters that the kernel gives to devices.
bool is_device(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const bool good = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  uint32_t port = 1;
  return good &&
         (colon == std::string_view::npos || parse<uint32_t>(text.substr(colon + 1), 1, 255, port));
}

/// Null, or the name of what is wrong with it.
const char* set(Options& options, std::string_view name, std::string_view value) {
  for (const Number& number : kNumbers) {
    if (name != number.name) continue;
    return parse(value, number.least, number.most, options.*number.field) ? nullptr : number.name;
  }
  if (name == "gid_index") {
    return parse<int32_t>(value, -1, kGidIndexMax, options.gid_index) ? nullptr : "gid_index";
  }
  if (name == "control_address") {
    options.control_address = value;
    return nullptr;
  }
  return "networks.devices";
}

}  // namespace

Result<Options> parse_options(std::span<const std::string> devices) {
  Options options;
  for (const std::string& text : devices) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      if (!is_device(text)) return fail(Errc::kInvalidArgument, "networks.devices");
      options.devices.push_back(text);
      continue;
    }
    const std::string_view whole = text;
    const char* wrong = set(options, whole.substr(0, equals), whole.substr(equals + 1));
    if (wrong != nullptr) return fail(Errc::kInvalidArgument, wrong);
  }
  const uint32_t mtu = options.mtu_bytes;
  if (mtu != 0 && (mtu < 256 || !std::has_single_bit(mtu))) {
    return fail(Errc::kInvalidArgument, "mtu_bytes");
  }
  return options;
}

Network network(const Options& options) {
  Network network{.provider = "verbs", .devices = options.devices};
  const auto say = [&](const char* name, const std::string& value) {
    network.devices.push_back(std::string(name) + "=" + value);
  };
  const Options usual;
  for (const Number& number : kNumbers) {
    if (options.*number.field == usual.*number.field) continue;
    say(number.name, std::to_string(options.*number.field));
  }
  if (options.gid_index != usual.gid_index) say("gid_index", std::to_string(options.gid_index));
  if (!options.control_address.empty()) say("control_address", options.control_address);
  return network;
}

}  // namespace fabric::verbs
