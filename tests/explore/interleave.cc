#include "explore/interleave.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#if defined(__SANITIZE_ADDRESS__)
#define FABRIC_EXPLORE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FABRIC_EXPLORE_ASAN 1
#endif
#endif
#if defined(FABRIC_EXPLORE_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace fabric::interleave {
namespace {

constexpr size_t kLocationsMax = 80;
constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kStepsMax = 20'000;  // more than expect() takes to give up on a record
constexpr int kMain = kThreadsMax;      // the thread of the constructor and of check()
constexpr LocationId kNoLocation = UINT16_MAX;

/// What a thread has observed: for each location the oldest store that it may still read, and a
/// vector clock of what happened before.
struct View {
  std::array<uint16_t, kLocationsMax> stores{};
  std::array<uint16_t, kThreadsMax + 1> clocks{};
  void join_stores(const View& other) {
    for (size_t i = 0; i < kLocationsMax; ++i) stores[i] = std::max(stores[i], other.stores[i]);
  }
  void join(const View& other) {
    join_stores(other);
    for (size_t i = 0; i < clocks.size(); ++i) clocks[i] = std::max(clocks[i], other.clocks[i]);
  }
};

struct Store {
  uint64_t value = 0;
  View carried{};  // what an acquiring load of it learns
};

struct MemoryLocation {
  std::vector<Store> stores{};
  bool locked = false;
  // Of plain data: when each thread last accessed it.
  std::array<uint16_t, kThreadsMax + 1> read_at{}, written_at{};
};

/// The next access of a thread, as far as it matters to others.
struct Access {
  LocationId location = kNoLocation;
  bool writes = false;
  bool everything = false;  // accesses all locations
  bool locks = false;
};
bool dependent(const Access& a, const Access& b) {
  return a.everything || b.everything || (a.location == b.location && (a.writes || b.writes));
}

struct ModelThread {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{};
  View now{};
  View to_acquire{};  // learnt by relaxed loads, known after a fence
  View released{};    // known at the last fence, carried by relaxed stores
  Access next{};
  LocationId sleeps_on = kNoLocation;
  bool finished = false;
  std::bitset<kLocationsMax> looked_at{};  // locations read since the last yield
  bool yielded = false;                    // and none of those has changed since
};

struct TraceEntry {
  int thread = 0;
  Site site{};
  LocationId location = 0;
  uint64_t value = 0;
  size_t stale_by = 0;
};

class Explorer {
 public:
  Report run(const MakeProgram& make, const Options& options);
  void fail(const char* what);

  LocationId new_location(uint64_t value);
  /// Every access begins here: other threads may run first.
  void step(const Access& next);
  void note(Site site, LocationId location, uint64_t value, size_t stale_by = 0) {
    if (threads_run()) trace_.push_back({running_, site, location, value, stale_by});
  }
  bool weakened(const Site& site, Weakening how) const;
  void seen(const Site& site, Order order, bool modifies);

  /// Chooses among the stores that the model allows, newest first. `unlike`: not with this value.
  const Store& choose_store(LocationId location, bool seq_cst, const uint64_t* unlike, Site site);
  void learn(const Store& store, bool acquire);
  void append(LocationId location, uint64_t value, bool release, bool seq_cst,
              const Store* carry_on);
  void tick() { ++threads_[running_].now.clocks[running_]; }
  void full_fence();
  void yield();
  void plain(LocationId location, bool write);
  void fall_asleep(LocationId location);
  void wake(LocationId location);

  MemoryLocation& at(LocationId location) { return locations_[location]; }
  const void* this_thread() const { return &threads_[running_]; }
  View& now() { return threads_[running_].now; }
  bool threads_run() const { return phase_ == Phase::kStart || phase_ == Phase::kThreads; }

 private:
  void execute(Program& program);
  void start(int index);
  static void body();
  size_t choose(size_t options);
  bool next_execution();
  int pick();
  bool ready(int thread) const;
  void go(int thread);
  [[noreturn]] void leave();
  std::string schedule() const;

