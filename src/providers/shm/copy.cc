#include "providers/shm/copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__x86_64__) && defined(__GLIBC__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define FABRIC_RSEQ 1
#endif

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FABRIC_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define FABRIC_TSAN 1
#endif
#ifdef FABRIC_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace fabric::shm {

namespace {

// The sizes at which one copy method overtakes another; measured in docs/design/0010.
constexpr uint64_t kSmallBytes = 128;             ///< above: vectors
constexpr uint64_t kVectorBytes = 4096;           ///< above: rep movsb
constexpr uint64_t kStreamBytes = 16u << 20;      ///< from there on: non-temporal stores
constexpr uint64_t kBurstWriteBytes = 32u << 10;  ///< the longest write of a burst

// Relaxed: tests and benchmarks set them while no thread copies.
std::atomic<bool> plain_wanted{false};
std::atomic<CopyMethod> copy_method_wanted{CopyMethod::kBest};
std::atomic<uint64_t> burst_write_bytes{kBurstWriteBytes};

/// The guard that one section checks and the commit that it stores last, as the assembler needs
/// them. Absent ones point to dummy words, so that it needs no branches.
struct GuardedCommit {
  const uint64_t* path_epoch;
  uint64_t path_value;
  const uint64_t* rkey_epoch;
  uint64_t rkey_value;
  uint64_t* commit_word;
  uint64_t commit_value;
};

/// `discarded` is the target of the commit if there is none.
GuardedCommit guarded_commit(const Guard& guard, const Commit& commit,
                             uint64_t& discarded) noexcept {
  const auto* path = reinterpret_cast<const uint64_t*>(guard.path_epoch);
  const auto* rkey = reinterpret_cast<const uint64_t*>(guard.rkey_epoch);
  auto* const word = reinterpret_cast<uint64_t*>(commit.word);
  return {.path_epoch = path != nullptr ? path : &guard.path_value,
          .path_value = guard.path_value,
          .rkey_epoch = rkey != nullptr ? rkey : &guard.rkey_value,
          .rkey_value = guard.rkey_value,
          .commit_word = word != nullptr ? word : &discarded,
          .commit_value = commit.value};
}

uint32_t enter_section(WriterSlot& slot, bool barrier) noexcept {
  // The |1 keeps it odd even if a longjmp() out of a signal handler abandoned a section.
  const uint32_t inside = (slot.section_seq.load(std::memory_order_relaxed) + 1) | 1;
  // Pairs with Proof's load after heavy_barrier(). The signal fence orders this store before the
  // loads of the guard in the compiler; the owner's membarrier does so in the processor.
  slot.section_seq.store(inside, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (barrier) std::atomic_thread_fence(std::memory_order_seq_cst);
  return inside;
}

void leave_section(WriterSlot& slot, uint32_t inside) noexcept {
  // Pairs with Proof's acquire load: an owner that sees the section's end sees all its stores.
  slot.section_seq.store(inside + 1, std::memory_order_release);
}

bool guard_holds(const GuardedCommit& guarded) noexcept {
  // Acquire orders the copy's loads after the check; the branch orders its stores.
  return __atomic_load_n(guarded.path_epoch, __ATOMIC_ACQUIRE) == guarded.path_value &&
         __atomic_load_n(guarded.rkey_epoch, __ATOMIC_ACQUIRE) == guarded.rkey_value;
}

bool plain_section(std::byte* target, const std::byte* source, uint64_t bytes,
                   const GuardedCommit& guarded) noexcept {
  if (!guard_holds(guarded)) return false;
  if (bytes != 0) std::memcpy(target, source, bytes);  // a commit alone may have no addresses
  // Pairs with the acquire load of the target, which polls the word.
  __atomic_store_n(guarded.commit_word, guarded.commit_value, __ATOMIC_RELEASE);
  return true;
}

bool plain_burst(std::byte* base, std::span<const WriteOp> writes,
                 const GuardedCommit& guarded) noexcept {
  if (!guard_holds(guarded)) return false;
  for (const WriteOp& write : writes) {
    std::byte* const target = base + write.target;
    const auto* const source = reinterpret_cast<const std::byte*>(write.source);
    // Flags and counters are 8 bytes: a constant size makes this one load and one store.
    if (write.size_bytes == sizeof(uint64_t)) {
      std::memcpy(target, source, sizeof(uint64_t));
    } else {
      std::memcpy(target, source, write.size_bytes);
    }
  }
  __atomic_store_n(guarded.commit_word, guarded.commit_value, __ATOMIC_RELEASE);  // as above
  return true;
}

#ifdef FABRIC_RSEQ

// One rseq critical section. Local labels: 3: is its descriptor, 0: installs it, 1: to 2: is the
// section, 4: the abort handler, preceded by the signature that the kernel requires. A thread that
// is preempted or gets a signal between 1: and 2: resumes at 4:, which restarts at 0: with the
// check of the guard; no instruction in between modifies an operand. The store of the commit is the
// last instruction, so once it has executed the section cannot be aborted.
// clang-format off
#define FABRIC_SECTION(copy)              \
  ".pushsection __rseq_cs, \"aw\"\n"      \
  ".balign 32\n"                          \
  "3: .long 0, 0\n"                       \
  ".quad 1f, 2f - 1f, 4f\n"               \
  ".popsection\n"                         \
  "0: leaq 3b(%%rip), %%rax\n"            \
  "movq %%rax, %%fs:8(%[rseq])\n"         \
  "1: movq %[path_value], %%rax\n"        \
  "cmpq %%rax, (%[path])\n"               \
  "jne %l[stale]\n"                       \
  "movq %[rkey_value], %%rax\n"           \
  "cmpq %%rax, (%[rkey])\n"               \
  "jne %l[stale]\n"                       \
  copy                                    \
  "movq %[value], %%rax\n"                \
  "movq %%rax, (%[word])\n"               \
  "2:\n"                                  \
  ".pushsection __rseq_failure, \"ax\"\n" \
  ".byte 0x0f, 0xb9, 0x3d\n"              \
  ".long 0x53053053\n"                    \
  "4: jmp 0b\n"                           \
  ".popsection\n"
// For copies that advance rdi and rsi: loads the operands inside the section, for a restart.
#define FABRIC_LONG_SECTION(copy) \
  FABRIC_SECTION(                 \
  "movq %[target], %%rdi\n"       \
  "movq %[source], %%rsi\n"       \
  "movq %[bytes], %%rcx\n"        \
  copy)
// clang-format on
#define FABRIC_GUARD                                                          \
  [rseq] "r"(__rseq_offset), [path] "r"(guarded.path_epoch),                  \
      [path_value] "rm"(guarded.path_value), [rkey] "r"(guarded.rkey_epoch),  \
      [rkey_value] "rm"(guarded.rkey_value), [word] "r"(guarded.commit_word), \
      [value] "rm"(guarded.commit_value)
#define FABRIC_OPERANDS FABRIC_GUARD, [target] "r"(target), [source] "r"(source), [bytes] "r"(bytes)
#define FABRIC_CLOBBERS \
  "rax", "rcx", "rdx", "rsi", "rdi", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "cc", "memory"
// These register names are known to the compiler only if it targets AVX-512 itself.
#ifdef __AVX512F__
#define FABRIC_CLOBBERS_64 FABRIC_CLOBBERS, "xmm16", "xmm17", "xmm18"
#else
#define FABRIC_CLOBBERS_64 FABRIC_CLOBBERS
#endif
static_assert(offsetof(rseq, rseq_cs) == 8 && RSEQ_SIG == 0x53053053);

bool has_vectors() noexcept { return __builtin_cpu_supports("avx2") != 0; }
// The first AVX-512 processors lowered their clock after 64-byte instructions; these do not.
bool has_wide_vectors() noexcept { return __builtin_cpu_supports("avx512vbmi2") != 0; }
std::atomic<bool> wide_wanted{has_wide_vectors()};  // relaxed: as above
/// The longest write of a burst that is copied by vector registers.
std::atomic<uint64_t> vector_bytes{has_vectors() ? kVectorBytes : kSmallBytes};

// Copies the writes of a burst one after another, reading the WriteOp array as it was posted.
// Labels, besides 0: to 4: of FABRIC_SECTION: 5: next write, 8 to 15 bytes; 6: 4 to 7 bytes; the
// first 8: 1 to 3 bytes; 7: 16 to 128 bytes; the second 8: its last two stores; 9: over 128 bytes,
// the longest by rep movsb; 13: the others, by vectors: the ends, then the third 8: the loop, and
// 10: after the loop; 11: loop condition of the burst; 12: end of the burst. Up to 128 bytes: two
// overlapping ends of the largest power of two that fits. Above: both ends unaligned, and between
// them 128 bytes per iteration, aligned at the target; the longest writes by rep movsb.
// clang-format off
#define FABRIC_BURST(long_write)                                                   \
  FABRIC_SECTION(                                                                  \
  "movq %[first], %%rcx\n"                                                         \
  "jmp 11f\n"                                                                      \
  "5: movq %c[at_source](%%rcx), %%rsi\n"                                          \
  "movq %c[at_target](%%rcx), %%rdi\n"                                             \
  "movq %c[at_bytes](%%rcx), %%rdx\n"                                              \
  "addq %[base], %%rdi\n"                                                          \
  "addq $%c[stride], %%rcx\n"                                                      \
  "cmpq $16, %%rdx\n"                                                              \
  "jae 7f\n"                                                                       \
  "cmpq $8, %%rdx\n"                                                               \
  "jb 6f\n"                                                                        \
  "movq (%%rsi), %%rax\n"                                                          \
  "movq -8(%%rsi,%%rdx), %%rsi\n"                                                  \
  "movq %%rax, (%%rdi)\n"                                                          \
  "movq %%rsi, -8(%%rdi,%%rdx)\n"                                                  \
  "cmpq %[last], %%rcx\n"                                                          \
  "jne 5b\n"                                                                       \
  "jmp 12f\n"                                                                      \
  "6: cmpq $4, %%rdx\n"                                                            \
  "jb 8f\n"                                                                        \
  "movl (%%rsi), %%eax\n"                                                          \
  "movl -4(%%rsi,%%rdx), %%esi\n"                                                  \
  "movl %%eax, (%%rdi)\n"                                                          \
  "movl %%esi, -4(%%rdi,%%rdx)\n"                                                  \
  "jmp 11f\n"                                                                      \
  "8: movzbl (%%rsi), %%eax\n"  /* 1 to 3 bytes: first, last, middle */            \
  "movb %%al, (%%rdi)\n"                                                           \
  "movzbl -1(%%rsi,%%rdx), %%eax\n"                                                \
  "movb %%al, -1(%%rdi,%%rdx)\n"                                                   \
  "shrq $1, %%rdx\n"                                                               \
  "movzbl (%%rsi,%%rdx), %%eax\n"                                                  \
  "movb %%al, (%%rdi,%%rdx)\n"                                                     \
  "jmp 11f\n"                                                                      \
  "7: cmpq $128, %%rdx\n"                                                          \
  "ja 9f\n"                                                                        \
  "movups (%%rsi), %%xmm0\n"                                                       \
  "movups -16(%%rsi,%%rdx), %%xmm1\n"                                              \
  "cmpq $32, %%rdx\n"                                                              \
  "jbe 8f\n"                                                                       \
  "movups 16(%%rsi), %%xmm2\n"                                                     \
  "movups -32(%%rsi,%%rdx), %%xmm3\n"                                              \
  "movups %%xmm2, 16(%%rdi)\n"                                                     \
  "movups %%xmm3, -32(%%rdi,%%rdx)\n"                                              \
  "cmpq $64, %%rdx\n"                                                              \
  "jbe 8f\n"                                                                       \
  "movups 32(%%rsi), %%xmm2\n"                                                     \
  "movups -48(%%rsi,%%rdx), %%xmm3\n"                                              \
  "movups %%xmm2, 32(%%rdi)\n"                                                     \
  "movups %%xmm3, -48(%%rdi,%%rdx)\n"                                              \
  "movups 48(%%rsi), %%xmm2\n"                                                     \
  "movups -64(%%rsi,%%rdx), %%xmm3\n"                                              \
  "movups %%xmm2, 48(%%rdi)\n"                                                     \
  "movups %%xmm3, -64(%%rdi,%%rdx)\n"                                              \
  "8: movups %%xmm0, (%%rdi)\n"                                                    \
  "movups %%xmm1, -16(%%rdi,%%rdx)\n"                                              \
  "jmp 11f\n"                                                                      \
  "9: cmpq %[vector_bytes_max], %%rdx\n"                                           \
  "jbe 13f\n"                                                                      \
  "movq %%rcx, %%rax\n"                                                            \
  "movq %%rdx, %%rcx\n"                                                            \
  "rep movsb\n"                                                                    \
  "movq %%rax, %%rcx\n"                                                            \
  "jmp 11f\n"                                                                      \
  "13:\n" long_write                                                               \
  "11: cmpq %[last], %%rcx\n"                                                      \
  "jne 5b\n"                                                                       \
  "12:\n")
#define FABRIC_TO_ALIGNED(bytes)             \
  "leaq " bytes "(%%rdi), %%rax\n"           \
  "andq $-" bytes ", %%rax\n"                \
  "subq %%rdi, %%rsi\n"                      \
  "addq %%rax, %%rsi\n"                      \
  "movq %%rax, %%rdi\n"                      \
  "cmpq %%rdx, %%rdi\n"                      \
  "jae 10f\n"                                \
  ".balign 16\n"
#define FABRIC_VECTOR_LOOP_32                 \
  "vmovdqu (%%rsi), %%ymm0\n"                \
  "vmovdqu -128(%%rsi,%%rdx), %%ymm1\n"      \
  "vmovdqu -96(%%rsi,%%rdx), %%ymm2\n"       \
  "vmovdqu -64(%%rsi,%%rdx), %%ymm3\n"       \
  "vmovdqu -32(%%rsi,%%rdx), %%ymm4\n"       \
  "leaq -128(%%rdi,%%rdx), %%rdx\n"          \
  "vmovdqu %%ymm0, (%%rdi)\n"                \
  "vmovdqu %%ymm1, (%%rdx)\n"                \
  "vmovdqu %%ymm2, 32(%%rdx)\n"              \
  "vmovdqu %%ymm3, 64(%%rdx)\n"              \
  "vmovdqu %%ymm4, 96(%%rdx)\n"              \
  FABRIC_TO_ALIGNED("32")                    \
  "8: vmovdqu (%%rsi), %%ymm0\n"             \
  "vmovdqu 32(%%rsi), %%ymm1\n"              \
  "vmovdqu 64(%%rsi), %%ymm2\n"              \
  "vmovdqu 96(%%rsi), %%ymm3\n"              \
  "addq $128, %%rsi\n"                       \
  "vmovdqa %%ymm0, (%%rdi)\n"                \
  "vmovdqa %%ymm1, 32(%%rdi)\n"              \
  "vmovdqa %%ymm2, 64(%%rdi)\n"              \
  "vmovdqa %%ymm3, 96(%%rdi)\n"              \
  "addq $128, %%rdi\n"                       \
  "cmpq %%rdx, %%rdi\n"                      \
  "jb 8b\n"                                  \
  "10: vzeroupper\n"
// zmm16 and up: legacy SSE code does not use them, so no vzeroupper is needed afterwards.
#define FABRIC_VECTOR_LOOP_64                 \
  "vmovdqu64 (%%rsi), %%zmm16\n"             \
  "vmovdqu64 -128(%%rsi,%%rdx), %%zmm17\n"   \
  "vmovdqu64 -64(%%rsi,%%rdx), %%zmm18\n"    \
  "leaq -128(%%rdi,%%rdx), %%rdx\n"          \
  "vmovdqu64 %%zmm16, (%%rdi)\n"             \
  "vmovdqu64 %%zmm17, (%%rdx)\n"             \
  "vmovdqu64 %%zmm18, 64(%%rdx)\n"           \
  FABRIC_TO_ALIGNED("64")                    \
  "8: vmovdqu64 (%%rsi), %%zmm16\n"          \
  "vmovdqu64 64(%%rsi), %%zmm17\n"           \
  "addq $128, %%rsi\n"                       \
  "vmovdqa64 %%zmm16, (%%rdi)\n"             \
  "vmovdqa64 %%zmm17, 64(%%rdi)\n"           \
  "addq $128, %%rdi\n"                       \
  "cmpq %%rdx, %%rdi\n"                      \
  "jb 8b\n"                                  \
  "10:\n"
// clang-format on
#define FABRIC_WRITES                                                                            \
  [vector_bytes_max] "rm"(vector_bytes_max), [base] "r"(base), [first] "r"(writes.data()),       \
      [last] "r"(writes.data() + writes.size()), [at_source] "i"(offsetof(WriteOp, source)),     \
      [at_target] "i"(offsetof(WriteOp, target)), [at_bytes] "i"(offsetof(WriteOp, size_bytes)), \
      [stride] "i"(sizeof(WriteOp))

// These and the sections below return false if the guard did not hold, at the start or after a
// restart: the commit was not stored, some of the bytes may have been.
[[gnu::always_inline]] inline bool burst_section_32(std::byte* base,
                                                    std::span<const WriteOp> writes,
                                                    const GuardedCommit& guarded) noexcept {
  const uint64_t vector_bytes_max = vector_bytes.load(std::memory_order_relaxed);
  asm goto(FABRIC_BURST(FABRIC_VECTOR_LOOP_32)
           :
           : FABRIC_GUARD, FABRIC_WRITES:FABRIC_CLOBBERS
           : stale);
  return true;
stale:
  // An aborted attempt may have left the upper halves dirty, which slows down SSE code.
  if (has_vectors()) asm volatile("vzeroupper" : : : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4");
  return false;
}

[[gnu::always_inline]] inline bool burst_section_64(std::byte* base,
                                                    std::span<const WriteOp> writes,
                                                    const GuardedCommit& guarded) noexcept {
  const uint64_t vector_bytes_max = vector_bytes.load(std::memory_order_relaxed);
  asm goto(FABRIC_BURST(FABRIC_VECTOR_LOOP_64)
           :
           : FABRIC_GUARD, FABRIC_WRITES:FABRIC_CLOBBERS_64
           : stale);
  return true;
stale:
  return false;
}

[[gnu::always_inline]] inline bool burst_section(std::byte* base, std::span<const WriteOp> writes,
                                                 const GuardedCommit& guarded) noexcept {
  return wide_wanted.load(std::memory_order_relaxed) ? burst_section_64(base, writes, guarded)
                                                     : burst_section_32(base, writes, guarded);
}

// Not inlined: inside a caller's loop the operands would be spilled to the stack, and the copy
// would wait for the load of its length.
[[gnu::noinline]] bool repeat_section(std::byte* target, const std::byte* source, uint64_t bytes,
                                      const GuardedCommit& guarded) noexcept {
  asm goto(FABRIC_LONG_SECTION("rep movsb\n") : : FABRIC_OPERANDS:FABRIC_CLOBBERS : stale);
  return true;
stale:
  return false;
}

/// At least 128 bytes. Like the vector loop, with non-temporal stores. The sfence is inside the
/// section: neither the commit nor the slot's next section_seq may overtake them.
[[gnu::noinline]] bool stream_section(std::byte* target, const std::byte* source, uint64_t bytes,
                                      const GuardedCommit& guarded) noexcept {
  asm goto(FABRIC_LONG_SECTION("movups (%%rsi), %%xmm0\n"
                               "movups 16(%%rsi), %%xmm1\n"
                               "movups 32(%%rsi), %%xmm2\n"
                               "movups 48(%%rsi), %%xmm3\n"
                               "movups %%xmm0, (%%rdi)\n"
                               "movups %%xmm1, 16(%%rdi)\n"
                               "movups %%xmm2, 32(%%rdi)\n"
                               "movups %%xmm3, 48(%%rdi)\n"
                               "movups -64(%%rsi,%%rcx), %%xmm0\n"
                               "movups -48(%%rsi,%%rcx), %%xmm1\n"
                               "movups -32(%%rsi,%%rcx), %%xmm2\n"
                               "movups -16(%%rsi,%%rcx), %%xmm3\n"
                               "leaq -64(%%rdi,%%rcx), %%rdx\n"
                               "movups %%xmm0, (%%rdx)\n"
                               "movups %%xmm1, 16(%%rdx)\n"
                               "movups %%xmm2, 32(%%rdx)\n"
                               "movups %%xmm3, 48(%%rdx)\n"
                               "leaq 64(%%rdi), %%rax\n"
                               "andq $-64, %%rax\n"
                               "subq %%rdi, %%rsi\n"
                               "addq %%rax, %%rsi\n"
                               "movq %%rax, %%rdi\n"
                               "cmpq %%rdx, %%rdi\n"
                               "jae 6f\n"
                               ".balign 16\n"
                               "5: movups (%%rsi), %%xmm0\n"
                               "movups 16(%%rsi), %%xmm1\n"
                               "movups 32(%%rsi), %%xmm2\n"
                               "movups 48(%%rsi), %%xmm3\n"
                               "addq $64, %%rsi\n"
                               "movntps %%xmm0, (%%rdi)\n"
                               "movntps %%xmm1, 16(%%rdi)\n"
                               "movntps %%xmm2, 32(%%rdi)\n"
                               "movntps %%xmm3, 48(%%rdi)\n"
                               "addq $64, %%rdi\n"
                               "cmpq %%rdx, %%rdi\n"
                               "jb 5b\n"
                               "6: sfence\n")
           :
           : FABRIC_OPERANDS:FABRIC_CLOBBERS
           : stale);
  return true;
stale:
  // The interrupt that aborted an attempt already drained its stores. Not relied on: this path is
  // rare.
  asm volatile("sfence" : : : "memory");
  return false;
}

#undef FABRIC_SECTION
#undef FABRIC_LONG_SECTION
#undef FABRIC_BURST
#undef FABRIC_TO_ALIGNED
#undef FABRIC_VECTOR_LOOP_32
#undef FABRIC_VECTOR_LOOP_64
#undef FABRIC_WRITES
#undef FABRIC_GUARD
#undef FABRIC_OPERANDS
#undef FABRIC_CLOBBERS
#undef FABRIC_CLOBBERS_64

void use_vectors(CopyMethod move) noexcept {
  const uint64_t best = has_vectors() ? kVectorBytes : kSmallBytes;
  vector_bytes.store(move == CopyMethod::kVector ? UINT64_MAX : best, std::memory_order_relaxed);
  wide_wanted.store(move == CopyMethod::kBest && has_wide_vectors(), std::memory_order_relaxed);
}

/// The kernel reads the descriptor of the last section at the next preemption, when this library
/// may have been unloaded.
void forget_section() noexcept {
  asm volatile("movq $0, %%fs:8(%[rseq])" : : [rseq] "r"(__rseq_offset) : "memory");
}

bool registered() noexcept {
  if (__rseq_size == 0) return false;
  int32_t cpu = 0;  // rseq.cpu_id: negative unless the kernel maintains it
  asm volatile("movl %%fs:4(%[rseq]), %[cpu]" : [cpu] "=r"(cpu) : [rseq] "r"(__rseq_offset));
  return cpu >= 0;
}

[[gnu::noinline]] bool vector_section(std::byte* target, const std::byte* source, uint64_t bytes,
                                      const GuardedCommit& guarded) noexcept {
  const WriteOp write{.source = reinterpret_cast<uint64_t>(source), .size_bytes = bytes};
  return burst_section(target, {&write, 1}, guarded);
}

bool long_section(std::byte* target, const std::byte* source, uint64_t bytes,
                  const GuardedCommit& guarded, CopyMethod move) noexcept {
  const bool long_enough = bytes >= kSmallBytes;  // else the remainder of a chunk
  if (move == CopyMethod::kNonTemporal && long_enough)
    return stream_section(target, source, bytes, guarded);
  if (move == CopyMethod::kVector && long_enough)
    return vector_section(target, source, bytes, guarded);
  return repeat_section(target, source, bytes, guarded);
}

#else

bool registered() noexcept { return false; }
void forget_section() noexcept {}
bool has_vectors() noexcept { return true; }  // memcpy uses what the machine has
void use_vectors(CopyMethod) noexcept {}
bool burst_section(std::byte* base, std::span<const WriteOp> writes,
                   const GuardedCommit& guarded) noexcept {
  return plain_burst(base, writes, guarded);
}
bool long_section(std::byte* target, const std::byte* source, uint64_t bytes,
                  const GuardedCommit& guarded, CopyMethod) noexcept {
  return plain_section(target, source, bytes, guarded);
}

#endif

CopyMethod long_move(uint64_t bytes) noexcept {
  const CopyMethod wanted = copy_method_wanted.load(std::memory_order_relaxed);
  if (wanted != CopyMethod::kBest) return wanted;
  return bytes < kStreamBytes ? CopyMethod::kRepMovsb : CopyMethod::kNonTemporal;
}

/// One section; `bytes` at most a chunk.
bool copy_chunk(WriterSlot& slot, std::byte* target, const std::byte* source, uint64_t bytes,
                const GuardedCommit& guarded, bool barrier, CopyMethod move) noexcept {
  const bool restartable = slot.restartable.load(std::memory_order_relaxed) != 0;  // its own thread
  const uint32_t inside = enter_section(slot, barrier);
  const bool holds = restartable ? long_section(target, source, bytes, guarded, move)
                                 : plain_section(target, source, bytes, guarded);
  leave_section(slot, inside);
  if (restartable) forget_section();
  return holds;
}

[[gnu::noinline]] Stored copy_chunks(WriterSlot& slot, std::byte* target, const std::byte* source,
                                     uint64_t bytes, const Guard& guard, const Commit& commit,
                                     bool barrier, uint64_t total_bytes) noexcept {
  const CopyMethod move = long_move(std::max(bytes, total_bytes));
  uint64_t discarded;
  const GuardedCommit last = guarded_commit(guard, commit, discarded);
  while (bytes > kChunkBytes) {
    const GuardedCommit guarded = guarded_commit(guard, {}, discarded);
    if (!copy_chunk(slot, target, source, kChunkBytes, guarded, barrier, move))
      return Stored::kStale;
    target += kChunkBytes;
    source += kChunkBytes;
    bytes -= kChunkBytes;
  }
  const bool holds = copy_chunk(slot, target, source, bytes, last, barrier, move);
  return holds ? Stored::kDone : Stored::kStale;
}

/// ThreadSanitizer does not see the store in the assembler.
void annotate_tsan([[maybe_unused]] const Commit& commit) noexcept {
#ifdef FABRIC_TSAN
  if (commit.word != nullptr) __tsan_release(commit.word);
#endif
}

}  // namespace

Stored guarded_copy(WriterSlot& slot, std::byte* target, const std::byte* source, uint64_t bytes,
                    const Guard& guard, const Commit& commit, bool barrier,
                    uint64_t total_bytes) noexcept {
  if (bytes <= burst_write_bytes.load(std::memory_order_relaxed)) {
    const WriteOp write{.source = reinterpret_cast<uint64_t>(source), .size_bytes = bytes};
    return guarded_burst(slot, target, {&write, bytes == 0 ? size_t{0} : 1}, guard, commit,
                         barrier);
  }
  annotate_tsan(commit);
  return copy_chunks(slot, target, source, bytes, guard, commit, barrier, total_bytes);
}

Stored guarded_burst(WriterSlot& slot, std::byte* base, std::span<const WriteOp> writes,
                     const Guard& guard, const Commit& commit, bool barrier) noexcept {
  annotate_tsan(commit);
  const bool restartable = slot.restartable.load(std::memory_order_relaxed) != 0;  // its own thread
  uint64_t discarded;
  const GuardedCommit guarded = guarded_commit(guard, commit, discarded);
  const uint32_t inside = enter_section(slot, barrier);
  const bool holds =
      restartable ? burst_section(base, writes, guarded) : plain_burst(base, writes, guarded);
  leave_section(slot, inside);
  if (restartable) forget_section();
  return holds ? Stored::kDone : Stored::kStale;
}

uint64_t burst_write_bytes_max() noexcept {
  return burst_write_bytes.load(std::memory_order_relaxed);
}

GuardKind guard_kind() noexcept {
  static const bool has = registered();
  const bool plain = !has || plain_wanted.load(std::memory_order_relaxed);
  return plain ? GuardKind::kPlain : GuardKind::kRestartable;
}

bool thread_is_restartable() noexcept {
  return guard_kind() == GuardKind::kRestartable && registered();
}

bool use_guard_kind(GuardKind kind) noexcept {
  plain_wanted.store(kind == GuardKind::kPlain, std::memory_order_relaxed);
  if (guard_kind() != kind) return false;
  const auto slots = WriterSlots::of_process();
  WriterSlot* const slot = slots ? (*slots)->mine() : nullptr;
  if (slot == nullptr) return false;
  slot->restartable.store(thread_is_restartable() ? 1 : 0, std::memory_order_relaxed);
  return true;
}

void use_copy_method(CopyMethod move) noexcept {
  if (move == CopyMethod::kVector && !has_vectors()) move = CopyMethod::kRepMovsb;
  copy_method_wanted.store(move, std::memory_order_relaxed);
  const bool by_size = move == CopyMethod::kBest || move == CopyMethod::kVector;
  burst_write_bytes.store(by_size ? kBurstWriteBytes : kSmallBytes, std::memory_order_relaxed);
  use_vectors(move);
}

}  // namespace fabric::shm
