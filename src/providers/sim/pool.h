#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace fabric::sim {

/// A queue in one growing ring buffer: allocates only when it exceeds its previous maximum.
template <class T>
class Fifo {
 public:
  bool empty() const noexcept { return count_ == 0; }
  size_t size() const noexcept { return count_; }
  T& front() noexcept { return items_[head_]; }
  void push(T item) {
    if (count_ == items_.size()) grow();
    items_[(head_ + count_) & (items_.size() - 1)] = std::move(item);
    ++count_;
  }
  T pop() noexcept {
    T item = std::move(items_[head_]);
    head_ = (head_ + 1) & (items_.size() - 1);
    --count_;
    return item;
  }

 private:
  void grow() {
    std::vector<T> larger(items_.empty() ? 16 : items_.size() * 2);
    for (size_t i = 0; i < count_; ++i) {
      larger[i] = std::move(items_[(head_ + i) & (items_.size() - 1)]);
    }
    items_ = std::move(larger);
    head_ = 0;
  }

  std::vector<T> items_;  // a power of two long
  size_t head_ = 0;
  size_t count_ = 0;
};

/// An object pool with indices. Objects keep their address, and their contents (a buffer's
/// capacity) while free.
template <class T>
class Pool {
 public:
  uint32_t take() {
    if (free_.empty()) {
      if (made_ % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
      return made_++;
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give(uint32_t index) { free_.push_back(index); }
  T& operator[](uint32_t index) noexcept { return chunks_[index / kChunk][index % kChunk]; }
  size_t in_use() const noexcept { return made_ - free_.size(); }

 private:
  static constexpr uint32_t kChunk = 256;
  std::vector<std::unique_ptr<T[]>> chunks_;
  uint32_t made_ = 0;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::sim
