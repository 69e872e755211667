#include "process/stress_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/sanitizers.h"

namespace fabric::stress {
namespace {

/// Far longer than any wait takes, even on a loaded machine.
constexpr int64_t kAwaitLimitNs = test::kAddressSanitizer ? 120'000'000'000 : 40'000'000'000;

std::string text_of(const MemberId& member) {
  return std::to_string(member.slot) + "." + std::to_string(member.generation);
}

UniqueFd plain_copy(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD, 3)); }

std::string status_of(int status) {
  if (WIFEXITED(status)) return "ended with " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status));
}

/// Log messages that a peer causes which dies or is fenced in the middle of a write.
bool expected_log(const std::string& text) {
  constexpr const char* kParts[] = {"a path broke", "a path could not be opened"};
  return std::ranges::any_of(
      kParts, [&](const char* part) { return text.find(part) != std::string::npos; });
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

StressCluster::StressCluster(const ClusterOptions& options)
    : options_(options), rng_(options.seed) {
  scoreboard_fd_.reset(::memfd_create("stress-scoreboard", MFD_CLOEXEC));
  void* at = MAP_FAILED;
  if (scoreboard_fd_ && ::ftruncate(scoreboard_fd_.get(), sizeof(Scoreboard)) == 0) {
    at = ::mmap(nullptr, sizeof(Scoreboard), PROT_READ | PROT_WRITE, MAP_SHARED,
                scoreboard_fd_.get(), 0);
  }
  if (at == MAP_FAILED) {
    fail("no memory to share");
  } else {
    scoreboard_ = static_cast<Scoreboard*>(at);
  }
}

StressCluster::~StressCluster() {
  for (auto& [slot, process] : processes_) {
    ::kill(process.pid, SIGKILL);
    dying_.push_back(process.pid);
  }
  for (const pid_t pid : dying_) ::waitpid(pid, nullptr, 0);
  if (scoreboard_ != nullptr) ::munmap(scoreboard_, sizeof(Scoreboard));
}

void StressCluster::fail(const std::string& what) {
  failed_ = true;
  ADD_FAILURE() << what;
}

std::vector<uint32_t> StressCluster::slots() const {
  std::vector<uint32_t> slots;
  for (const auto& [slot, process] : processes_) slots.push_back(slot);
  return slots;
}

StressCluster::MemberProcess* StressCluster::find(const MemberId& member) {
  const auto it = processes_.find(member.slot);
  return it != processes_.end() && it->second.member == member ? &it->second : nullptr;
}

// Processes

void StressCluster::start(uint32_t slot) {
  constexpr const char* kLoops[] = {"threads", "inline", "moves"};
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail("socketpair");
  UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  MemberProcess process;
  process.member = {slot, ++generations_[slot]};
  for (auto& pair : scoreboard_->pair[slot]) pair.long_writes.store(0);
  process.loop = kLoops[rng_.below(3)];
  // The copies lack CLOEXEC, so that stress_worker inherits exactly these two.
  const UniqueFd channel = plain_copy(there), scoreboard = plain_copy(scoreboard_fd_);
  const std::string words[] = {FABRIC_TEST_STRESS_WORKER,
                               std::to_string(channel.get()),
                               std::to_string(scoreboard.get()),
                               std::to_string(slot),
                               std::to_string(process.member.generation),
                               std::to_string(options_.seed),
                               std::to_string(options_.buffer_bytes),
                               std::to_string(rng_.between(1, 3)),
                               process.loop};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  process.pid = ::fork();
  if (process.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  if (process.pid < 0) return fail("fork");
  process.channel = std::move(here);
  processes_[slot] = std::move(process);
  if (!await("a new member to open its engine",
             [&] { return !processes_.at(slot).address.empty(); }))
    return;
  for (auto& [other_slot, other] : processes_) {
    if (other_slot == slot) continue;
    meet(processes_.at(slot), other);
  }
}

void StressCluster::meet(MemberProcess& process, const MemberProcess& other) {
  process.met.insert(other.member);
  command(process, "meet " + std::to_string(other.member.slot) + " " +
                       std::to_string(other.member.generation) + " " + other.address);
}

void StressCluster::kill(uint32_t slot) {
  const MemberProcess process = std::move(processes_.at(slot));
  processes_.erase(slot);
  killed_ns_[process.member] = monotonic_ns();
  if (::kill(process.pid, SIGKILL) != 0) fail("kill");
  dying_.push_back(process.pid);
  on_exit(process);
}

/// Its peers will not report it as recovered.
void StressCluster::on_exit(const MemberProcess& process) {
  for (auto& [slot, other] : processes_) other.stalled.erase(process.member);
}

void StressCluster::stop(uint32_t slot) {
  MemberProcess& process = processes_.at(slot);
  if (::kill(process.pid, SIGSTOP) != 0) fail("stop");
  // Waits until the signal has taken effect.
  int status = 0;
  if (::waitpid(process.pid, &status, WUNTRACED) != process.pid || !WIFSTOPPED(status)) {
    fail("a member that was to be stopped " + status_of(status));
  }
  process.stopped = true;
}

void StressCluster::resume(uint32_t slot) {
  MemberProcess& process = processes_.at(slot);
  process.stopped = false;
  if (::kill(process.pid, SIGCONT) != 0) fail("continue");
}

void StressCluster::fence(uint32_t by, uint32_t whom) {
  ++processes_.at(by).fences;
  // The other side reports it as the loss of a session, once.
  ++processes_.at(whom).may_lose[processes_.at(by).member];
  command(processes_.at(by), "fence " + std::to_string(whom));
}

void StressCluster::revoke(uint32_t by, uint32_t whom) {
  ++processes_.at(by).fences;
  command(processes_.at(by), "revoke " + std::to_string(whom));
}

void StressCluster::close(uint32_t slot) {
  processes_.at(slot).closing = true;
  closed_.insert(processes_.at(slot).member);
  command(processes_.at(slot), "close");
}

void StressCluster::drain() {
  for (auto& [slot, process] : processes_) command(process, "drain");
}

void StressCluster::run_for(uint64_t us) {
  const int64_t until_ns = monotonic_ns() + static_cast<int64_t>(us) * 1000;
  // Precise to the microsecond, so that a fault may hit any instruction of its victim.
  while (monotonic_ns() < until_ns) {
    if (until_ns - monotonic_ns() > 2'000'000) pump(1);
  }
}

void StressCluster::await_long_write(uint32_t writer, uint32_t owner) {
  constexpr int64_t kLongWriteWaitNs = 10'000'000;  // most rounds are short; one in four is not
  const auto& writes = scoreboard_->pair[writer][owner].long_writes;
  const int64_t until_ns = monotonic_ns() + kLongWriteWaitNs;
  while (writes.load() == 0 && monotonic_ns() < until_ns) continue;
  run_for(rng_.below(150));
}

void StressCluster::stop_mid_write(uint32_t writer, uint32_t owner) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries && !failed_; ++i) {
    await_long_write(writer, owner);
    stop(writer);
    if (scoreboard_->pair[writer][owner].long_writes.load() != 0 || i + 1 == kTries) return;
    resume(writer);
  }
}

