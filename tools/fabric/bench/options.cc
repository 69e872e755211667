#include "options.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <fabric/fabric.h>

namespace fabric::tool::bench {
namespace {

/// Parses 8, 64K, 1M or 2G (powers of 1024).
std::optional<uint64_t> size_of(const std::string& text) {
  uint64_t value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  if (error != std::errc{} || last - end > 1) return std::nullopt;
  uint64_t unit = 1;
  if (end != last) {
    constexpr std::string_view kUnits = "KMG";
    const size_t at = kUnits.find(static_cast<char>(*end & ~0x20));
    if (at == std::string_view::npos) return std::nullopt;
    unit = uint64_t{1} << (10 * (at + 1));
  }
  if (value > kBytesMax / unit) return std::nullopt;
  return value * unit;
}

uint64_t need_size(const char* option, const std::string& text, uint64_t least) {
  const auto size = size_of(text);
  if (!size || *size < least) {
    throw BadOption(
        option, fmt::format("'{}' is not a size from {} to 64G (like 8, 64K, 1M)", text, least));
  }
  return *size;
}

std::vector<std::string> split(const std::string& list) {
  if (list.empty()) return {""};
  std::vector<std::string> out;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) out.push_back(item);
  return out;
}

/// A choice between two words; the first is the default.
Option choice(const char* name, const char* first, const char* second, bool& is_second,
              const char* help) {
  return {.name = name,
          .help = help,
          .target = [&is_second, second](const std::string& word) { is_second = word == second; },
          .value_name = "WORD",
          .default_text = first,
          .choices = {first, second}};
}

/// The networks that run in real time: a simulated one has nothing to measure.
std::vector<std::string> networks() {
  std::vector<std::string> names = providers();
  std::erase(names, "sim");
  return names;
}

Option count(const char* name, uint32_t& value, uint32_t most, const char* help) {
  return {.name = name,
          .help = help,
          .target = &value,
          .value_name = "N",
          .show_default = true,
          .range = {1, most}};
}

Option sizes(BenchPlan& plan, const char* defaults) {
  const auto take = [&plan](const std::string& list) {
    plan.sizes.clear();
    for (const std::string& text : split(list)) {
      plan.sizes.push_back(need_size("--sizes", text, 1));
    }
  };
  take(defaults);
  return {.name = "--sizes",
          .help = "Bytes; K, M and G are powers of 1024",
          .target = take,
          .value_name = "SIZE,...",
          .default_text = defaults};
}

Option footprint(BenchPlan& plan) {
  return {
      .name = "--footprint",
      .help = "Rotate over this much memory; default: one slot, hot in the caches",
      .target =
          [&plan](const std::string& text) { plan.footprint = need_size("--footprint", text, 1); },
      .value_name = "SIZE"};
}

/// Parses the CPUs of --pin, which must be among those this process may use.
void set_cpus(Options& options, const std::string& list) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  (void)::sched_getaffinity(0, sizeof(allowed), &allowed);  // on failure none is allowed
  for (const std::string& text : split(list)) {
    int cpu = -1;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, cpu);
    if (error != std::errc{} || end != last || cpu < 0 || cpu >= CPU_SETSIZE ||
        !CPU_ISSET(static_cast<size_t>(cpu), &allowed)) {
      throw BadOption("--pin", fmt::format("'{}' is not an available CPU", text));
    }
    options.cpus.push_back(cpu);
  }
  if (options.cpus.size() > 2) throw BadOption("--pin", "takes at most two CPUs");
}

Option devices(const char* name, std::vector<std::string>& names, const char* help) {
  return {.name = name,
          .help = help,
          .target = [&names](const std::string& list) { names = split(list); },
          .value_name = "NAME,..."};
}

void add_connection(std::vector<Option>& out, Options& options) {
  out.push_back({.name = "--listen",
                 .help = "Be the receiver of one run; default ADDRESS: loopback",
                 .target = [&options](const std::string& address) { options.listen = address; },
                 .value_name = "[ADDRESS]",
                 .value_optional = true});
  out.push_back({.name = "--connect",
                 .help = "Be the sender, to the receiver that listens at ADDRESS",
                 .target = [&options](const std::string& address) { options.connect = address; },
                 .value_name = "ADDRESS",
                 .excludes = "--listen"});
}

