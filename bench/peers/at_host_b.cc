// Loaded before libibverbs into a program that is to run on host B of the guest, and is told the
// device of host A: the server of ucx_perftest takes over the options of its client, so both ends
// would be on one device, which passes packets to itself past the whole network.

#include <infiniband/verbs.h>

#include <cstring>

extern "C" const char* ibv_get_device_name(ibv_device* device) {
  if (std::strcmp(device->name, "xa0") == 0) return "xb0";
  if (std::strcmp(device->name, "xb0") == 0) return "xa0";
  return device->name;
}
