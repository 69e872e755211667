#pragma once

#include <cstdint>
#include <vector>

#include <fabric/result.h>

#include "providers/shm/writer_slots.h"

// The owner's side of a fence: how it proves that no thread of a peer can store any more under an
// epoch (of a path or an rkey) that it has revoked. Model: tests/models/fence.pml.

namespace fabric::shm {

/// What this machine supports. Probed once.
struct FenceSupport {
  bool membarrier = false;  ///< copies need no full barrier in each section
  bool procfs = false;      ///< shows whether a thread is off CPU
};
const FenceSupport& fence_support() noexcept;
/// Registers the process for membarrier. Call it before the first copy and the first proof, and
/// again in a child of fork().
void register_membarrier() noexcept;
/// A full barrier on all CPUs that run writers: their earlier stores are visible here, and our
/// earlier stores to them. membarrier(), or a plain one if each section has its own. False if the
/// kernel refuses (a seccomp filter installed later): then no proof may begin.
[[nodiscard]] bool heavy_barrier() noexcept;
/// For tests: behaves like a machine without this support.
void disable_fence_support(bool without) noexcept;

/// The proof, for one peer process, that no section that may have seen the old epoch is running.
/// The constructor snapshots the writer slots that are in a section; proved() removes each of them
/// once it has left that section, died, or was off CPU (a restartable section then rechecks the
/// epoch). Later sections see the new epoch and need no proof.
///
/// Owner: an RkeyFence or a closing InPath. Threads: one at a time (the worker).
class Proof {
 public:
  /// Construct after the epoch was changed and after heavy_barrier(); one call serves the proofs
  /// for many peers.
  explicit Proof(const PeerWriterSlots& writer);

  /// True once every snapshotted section is proved to be over. Without `ask_kernel`: a few loads,
  /// sees completed sections and dead threads. With it: also reads procfs, tens of
  /// microseconds for each remaining thread (a millisecond while it is just going to sleep).
  bool proved(const PeerWriterSlots& writer, bool ask_kernel) noexcept;

  /// How a section was proved to be over. kIdle means that none was proved: from by(), that there
  /// was none to prove (or none is proved yet); from check(), that this one may still be running.
  enum class By : uint8_t { kIdle, kCompleted, kDead, kSwitched, kOffCpu };
  /// How the last remaining section was proved; for statistics.
  By by() const noexcept { return by_; }

 private:
  struct WriterInSection {
    uint32_t slot = 0;
    uint32_t section_seq = 0;
    uint32_t tid = 0;
    bool has_switches = false;  ///< `switches` has been read
    uint64_t switches = 0;      ///< context switches when the kernel was first asked
  };
  static By check(const PeerWriterSlots& writer, WriterInSection& inside, bool ask_kernel) noexcept;

  std::vector<WriterInSection> in_section_;
  By by_ = By::kIdle;
};

}  // namespace fabric::shm
