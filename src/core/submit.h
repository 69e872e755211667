#pragma once

#include "core/core.h"

// Shared by the files of the submitter's side: submit.cc and submit_lists.cc.

namespace fabric::core {

/// offset + size <= limit, without overflow.
inline bool fits(uint64_t offset, uint64_t size, uint64_t limit) noexcept {
  return offset <= limit && size <= limit - offset;
}

/// The common part of all requests.
struct EngineCore::Request {
  OpKind kind{};
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  const Notify* notify = nullptr;
  PeerId peer{};  ///< of operations with one peer: its quota is charged
};

}  // namespace fabric::core
