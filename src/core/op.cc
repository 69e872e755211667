#include "core/op.h"

namespace fabric::core {

const char* to_string(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::kWrite:
      return "write";
    case OpKind::kPaged:
      return "paged write";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kSignal:
      return "signal";
    case OpKind::kSend:
      return "send";
    case OpKind::kAlarm:
      return "alarm";
    case OpKind::kResolve:
      return "resolve";
    case OpKind::kFence:
      return "fence";
    case OpKind::kDeregister:
      return "deregister";
    case OpKind::kExpect:
      return "expect";
  }
  return "?";
}

void OpTable::reset(Op& op) noexcept {
  op.held_by = UINT32_MAX;
  op.cancel_asked.store(false, std::memory_order_relaxed);
  op.stage.store(OpStage::kFree, std::memory_order_relaxed);
  uint32_t next = op.generation.load(std::memory_order_relaxed) + 1;
  if (next == 0) next = 1;
  op.generation.store(next, std::memory_order_release);  // pairs with find()
}

}  // namespace fabric::core
