// paged: many pages in one request, permuted differently at both sides.

#include <algorithm>

#include "pattern.h"
#include "workload.h"

namespace fabric::tool::bench {
namespace {

class Paged final : public Workload {
 public:
  Paged(Side& side, const Layout& layout)
      : Workload(side, layout),
        batch_(need(side.first().engine.make_batch(), "no batch")),
        from_(page_order(side.plan().pages, kSourceOrder)),
        to_(page_order(side.plan().pages, kTargetOrder)) {}

  void send(uint64_t operations) override {
    BenchEngine& local = side_.first();
    PagedWrite request{.source = local.memory.id(),
                       .source_pages = {.indices = from_, .stride_bytes = layout_.stride},
                       .target = local.remote.region,
                       .target_pages = {.indices = to_, .stride_bytes = layout_.stride},
                       .page_bytes = layout_.size,
                       .imm = local.remote.key,
                       .batch = batch_};
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t slot = i % layout_.slots * layout_.source_parts * layout_.stride;
      request.source_pages.offset_bytes = request.target_pages.offset_bytes = slot;
      while (batch_.pending() >= side_.plan().window) side_.turn();
      side_.submit(local.engine, request);
      side_.note_progress();
    }
    side_.await(local, 1);
    if (batch_.failed() > 0) throw BenchError("a paged write failed");
  }

  void receive(uint64_t operations) override {
    side_.await(side_.first(), operations * layout_.counts);
    side_.send_reply();
  }

  bool verify(uint64_t round, uint64_t operations) override {
    const uint64_t slots = std::min(operations, layout_.slots);
    for (uint64_t slot = 0; slot < slots; ++slot) {
      const uint64_t begin = slot * layout_.source_parts;
      for (uint64_t page = 0; page < from_.size(); ++page) {
        const auto bytes =
            side_.first().bytes.subspan((begin + to_[page]) * layout_.stride, layout_.size);
        if (!matches(bytes, round, (begin + from_[page]) * layout_.stride)) return false;
      }
    }
    return true;
  }

 private:
  Batch batch_;
  const std::vector<uint32_t> from_, to_;
};

}  // namespace

std::unique_ptr<Workload> make_paged(Side& side, const Layout& layout) {
  return std::make_unique<Paged>(side, layout);
}

}  // namespace fabric::tool::bench
