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

namespace fabric::crowd {
namespace {

/// Nothing here takes nearly as long, whatever else the machine is doing.
constexpr int64_t kPatienceNs = test::kAddressSanitizer ? 120'000'000'000 : 40'000'000'000;

std::string text_of(const Party& party) {
  return std::to_string(party.slot) + "." + std::to_string(party.life);
}

UniqueFd plain_copy(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD, 3)); }

std::string status_of(int status) {
  if (WIFEXITED(status)) return "ended with " + std::to_string(WEXITSTATUS(status));
  return "was ended by signal " + std::to_string(WTERMSIG(status));
}

/// What a peer that dies or is shut out in the middle of a write leaves in a log.
bool expected_log(const std::string& line) {
  constexpr const char* kParts[] = {"a path broke", "a path could not be opened"};
  return std::ranges::any_of(
      kParts, [&](const char* part) { return line.find(part) != std::string::npos; });
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

Referee::Referee(const RefereeOptions& options) : options_(options), rng_(options.seed) {
  board_fd_.reset(::memfd_create("crowd-board", MFD_CLOEXEC));
  void* at = MAP_FAILED;
  if (board_fd_ && ::ftruncate(board_fd_.get(), sizeof(Board)) == 0) {
    at = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, board_fd_.get(), 0);
  }
  if (at == MAP_FAILED) {
    fail("no memory to share");
  } else {
    board_ = static_cast<Board*>(at);
  }
}

Referee::~Referee() {
  for (auto& [slot, worker] : workers_) {
    ::kill(worker.pid, SIGKILL);
    dying_.push_back(worker.pid);
  }
  for (const pid_t pid : dying_) ::waitpid(pid, nullptr, 0);
  if (board_ != nullptr) ::munmap(board_, sizeof(Board));
}

void Referee::fail(const std::string& what) {
  failed_ = true;
  ADD_FAILURE() << what;
}

std::vector<uint32_t> Referee::slots() const {
  std::vector<uint32_t> slots;
  for (const auto& [slot, worker] : workers_) slots.push_back(slot);
  return slots;
}

Referee::Worker* Referee::find(const Party& party) {
  const auto it = workers_.find(party.slot);
  return it != workers_.end() && it->second.party == party ? &it->second : nullptr;
}

// Processes

