#include <fabric/config.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

#include "base/intern.h"
#include "control/format.h"
#include "control/message.h"
#include "core/core.h"

// Config from its user, overlaid by FABRIC_ variables, and checked field by field. An option that
// is accepted and does nothing is a lie: whatever is not known is an error that names it.

namespace fabric::core {

namespace {

bool parse(std::string_view text, uint64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse(std::string_view text, uint32_t& out) {
  uint64_t wide = 0;
  if (!parse(text, wide) || wide > UINT32_MAX) return false;
  out = static_cast<uint32_t>(wide);
  return true;
}

/// "250us": a whole number and its unit, which must be there.
bool parse(std::string_view text, Nanos& out) {
  struct Unit {
    std::string_view suffix;
    uint64_t ns;
  };
  // "s" last: it ends the others too.
  static constexpr Unit kUnits[] = {
      {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
  for (const Unit& unit : kUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    uint64_t n = 0;
    if (!parse(text.substr(0, text.size() - unit.suffix.size()), n)) return false;
    if (n > static_cast<uint64_t>(INT64_MAX) / unit.ns) return false;
    out = Nanos(static_cast<int64_t>(n * unit.ns));
    return true;
  }
  return false;
}

bool parse(std::string_view text, bool& out) {
  out = text == "1" || text == "true";
  return out || text == "0" || text == "false";
}

bool parse(std::string_view text, std::string& out) {
  out = text;
  return true;
}

bool parse(std::string_view text, LogLevel& out) {
  for (const auto level : {LogLevel::kTrace, LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                           LogLevel::kError, LogLevel::kOff}) {
    std::string name = to_string(level);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (text == name) {
      out = level;
      return true;
    }
  }
  return false;
}

/// Calls `take` with every item of a list that has one at least, and no empty ones.
template <class F>
bool each_item(std::string_view list, F&& take) {
  for (;;) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    if (item.empty() || !take(item)) return false;
    if (comma == std::string_view::npos) return true;
    list.remove_prefix(comma + 1);
  }
}

bool parse(std::string_view text, std::vector<Network>& out) {
  out.clear();
  return each_item(text, [&](std::string_view provider) {
    out.push_back({.provider = std::string(provider)});
    return true;
  });
}

bool parse(std::string_view text, std::vector<int>& out) {
  out.clear();
  return each_item(text, [&](std::string_view item) {
    uint32_t cpu = 0;
    if (!parse(item, cpu)) return false;
    out.push_back(static_cast<int>(cpu));
    return true;
  });
}

/// Every field that a variable can set, with the variable's name.
template <class F>
bool each_field(Config& c, F&& field) {
  return field("NETWORKS", c.networks) || field("DEFAULT_TIMEOUT", c.default_timeout) ||
         field("DRAIN_TIMEOUT", c.drain_timeout) || field("TIMEOUT_MAX", c.timeout_max) ||
         field("PEER_TIMEOUT", c.peer_timeout) || field("LOST_TIMEOUT", c.lost_timeout) ||
         field("RETRANSMIT", c.retransmit) || field("OPS_MAX", c.ops_max) ||
         field("BATCHES_MAX", c.batches_max) || field("PEERS_MAX", c.peers_max) ||
         field("REGIONS_MAX", c.regions_max) || field("COUNTERS_MAX", c.counters_max) ||
         field("NAMES_PER_PEER_MAX", c.names_per_peer_max) ||
         field("MESSAGE_BYTES_MAX", c.message_bytes_max) ||
         field("MESSAGE_BUFFERS", c.message_buffers) ||
         field("MESSAGE_CREDITS", c.message_credits) ||
         field("INDEX_ARENA_BYTES", c.index_arena_bytes) ||
         field("STRIPE_BYTES_MIN", c.stripe_bytes_min) || field("STRIPE_ALIGN", c.stripe_align) ||
         field("BULK_SLICE_BYTES", c.bulk_slice_bytes) || field("SPIN", c.spin) ||
         field("WORKER_CPUS", c.worker_cpus) || field("REROUTE", c.reroute) ||
         field("ENGINE_ID", c.engine_id) || field("APP_INFO", c.app_info) ||
         field("JOB_KEY", c.job_key) || field("LOG_LEVEL", c.log_level);
}

Result<void> apply_environment(Config& config) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = line.find('=');
    if (!line.starts_with("FABRICLIB_") || equals == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, equals);
    if (name.starts_with("FABRICLIB_TEST_")) continue;
    const std::string_view field_name = name.substr(std::strlen("FABRICLIB_"));
    const std::string_view value = line.substr(equals + 1);
    // For the process, not for an engine: base/clock.cc reads it.
    if (field_name == "CLOCK" && (value == "kernel" || value == "ticks")) continue;
    bool good = false;
    const bool known = each_field(config, [&](std::string_view field, auto& target) {
      if (field != field_name) return false;
      good = parse(value, target);
      return true;
    });
    if (!known || !good) return fail(Errc::kInvalidArgument, intern(name));
  }
  return {};
}

Result<void> check_times(const Config& c) {
  const std::pair<Nanos, const char*> times[] = {
      {c.default_timeout, "default_timeout"}, {c.drain_timeout, "drain_timeout"},
      {c.timeout_max, "timeout_max"},         {c.peer_timeout, "peer_timeout"},
      {c.lost_timeout, "lost_timeout"},       {c.retransmit, "retransmit"}};
  // A hundred years: sums of a few of them stay far from overflow.
  constexpr Nanos kLongest = std::chrono::hours(24 * 365 * 100);
  for (const auto& [time, name] : times) {
    if (time.count() <= 0 || time > kLongest) return fail(Errc::kInvalidArgument, name);
  }
  if (c.default_timeout > c.timeout_max) return fail(Errc::kInvalidArgument, "default_timeout");
  if (c.spin.count() < 0 || c.spin > kLongest) return fail(Errc::kInvalidArgument, "spin");
  return {};
}

Result<void> check_bounds(const Config& c) {
  struct Bound {
    uint64_t value, least, most;
    const char* name;
  };
  const Bound bounds[] = {
      {c.ops_max, 1, 1u << 20, "ops_max"},
      {c.batches_max, 1, 1u << 20, "batches_max"},
      {c.peers_max, 1, 1u << 16, "peers_max"},
      {c.regions_max, 1, 1u << 20, "regions_max"},
      {c.counters_max, 1, 1u << 20, "counters_max"},
      {c.names_per_peer_max, 1, 1u << 20, "names_per_peer_max"},
      {c.message_bytes_max, 1, 65536, "message_bytes_max"},
      {c.message_buffers, 1, 1u << 20, "message_buffers"},
      {c.message_credits, 1, 4096, "message_credits"},
      {c.index_arena_bytes, 4096, 1ull << 36, "index_arena_bytes"},
      {c.stripe_bytes_min, 1, 1ull << 40, "stripe_bytes_min"},
      {c.stripe_align, 1, 1ull << 30, "stripe_align"},
      {c.bulk_slice_bytes, 2, 1ull << 40, "bulk_slice_bytes"},
  };
  for (const Bound& bound : bounds) {
    if (bound.value < bound.least || bound.value > bound.most) {
      return fail(Errc::kInvalidArgument, bound.name);
    }
  }
  if (!std::has_single_bit(c.stripe_align)) return fail(Errc::kInvalidArgument, "stripe_align");
  // An option that is taken and does nothing would be a lie: rerouting comes with failover.
  if (c.app_info.size() > control::kAppInfoBytesMax) return fail(Errc::kTooLarge, "app_info");
  return {};
}

Result<void> check_networks(const Config& c) {
  if (c.networks.size() > control::kNetworksMax) return fail(Errc::kTooLarge, "networks");
  std::vector<std::string> names;
  for (const Network& network : c.networks) {
    if (!control::is_name(network.provider)) {
      return fail(Errc::kInvalidArgument, "networks.provider");
    }
    // The engine opens it itself, for its own address.
    if (network.provider == "self") return fail(Errc::kInvalidArgument, "networks.provider");
    const std::string& name = network.name.empty() ? network.provider : network.name;
    if (!control::is_name(name)) return fail(Errc::kInvalidArgument, "networks.name");
    if (std::find(names.begin(), names.end(), name) != names.end() || name == "self") {
      return fail(Errc::kInvalidArgument, "networks.name");
    }
    names.push_back(name);
    if (network.rails_max == 0 || network.rails_max > kRailsMax) {
      return fail(Errc::kInvalidArgument, "networks.rails_max");
    }
  }
  return {};
}

}  // namespace

Result<Config> effective_config(const Config& config) {
  Config checked = config;
  if (auto ok = apply_environment(checked); !ok) return ok.error();
  if (auto ok = check_times(checked); !ok) return ok.error();
  if (auto ok = check_bounds(checked); !ok) return ok.error();
  if (auto ok = check_networks(checked); !ok) return ok.error();
  return checked;
}

}  // namespace fabric::core
