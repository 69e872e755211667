#include "providers/shm/open.h"

#include <algorithm>

#include "providers/shm/handles.h"

namespace fabric::shm {

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  if (context.driver->virtual_time()) {
    return fail(Errc::kUnsupported, "shm: the engine's time is virtual");
  }
  if (!spec.devices.empty()) return fail(Errc::kInvalidArgument, "networks.devices");
  if (!spec.near.empty()) return fail(Errc::kInvalidArgument, "networks.near");
  Options options;
  if (const auto* set = std::get_if<Options>(&spec.options)) options = *set;
  const bool absolute = options.directory.empty() || options.directory.front() == '/';
  if (!absolute || options.directory.size() > kDirectoryBytesMax) {
    return fail(Errc::kInvalidArgument, "directory");
  }
  options.lanes = std::clamp(options.lanes, 1u, std::max(spec.rails_max, 1u));
  return ShmNetwork::open(options, context);
}

}  // namespace fabric::shm
