// write and rate: a stream of counted writes, in groups.

#include <algorithm>

#include "exercise.h"

namespace fabric::tool::bench {
namespace {

/// The window is the engine's own bound of operations in flight (config_of()): a batch would count
/// the same again, for every write. Failures go to the side, which subscribed to them.
class Stream final : public Exercise {
 public:
  Stream(Side& side, const Shape& shape) : Exercise(side, shape), writes_(side.plan().group) {
    const Port& port = side.first();
    for (Write& write : writes_) {
      write = {.source = port.memory.at(0),
               .target = port.other.region.at(0),
               .size_bytes = shape.size,
               .imm = port.other.key};
    }
  }

  void send(uint64_t operations) override {
    place_ = 0;  // verify() counts from there
    for (uint64_t left = operations; left > 0;) {
      const uint64_t n = std::min<uint64_t>(writes_.size(), left);
      move_on(n);
      submit(n);
      left -= n;
      side_.moved();
    }
    side_.await(side_.first(), 1);
  }

  void receive(uint64_t operations) override {
    side_.await(side_.first(), operations);
    side_.answer();
  }

 private:
  /// The requests were made once; only where they write changes, if that changes at all.
  void move_on(uint64_t n) {
    if (shape_.places == 1) return;
    for (uint64_t i = 0; i < n; ++i) {
      writes_[i].source.offset = writes_[i].target.offset = place_;
      place_ = place_ + shape_.stride == shape_.source_bytes() ? 0 : place_ + shape_.stride;
    }
  }

  void submit(uint64_t n) {
    for (uint64_t first = 0; first < n;) {
      const auto taken =
          side_.first().engine.submit(std::span<const Write>(&writes_[first], n - first));
      if (taken) {
        first += *taken;
      } else if (taken.error().code != Errc::kExhausted) {
        need<uint32_t>(taken.error(), "write");
      }
      side_.turn();
    }
  }

  std::vector<Write> writes_;
  uint64_t place_ = 0;
};

}  // namespace

std::unique_ptr<Exercise> make_stream(Side& side, const Shape& shape) {
  return std::make_unique<Stream>(side, shape);
}

}  // namespace fabric::tool::bench
