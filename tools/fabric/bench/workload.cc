#include "exercise.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "pattern.h"

namespace fabric::tool::bench {

void Exercise::fill_source(uint64_t round) {
  // For the test of verify(): one wrong bit in the last byte, or the bytes of the first round.
  const char* fault = std::getenv("FABRICLIB_TEST_BENCH");
  const std::string_view planted = fault == nullptr ? "" : fault;
  if (planted == "stale" && round > 1) return;
  const auto bytes = side_.first().bytes.first(shape_.source_bytes());
  fill(bytes, round, 0);
  if (planted == "flip") bytes[bytes.size() - shape_.stride + shape_.size - 1] ^= std::byte{1};
}

bool Exercise::verify(uint64_t round, uint64_t operations) {
  const uint64_t places = std::min(operations, shape_.places);
  for (uint64_t place = 0; place < places; ++place) {
    const uint64_t at = place * shape_.stride;
    if (!matches(side_.first().bytes.subspan(at, shape_.size), round, at)) return false;
  }
  return true;
}

uint64_t sender_bytes(const Plan& plan, const Shape& shape) {
  return plan.verb == Verb::kLatency ? shape.behind_at() + shape.stride : shape.source_bytes();
}

uint64_t receiver_bytes(const Plan& plan, const Shape& shape) {
  return plan.verb == Verb::kLatency ? sender_bytes(plan, shape) : shape.target_bytes();
}

std::unique_ptr<Exercise> make_exercise(Side& side, uint64_t size) {
  const Shape shape = shape_of(side.plan(), size);
  switch (side.plan().verb) {
    case Verb::kPaged:
      return make_paged(side, shape);
    case Verb::kScatter:
      return make_scatter(side, shape);
    case Verb::kLatency:
      return make_latency(side, shape);
    case Verb::kMessage:
      return make_message(side, shape);
    default:
      return make_stream(side, shape);
  }
}

}  // namespace fabric::tool::bench
