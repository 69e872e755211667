#include "providers/shm/handles.h"

namespace fabric::shm {

namespace {

std::string fence_text() {
  const FenceSupport& parts = fence_support();
  std::string text = "section numbers";
  text += guard_kind() == GuardKind::kRestartable ? ", restartable copies" : ", plain copies";
  text += parts.membarrier ? ", membarrier" : ", a barrier per copy";
  text += parts.procfs ? ", procfs" : ", no procfs";
  return text;
}

}  // namespace

ShmRail::ShmRail(ShmNetwork& network, uint32_t lane)
    : network_(network),
      lane_(lane),
      device_("lane" + std::to_string(lane)),
      caps_{.ordered = false,  // pulled bytes may land after bytes that were stored later
            .slice_safe = true,
            .cpu_copy = true,
            .exact_replay = false,   // paths break only when a process dies
            .count_is_final = true,  // each byte is copied once, and counted after that
            .checks_access = false,  // for mapped memory the sender's library checks, not the owner
            .maps_memory = true,
            .fence = FenceKind::kHost,
            .queue_depth = kQueueDepth,
            .path_depth = kQueueDepth,
            .memory_kinds = kind_bit(MemoryKind::kHost),
            .write_bytes_max = uint64_t{1} << 40},
      queued_writes_(kQueueDepth) {
  for (uint32_t i = 0; i < kQueueDepth; ++i) queued_writes_[i].next = i + 1;
}

std::vector<std::pair<std::string, std::string>> ShmRail::facts() const {
  std::vector<std::pair<std::string, std::string>> facts{{"fence", fence_text()}};
  facts.emplace_back("reads of unmapped memory", network_.read_access_text());
  constexpr const char* kNames[] = {"no section running", "section completed", "thread dead",
                                    "context switch", "off cpu"};
  for (size_t i = 0; i < proved_by_.size(); ++i) {
    facts.emplace_back(std::string("fences proved: ") + kNames[i], std::to_string(proved_by_[i]));
  }
  facts.emplace_back("peers", network_.peers_text());
  facts.emplace_back("wake-ups by peers", std::to_string(network_.wakes()));
  return facts;
}

}  // namespace fabric::shm
