#include "providers/shm/proof.h"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/unique_fd.h"

namespace fabric::shm {

namespace {

// Relaxed: tests set it while no thread copies.
std::atomic<bool> support_disabled{false};

long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0); }

/// A procfs file of one thread, truncated to the buffer: a status file is longer only for a user in
/// several thousand groups.
class ThreadFile {
 public:
  ThreadFile(int32_t pid, uint32_t tid, const char* name) noexcept {
    std::array<char, 64> path;
    *fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/task/{}/{}", pid, tid, name).out = 0;
    const UniqueFd fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
    if (!fd) return;
    while (size_ < text_.size()) {
      const ssize_t n = read(fd.get(), text_.data() + size_, text_.size() - size_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      size_ += static_cast<size_t>(n);
    }
  }

  std::string_view text() const noexcept { return {text_.data(), size_}; }

  /// The text after `name`, colon and tab, up to the end of the line.
  std::optional<std::string_view> field(std::string_view name) const noexcept {
    std::string_view rest = text();
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos) return std::nullopt;  // truncated
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(end + 1);
      if (line.starts_with(name) && line.substr(name.size()).starts_with(":\t")) {
        return line.substr(name.size() + 2);
      }
    }
    return std::nullopt;
  }

  /// A field that consists of one number.
  std::optional<uint64_t> number(std::string_view name) const noexcept {
    const auto digits = field(name);
    uint64_t value = 0;
    if (!digits) return std::nullopt;
    const auto end = digits->data() + digits->size();
    const auto parsed = std::from_chars(digits->data(), end, value);
    if (parsed.ec != std::errc{} || parsed.ptr != end) return std::nullopt;
    return value;
  }

 private:
  std::array<char, 16384> text_;
  size_t size_ = 0;
};

/// The thread's number of context switches. Empty if unknown, or if `tid` may be another thread's:
/// a thread in a nested pid namespace has several tids (NSpid), and its slot holds the innermost.
std::optional<uint64_t> context_switches(int32_t pid, uint32_t tid) noexcept {
  const ThreadFile status(pid, tid, "status");
  if (status.number("NSpid") != tid) return std::nullopt;
  const auto voluntary = status.number("voluntary_ctxt_switches");
  const auto forced = status.number("nonvoluntary_ctxt_switches");
  if (!voluntary || !forced) return std::nullopt;
  return *voluntary + *forced;
}

/// Stopped, asleep or waiting for a page. The kernel reports anything but "running" only after the
/// thread has left its CPU.
bool off_cpu(int32_t pid, uint32_t tid) noexcept {
  const ThreadFile syscall_file(pid, tid, "syscall");
  const std::string_view text = syscall_file.text();
  return !text.empty() && !text.starts_with("running");
}

/// Whether /proc belongs to our pid namespace: in another one all pids differ, ours included.
bool procfs_is_ours() noexcept {
  std::array<char, 32> own{};
  if (readlink("/proc/self", own.data(), own.size() - 1) <= 0) return false;
  const auto pid = getpid();
  if (std::string_view(own.data()) != std::string_view(fmt::format_int(pid).c_str())) return false;
  return context_switches(pid, static_cast<uint32_t>(gettid())).has_value();
}

}  // namespace

const FenceSupport& fence_support() noexcept {
  static const FenceSupport found = [] {
    constexpr long kNeeded =
        MEMBARRIER_CMD_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
    const long has = membarrier(MEMBARRIER_CMD_QUERY);
    return FenceSupport{.membarrier = has > 0 && (has & kNeeded) == kNeeded &&
                                      membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0,
                        .procfs = procfs_is_ours()};
  }();
  static constexpr FenceSupport kNoSupport{};
  return support_disabled.load(std::memory_order_relaxed) ? kNoSupport : found;
}

void disable_fence_support(bool without) noexcept {
  support_disabled.store(without, std::memory_order_relaxed);
}

void register_membarrier() noexcept {
  // Idempotent, and cannot fail if it succeeded before.
  if (fence_support().membarrier) membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

bool heavy_barrier() noexcept {
  if (fence_support().membarrier) return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the one in guarded_copy()
  return true;
}

Proof::Proof(const PeerWriterSlots& writer) {
  // The thread of a slot that is not visible yet will see the new epoch.
  const uint32_t slots = writer.used();
  for (uint32_t i = 0; i < slots; ++i) {
    const WriterSlot& slot = writer.slot(i);
    // Pairs with the release store at the end of a section: its bytes are visible.
    const uint32_t section_seq = slot.section_seq.load(std::memory_order_acquire);
    if ((section_seq & 1) == 0) continue;
    // Loaded after section_seq: while that is unchanged, the slot has the same owner.
    in_section_.push_back(
        {.slot = i, .section_seq = section_seq, .tid = slot.tid.load(std::memory_order_relaxed)});
  }
}

Proof::By Proof::check(const PeerWriterSlots& writer, WriterInSection& inside,
                       bool ask_kernel) noexcept {
  const WriterSlot& slot = writer.slot(inside.slot);
  // As in the constructor.
  if (slot.section_seq.load(std::memory_order_acquire) != inside.section_seq) return By::kCompleted;
  if (writer.thread_died(inside.slot)) return By::kDead;
  // Relaxed: constant while the slot has an owner.
  const bool restartable = slot.restartable.load(std::memory_order_relaxed) != 0;
  if (!ask_kernel || !restartable || writer.pid() == 0 || !fence_support().procfs) return By::kIdle;

  // Each answer describes a time after the epoch changed, so any context switch that shows is
  // followed by a new check of the guard. If the pid and tid were reused by another thread, the
  // writer is dead, and the answer is safe as well.
  const auto switches = context_switches(writer.pid(), inside.tid);
  if (!switches) return By::kIdle;
  if (inside.has_switches && *switches != inside.switches) return By::kSwitched;
  inside.has_switches = true;
  inside.switches = *switches;
  return off_cpu(writer.pid(), inside.tid) ? By::kOffCpu : By::kIdle;
}

bool Proof::proved(const PeerWriterSlots& writer, bool ask_kernel) noexcept {
  for (size_t i = 0; i < in_section_.size();) {
    const By by = check(writer, in_section_[i], ask_kernel);
    if (by == By::kIdle) {
      ++i;
      continue;
    }
    by_ = by;
    in_section_[i] = in_section_.back();
    in_section_.pop_back();
  }
  return in_section_.empty();
}

}  // namespace fabric::shm
