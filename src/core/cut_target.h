#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/op.h"

namespace fabric::core {

/// How far a scatter target has come that is more than one work request. PendingFragments and
/// InflightWrites of the target have its index; it is given back when its last slice completes.
struct CutTarget : SliceProgress {
  bool used = false;
};

/// A pool of them. Chunks are never freed, so that the steady state allocates nothing; the lists of
/// targets are bounded, and they bound the pool. State lock held.
class CutTargetPool {
 public:
  CutTarget& at(uint32_t index) noexcept { return chunks_[index / kChunk][index % kChunk]; }
  const CutTarget& at(uint32_t index) const noexcept {
    return chunks_[index / kChunk][index % kChunk];
  }

  uint32_t take(const SliceProgress& progress) {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    at(index) = {progress, true};
    return index;
  }
  void give_back(uint32_t index) {
    at(index).used = false;
    free_.push_back(index);
  }

  uint64_t size() const noexcept { return chunks_.size() * kChunk; }
  uint64_t held() const noexcept { return size() - free_.size(); }

 private:
  static constexpr uint32_t kChunk = 256;
  void grow() {
    const auto base = static_cast<uint32_t>(size());
    chunks_.push_back(std::make_unique<CutTarget[]>(kChunk));
    free_.reserve(base + kChunk);
    for (uint32_t i = kChunk; i > 0; --i) free_.push_back(base + i - 1);
  }
  std::vector<std::unique_ptr<CutTarget[]>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::core