  Options options_{};
  Program* program_ = nullptr;
  std::vector<MemoryLocation> locations_{};
  size_t location_count_ = 0;
  std::array<ModelThread, kThreadsMax + 1> threads_{};
  int running_ = kMain;
  enum class Phase : uint8_t { kSetUp, kStart, kThreads, kCheck };  // kStart: up to the first step
  Phase phase_ = Phase::kSetUp;
  bool pruned_ = false;
  uint32_t asleep_ = 0;  // the sleep set: threads whose next access was explored before, and no
                         // dependent access has happened since
  View fences_{};        // shared by sequentially consistent fences and accesses
  int preemptions_ = 0;
  uint64_t steps_ = 0;
  struct Choice {
    size_t taken = 0, options = 0;
  };
  std::vector<Choice> path_{};
  size_t depth_ = 0;
  std::vector<TraceEntry> trace_{};
  std::string failure_{};
  std::vector<SiteUse> sites_{};
};

Explorer* explorer = nullptr;

void switch_to(ucontext_t& from, ucontext_t& to) {
#if defined(FABRIC_EXPLORE_ASAN)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, to.uc_stack.ss_sp, to.uc_stack.ss_size);
#endif
  swapcontext(&from, &to);
#if defined(FABRIC_EXPLORE_ASAN)
  // The main thread's stack is the process's own, which only the sanitizer knows.
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake, &stack, &bytes);
#endif
}

// --- choices ------------------------------------------------------------------------------------

size_t Explorer::choose(size_t options) {
  if (options == 1) return 0;
  if (depth_ == path_.size()) path_.push_back({0, options});
  return path_[depth_++].taken;
}

bool Explorer::next_execution() {
  while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().taken;
  return true;
}

bool Explorer::ready(int thread) const {
  const ModelThread& one = threads_[thread];
  if (one.finished || one.sleeps_on != kNoLocation) return false;
  return !(one.next.locks && locations_[one.next.location].locked);
}

/// The thread that runs next; -1: the execution is finished.
int Explorer::pick() {
  const int count = program_->threads();
  bool eager = false, unfinished = false;
  for (int i = 0; i < count; ++i) {
    eager = eager || (ready(i) && !threads_[i].yielded);
    unfinished = unfinished || !threads_[i].finished;
  }
  std::array<int, kThreadsMax> candidates{};
  size_t n = 0;
  bool any_ready = false, may_go_on = false;
  for (int k = 0; k < count; ++k) {
    const int i = (running_ % count + k) % count;  // the running thread is the first choice
    if (!ready(i) || (eager && threads_[i].yielded)) continue;
    any_ready = true;
    if ((asleep_ >> i & 1) != 0) continue;
    may_go_on = may_go_on || i == running_;
    candidates[n++] = i;
  }
  if (!any_ready) {
    if (unfinished) fail("deadlock: a wake-up was lost");
    return -1;
  }
  if (n == 0) {
    pruned_ = true;
    return -1;
  }
  const bool bounded = options_.preemptions_max >= 0;
  if (bounded && may_go_on && preemptions_ == options_.preemptions_max) n = 1;
  const size_t taken = choose(n);
  const int next = candidates[taken];
  if (bounded) {
    // With a bound an execution cannot be replaced by an equivalent one with more preemptions.
    preemptions_ += may_go_on && taken != 0;
    return next;
  }
  for (size_t k = 0; k < taken; ++k) asleep_ |= 1u << candidates[k];
  for (int i = 0; i < count; ++i) {
    if (dependent(threads_[i].next, threads_[next].next)) asleep_ &= ~(1u << i);
  }
  return next;
}

// --- threads ------------------------------------------------------------------------------------

void Explorer::go(int thread) {
  if (thread == running_) return;
  ModelThread& from = threads_[running_];
  running_ = thread;
  switch_to(from.context, threads_[thread].context);
}

void Explorer::leave() {
  ModelThread& from = threads_[running_];
  running_ = kMain;
  switch_to(from.context, threads_[kMain].context);
  std::abort();  // never resumed
}

void Explorer::body() {
#if defined(FABRIC_EXPLORE_ASAN)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  ucontext_t& main = explorer->threads_[kMain].context;
  if (main.uc_stack.ss_sp == nullptr) {
    main.uc_stack.ss_sp = const_cast<void*>(stack);
    main.uc_stack.ss_size = bytes;
  }
#endif
  Explorer& all = *explorer;
  const int me = all.running_;
  if (all.phase_ == Phase::kCheck) {
    all.program_->check();
    all.leave();
  }
  all.program_->thread(me);
  all.threads_[me].finished = true;
  all.threads_[me].next = {};
  if (all.phase_ == Phase::kStart) all.leave();
  const int next = all.pick();
  if (next < 0) all.leave();
  all.go(next);
  std::abort();
}

