#include "providers/verbs/open.h"

#include "providers/verbs/handles.h"

namespace fabric::verbs {

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  if (context.driver->virtual_time()) {
    return fail(Errc::kUnsupported, "verbs: the engine's time is virtual");
  }
  const auto options = parse_options(spec.devices);
  if (!options) return options.error();
  return VerbsNetwork::open(*options, spec.rails_max, context);
}

}  // namespace fabric::verbs