// Waiting

bool StressCluster::await(const char* what, const std::function<bool()>& met) {
  const int64_t limit_ns = monotonic_ns() + kAwaitLimitNs;
  while (!failed_ && !met()) {
    pump(1);
    if (monotonic_ns() < limit_ns) continue;
    fail(std::string("waited too long for ") + what);
    dump_state();
  }
  return !failed_;
}

uint64_t StressCluster::rounds(uint32_t writer, uint32_t owner) const {
  return scoreboard_->pair[writer][owner].rounds.load();
}

bool StressCluster::await_rounds(uint64_t more) {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> goals;
  for (const uint32_t writer : slots()) {
    for (const uint32_t owner : slots()) {
      if (writer != owner) goals[{writer, owner}] = rounds(writer, owner) + more;
    }
  }
  return await("rounds from every member to every other", [&] {
    return std::ranges::all_of(goals, [&](const auto& goal) {
      return rounds(goal.first.first, goal.first.second) >= goal.second;
    });
  });
}

bool StressCluster::await_losses() {
  return await("dead members to be reported and released", [&] {
    return std::ranges::all_of(processes_, [&](const auto& entry) {
      const MemberProcess& process = entry.second;
      return process.to_release.empty() &&
             std::ranges::all_of(process.met, [&](const MemberId& member) {
               return !killed_ns_.contains(member) && !closed_.contains(member);
             });
    });
  });
}

