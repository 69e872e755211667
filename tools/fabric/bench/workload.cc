#include "workload.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "pattern.h"

namespace fabric::tool::bench {

void Workload::fill_source(uint64_t round) {
  // To test verify(): flip one bit of the last byte, or keep the bytes of the first round.
  const char* fault = std::getenv("FABRICLIB_TEST_BENCH");
  const std::string_view planted = fault == nullptr ? "" : fault;
  if (planted == "stale" && round > 1) return;
  const auto bytes = side_.first().bytes.first(layout_.source_bytes());
  fill(bytes, round, 0);
  if (planted == "flip") bytes[bytes.size() - layout_.stride + layout_.size - 1] ^= std::byte{1};
}

bool Workload::verify(uint64_t round, uint64_t operations) {
  const uint64_t slots = std::min(operations, layout_.slots);
  for (uint64_t slot = 0; slot < slots; ++slot) {
    const uint64_t at = slot * layout_.stride;
    if (!matches(side_.first().bytes.subspan(at, layout_.size), round, at)) return false;
  }
  return true;
}

uint64_t sender_bytes(const BenchPlan& plan, const Layout& layout) {
  return plan.benchmark == Benchmark::kLatency ? layout.reply_offset() + layout.stride
                                               : layout.source_bytes();
}

uint64_t receiver_bytes(const BenchPlan& plan, const Layout& layout) {
  return plan.benchmark == Benchmark::kLatency ? sender_bytes(plan, layout) : layout.target_bytes();
}

std::unique_ptr<Workload> make_workload(Side& side, uint64_t size) {
  const Layout layout = layout_of(side.plan(), size);
  switch (side.plan().benchmark) {
    case Benchmark::kPaged:
      return make_paged(side, layout);
    case Benchmark::kScatter:
      return make_scatter(side, layout);
    case Benchmark::kLatency:
      return make_latency(side, layout);
    case Benchmark::kMessage:
      return make_message(side, layout);
    case Benchmark::kKv:
      return make_kv(side, layout);
    default:
      return make_stream(side, layout);
  }
}

}  // namespace fabric::tool::bench
