#include "limits.h"

#include <linux/membarrier.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#include <charconv>
#include <fstream>

#include <fmt/format.h>

namespace fabric::tool {
namespace {

Limit resource(const char* name, __rlimit_resource which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return {name, "unknown"};
  if (limit.rlim_cur == RLIM_INFINITY) return {name, "unlimited", "unlimited"};
  return {name, fmt::format("{}", limit.rlim_cur), uint64_t{limit.rlim_cur}};
}

Limit locked_memory() {
  Limit limit = resource("locked memory bytes", RLIMIT_MEMLOCK);
  if (std::holds_alternative<uint64_t>(limit.value)) {
    limit.advice = "RDMA networks lock registered memory: ulimit -l unlimited (shm needs none)";
  }
  return limit;
}

Limit open_files() {
  // Each peer takes several: its connection, its ring, its memory.
  constexpr uint64_t kComfortable = 4096;
  Limit limit = resource("open files", RLIMIT_NOFILE);
  const uint64_t* files = std::get_if<uint64_t>(&limit.value);
  if (files != nullptr && *files < kComfortable) {
    limit.advice = "too few for hundreds of peers on one host: ulimit -n 4096";
  }
  return limit;
}

Limit yes_or_no(const char* name, bool value, const char* advice) {
  return {name, value ? "yes" : "no", value, value ? "" : advice};
}

bool has_rseq() {
#ifdef RSEQ_SIG
  return __rseq_size > 0;  // registered by the C library
#else
  return false;
#endif
}

bool has_membarrier() {
  const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  return commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
}

/// The first line of a file of procfs or sysfs; empty if there is no such file.
std::string line_of(const char* path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// As a number, if it is one.
Limit::Value value_of(const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size()) return number;
  return text;
}

void add_file(std::vector<Limit>& limits, const char* name, const char* path) {
  const std::string line = line_of(path);
  if (!line.empty()) limits.push_back({name, line, value_of(line)});
}

Limit ptrace_scope() {
  const std::string scope = line_of("/proc/sys/kernel/yama/ptrace_scope");
  if (scope.empty()) return {"ptrace scope", "none: no Yama"};
  Limit limit{"ptrace scope", scope, value_of(scope)};
  if (scope != "0") {
    limit.advice =
        "shm cannot use process_vm_readv() on registered memory: use allocate(), or "
        "sysctl kernel.yama.ptrace_scope=0";
  }
  return limit;
}

Limit shared_huge_pages() {
  const std::string mode = line_of("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  if (mode.empty()) return {"huge pages for shared memory", "unknown"};
  Limit limit{"huge pages for shared memory", mode, mode};
  if (mode.find("[never]") != std::string::npos || mode.find("[deny]") != std::string::npos) {
    limit.advice =
        "large shared memory costs more TLB misses: echo advise > "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  }
  return limit;
}

}  // namespace

std::vector<Limit> find_limits() {
  std::vector<Limit> out{
      locked_memory(), open_files(),
      yes_or_no("restartable sequences", has_rseq(),
                "a fence has to wait for stopped writers: needs glibc 2.35 and Linux 4.18"),
      yes_or_no("global memory barrier", has_membarrier(),
                "each copy needs a full memory fence: needs Linux 4.16; a sandbox may forbid it"),
      ptrace_scope()};
  add_file(out, "reserved huge pages", "/proc/sys/vm/nr_hugepages");
  out.push_back(shared_huge_pages());
  return out;
}

}  // namespace fabric::tool