bool StressCluster::await_fences() {
  return await("fences", [&] {
    return std::ranges::all_of(processes_,
                               [](const auto& entry) { return entry.second.fences == 0; });
  });
}

bool StressCluster::await_stall(uint32_t of) {
  const MemberId member = processes_.at(of).member;
  return await("a stopped member to be stalled", [&] {
    return std::ranges::any_of(
        processes_, [&](const auto& entry) { return entry.second.stalled.contains(member); });
  });
}

bool StressCluster::await_reconciled() {
  return await("counts to be reconciled", [&] {
    return std::ranges::all_of(processes_,
                               [](const auto& entry) { return entry.second.reconciled; });
  });
}

bool StressCluster::await_exit(uint32_t slot) {
  return await("a member to exit", [&] { return !processes_.contains(slot); });
}

bool Footprint::within(const Footprint& other) const {
  return descriptors <= other.descriptors && mappings <= other.mappings &&
         regions <= other.regions && peers <= other.peers;
}

Footprint StressCluster::footprint(uint32_t slot) {
  command(processes_.at(slot), "footprint");
  std::optional<Footprint> found;
  await("a member to report its footprint", [&] {
    if (const auto it = processes_.find(slot); it != processes_.end()) {
      found = std::exchange(it->second.footprint, {});
    }
    return found.has_value();
  });
  return found.value_or(Footprint{});
}

bool StressCluster::await_footprint(uint32_t slot, const Footprint& before) {
  Footprint last;
  const bool came = await("a member to shrink to its earlier footprint", [&] {
    run_for(5'000);
    last = footprint(slot);
    return failed_ || last.within(before);
  });
  if (came) return true;
  ADD_FAILURE() << last.descriptors << " descriptors, " << last.mappings << " mappings, "
                << last.regions << " regions, " << last.peers << " peers; before "
                << before.descriptors << ", " << before.mappings << ", " << before.regions << ", "
                << before.peers;
  if (processes_.contains(slot)) command(processes_.at(slot), "list");
  for (int i = 0; i < 50; ++i) pump(10);
  return false;
}

// Commands and reports

void StressCluster::command(MemberProcess& process, const std::string& text) {
  if (::send(process.channel.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) {
    fail("member " + text_of(process.member) +
         " does not receive commands: " + std::strerror(errno));
  }
}

void StressCluster::pump(int timeout_ms) {
  std::vector<pollfd> polled;
  for (auto& [slot, process] : processes_) polled.push_back({process.channel.get(), POLLIN, 0});
  if (::poll(polled.data(), polled.size(), timeout_ms) > 0) {
    for (auto& [slot, process] : processes_) receive(process);
  }
  reap();
}

void StressCluster::receive(MemberProcess& process) {
  std::array<char, 65536> text;
  ssize_t n = 0;
  while ((n = ::recv(process.channel.get(), text.data(), text.size(), MSG_DONTWAIT)) > 0) {
    on_report(process, std::string(text.data(), static_cast<size_t>(n)));
  }
}

/// Reaps exited processes, and fails for those that exited without a command.
void StressCluster::reap() {
  std::erase_if(dying_, [&](pid_t pid) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) != pid) return false;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      fail("a killed member " + status_of(status));
    }
    return true;
  });
  for (auto it = processes_.begin(); it != processes_.end();) {
    int status = 0;
    if (::waitpid(it->second.pid, &status, WNOHANG) != it->second.pid) {
      ++it;
      continue;
    }
    receive(it->second);  // its last reports
    if (!it->second.closing || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fail("member " + text_of(it->second.member) + " " + status_of(status));
    }
    on_exit(it->second);
    it = processes_.erase(it);
  }
}

