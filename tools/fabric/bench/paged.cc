// paged: many pages in one request, in another order at both ends.

#include <algorithm>

#include "exercise.h"
#include "pattern.h"

namespace fabric::tool::bench {
namespace {

class Paged final : public Exercise {
 public:
  Paged(Side& side, const Shape& shape)
      : Exercise(side, shape),
        batch_(need(side.first().engine.make_batch(), "no batch")),
        from_(page_order(side.plan().pages, kSourceOrder)),
        to_(page_order(side.plan().pages, kTargetOrder)) {}

  void send(uint64_t operations) override {
    Port& port = side_.first();
    PagedWrite request{.source = port.memory.id(),
                       .source_pages = {.indices = from_, .stride_bytes = shape_.stride},
                       .target = port.other.region,
                       .target_pages = {.indices = to_, .stride_bytes = shape_.stride},
                       .page_bytes = shape_.size,
                       .imm = port.other.key,
                       .batch = batch_};
    for (uint64_t i = 0; i < operations; ++i) {
      const uint64_t place = i % shape_.places * shape_.source_parts * shape_.stride;
      request.source_pages.offset_bytes = request.target_pages.offset_bytes = place;
      while (batch_.pending() >= side_.plan().window) side_.turn();
      side_.submit(port.engine, request);
      side_.moved();
    }
    side_.await(port, 1);
    if (batch_.failed() > 0) throw Failed("a paged write failed");
  }

  void receive(uint64_t operations) override {
    side_.await(side_.first(), operations * shape_.counts);
    side_.answer();
  }

  bool verify(uint64_t round, uint64_t operations) override {
    const uint64_t places = std::min(operations, shape_.places);
    for (uint64_t place = 0; place < places; ++place) {
      const uint64_t begin = place * shape_.source_parts;
      for (uint64_t page = 0; page < from_.size(); ++page) {
        const auto bytes =
            side_.first().bytes.subspan((begin + to_[page]) * shape_.stride, shape_.size);
        if (!matches(bytes, round, (begin + from_[page]) * shape_.stride)) return false;
      }
    }
    return true;
  }

 private:
  Batch batch_;
  const std::vector<uint32_t> from_, to_;
};

}  // namespace

std::unique_ptr<Exercise> make_paged(Side& side, const Shape& shape) {
  return std::make_unique<Paged>(side, shape);
}

}  // namespace fabric::tool::bench
