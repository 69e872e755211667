#include "options.h"

#include <sched.h>
#include <charconv>

#include <fmt/format.h>

#include <fabric/fabric.h>

namespace fabric::tool::bench {
namespace {

/// 8, 64K, 1M, 2G: in steps of 1024. Nothing when it is no size.
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
    throw CLI::ValidationError(option, fmt::format("'{}' is no size from {} to 64G (like 8, 64K, "
                                                   "1M)",
                                                   text, least));
  }
  return *size;
}

/// CLI11's own range takes "nan", and has its words in every line of the help.
template <class T>
CLI::Validator within(T least, T most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    T value{};
    const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return good ? "" : fmt::format("'{}' is not a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "");
}

/// One of some words, which the help and the completion of shells show.
CLI::Option* add_choice(CLI::App& verb, const char* name, const char* first, const char* second,
                        bool& is_second, const char* help) {
  return verb
      .add_option_function<std::string>(
          name, [&is_second, second](const std::string& word) { is_second = word == second; }, help)
      ->type_name("WORD")
      ->check(CLI::IsMember({first, second}))
      ->default_str(first);
}

/// The networks that run in real time: a simulated one has nothing to measure.
std::vector<std::string> networks() {
  std::vector<std::string> names = providers();
  std::erase(names, "sim");
  return names;
}

CLI::Option* add_count(CLI::App& verb, const char* name, uint32_t& value, uint32_t most,
                       const char* help) {
  return verb.add_option(name, value, help)
      ->check(within(1u, most))
      ->type_name("N")
      ->capture_default_str();
}

void add_sizes(CLI::App& verb, BenchPlan& plan, const char* defaults) {
  const auto take = [&plan](const std::string& list) {
    plan.sizes.clear();
    for (const std::string& text : CLI::detail::split(list, ',')) {
      plan.sizes.push_back(need_size("--sizes", text, 1));
    }
  };
  verb.add_option_function<std::string>("--sizes", take, "Bytes; K, M and G are 1024s")
      ->type_name("SIZE,...")
      ->default_str(defaults);
  take(defaults);
}

void add_footprint(CLI::App& verb, BenchPlan& plan) {
  verb.add_option_function<std::string>(
          "--footprint",
          [&plan](const std::string& text) { plan.footprint = need_size("--footprint", text, 1); },
          "Rotate over so many bytes; else one slot is hot")
      ->type_name("SIZE");
}

void add_pins(CLI::App& verb, Options& options) {
  verb.add_option_function<std::string>(
          "--pin",
          [&options](const std::string& list) {
            cpu_set_t allowed;
            CPU_ZERO(&allowed);
            (void)::sched_getaffinity(0, sizeof(allowed), &allowed);  // else none is allowed
            for (const std::string& text : CLI::detail::split(list, ',')) {
              int cpu = -1;
              const char* const last = text.data() + text.size();
              const auto [end, error] = std::from_chars(text.data(), last, cpu);
              if (error != std::errc{} || end != last || cpu < 0 || cpu >= CPU_SETSIZE ||
                  !CPU_ISSET(static_cast<size_t>(cpu), &allowed)) {
                throw CLI::ValidationError("--pin", fmt::format("'{}' is no core here", text));
              }
              options.cpus.push_back(cpu);
            }
            if (options.cpus.size() > 2) throw CLI::ValidationError("--pin", "takes two cores");
          },
          "Cores of the sender and of the receiver")
      ->type_name("A,B");
}

void add_devices(CLI::App& verb, Options& options) {
  const auto add = [&verb](const char* name, std::vector<std::string>& devices, const char* help) {
    verb.add_option_function<std::string>(
            name, [&devices](const std::string& list) { devices = CLI::detail::split(list, ','); },
            help)
        ->type_name("NAME,...");
  };
  add("--devices", options.plan.devices, "Devices of this side; also options, as gid_index=3");
  add("--peer-devices", options.peer_devices, "Devices of a receiver that is started here");
}

void add_meeting(CLI::App& verb, Options& options) {
  auto* listen =
      verb.add_option_function<std::string>(
              "--listen", [&options](const std::string& address) { options.listen = address; },
              "Be the receiver of one run; without ADDRESS: of this host")
          ->expected(0, 1)
          ->default_str("")
          ->type_name("[ADDRESS]");
  verb.add_option_function<std::string>(
          "--connect", [&options](const std::string& address) { options.connect = address; },
          "Be the sender, to who listens at ADDRESS")
      ->type_name("ADDRESS")
      ->excludes(listen);
}

const char* sizes_of(Benchmark benchmark) {
  switch (verb) {
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
    default:
      return "8,1K,4K,64K,1M,16M";
  }
}

}  // namespace