void Explorer::start(int index) {
  ModelThread& thread = threads_[index];
  if (thread.stack == nullptr) thread.stack = std::make_unique<char[]>(kStackBytes);
#if defined(FABRIC_EXPLORE_ASAN)
  __asan_unpoison_memory_region(thread.stack.get(), kStackBytes);  // of an abandoned execution
#endif
  thread.now = threads_[kMain].now;
  ++thread.now.clocks[index];
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.get();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, &Explorer::body, 0);
  go(index);
}

void Explorer::execute(Program& program) {
  program_ = &program;
  phase_ = Phase::kStart;
  for (int i = 0; i < program.threads() && failure_.empty(); ++i) start(i);
  phase_ = Phase::kThreads;
  if (failure_.empty()) {
    if (const int first = pick(); first >= 0) go(first);
  }
  for (int i = 0; i < program.threads(); ++i) threads_[kMain].now.join(threads_[i].now);
  phase_ = Phase::kCheck;
  if (failure_.empty() && !pruned_) start(0);
  phase_ = Phase::kSetUp;
}

void Explorer::step(const Access& next) {
  if (phase_ == Phase::kSetUp) return;
  if (phase_ != Phase::kCheck) {
    threads_[running_].next = next;
    const int chosen = phase_ == Phase::kStart ? kMain : pick();
    if (chosen < 0) leave();
    go(chosen);
  }
  if (++steps_ > kStepsMax) fail("does not terminate");
}

void Explorer::fail(const char* what) {
  if (failure_.empty()) failure_ = what;
  if (running_ != kMain) leave();
}

// --- memory -------------------------------------------------------------------------------------

LocationId Explorer::new_location(uint64_t value) {
  if (location_count_ == kLocationsMax || phase_ != Phase::kSetUp)
    std::abort();  // the program is too large
  if (locations_.size() == location_count_) locations_.emplace_back();
  const auto location = static_cast<LocationId>(location_count_++);
  MemoryLocation& fresh = locations_[location];
  fresh.stores.assign(1, {value, {}});
  fresh.locked = false;
  fresh.read_at = fresh.written_at = {};
  return location;
}

const Store& Explorer::choose_store(LocationId location, bool seq_cst, const uint64_t* unlike,
                                    Site site) {
  const std::vector<Store>& stores = locations_[location].stores;
  uint16_t& floor = now().stores[location];
  if (seq_cst) floor = std::max(floor, fences_.stores[location]);
  std::array<uint16_t, 64> allowed{};
  size_t n = 0;
  for (size_t i = stores.size(); i-- > floor && n < allowed.size();) {
    if (unlike == nullptr || stores[i].value != *unlike) allowed[n++] = static_cast<uint16_t>(i);
  }
  floor = allowed[choose(n)];
  threads_[running_].looked_at.set(location);
  note(site, location, stores[floor].value, stores.size() - 1 - floor);
  return stores[floor];
}

void Explorer::learn(const Store& store, bool acquire) {
  (acquire ? now() : threads_[running_].to_acquire).join(store.carried);
}

void Explorer::append(LocationId location, uint64_t value, bool release, bool seq_cst,
                      const Store* carry_on) {
  ModelThread& me = threads_[running_];
  std::vector<Store>& stores = locations_[location].stores;
  Store fresh{value, release ? me.now : me.released};
  // Read-modify-writes continue the release sequence of what they read.
  if (carry_on != nullptr) fresh.carried.join(carry_on->carried);
  const auto index = static_cast<uint16_t>(stores.size());
  fresh.carried.stores[location] = index;
  me.now.stores[location] = index;
  if (seq_cst) fences_.stores[location] = index;
  stores.push_back(fresh);
  for (ModelThread& other : threads_) {
    if (!other.yielded || !other.looked_at[location]) continue;
    other.yielded = false;
    other.looked_at.reset();
    other.now.stores[location] = index;
  }
  tick();
}

void Explorer::full_fence() {
  ModelThread& me = threads_[running_];
  me.now.join(me.to_acquire);
  // Fences order what is visible; they do not by themselves establish happens-before.
  fences_.join_stores(me.now);
  me.now.join_stores(fences_);
  me.released = me.now;
  tick();
}

/// Checking again makes sense only after one of the locations has changed, and then sees the
/// change.
void Explorer::yield() {
  ModelThread& me = threads_[running_];
  bool changed = false;
  for (size_t i = 0; i < location_count_; ++i) {
    if (!me.looked_at[i]) continue;
    const auto newest = static_cast<uint16_t>(locations_[i].stores.size() - 1);
    changed = changed || newest > me.now.stores[i];
    me.now.stores[i] = newest;
  }
  if (changed || !threads_run()) {
    me.looked_at.reset();
  } else {
    me.yielded = true;
  }
}

