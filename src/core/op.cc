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

void OpTable::give_back(Op& op) noexcept {
  if (op.held_by != UINT32_MAX) held_[op.held_by].fetch_sub(1, std::memory_order_relaxed);
  op.held_by = UINT32_MAX;
  op.whole = false;
  op.stop_code = op.early_end = op.code = Errc::kOk;
  op.ended_early = false;
  op.channel = 0;
  op.batch = {};
  op.notify = {};
  op.source = {};
  op.target = {};
  op.peer = op.failed_peer = {};
  op.group = {};
  op.imm = {};
  op.source_offset = op.target_offset = op.source_stride = op.target_stride = op.size_bytes = 0;
  op.list = {};
  op.resolved = {};
  op.expectation = {};
  op.expected = 0;
  op.parts = op.shards = op.cut = 1;
  op.slice_bytes = UINT64_MAX;
  op.parts_ended = op.shards_ended = op.shards_failed = op.shards_unknown = 0;
  op.shards_counted = 0;
  op.pieces_posted = 0;
  op.entries = UINT32_MAX;
  op.parts_delivered = op.parts_failed = op.parts_unknown = op.first_failed = 0;
  op.bytes_delivered = 0;
  op.step = op.awaited = op.ref = 0;
  op.cancel_asked.store(false, std::memory_order_relaxed);
  op.stage.store(OpStage::kFree, std::memory_order_relaxed);
  uint32_t next = op.generation.load(std::memory_order_relaxed) + 1;
  if (next == 0) next = 1;
  op.generation.store(next, std::memory_order_release);  // pairs with find()
  free_.push(op.self);
  taken_.fetch_sub(1, std::memory_order_seq_cst);  // pairs with take() and close()
}

}  // namespace fabric::core
