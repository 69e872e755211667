#include "core/network_text.h"

#include <bit>
#include <charconv>
#include <tuple>
#include <utility>

#include "core/shard.h"
#include "topology/near.h"

// One table of options per provider serves three purposes: reading the text form, writing it, and
// checking the ranges of options that a program set in the struct. Pure functions: any thread.

namespace fabric::core {

namespace {

template <class Owner, class T>
struct NumberOption {
  const char* name;
  T Owner::*field;
  T least, most;
};

template <class Owner>
struct TextOption {
  const char* name;
  std::string Owner::*field;
  bool (*valid)(std::string_view) = nullptr;  ///< null: any text is
};

bool is_near(std::string_view text) { return topology::parse_near(text).has_value(); }

template <class Owner>
using Unsigned = NumberOption<Owner, uint32_t>;

/// Of every network, whatever its provider.
constexpr auto kCommon = std::tuple{
    TextOption<Network>{"name", &Network::name},
    TextOption<Network>{"near", &Network::near, &is_near},
    Unsigned<Network>{"rails_max", &Network::rails_max, 1, kRailsMax},
    NumberOption<Network, uint64_t>{"stripe_bytes_min", &Network::stripe_bytes_min, 0,
                                    kStripeBytesMost},
    NumberOption<Network, bool>{"required", &Network::required, false, true},
    NumberOption<Network, bool>{"trusted", &Network::trusted, false, true},
};

template <class Options>
struct Provider;

template <>
struct Provider<shm::Options> {
  using O = shm::Options;
  static constexpr std::string_view kName = "shm";
  static constexpr auto kOptions = std::tuple{
      Unsigned<O>{"lanes", &O::lanes, 1, kRailsMax},
      TextOption<O>{"directory", &O::directory},
  };
};

template <>
struct Provider<verbs::Options> {
  using O = verbs::Options;
  static constexpr std::string_view kName = "verbs";
  static constexpr auto kOptions = std::tuple{
      // An address handle has eight bits for the index.
      NumberOption<O, int32_t>{"gid_index", &O::gid_index, -1, 255},
      Unsigned<O>{"mtu_bytes", &O::mtu_bytes, 0, 4096},
      Unsigned<O>{"traffic_class", &O::traffic_class, 0, 255},
      Unsigned<O>{"service_level", &O::service_level, 0, 15},
      Unsigned<O>{"pkey_index", &O::pkey_index, 0, 65535},
      Unsigned<O>{"timeout_code", &O::timeout_code, 1, 22},
      Unsigned<O>{"retry_count", &O::retry_count, 0, 6},
      Unsigned<O>{"rnr_retry", &O::rnr_retry, 0, 7},
      Unsigned<O>{"rnr_timer", &O::rnr_timer, 0, 31},
      Unsigned<O>{"send_depth", &O::send_depth, 16, 8192},
      Unsigned<O>{"receive_depth", &O::receive_depth, 4, 16384},
      Unsigned<O>{"inline_bytes", &O::inline_bytes, 0, 512},
      TextOption<O>{"control_address", &O::control_address},
      Unsigned<O>{"control_port", &O::control_port, 0, 65535},
  };
};

/// Calls `visit` for each option of the table until one returns true.
template <class Table, class F>
bool any_option(const Table& table, F&& visit) {
  return std::apply([&](const auto&... option) { return (visit(option) || ...); }, table);
}

template <class Owner>
bool read(std::string_view value, const TextOption<Owner>& option, Owner& out) {
  if (option.valid != nullptr && !option.valid(value)) return false;
  out.*option.field = value;
  return true;
}

template <class Owner, class T>
bool read(std::string_view value, const NumberOption<Owner, T>& option, Owner& out) {
  if constexpr (std::is_same_v<T, bool>) {
    if (value == "true" || value == "false") {
      out.*option.field = value == "true";
      return true;
    }
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) return false;
  if (number < static_cast<int64_t>(option.least) || number > static_cast<int64_t>(option.most)) {
    return false;
  }
  out.*option.field = static_cast<T>(number);
  return true;
}

enum class Found : uint8_t { kNo, kRead, kBadValue };

template <class Table, class Owner>
Found read_option(const Table& table, std::string_view name, std::string_view value, Owner& out,
                  const char*& option_name) {
  Found found = Found::kNo;
  any_option(table, [&](const auto& option) {
    if (name != option.name) return false;
    option_name = option.name;
    found = read(value, option, out) ? Found::kRead : Found::kBadValue;
    return true;
  });
  return found;
}

/// Calls `visit` with a default Options of the named provider; false: it has none.
template <class F>
bool with_options_of(std::string_view provider, F&& visit) {
  if (provider == Provider<shm::Options>::kName) return visit(shm::Options{}), true;
  if (provider == Provider<verbs::Options>::kName) return visit(verbs::Options{}), true;
  return false;
}

Result<void> set_option(Network& network, std::string_view name, std::string_view value) {
  const char* option_name = "networks.options";
  Found found = read_option(kCommon, name, value, network, option_name);
  if (found == Found::kNo) {
    with_options_of(network.provider, [&]<class Options>(Options options) {
      if (const auto* set = std::get_if<Options>(&network.options)) options = *set;
      found = read_option(Provider<Options>::kOptions, name, value, options, option_name);
      network.options = std::move(options);
    });
  }
  if (found != Found::kRead) return fail(Errc::kInvalidArgument, option_name);
  return {};
}

template <class Owner>
bool is_default(const TextOption<Owner>& option, const Owner& value) {
  return (value.*option.field).empty();
}

template <class Owner, class T>
bool is_default(const NumberOption<Owner, T>& option, const Owner& value) {
  return value.*option.field == Owner{}.*option.field;
}

std::string text_of(const std::string& value) { return value; }
template <class T>
std::string text_of(T value) {
  return std::to_string(static_cast<int64_t>(value));
}

template <class Table, class Owner>
void append_options(const Table& table, const Owner& value, std::string& out) {
  any_option(table, [&](const auto& option) {
    if (is_default(option, value)) return false;
    out += ' ';
    out += option.name;
    out += '=';
    out += text_of(value.*option.field);
    return false;
  });
}

/// Null, or the name of the option that is out of range.
template <class Options>
const char* out_of_range(const Options& options) {
  const char* wrong = nullptr;
  any_option(Provider<Options>::kOptions, [&](const auto& option) {
    if constexpr (requires { option.least; }) {
      const auto value = options.*option.field;
      if (value < option.least || value > option.most) wrong = option.name;
    }
    return wrong != nullptr;
  });
  if constexpr (std::is_same_v<Options, verbs::Options>) {
    const uint32_t mtu = options.mtu_bytes;
    if (mtu != 0 && (mtu < 256 || !std::has_single_bit(mtu))) wrong = "mtu_bytes";
  }
  return wrong;
}

}  // namespace

Result<void> check_network_options(const Network& network) {
  return std::visit(
      [&]<class Options>(const Options& options) -> Result<void> {
        if constexpr (!std::is_same_v<Options, std::monostate>) {
          if (network.provider != Provider<Options>::kName) {
            return fail(Errc::kInvalidArgument, "networks.options");
          }
          const char* wrong = out_of_range(options);
          if (wrong != nullptr) return fail(Errc::kInvalidArgument, wrong);
        }
        return {};
      },
      network.options);
}

}  // namespace fabric::core

namespace fabric {

Result<Network> parse_network(std::string_view text) {
  Network network;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view item = text.substr(0, space);
    text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    if (network.provider.empty()) {
      network.provider = item;
    } else if (equals == std::string_view::npos) {
      network.devices.emplace_back(item);
    } else {
      auto set = core::set_option(network, item.substr(0, equals), item.substr(equals + 1));
      if (!set) return set.error();
    }
  }
  if (network.provider.empty()) return fail(Errc::kInvalidArgument, "networks");
  if (auto good = core::check_network_options(network); !good) return good.error();
  return network;
}

std::string to_string(const Network& network) {
  std::string text = network.provider;
  for (const std::string& device : network.devices) text += " " + device;
  core::append_options(core::kCommon, network, text);
  std::visit(
      [&]<class Options>(const Options& options) {
        if constexpr (!std::is_same_v<Options, std::monostate>) {
          core::append_options(core::Provider<Options>::kOptions, options, text);
        }
      },
      network.options);
  return text;
}

}  // namespace fabric