void Referee::start(uint32_t slot) {
  constexpr const char* kLoops[] = {"threads", "inline", "moves"};
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return fail("socketpair");
  UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  Worker worker;
  worker.party = {slot, ++lives_[slot]};
  for (auto& pair : board_->pair[slot]) pair.long_writes.store(0);
  worker.loop = kLoops[rng_.below(3)];
  // The copies have no CLOEXEC, so that they are the two that the program finds open.
  const UniqueFd line = plain_copy(there), board = plain_copy(board_fd_);
  const std::string words[] = {FABRIC_TEST_CROWD_WORKER,
                               std::to_string(line.get()),
                               std::to_string(board.get()),
                               std::to_string(slot),
                               std::to_string(worker.party.life),
                               std::to_string(options_.seed),
                               std::to_string(options_.plot_bytes),
                               std::to_string(rng_.between(1, 3)),
                               worker.loop};
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  worker.pid = ::fork();
  if (worker.pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  if (worker.pid < 0) return fail("fork");
  worker.line = std::move(here);
  workers_[slot] = std::move(worker);
  if (!await("a new member to open its engine", [&] { return !workers_.at(slot).address.empty(); }))
    return;
  for (auto& [other_slot, other] : workers_) {
    if (other_slot == slot) continue;
    meet(workers_.at(slot), other);
  }
}

void Referee::meet(Worker& worker, const Worker& other) {
  worker.met.insert(other.party);
  say(worker, "meet " + std::to_string(other.party.slot) + " " + std::to_string(other.party.life) +
                  " " + other.address);
}

void Referee::kill(uint32_t slot) {
  const Worker worker = std::move(workers_.at(slot));
  workers_.erase(slot);
  killed_ns_[worker.party] = monotonic_ns();
  if (::kill(worker.pid, SIGKILL) != 0) fail("kill");
  dying_.push_back(worker.pid);
  gone(worker);
}

/// Nobody answers for it any more.
void Referee::gone(const Worker& worker) {
  for (auto& [slot, other] : workers_) other.stalled.erase(worker.party);
}

void Referee::stop(uint32_t slot) {
  Worker& worker = workers_.at(slot);
  if (::kill(worker.pid, SIGSTOP) != 0) fail("stop");
  // The signal is on its way; a test that goes on must know that it has arrived.
  int status = 0;
  if (::waitpid(worker.pid, &status, WUNTRACED) != worker.pid || !WIFSTOPPED(status)) {
    fail("a member that was to be stopped " + status_of(status));
  }
  worker.stopped = true;
}

void Referee::go_on(uint32_t slot) {
  Worker& worker = workers_.at(slot);
  worker.stopped = false;
  if (::kill(worker.pid, SIGCONT) != 0) fail("continue");
}

void Referee::fence(uint32_t by, uint32_t whom) {
  ++workers_.at(by).fences;
  // The other side hears of it as the loss of a session, once.
  ++workers_.at(whom).may_lose[workers_.at(by).party];
  say(workers_.at(by), "fence " + std::to_string(whom));
}

void Referee::revoke(uint32_t by, uint32_t whom) {
  ++workers_.at(by).fences;
  say(workers_.at(by), "revoke " + std::to_string(whom));
}

void Referee::close(uint32_t slot) {
  workers_.at(slot).closing = true;
  closed_.insert(workers_.at(slot).party);
  say(workers_.at(slot), "close");
}

void Referee::quiet() {
  for (auto& [slot, worker] : workers_) say(worker, "quiet");
}

void Referee::linger(uint64_t us) {
  const int64_t until_ns = monotonic_ns() + static_cast<int64_t>(us) * 1000;
  // To the microsecond, so that a deed may come at any instruction of its victim.
  while (monotonic_ns() < until_ns) {
    if (until_ns - monotonic_ns() > 2'000'000) pump(1);
  }
}

void Referee::aim(uint32_t writer, uint32_t owner) {
  constexpr int64_t kAimNs = 10'000'000;  // most rounds are short; one in four is not
  const auto& writes = board_->pair[writer][owner].long_writes;
  const int64_t until_ns = monotonic_ns() + kAimNs;
  while (writes.load() == 0 && monotonic_ns() < until_ns) continue;
  linger(rng_.below(150));
}

void Referee::stop_writing(uint32_t writer, uint32_t owner) {
  constexpr int kTries = 20;
  for (int i = 0; i < kTries && !failed_; ++i) {
    aim(writer, owner);
    stop(writer);
    if (board_->pair[writer][owner].long_writes.load() != 0 || i + 1 == kTries) return;
    go_on(writer);
  }
}

// Waiting

bool Referee::await(const char* what, const std::function<bool()>& met) {
  const int64_t limit_ns = monotonic_ns() + kPatienceNs;
  while (!failed_ && !met()) {
    pump(1);
    if (monotonic_ns() < limit_ns) continue;
    fail(std::string("waited too long for ") + what);
    explain();
  }
  return !failed_;
}

uint64_t Referee::rounds(uint32_t writer, uint32_t owner) const {
  return board_->pair[writer][owner].rounds.load();
}

bool Referee::await_rounds(uint64_t more) {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> goals;
  for (const uint32_t writer : slots()) {
    for (const uint32_t owner : slots()) {
      if (writer != owner) goals[{writer, owner}] = rounds(writer, owner) + more;
    }
  }
  return await("rounds from everybody to everybody", [&] {
    return std::ranges::all_of(goals, [&](const auto& goal) {
      return rounds(goal.first.first, goal.first.second) >= goal.second;
    });
  });
}

bool Referee::await_losses() {
  return await("the dead to be noticed and buried", [&] {
    return std::ranges::all_of(workers_, [&](const auto& entry) {
      const Worker& worker = entry.second;
      return worker.to_bury.empty() && std::ranges::all_of(worker.met, [&](const Party& party) {
               return !killed_ns_.contains(party) && !closed_.contains(party);
             });
    });
  });
}

bool Referee::await_fences() {
  return await("fences", [&] {
    return std::ranges::all_of(workers_,
                               [](const auto& entry) { return entry.second.fences == 0; });
  });
}

bool Referee::await_stall(uint32_t of) {
  const Party party = workers_.at(of).party;
  return await("a stopped member to be stalled", [&] {
    return std::ranges::any_of(
        workers_, [&](const auto& entry) { return entry.second.stalled.contains(party); });
  });
}

bool Referee::await_settled() {
  return await("counts to settle", [&] {
    return std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.settled; });
  });
}

