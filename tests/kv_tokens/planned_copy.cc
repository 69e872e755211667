#include "kv_tokens/planned_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

namespace fabric::test {

using transformer::ShardedCache;

PlannedCopy::PlannedCopy(const kv::TransferPlan& plan, ShardedCache& source, ShardedCache& target,
                         Request request)
    : plan_(plan),
      source_(source),
      target_(target),
      request_(std::move(request)),
      sent_(plan.pairs.size()) {}

void PlannedCopy::push(uint32_t layer, kv::TokenRange chunk) {
  for (uint32_t pair = 0; pair < plan_.pairs.size(); ++pair) {
    for (const kv::PairGroup& group : plan_.pairs[pair].groups) {
      push_group(pair, group, layer, chunk);
    }
  }
}

void PlannedCopy::push_group(uint32_t pair_index, const kv::PairGroup& group, uint32_t layer,
                             kv::TokenRange chunk) {
  const kv::LayerSlices* slices = kv::find_layer(group, layer);
  if (slices == nullptr) return;
  const kv::PairPlan& pair = plan_.pairs[pair_index];
  const auto units = kv::chunk_units(plan_, group.group, request_.tokens, chunk);
  ASSERT_TRUE(units) << units.error().what;
  std::vector<kv::UnitIndices> lists;
  for (uint32_t list = 0; list < group.lists.size(); ++list) {
    auto indices = kv::unit_indices(plan_, pair, group, list, *units, request_.tokens.seed,
                                    {request_.source_pages, request_.target_pages});
    ASSERT_TRUE(indices) << indices.error().what;
    lists.push_back(*std::move(indices));
  }
  for (const kv::PageSlice& slice : kv::slices_of(group, *slices)) {
    copy_slice(pair, slice, lists[slice.list]);
    sent_[pair_index] += lists[slice.list].units.size() * slice.inner_count;
  }
  for (const kv::StagedWrite& staged : kv::staged_of(group, *slices)) {
    copy_staged(pair, staged, lists[staged.list]);
    sent_[pair_index] += lists[staged.list].units.size();
  }
}

void PlannedCopy::copy_slice(const kv::PairPlan& pair, const kv::PageSlice& slice,
                             const kv::UnitIndices& indices) {
  const auto from = source_.ranks()[pair.source].memory();
  const auto to = target_.ranks()[pair.target].memory();
  for (size_t i = 0; i < indices.units.size(); ++i) {
    for (uint32_t inner = 0; inner < slice.inner_count; ++inner) {
      const uint64_t source = slice.source_offset_bytes +
                              indices.source[i] * slice.source_stride_bytes +
                              inner * slice.source_inner_stride_bytes;
      const uint64_t target = slice.target_offset_bytes +
                              indices.target[i] * slice.target_stride_bytes +
                              inner * slice.target_inner_stride_bytes;
      ASSERT_LE(source + slice.bytes, from.size());
      ASSERT_LE(target + slice.bytes, to.size());
      std::memcpy(&to[target], &from[source], slice.bytes);
    }
  }
}

void PlannedCopy::copy_staged(const kv::PairPlan& pair, const kv::StagedWrite& staged,
                              const kv::UnitIndices& indices) {
  const std::span<const std::byte> from = source_.ranks()[pair.source].memory();
  const std::span<std::byte> to = target_.ranks()[pair.target].memory();
  std::vector<std::byte> packed(staged.bytes);
  for (size_t i = 0; i < indices.units.size(); ++i) {
    const auto gathered = kv::gather(staged, indices.source[i], std::span(&from, 1), packed);
    ASSERT_TRUE(gathered) << gathered.error().what;
    const auto scattered = kv::scatter(staged, indices.target[i], packed, std::span(&to, 1));
    ASSERT_TRUE(scattered) << scattered.error().what;
  }
}

bool PlannedCopy::counts_are_exact() const {
  for (uint32_t pair = 0; pair < plan_.pairs.size(); ++pair) {
    const auto counts = kv::counts(plan_, plan_.pairs[pair], request_.tokens);
    if (!counts || counts->total != sent_[pair]) return false;
  }
  return true;
}

}  // namespace fabric::test
