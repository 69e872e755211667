#include "options.h"

#include <sched.h>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

CLI::Option* add_count(CLI::App& verb, const char* name, uint32_t& value, uint32_t most,
                       const char* help) {
  return verb.add_option(name, value, help)
      ->check(CLI::Range(1u, most))
      ->type_name("N")
      ->capture_default_str();
}

void add_sizes(CLI::App& verb, Plan& plan, const char* defaults) {
  auto* option = verb.add_option_function<std::vector<std::string>>(
      "--sizes",
      [&plan](const std::vector<std::string>& texts) {
        plan.sizes.clear();
        for (const std::string& text : texts) {
          plan.sizes.push_back(need_size("--sizes", text, 1));
        }
      },
      "Bytes, separated by commas; K, M and G are 1024s");
  option->delimiter(',')->type_name("SIZE,...")->default_str(defaults);
  for (const std::string& text : CLI::detail::split(defaults, ',')) {
    plan.sizes.push_back(*size_of(text));
  }
}

void add_footprint(CLI::App& verb, Plan& plan) {
  verb.add_option_function<std::string>(
          "--footprint",
          [&plan](const std::string& text) { plan.footprint = need_size("--footprint", text, 1); },
          "Rotate over so many bytes; without it one place, which stays in the caches")
      ->type_name("SIZE");
}

void add_pins(CLI::App& verb, Options& options) {
  verb.add_option("--pin", options.cpus, "Cores of the sender and of the receiver")
      ->delimiter(',')
      ->expected(1, 2)
      ->type_name("A,B")
      ->check(CLI::Range(0, CPU_SETSIZE - 1));
}

void add_meeting(CLI::App& verb, Options& options) {
  auto* listen =
      verb.add_option_function<std::string>(
              "--listen", [&options](const std::string& address) { options.listen = address; },
              "Be the receiver, and wait for a sender; without ADDRESS for one of this host")
          ->expected(0, 1)
          ->default_str("")
          ->type_name("[ADDRESS]");
  verb.add_option_function<std::string>(
          "--connect", [&options](const std::string& address) { options.connect = address; },
          "Be the sender to the receiver that listens at ADDRESS")
      ->type_name("ADDRESS")
      ->excludes(listen);
}

const char* sizes_of(Verb verb) {
  switch (verb) {
    case Verb::kPaged:
      return "1K,4K,64K";
    case Verb::kScatter:
      return "256,4K,64K";
    case Verb::kLatency:
      return "8,4K,64K";
    case Verb::kRate:
      return "8";
    case Verb::kMessage:
      return "64,4K";
    default:
      return "8,1K,4K,64K,1M,16M";
  }
}

}  // namespace

void add_options(CLI::App& verb, Options& options) {
  Plan& plan = options.plan;
  const Verb which = plan.verb;
  const bool stream = which == Verb::kWrite || which == Verb::kRate;
  const bool idle = which == Verb::kIdle;
  verb.add_option("--network", plan.network, "The network to use; `fabric info` lists them")
      ->capture_default_str()
      ->type_name("NAME")
      ->check(CLI::IsMember(providers()));
  add_count(verb, "--rails", plan.rails, kRailsMax, "How many rails of it");
  if (idle) {
    plan.sizes = {8};
    plan.threaded = true;
    plan.seconds = 10;
    plan.repetitions = 1;
  } else {
    add_sizes(verb, plan, sizes_of(which));
    verb.add_option_function<std::string>(
            "--progress", [&plan](const std::string& how) { plan.threaded = how == "threaded"; },
            "Who drives the engines: the thread that submits, or one of their own")
        ->check(CLI::IsMember({"inline", "threaded"}))
        ->default_str("inline");
  }
  if (!idle && which != Verb::kMessage) {
    verb.add_option_function<std::string>(
            "--memory", [&plan](const std::string& how) { plan.registered = how == "registered"; },
            "From Engine::allocate(), or ordinary memory that was registered")
        ->check(CLI::IsMember({"allocated", "registered"}))
        ->default_str("allocated");
    if (which != Verb::kLatency) add_footprint(verb, plan);
  }
  if (which == Verb::kPaged) {
    plan.window = 4;
    add_count(verb, "--pages", plan.pages, kPagesMax, "Pages of a request; --sizes are theirs");
  }
  if (which == Verb::kScatter) {
    plan.window = 16;
    add_count(verb, "--targets", plan.targets, kTargetsMax,
              "Engines at the other side, each of which gets its part");
  }
  if (!idle && which != Verb::kLatency) {
    add_count(verb, "--window", plan.window, kWindowMax, "Operations in flight");
  }
  if (stream) {
    add_count(verb, "--group", plan.group, kWindowMax,
              "Writes of one submit(span); without it 64, or the window")
        ->default_str("");
  }
  verb.add_option("--duration", plan.seconds, "Of one repetition, in seconds")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, kSecondsMax));
  add_count(verb, "--repetitions", plan.repetitions, kRepetitionsMax,
            "Median and spread are over these");
  add_pins(verb, options);
  add_meeting(verb, options);
  verb.add_flag("--json", options.json, "One object a line and case, for programs");
}

void complete(Options& options) {
  Plan& plan = options.plan;
  if (plan.group > plan.window) {
    throw CLI::ValidationError("--group", "is larger than --window");
  }
  if (plan.group == 0) plan.group = std::min(plan.window, 64u);
  if (plan.verb == Verb::kLatency) plan.window = plan.group = 1;
  for (const uint64_t size : plan.sizes) {
    if (plan.verb == Verb::kMessage && size > Config{}.message_bytes_max) {
      throw CLI::ValidationError(
          "--sizes", fmt::format("a message has at most {} bytes", Config{}.message_bytes_max));
    }
    if (shape_of(plan, size).source_bytes() > kBytesMax) {
      throw CLI::ValidationError("--sizes", "takes more than 64G of memory");
    }
  }
}

}  // namespace fabric::tool::bench
