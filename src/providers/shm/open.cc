#include "providers/shm/open.h"

#include <algorithm>

#include "providers/shm/handles.h"

namespace fabric::shm {

Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context) {
  if (context.driver->virtual_time()) {
    return fail(Errc::kUnsupported, "shm: the engine's time is virtual");
  }
  ShmNetwork::Options options;
  uint32_t lanes = 0;
  for (const std::string& device : spec.devices) {
    const bool lane = device.size() == 5 && device.starts_with("lane") && device[4] >= '0' &&
                      device[4] < static_cast<char>('0' + kRailsMax);
    if (lane) {
      ++lanes;
    } else if (!device.empty() && device.front() == '/' && options.directory.empty() &&
               device.size() <= kDirectoryBytesMax) {
      options.directory = device;
    } else {
      return fail(Errc::kInvalidArgument, "networks.devices");
    }
  }
  if (lanes > kRailsMax) return fail(Errc::kInvalidArgument, "networks.devices");
  options.lanes = std::clamp(lanes, 1u, std::max(spec.rails_max, 1u));
  return ShmNetwork::open(options, context);
}

}  // namespace fabric::shm
