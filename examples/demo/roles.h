#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <utility>

#include <fabric/fabric.h>

#include "control_socket.h"

// What the child processes do. Each opens an engine of its own and talks to the parent by `control`
// only about receiver_id is there and what was seen; the pages travel by the engines.

namespace demo {

struct RoleOptions {
  uint32_t receiver_id = 0;  ///< number of the receiver
  uint32_t lanes = 2;
  fabric::Nanos peer_timeout{};  ///< silence after which a peer is stalled
};

int run_source(const ControlSocket& control, const RoleOptions& options);
int run_receiver(const ControlSocket& control, const RoleOptions& options);

/// Warnings of the engine go to the parent, which knows where the cursor is.
///
/// Lifetime: `control` outlives the engine.
fabric::Engine open_engine(const ControlSocket& control, const RoleOptions& options, std::string role);

/// For calls that fail only when the demo cannot go on. The process sockets at once: other threads of
/// it may be in the middle of something.
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