bool Referee::await_end(uint32_t slot) {
  return await("a member to end", [&] { return !workers_.contains(slot); });
}

bool Footprint::within(const Footprint& other) const {
  return descriptors <= other.descriptors && mappings <= other.mappings &&
         regions <= other.regions && peers <= other.peers;
}

Footprint Referee::footprint(uint32_t slot) {
  say(workers_.at(slot), "footprint");
  std::optional<Footprint> found;
  await("a member to say how large it is", [&] {
    if (const auto it = workers_.find(slot); it != workers_.end()) {
      found = std::exchange(it->second.footprint, {});
    }
    return found.has_value();
  });
  return found.value_or(Footprint{});
}

bool Referee::await_footprint(uint32_t slot, const Footprint& before) {
  Footprint last;
  const bool came = await("a member to be as small as before", [&] {
    linger(5'000);
    last = footprint(slot);
    return failed_ || last.within(before);
  });
  if (came) return true;
  ADD_FAILURE() << last.descriptors << " descriptors, " << last.mappings << " mappings, "
                << last.regions << " regions, " << last.peers << " peers; before "
                << before.descriptors << ", " << before.mappings << ", " << before.regions << ", "
                << before.peers;
  if (workers_.contains(slot)) say(workers_.at(slot), "list");
  for (int i = 0; i < 50; ++i) pump(10);
  return false;
}

// What members say

void Referee::say(Worker& worker, const std::string& line) {
  if (::send(worker.line.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) {
    fail("member " + text_of(worker.party) + " hears nothing: " + std::strerror(errno));
  }
}

void Referee::pump(int timeout_ms) {
  std::vector<pollfd> lines;
  for (auto& [slot, worker] : workers_) lines.push_back({worker.line.get(), POLLIN, 0});
  if (::poll(lines.data(), lines.size(), timeout_ms) > 0) {
    for (auto& [slot, worker] : workers_) listen(worker);
  }
  reap();
}

void Referee::listen(Worker& worker) {
  std::array<char, 65536> text;
  ssize_t n = 0;
  while ((n = ::recv(worker.line.get(), text.data(), text.size(), MSG_DONTWAIT)) > 0) {
    on_line(worker, std::string(text.data(), static_cast<size_t>(n)));
  }
}

/// Leaves no zombie, and finds whoever ended without being asked to.
void Referee::reap() {
  std::erase_if(dying_, [&](pid_t pid) {
    int status = 0;
    if (::waitpid(pid, &status, WNOHANG) != pid) return false;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      fail("a killed member " + status_of(status));
    }
    return true;
  });
  for (auto it = workers_.begin(); it != workers_.end();) {
    int status = 0;
    if (::waitpid(it->second.pid, &status, WNOHANG) != it->second.pid) {
      ++it;
      continue;
    }
    listen(it->second);  // its last words
    if (!it->second.closing || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fail("member " + text_of(it->second.party) + " " + status_of(status));
    }
    gone(it->second);
    it = workers_.erase(it);
  }
}

void Referee::on_line(Worker& worker, const std::string& line) {
  std::istringstream words(line);
  std::string verb, code;
  Party party;
  int64_t at_ns = 0;
  words >> verb;
  if (verb == "ready") {
    words >> worker.address;
  } else if (verb == "met") {
    words >> party.slot >> party.life;
    worker.met.insert(party);
  } else if (verb == "lost") {
    words >> party.slot >> party.life >> at_ns >> code;
    on_lost(worker, party, at_ns, code);
  } else if (verb == "buried") {
    words >> party.slot >> party.life;
    if (const auto it = worker.to_bury.find(party); it != worker.to_bury.end()) {
      worker.to_bury.erase(it);
    }
  } else if (verb == "fenced" || verb == "revoked") {
    words >> party.slot >> party.life >> code;
    if (worker.fences == 0) return fail("a fence too many");
    --worker.fences;
    // Two who were shut out from each other meet again in a new session.
    if (verb == "revoked" || code != "ok") return;
    worker.met.erase(party);
    if (const Worker* other = find(party)) meet(worker, *other);
  } else if (verb == "stalled" || verb == "back") {
    words >> party.slot >> party.life;
    if (verb == "stalled") worker.stalled.insert(party);
    if (verb == "back") worker.stalled.erase(party);
  } else if (verb == "settled") {
    worker.settled = true;
  } else if (verb == "footprint") {
    Footprint& found = worker.footprint.emplace();
    words >> found.descriptors >> found.mappings >> found.regions >> found.peers;
  } else if (verb == "dump" || verb == "list") {
    std::fprintf(stderr, "member %s: %s\n", text_of(worker.party).c_str(), line.c_str());
  } else if (verb == "broken" || (verb == "log" && !expected_log(line))) {
    fail("member " + text_of(worker.party) + " (" + worker.loop + "): " + line);
  }
}

void Referee::on_lost(Worker& worker, const Party& party, int64_t at_ns, const std::string& code) {
  worker.stalled.erase(party);
  worker.to_bury.insert(party);
  if (const auto killed = killed_ns_.find(party); killed != killed_ns_.end()) {
    // Or its session had ended by a fence before.
    const bool noticed = worker.met.erase(party) > 0 && at_ns > killed->second;
    if (noticed) noticed_ns_.push_back(at_ns - killed->second);
    return;
  }
  if (closed_.contains(party)) {
    worker.met.erase(party);
    return;
  }
  // A session may end because of a fence; the member itself is there and is met again.
  worker.met.erase(party);
  if (worker.may_lose[party]-- > 0) return;
  fail("member " + text_of(worker.party) + " gave up " + text_of(party) + ", which lives: " + code);
}

/// What everybody is at, for whoever has to find out why nothing goes on.
void Referee::explain() {
  for (auto& [slot, worker] : workers_) {
    const std::string proc = "/proc/" + std::to_string(worker.pid);
    std::fprintf(stderr, "member %s (%s%s): %s, %u fences, %zu met, %zu to bury\n",
                 text_of(worker.party).c_str(), worker.loop.c_str(),
                 worker.stopped ? ", stopped" : "", first_line(proc + "/wchan").c_str(),
                 worker.fences, worker.met.size(), worker.to_bury.size());
    say(worker, "dump");
    for (const uint32_t other : slots()) {
      if (other == slot) continue;
      std::fprintf(stderr, "  rounds to %u: %llu\n", other,
                   static_cast<unsigned long long>(rounds(slot, other)));
    }
  }
  for (int i = 0; i < 100; ++i) pump(10);
}

void Referee::print_times() const {
  if (noticed_ns_.empty()) return;
  std::vector<int64_t> sorted = noticed_ns_;
  std::ranges::sort(sorted);
  const auto ms = [&](size_t i) { return static_cast<double>(sorted[i]) / 1e6; };
  std::printf(
      "from a kill to the news of it, %zu times: %.1f ms at least, %.1f in the middle, "
      "%.1f at 95 %%, %.1f at most\n",
      sorted.size(), ms(0), ms(sorted.size() / 2), ms(sorted.size() * 95 / 100),
      ms(sorted.size() - 1));
}

}  // namespace fabric::crowd