void add_options(CLI::App& verb, Options& options) {
  BenchPlan& plan = options.plan;
  const Benchmark which = plan.benchmark;
  const bool stream = which == Benchmark::kWrite || which == Benchmark::kRate;
  const bool idle = which == Benchmark::kIdle;
  verb.add_option("--network", plan.network, "The network; `fabric info` says which work here")
      ->capture_default_str()
      ->type_name("WORD")
      ->check(CLI::IsMember(networks()));
  add_count(verb, "--rails", plan.rails, kRailsMax, "How many rails of it");
  add_devices(verb, options);
  if (idle) {
    plan.sizes = {8};
    plan.threaded = true;
    plan.seconds = 10;
    plan.repetitions = 1;
  } else {
    add_sizes(verb, plan, sizes_of(which));
    add_choice(verb, "--progress", "inline", "threaded", plan.threaded,
               "Who drives the engines: who submits, or their threads");
  }
  if (!idle && which != Benchmark::kMessage) {
    add_choice(verb, "--memory", "allocated", "registered", plan.registered,
               "From Engine::allocate(), or ordinary memory");
    if (which != Benchmark::kLatency) add_footprint(verb, plan);
  }
  if (which == Benchmark::kPaged) {
    plan.window = 4;
    add_count(verb, "--pages", plan.pages, kPagesMax, "Pages of a request; --sizes are theirs");
  }
  if (which == Benchmark::kScatter) {
    plan.window = 16;
    add_count(verb, "--targets", plan.targets, kTargetsMax,
              "Engines at the other side, each of which gets its part");
  }
  if (!idle && which != Benchmark::kLatency) {
    add_count(verb, "--window", plan.window, kWindowMax, "Operations in flight");
  }
  if (stream) {
    add_count(verb, "--group", plan.group, kWindowMax,
              "Writes of one submit(span); else 64, or the window")
        ->default_str("");
  }
  verb.add_option("--duration", plan.seconds, "Of one repetition, in seconds")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(within(0.001, kSecondsMax));
  add_count(verb, "--repetitions", plan.repetitions, kRepetitionsMax,
            "Median and spread are over these");
  add_pins(verb, options);
  add_meeting(verb, options);
  verb.add_flag("--json", options.json, "One object a line and case, for programs");
}

void validate(Options& options) {
  BenchPlan& plan = options.plan;
  if (plan.group > plan.window) {
    throw CLI::ValidationError("--group", "is larger than --window");
  }
  if (plan.group == 0) plan.group = std::min(plan.window, 64u);
  if (!options.peer_devices.empty() && (options.listen || options.connect)) {
    throw CLI::ValidationError("--peer-devices", "is for a receiver that is started here");
  }
  if (plan.benchmark == Benchmark::kLatency) plan.window = plan.group = 1;
  for (const uint64_t size : plan.sizes) {
    if (plan.benchmark == Benchmark::kMessage && size > Config{}.message_bytes_max) {
      throw CLI::ValidationError(
          "--sizes", fmt::format("a message has at most {} bytes", Config{}.message_bytes_max));
    }
    if (layout_of(plan, size).source_bytes() > kBytesMax) {
      throw CLI::ValidationError("--sizes", "takes more than 64G of memory");
    }
  }
}

}  // namespace fabric::tool::bench
