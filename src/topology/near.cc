#include "topology/near.h"

#include <sched.h>

#include <charconv>
#include <cstdlib>
#include <memory>

namespace fabric::topology {

namespace {

std::optional<uint32_t> ordinal_of(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::vector<uint32_t> allowed_cpus() {
  // The kernel refuses a mask that is shorter than its own; no kernel has more CPUs than this.
  constexpr size_t kCpusMax = 1 << 16;
  for (size_t count = CPU_SETSIZE; count <= kCpusMax; count *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(count), [](cpu_set_t* set) { CPU_FREE(set); });
    if (mask == nullptr) return {};
    const size_t bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, mask.get());
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) continue;
    std::vector<uint32_t> cpus;
    for (uint32_t cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

}  // namespace

std::optional<Near> parse_near(std::string_view text) {
  if (text == "auto") return Near{.kind = Near::Kind::kAuto};
  const auto numbered = [&](std::string_view prefix, Near::Kind kind) -> std::optional<Near> {
    const auto number = ordinal_of(text.substr(prefix.size()));
    if (!number) return std::nullopt;
    return Near{.kind = kind, .number = *number};
  };
  if (text.starts_with("gpu:")) return numbered("gpu:", Near::Kind::kGpu);
  if (text.starts_with("gpu")) return numbered("gpu", Near::Kind::kGpu);
  if (text.starts_with("numa:")) return numbered("numa:", Near::Kind::kNuma);
  const auto address = parse_pci_address(text);
  if (!address) return std::nullopt;
  return Near{.kind = Near::Kind::kPci, .address = *address};
}

ProcessView this_process() {
  ProcessView view{.cpus = allowed_cpus()};
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
    view.cuda_visible_devices = visible;
  }
  return view;
}

}  // namespace fabric::topology
