#include "core/op.h"

// Names of operation kinds. A pure function: any thread.

namespace fabric::core {

const char* to_string(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::kWrite:
      return "write";
    case OpKind::kPaged:
      return "paged write";
    case OpKind::kListed:
      return "listed writes";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kSignal:
      return "signal";
    case OpKind::kSend:
      return "send";
    case OpKind::kTimer:
      return "timer";
    case OpKind::kResolve:
      return "resolve";
    case OpKind::kFence:
      return "fence";
    case OpKind::kDrop:
      return "drop";
    case OpKind::kRevoke:
      return "revoke";
    case OpKind::kDeregister:
      return "deregister";
    case OpKind::kExpect:
      return "expect";
  }
  return "?";
}

}  // namespace fabric::core
