#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include <fabric/fabric.h>

#include "control_socket.h"

// The child processes. Each opens its own engine. `control` carries offers, commands and statistics
// to and from the parent; pages, requests and acknowledgements go through the engines.

namespace demo {

struct RoleOptions {
  uint32_t receiver_id = 0;  ///< number of the receiver
  uint32_t lanes = 2;
  fabric::Nanos peer_timeout{};  ///< silence after which a peer is stalled
};

int run_source(const ControlSocket& control, const RoleOptions& options);
int run_receiver(const ControlSocket& control, const RoleOptions& options);

/// Opens an engine whose warnings go to the parent, which owns the terminal.
///
/// Lifetime: `control` outlives the engine.
fabric::Engine open_engine(const ControlSocket& control, const RoleOptions& options,
                           std::string role);

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
