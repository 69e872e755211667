#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include <fabric/fabric.h>

#include "control_socket.h"
#include "transformer.h"

// The child processes. Each opens its own engine. `control` carries commands and reports to and
// from the parent; everything else goes through the engines.

namespace demo {

struct RoleOptions {
  std::string name{};            ///< "prefill-1"
  std::string network{};         ///< for fabric::parse_network()
  fabric::Nanos peer_timeout{};  ///< silence after which a peer is stalled
  fabric::Nanos lost_timeout{};  ///< and lost
  transformer::Attention attention = transformer::Attention::kGrouped;
};

int run_router(const ControlSocket& control, const RoleOptions& options);
int run_prefiller(const ControlSocket& control, const RoleOptions& options);
int run_decoder(const ControlSocket& control, const RoleOptions& options);

/// The value; exits if there is none. Without destructors, because other threads may be running.
template <class T>
T need(fabric::Result<T> result, const char* call) {
  if (!result) {
    std::fprintf(stderr, "demo: %s: %s (%s)\n", call, to_string(result.error().code),
                 result.error().what);
    std::_Exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace demo
