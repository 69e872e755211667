// write and rate: a stream of counted writes, in groups.

#include <algorithm>

#include "workload.h"

namespace fabric::tool::bench {
namespace {

/// The window is Config::ops_max (config_of()): a batch would count the same operations again, at a
/// cost for every write. Failures are reported to the Side, which has subscribed.
class Stream final : public Workload {
 public:
  Stream(Side& side, const Layout& layout) : Workload(side, layout), writes_(side.plan().group) {
    const BenchEngine& local = side.first();
    for (Write& write : writes_) {
      write = {.source = local.memory.at(0),
               .target = local.remote.region.at(0),
               .size_bytes = layout.size,
               .imm = local.remote.key};
    }
  }

  void send(uint64_t operations) override {
    slot_ = 0;  // where verify() starts
    for (uint64_t left = operations; left > 0;) {
      const uint64_t n = std::min<uint64_t>(writes_.size(), left);
      move_on(n);
      submit(n);
      left -= n;
      side_.note_progress();
    }
    side_.await(side_.first(), 1);
  }

  void receive(uint64_t operations) override {
    side_.await(side_.first(), operations);
    side_.send_reply();
  }

 private:
  /// Moves the prepared requests to the next slots.
  void move_on(uint64_t n) {
    if (layout_.slots == 1) return;
    for (uint64_t i = 0; i < n; ++i) {
      writes_[i].source.offset = writes_[i].target.offset = slot_;
      slot_ = slot_ + layout_.stride == layout_.source_bytes() ? 0 : slot_ + layout_.stride;
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
  uint64_t slot_ = 0;
};

}  // namespace

std::unique_ptr<Workload> make_stream(Side& side, const Layout& layout) {
  return std::make_unique<Stream>(side, layout);
}

}  // namespace fabric::tool::bench
