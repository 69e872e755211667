#include "plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench_error.h"
#include "pattern.h"

namespace fabric::tool::bench {

const char* to_string(Benchmark benchmark) {
  constexpr std::array<const char*, kBenchmarks.size()> kNames{
      "write", "paged", "scatter", "latency", "rate", "message", "kv", "idle"};
  return kNames[static_cast<size_t>(benchmark)];
}

nlohmann::ordered_json to_json(const BenchPlan& plan) {
  return {{"verb", to_string(plan.benchmark)},
          {"network", plan.network},
          {"sizes", plan.sizes},
          {"window", plan.window},
          {"group", plan.group},
          {"pages", plan.pages},
          {"targets", plan.targets},
          {"layers", plan.layers},
          {"tensors", plan.tensors},
          {"registered", plan.registered},
          {"footprint", plan.footprint},
          {"rails", plan.rails},
          {"threaded", plan.threaded},
          {"seconds", plan.seconds},
          {"repetitions", plan.repetitions}};
}

namespace {

const nlohmann::json& field(const nlohmann::json& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) {
    throw BenchError(fmt::format("the other side's plan has no {}", name));
  }
  return json[name];
}

template <class T>
T number(const nlohmann::json& json, const char* name, uint64_t least, uint64_t most) {
  const nlohmann::json& value = name[0] == '\0' ? json : field(json, name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() < least ||
      value.get<uint64_t>() > most) {
    throw BenchError(fmt::format("the other side's plan: {} is not a number from {} to {}",
                                 name[0] == '\0' ? "a size" : name, least, most));
  }
  return static_cast<T>(value.get<uint64_t>());
}

bool boolean(const nlohmann::json& json, const char* name) {
  const nlohmann::json& value = field(json, name);
  if (!value.is_boolean())
    throw BenchError(fmt::format("the other side's plan: {} is not true or false", name));
  return value.get<bool>();
}

std::string text(const nlohmann::json& json, const char* name) {
  const nlohmann::json& value = field(json, name);
  if (!value.is_string())
    throw BenchError(fmt::format("the other side's plan: {} is not a string", name));
  return value.get<std::string>();
}

}  // namespace

BenchPlan plan_from(const nlohmann::json& json) {
  BenchPlan plan;
  const std::string name = text(json, "verb");
  const auto* found = std::find_if(kBenchmarks.begin(), kBenchmarks.end(),
                                   [&](Benchmark one) { return name == to_string(one); });
  if (found == kBenchmarks.end()) throw BenchError("the other side asks for an unknown benchmark");
  plan.benchmark = *found;
  plan.network = text(json, "network");
  const nlohmann::json& sizes = field(json, "sizes");
  if (!sizes.is_array() || sizes.size() > 1024) throw BenchError("the other side's plan: no sizes");
  for (const nlohmann::json& size : sizes) {
    plan.sizes.push_back(number<uint64_t>(size, "", 1, kBytesMax));
  }
  plan.window = number<uint32_t>(json, "window", 1, kWindowMax);
  plan.group = number<uint32_t>(json, "group", 1, kWindowMax);
  plan.pages = number<uint32_t>(json, "pages", 1, kPagesMax);
  plan.targets = number<uint32_t>(json, "targets", 1, kTargetsMax);
  plan.layers = number<uint32_t>(json, "layers", 1, kLayersMax);
  plan.tensors = number<uint32_t>(json, "tensors", 1, kTensorsMax);
  plan.registered = boolean(json, "registered");
  plan.footprint = number<uint64_t>(json, "footprint", 0, kBytesMax);
  plan.rails = number<uint32_t>(json, "rails", 1, 8);
  plan.threaded = boolean(json, "threaded");
  const nlohmann::json& seconds = field(json, "seconds");
  plan.seconds = seconds.is_number() ? seconds.get<double>() : 0;
  if (!(plan.seconds > 0 && plan.seconds <= kSecondsMax)) {
    throw BenchError("the other side's plan: seconds are out of bounds");
  }
  plan.repetitions = number<uint32_t>(json, "repetitions", 1, kRepetitionsMax);
  for (const uint64_t size : plan.sizes) {
    if (layout_of(plan, size).source_bytes() > kBytesMax) {
      throw BenchError("the other side's plan asks for too much memory");
    }
  }
  return plan;
}

Layout layout_of(const BenchPlan& plan, uint64_t size) {
  Layout layout{.size = size, .stride = (size + kWordBytes - 1) / kWordBytes * kWordBytes};
  if (plan.benchmark == Benchmark::kPaged) {
    layout.source_parts = layout.target_parts = layout.counts = plan.pages;
  } else if (plan.benchmark == Benchmark::kScatter) {
    layout.source_parts = layout.counts = plan.targets;
  } else if (plan.benchmark == Benchmark::kKv) {
    layout.counts = uint64_t{plan.layers} * plan.tensors * plan.pages;
    layout.source_parts = layout.target_parts = layout.counts;
  }
  layout.slots = std::max<uint64_t>(1, plan.footprint / (layout.stride * layout.source_parts));
  return layout;
}

std::vector<uint32_t> page_order(uint32_t pages, uint64_t salt) {
  std::vector<uint32_t> order(pages);
  std::iota(order.begin(), order.end(), 0u);
  for (uint32_t i = pages; i > 1; --i) std::swap(order[i - 1], order[pattern_word(salt, i) % i]);
  return order;
}

}  // namespace fabric::tool::bench
