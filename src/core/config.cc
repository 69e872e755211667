#include <fabric/config.h>

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string>
#include <string_view>

#include "base/intern.h"
#include "control/format.h"
#include "control/message.h"
#include "core/core.h"
#include "core/network_text.h"
#include "core/shard.h"
#include "topology/near.h"

// The user's Config, overridden by FABRICLIB_ variables, and checked field by field. An unknown
// variable is an error that names it: a setting must not be accepted and then ignored. The checks
// are pure functions: any thread.

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

/// "250us": an integer with its unit, which is required.
bool parse(std::string_view text, Nanos& out) {
  struct Unit {
    std::string_view suffix;
    uint64_t ns;
  };
  // "s" last: it is a suffix of the others.
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

/// Calls `take` with every item of a comma-separated list. False: an item is empty or refused.
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
  return each_item(text, [&](std::string_view item) {
    auto network = parse_network(item);
    if (network) out.push_back(*std::move(network));
    return network.has_value();
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

/// Calls `field` with every field that a variable can set and the variable's name without prefix,
/// until it returns true.
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

constexpr std::string_view kPrefix = "FABRICLIB_";

/// The length of the longest common subsequence, without regard to case.
size_t common_letters(std::string_view a, std::string_view b) {
  const auto upper = [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; };
  std::vector<size_t> row(b.size() + 1);  // for the letters of `a` up to now
  for (const char letter : a) {
    size_t diagonal = 0;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = upper(letter) == upper(b[j]) ? diagonal + 1 : std::max(above, row[j]);
      diagonal = above;
    }
  }
  return row.back();
}

/// The known variable with the least edit distance (insertions and deletions, so that a missing
/// suffix is nearer than other letters); empty if too few letters are common.
std::string nearest_variable(std::string_view field_name) {
  std::string_view nearest;
  size_t least = SIZE_MAX;
  const auto compare = [&](std::string_view known) {
    const size_t common = common_letters(field_name, known);
    const size_t distance = field_name.size() + known.size() - 2 * common;
    if (3 * common < 2 * field_name.size() || distance > 2 * common || distance >= least) return;
    least = distance;
    nearest = known;
  };
  Config any;
  each_field(any, [&](const char* known, auto&) {
    compare(known);
    return false;
  });
  compare("CLOCK");
  return nearest.empty() ? std::string() : std::string(kPrefix) + std::string(nearest);
}

/// A misspelt setting is an error, and the log suggests the one that was probably meant.
Error unknown_variable(const Config& config, std::string_view name) {
  Log log(config.log_sink, config.log_level);
  const std::string nearest = nearest_variable(name.substr(kPrefix.size()));
  if (nearest.empty()) {
    FABRIC_LOG(log, kError, "core", "unknown environment variable", {"variable", name});
  } else {
    FABRIC_LOG(log, kError, "core", "unknown environment variable, did you mean another?",
               {"variable", name}, {"nearest", nearest});
  }
  return fail(Errc::kInvalidArgument, intern(name));
}

Result<void> apply_environment(Config& config) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = line.find('=');
    if (!line.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, equals);
    if (name.starts_with("FABRICLIB_TEST_")) continue;
    const std::string_view field_name = name.substr(kPrefix.size());
    const std::string_view value = line.substr(equals + 1);
    if (field_name == "CLOCK") {  // for the process, not for an engine: base/clock.cc reads it
      if (value == "kernel" || value == "ticks") continue;
      return fail(Errc::kInvalidArgument, intern(name));
    }
    bool good = false;
    const bool known = each_field(config, [&](std::string_view field, auto& target) {
      if (field != field_name) return false;
      good = parse(value, target);
      return true;
    });
    if (!known) return unknown_variable(config, name);
    if (!good) return fail(Errc::kInvalidArgument, intern(name));
  }
  return {};
}

Result<void> check_times(const Config& c) {
  const std::pair<Nanos, const char*> times[] = {
      {c.default_timeout, "default_timeout"}, {c.drain_timeout, "drain_timeout"},
      {c.timeout_max, "timeout_max"},         {c.peer_timeout, "peer_timeout"},
      {c.lost_timeout, "lost_timeout"},       {c.retransmit, "retransmit"}};
  // A hundred years: the sum of a few such times cannot overflow.
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
    uint64_t value, min, max;
    const char* name;
  };
  const Bound bounds[] = {
      {c.ops_max, 1, 1u << 20, "ops_max"},
      {c.batches_max, 1, 1u << 20, "batches_max"},
      {c.peers_max, 1, 1u << 16, "peers_max"},
      {c.regions_max, 1, 1u << 20, "regions_max"},
      {c.counters_max, 1, 1u << 20, "counters_max"},
      {c.names_per_peer_max, 1, 1u << 20, "names_per_peer_max"},
      {c.message_bytes_max, 1, control::kMessageBytesMax, "message_bytes_max"},
      {c.message_buffers, 1, 1u << 20, "message_buffers"},
      {c.message_credits, 1, 4096, "message_credits"},
      {c.index_arena_bytes, 4096, 1ull << 36, "index_arena_bytes"},
      {c.stripe_bytes_min, 0, kStripeBytesMost, "stripe_bytes_min"},
      {c.stripe_align, 1, 1ull << 30, "stripe_align"},
      {c.bulk_slice_bytes, 2, 1ull << 40, "bulk_slice_bytes"},
  };
  for (const Bound& bound : bounds) {
    if (bound.value < bound.min || bound.value > bound.max) {
      return fail(Errc::kInvalidArgument, bound.name);
    }
  }
  if (!std::has_single_bit(c.stripe_align)) return fail(Errc::kInvalidArgument, "stripe_align");
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
    // Every engine opens "self" by itself.
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
    if (!network.near.empty() && !topology::parse_near(network.near)) {
      return fail(Errc::kInvalidArgument, "networks.near");
    }
    if (network.stripe_bytes_min > kStripeBytesMost) {
      return fail(Errc::kInvalidArgument, "networks.stripe_bytes_min");
    }
    if (auto good = check_network_options(network); !good) return good.error();
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