void StressCluster::on_report(MemberProcess& process, const std::string& text) {
  std::istringstream words(text);
  std::string verb, code;
  MemberId member;
  int64_t at_ns = 0;
  words >> verb;
  if (verb == "ready") {
    words >> process.address;
  } else if (verb == "met") {
    words >> member.slot >> member.generation;
    process.met.insert(member);
  } else if (verb == "lost") {
    words >> member.slot >> member.generation >> at_ns >> code;
    on_lost(process, member, at_ns, code);
  } else if (verb == "released") {
    words >> member.slot >> member.generation;
    if (const auto it = process.to_release.find(member); it != process.to_release.end()) {
      process.to_release.erase(it);
    }
  } else if (verb == "fenced" || verb == "revoked") {
    words >> member.slot >> member.generation >> code;
    if (process.fences == 0) return fail("a fence was reported that was not requested");
    --process.fences;
    // Two members that were fenced from each other connect again in a new session.
    if (verb == "revoked" || code != "ok") return;
    process.met.erase(member);
    if (const MemberProcess* other = find(member)) meet(process, *other);
  } else if (verb == "stalled" || verb == "recovered") {
    words >> member.slot >> member.generation;
    if (verb == "stalled") process.stalled.insert(member);
    if (verb == "recovered") process.stalled.erase(member);
  } else if (verb == "reconciled") {
    process.reconciled = true;
  } else if (verb == "footprint") {
    Footprint& found = process.footprint.emplace();
    words >> found.descriptors >> found.mappings >> found.regions >> found.peers;
  } else if (verb == "dump" || verb == "list") {
    std::fprintf(stderr, "member %s: %s\n", text_of(process.member).c_str(), text.c_str());
  } else if (verb == "violation" || (verb == "log" && !expected_log(text))) {
    fail("member " + text_of(process.member) + " (" + process.loop + "): " + text);
  }
}

void StressCluster::on_lost(MemberProcess& process, const MemberId& member, int64_t at_ns,
                            const std::string& code) {
  process.stalled.erase(member);
  process.to_release.insert(member);
  if (const auto killed = killed_ns_.find(member); killed != killed_ns_.end()) {
    // Else a fence had closed the session before.
    const bool noticed = process.met.erase(member) > 0 && at_ns > killed->second;
    if (noticed) noticed_ns_.push_back(at_ns - killed->second);
    return;
  }
  if (closed_.contains(member)) {
    process.met.erase(member);
    return;
  }
  // A fence closes the session of a live member, which is connected again.
  process.met.erase(member);
  if (process.may_lose[member]-- > 0) return;
  fail("member " + text_of(process.member) + " reported the loss of " + text_of(member) +
       ", which is alive: " + code);
}

/// Prints the state of all members, to find out why there is no progress.
void StressCluster::dump_state() {
  for (auto& [slot, process] : processes_) {
    const std::string proc = "/proc/" + std::to_string(process.pid);
    std::fprintf(stderr, "member %s (%s%s): %s, %u fences, %zu met, %zu to release\n",
                 text_of(process.member).c_str(), process.loop.c_str(),
                 process.stopped ? ", stopped" : "", first_line(proc + "/wchan").c_str(),
                 process.fences, process.met.size(), process.to_release.size());
    command(process, "dump");
    for (const uint32_t other : slots()) {
      if (other == slot) continue;
      std::fprintf(stderr, "  rounds to %u: %llu\n", other,
                   static_cast<unsigned long long>(rounds(slot, other)));
    }
  }
  for (int i = 0; i < 100; ++i) pump(10);
}

void StressCluster::print_times() const {
  if (noticed_ns_.empty()) return;
  std::vector<int64_t> sorted = noticed_ns_;
  std::ranges::sort(sorted);
  const auto ms = [&](size_t i) { return static_cast<double>(sorted[i]) / 1e6; };
  std::printf(
      "from a kill to the report of it, %zu times: min %.1f ms, median %.1f, p95 %.1f, "
      "max %.1f\n",
      sorted.size(), ms(0), ms(sorted.size() / 2), ms(sorted.size() * 95 / 100),
      ms(sorted.size() - 1));
}

}  // namespace fabric::stress
