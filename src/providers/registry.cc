#include "core/registry.h"

#include "providers/self/open.h"
#include "providers/shm/open.h"
#include "providers/sim/open.h"
#ifdef FABRIC_HAS_VERBS
#include "providers/verbs/open.h"
#endif

// The composition root: the only file that names all providers.

namespace fabric::core {

namespace {

struct Provider {
  const char* name;
  Result<std::unique_ptr<OpenNetwork>> (*open)(const Network& spec, const OpenContext& context);
};

constexpr Provider kProviders[] = {
    {"self", &self::open},
    {"shm", &shm::open},
#ifdef FABRIC_HAS_VERBS
    {"verbs", &verbs::open},
#endif
    {"sim", &sim::open},
};

}  // namespace

Result<std::unique_ptr<OpenNetwork>> open_network(const Network& spec, const OpenContext& context) {
  for (const Provider& provider : kProviders) {
    if (spec.provider == provider.name) return provider.open(spec, context);
  }
  return fail(Errc::kUnsupported, "networks.provider");
}

std::vector<std::string> built_providers() {
  std::vector<std::string> names;
  for (const Provider& provider : kProviders) names.emplace_back(provider.name);
  return names;
}

}  // namespace fabric::core
