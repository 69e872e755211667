#include "providers/verbs/open.h"

#include "providers/verbs/handles.h"

namespace fabric::verbs {

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  if (context.driver->virtual_time()) {
    return fail(Errc::kUnsupported, "verbs: the engine's time is virtual");
  }
  return VerbsNetwork::open(spec, context);
}

}  // namespace fabric::verbs
