#pragma once

#include <cstdint>
#include <vector>

#include <fabric/result.h>

#include "providers/shm/writer_slots.h"

// The owner's side of a fence: how it knows that no thread of a peer stores any more under a validity_epoch
// that was changed. tests/models/fence.pml is the model.

namespace fabric::shm {

/// What this machine lets an owner do. Read once.
struct FenceSupport {
  bool membarrier = false;  ///< writers need no fence of their own
  bool procfs = false;      ///< a thread can be seen to be off its CPU
};
const FenceSupport& fence_support() noexcept;
/// Registers the process with membarrier; call before the first copy and before the first proof. A
/// child of fork() calls it again.
void register_fences() noexcept;
/// After it everything that writers stored before is visible here and they see what was stored here
/// before: membarrier, or nothing but a fence when writers pay for their own. False: it is refused
/// (a seccomp filter of later), and no proof may begin.
[[nodiscard]] bool heavy_fence() noexcept;
/// For tests: as on a machine that lacks them.
void disable_fence_support(bool without) noexcept;

/// Everybody of one peer process who may have been inside a section when the validity_epoch changed.
///
/// Threads: one at a time.
class Proof {
 public:
  /// Call after the validity_epoch has been changed and after heavy_fence(): one fence serves the proofs of
  /// many peers.
  explicit Proof(const PeerWriterSlots& writer);

  /// Ended, dead, or - `ask_kernel` - off the CPU now or since an earlier question. Without
  /// `ask_kernel` only a few loads; with it some tens of microseconds for each thread that is still
  /// inside, and a millisecond when it is just falling asleep.
  bool proved(const PeerWriterSlots& writer, bool ask_kernel) noexcept;

  /// How the last one inside was proved; for statistics.
  enum class By : uint8_t { kIdle, kCompleted, kDead, kSwitched, kOffCpu };
  By by() const noexcept { return by_; }

 private:
  struct WriterInSection {
    uint32_t slot = 0;
    uint32_t intent = 0;
    uint32_t tid = 0;
    bool has_switches = false;     ///< `switches` has been read
    uint64_t switches = 0;  ///< context switches when the kernel was first asked
  };
  /// kIdle: not proved.
  static By check(const PeerWriterSlots& writer, WriterInSection& inside, bool ask_kernel) noexcept;

  std::vector<WriterInSection> in_section_;
  By by_ = By::kIdle;
};

}  // namespace fabric::shm