/// What an operation consists of.
void add_shape(std::vector<Option>& out, BenchPlan& plan) {
  if (plan.benchmark == Benchmark::kPaged) {
    plan.window = 4;
    out.push_back(
        count("--pages", plan.pages, kPagesMax, "Pages of one request; --sizes are page sizes"));
  }
  if (plan.benchmark == Benchmark::kScatter) {
    plan.window = 16;
    out.push_back(count("--targets", plan.targets, kTargetsMax,
                        "Engines of the receiver, each of which gets one part"));
  }
  if (plan.benchmark == Benchmark::kKv) {
    out.push_back(count("--pages", plan.pages, kPagesMax,
                        "Pages of a layer and tensor; --sizes are page sizes"));
    out.push_back(count("--layers", plan.layers, kLayersMax, "Layers of a request"));
    out.push_back(
        count("--tensors", plan.tensors, kTensorsMax, "Tensors of a layer; 2: K and V apart"));
  }
}

const char* default_sizes(Benchmark benchmark) {
  switch (benchmark) {
    case Benchmark::kPaged:
      return "1K,4K,64K";
    case Benchmark::kScatter:
      return "256,4K,64K";
    case Benchmark::kLatency:
      return "8,4K,64K";
    case Benchmark::kRate:
      return "8";
    case Benchmark::kMessage:
      return "64,4K";
    case Benchmark::kKv:
      return "1K,32K";
    default:
      return "8,1K,4K,64K,1M,16M";
  }
}

}  // namespace

std::vector<Option> options_of(Options& options) {
  BenchPlan& plan = options.plan;
  const Benchmark which = plan.benchmark;
  const bool stream = which == Benchmark::kWrite || which == Benchmark::kRate;
  const bool idle = which == Benchmark::kIdle;
  const bool kv = which == Benchmark::kKv;
  std::vector<Option> out;
  out.push_back({.name = "--network",
                 .help = "The network; `fabric info` lists those that work here",
                 .target = &plan.network,
                 .value_name = "WORD",
                 .show_default = true,
                 .choices = networks()});
  out.push_back(count("--rails", plan.rails, kRailsMax, "How many of its rails"));
  out.push_back(devices("--devices", plan.devices,
                        "Devices of this side; also options, such as gid_index=3"));
  out.push_back(devices("--peer-devices", options.peer_devices,
                        "Devices of the receiver that is forked here"));
  if (idle) {
    plan.sizes = {8};
    plan.threaded = true;
    plan.seconds = 10;
    plan.repetitions = 1;
  } else {
    out.push_back(sizes(plan, default_sizes(which)));
    out.push_back(choice("--progress", "inline", "threaded", plan.threaded,
                         "Engines are driven by the submitting thread or by their own"));
  }
  if (!idle && which != Benchmark::kMessage) {
    out.push_back(choice("--memory", "allocated", "registered", plan.registered,
                         "From Engine::allocate(), or from the heap"));
    if (which != Benchmark::kLatency && !kv) out.push_back(footprint(plan));
  }
  add_shape(out, plan);
  if (!idle && !kv && which != Benchmark::kLatency) {
    out.push_back(count("--window", plan.window, kWindowMax, "Operations in flight"));
  }
  if (stream) {
    out.push_back(count("--group", plan.group, kWindowMax,
                        "Writes of one submit(span); default: 64, or the window"));
    out.back().show_default = false;
  }
  out.push_back({.name = "--duration",
                 .help = "Of one repetition, in seconds",
                 .target = &plan.seconds,
                 .value_name = "SECONDS",
                 .show_default = true,
                 .range = {0.001, kSecondsMax}});
  out.push_back(
      count("--repetitions", plan.repetitions, kRepetitionsMax, "For the median and the spread"));
  out.push_back({.name = "--pin",
                 .help = "CPUs of the sender and of the receiver",
                 .target = [&options](const std::string& list) { set_cpus(options, list); },
                 .value_name = "A,B"});
  add_connection(out, options);
  out.push_back({.name = "--json", .help = "One JSON object a line", .target = &options.json});
  return out;
}

void validate(Options& options) {
  BenchPlan& plan = options.plan;
  if (plan.group > plan.window) {
    throw BadOption("--group", "is larger than --window");
  }
  if (plan.group == 0) plan.group = std::min(plan.window, 64u);
  if (!options.peer_devices.empty() && (options.listen || options.connect)) {
    throw BadOption("--peer-devices", "is for a receiver that is forked here");
  }
  if (plan.benchmark == Benchmark::kLatency) plan.window = plan.group = 1;
  for (const uint64_t size : plan.sizes) {
    if (plan.benchmark == Benchmark::kMessage && size > Config{}.message_bytes_max) {
      throw BadOption("--sizes",
                      fmt::format("a message has at most {} bytes", Config{}.message_bytes_max));
    }
    if (layout_of(plan, size).source_bytes() > kBytesMax) {
      throw BadOption("--sizes", "needs more than 64G of memory");
    }
  }
}

}  // namespace fabric::tool::bench