void Explorer::plain(LocationId location, bool write) {
  MemoryLocation& data = locations_[location];
  const View& known = now();
  for (size_t i = 0; i < known.clocks.size(); ++i) {
    const bool other = static_cast<int>(i) != running_;
    const bool race =
        data.written_at[i] > known.clocks[i] || (write && data.read_at[i] > known.clocks[i]);
    if (other && race) fail("data race on plain data");
  }
  (write ? data.written_at : data.read_at)[running_] = known.clocks[running_];
}

void Explorer::fall_asleep(LocationId location) {
  threads_[running_].sleeps_on = location;
  step({.location = location, .writes = true});
}

void Explorer::wake(LocationId location) {
  for (ModelThread& thread : threads_) {
    if (thread.sleeps_on == location) thread.sleeps_on = kNoLocation;
  }
}

// --- mutants and the report ---------------------------------------------------------------------

bool Explorer::weakened(const Site& site, Weakening how) const {
  return threads_run() && options_.mutant.how == how && options_.mutant.site == site;
}

void Explorer::seen(const Site& site, Order order, bool modifies) {
  if (!threads_run()) return;
  for (const SiteUse& use : sites_) {
    if (use.site == site) return;
  }
  SiteUse use{site, {}};
  const bool fence = std::string_view(site.operation) == "fence";
  if (fence) use.weakenings.push_back(Weakening::kNoFence);
  if (!fence && order != Order::relaxed && order != Order::release) {
    use.weakenings.push_back(Weakening::kNoAcquire);
  }
  if (!fence && order != Order::relaxed && order != Order::acquire) {
    use.weakenings.push_back(Weakening::kNoRelease);
  }
  if (modifies)
    use.weakenings.insert(use.weakenings.end(), {Weakening::kTorn, Weakening::kNoWrite});
  sites_.push_back(use);
}

std::string Explorer::schedule() const {
  std::string text;
  for (const TraceEntry& entry : trace_) {
    char buffer[160];
    std::snprintf(buffer, sizeof(buffer), "  thread %d  %s:%d %s  location %u  %#llx", entry.thread,
                  entry.site.function, entry.site.line, entry.site.operation, entry.location,
                  static_cast<unsigned long long>(entry.value));
    text += buffer;
    if (entry.stale_by != 0) text += " (" + std::to_string(entry.stale_by) + " stores old)";
    text += '\n';
  }
  return text;
}

Report Explorer::run(const MakeProgram& make, const Options& options) {
  options_ = options;
  Report report;
  do {
    location_count_ = depth_ = 0;
    steps_ = 0;
    running_ = kMain;
    asleep_ = 0;
    preemptions_ = 0;
    pruned_ = false;
    fences_ = {};
    trace_.clear();
    for (ModelThread& thread : threads_) {
      thread.now = thread.to_acquire = thread.released = {};
      thread.finished = thread.yielded = false;
      thread.looked_at.reset();
      thread.sleeps_on = kNoLocation;
    }
    threads_[kMain].now.clocks[kMain] = 1;
    const std::unique_ptr<Program> program = make();
    execute(*program);
    ++report.executions;
    if (!failure_.empty()) {
      report.failure = failure_;
      report.schedule = schedule();
      for (const TraceEntry& entry : trace_) report.order += static_cast<char>('0' + entry.thread);
    } else {
      report.complete = !next_execution();
    }
  } while (failure_.empty() && !report.complete && report.executions < options.executions_max);
  report.sites = sites_;
  return report;
}

bool acquires(Order order) { return order != Order::relaxed && order != Order::release; }
bool releases(Order order) { return order != Order::relaxed && order != Order::acquire; }

}  // namespace

// Without the function: some compilers include template arguments in its name, some do not.
bool Site::operator==(const Site& other) const {
  return line == other.line && std::string_view(operation) == other.operation &&
         std::string_view(file) == other.file;
}

const char* to_string(Weakening how) {
  switch (how) {
    case Weakening::kNone:
      return "as it is";
    case Weakening::kNoAcquire:
      return "without acquire";
    case Weakening::kNoRelease:
      return "without release";
    case Weakening::kNoFence:
      return "left out";
    case Weakening::kTorn:
      return "torn into load and store";
    case Weakening::kNoWrite:
      return "without its write";
  }
  return "?";
}

Report explore(const MakeProgram& make, const Options& options) {
  Explorer fresh;
  explorer = &fresh;
  Report report = fresh.run(make, options);
  explorer = nullptr;
  return report;
}

void require(bool condition, const char* what) {
  if (!condition) explorer->fail(what);
}

LocationId new_location(uint64_t value) { return explorer->new_location(value); }

uint64_t load(LocationId location, Order order, Site site) {
  explorer->seen(site, order, false);
  const bool seq_cst = order == Order::seq_cst;
  explorer->step({.location = location, .everything = seq_cst});
  const Store& store = explorer->choose_store(location, seq_cst, nullptr, site);
  explorer->learn(store, acquires(order) && !explorer->weakened(site, Weakening::kNoAcquire));
  return store.value;
}

void store(LocationId location, uint64_t value, Order order, Site site) {
  explorer->seen(site, order, false);
  const bool seq_cst = order == Order::seq_cst;
  explorer->step({.location = location, .writes = true, .everything = seq_cst});
  explorer->note(site, location, value);
  const bool release = releases(order) && !explorer->weakened(site, Weakening::kNoRelease);
  explorer->append(location, value, release, seq_cst, nullptr);
}

uint64_t begin_modify(LocationId location, Order order, Site site) {
  explorer->seen(site, order, true);
  explorer->step({.location = location, .writes = true, .everything = order == Order::seq_cst});
  const Store& newest = explorer->at(location).stores.back();
  explorer->learn(newest, acquires(order) && !explorer->weakened(site, Weakening::kNoAcquire));
  return newest.value;
}

bool begin_exchange(LocationId location, uint64_t expected, uint64_t* seen, Order success,
                    Order failure, Site site) {
  explorer->seen(site, success, true);
  const bool seq_cst = success == Order::seq_cst;
  explorer->step({.location = location, .writes = true, .everything = seq_cst});
  const Store& newest = explorer->at(location).stores.back();
  if (newest.value == expected) {
    explorer->learn(newest, acquires(success) && !explorer->weakened(site, Weakening::kNoAcquire));
    return true;
  }
  // A failing exchange is a load, and may read any store but the one it would have to replace.
  const Store& store = explorer->choose_store(location, seq_cst, &expected, site);
  explorer->learn(store, acquires(failure) && !explorer->weakened(site, Weakening::kNoAcquire));
  *seen = store.value;
  return false;
}

void end_modify(LocationId location, uint64_t value, Order order, Site site) {
  const bool torn = explorer->weakened(site, Weakening::kTorn);
  if (torn) explorer->step({.location = location, .writes = true});
  explorer->note(site, location, value);
  if (explorer->weakened(site, Weakening::kNoWrite)) return;
  const bool release = releases(order) && !explorer->weakened(site, Weakening::kNoRelease);
  const Store read = explorer->at(location).stores.back();
  explorer->append(location, value, release, order == Order::seq_cst, torn ? nullptr : &read);
}

void fence(Site site) {
  explorer->seen(site, Order::seq_cst, false);
  if (explorer->weakened(site, Weakening::kNoFence)) return;
  // Fences are dependent only on each other.
  explorer->step({.location = kLocationsMax, .writes = true});
  explorer->note(site, 0, 0);
  explorer->full_fence();
}

void yield() { explorer->yield(); }
const void* this_thread() { return explorer->this_thread(); }

void plain_read(LocationId location) { explorer->plain(location, false); }
void plain_write(LocationId location) { explorer->plain(location, true); }

void lock(LocationId location) {
  explorer->step({.location = location, .writes = true, .locks = true});
  explorer->at(location).locked = true;
  explorer->learn(explorer->at(location).stores.back(), true);
}

void unlock(LocationId location) {
  explorer->step({.location = location, .writes = true});
  explorer->at(location).locked = false;
  explorer->append(location, 0, true, false, nullptr);
}

void futex_wait(LocationId location, uint64_t value) {
  explorer->step({.location = location, .writes = true});
  explorer->note(here("wait"), location, value);
  // The kernel compares on behalf of this thread, which reads no older store afterwards.
  const auto& stores = explorer->at(location).stores;
  explorer->now().stores[location] = static_cast<uint16_t>(stores.size() - 1);
  if (stores.back().value == value) explorer->fall_asleep(location);
}

void futex_wake(LocationId location) {
  explorer->step({.location = location, .writes = true});
  explorer->note(here("wake"), location, 0);
  explorer->wake(location);
}

}  // namespace fabric::interleave
