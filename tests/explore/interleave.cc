#include "explore/interleave.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
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

constexpr size_t kPlacesMax = 64;
constexpr size_t kStackBytes = 256 << 10;
constexpr uint64_t kStepsMax = 20'000;  // more than expect() takes to give up on a record
constexpr int kStage = kThreadsMax;     // the thread of the constructor and of check()
constexpr PlaceId kNowhere = UINT16_MAX;

/// What a thread knows: the store of each place that it must not look behind, and how far in the
/// life of each thread everything has happened before.
struct View {
  std::array<uint16_t, kPlacesMax> stores{};
  std::array<uint16_t, kThreadsMax + 1> clocks{};
  void join_stores(const View& other) {
    for (size_t i = 0; i < kPlacesMax; ++i) stores[i] = std::max(stores[i], other.stores[i]);
  }
  void join(const View& other) {
    join_stores(other);
    for (size_t i = 0; i < clocks.size(); ++i) clocks[i] = std::max(clocks[i], other.clocks[i]);
  }
};

struct Store {
  uint64_t value = 0;
  View carried{};  // what a load with acquire learns
};

struct Place {
  std::vector<Store> stores{};
  bool locked = false;
  // Of plain data: when each thread last touched it.
  std::array<uint16_t, kThreadsMax + 1> read_at{}, written_at{};
};

/// The next step of a thread, as far as others must know it.
struct Step {
  PlaceId place = kNowhere;
  bool writes = false;
  bool everything = false;  // touches all places
  bool locks = false;
};
bool dependent(const Step& a, const Step& b) {
  return a.everything || b.everything || (a.place == b.place && (a.writes || b.writes));
}

struct Actor {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{};
  View now{};
  View to_acquire{};  // learnt by relaxed loads, known after a fence
  View released{};    // known at the last fence, carried by relaxed stores
  Step next{};
  PlaceId sleeps_on = kNowhere;
  bool finished = false;
  uint64_t looked_at = 0;  // places, since it last yielded
  bool yielded = false;    // and none of those has changed
};

struct Line {
  int actor = 0;
  Site site{};
  PlaceId place = 0;
  uint64_t value = 0;
  size_t behind = 0;
};

class Explorer {
 public:
  Report run(const MakeScene& make, const Options& options);
  void fail(const char* what);

  PlaceId enroll(uint64_t value);
  /// Every access begins here: others may come first.
  void step(const Step& next);
  void note(Site site, PlaceId place, uint64_t value, size_t behind = 0) {
    if (threads_run()) trace_.push_back({running_, site, place, value, behind});
  }
  bool weakened(const Site& site, Weakening how) const;
  void seen(const Site& site, Order order, bool modifies);

  /// Which of the stores that are allowed: newest first. `unlike`: not those with this value.
  const Store& choose_store(PlaceId place, bool seq_cst, const uint64_t* unlike, Site site);
  void learn(const Store& store, bool acquire);
  void append(PlaceId place, uint64_t value, bool release, bool seq_cst, const Store* carry_on);
  void tick() { ++actors_[running_].now.clocks[running_]; }
  void full_fence();
  void yield();
  void plain(PlaceId place, bool write);
  void fall_asleep(PlaceId place);
  void wake(PlaceId place);

  Place& at(PlaceId place) { return places_[place]; }
  const void* this_thread() const { return &actors_[running_]; }
  View& now() { return actors_[running_].now; }
  bool threads_run() const { return phase_ == Phase::kStart || phase_ == Phase::kThreads; }

 private:
  void play(Scene& scene);
  void start(int index);
  static void body();
  size_t choose(size_t options);
  bool next_play();
  int pick();
  bool ready(int actor) const;
  void go(int actor);
  [[noreturn]] void leave();
  std::string schedule() const;

  Options options_{};
  Scene* scene_ = nullptr;
  std::vector<Place> places_{};
  size_t place_count_ = 0;
  std::array<Actor, kThreadsMax + 1> actors_{};
  int running_ = kStage;
  enum class Phase : uint8_t { kSetUp, kStart, kThreads, kCheck };  // kStart: up to the first step
  Phase phase_ = Phase::kSetUp;
  bool pruned_ = false;
  uint32_t asleep_ = 0;  // threads whose next step was tried before, and nothing since touched it
  View fences_{};        // shared by sequentially consistent fences and accesses
  int preemptions_ = 0;
  uint64_t steps_ = 0;
  struct Choice {
    size_t taken = 0, options = 0;
  };
  std::vector<Choice> path_{};
  size_t depth_ = 0;
  std::vector<Line> trace_{};
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
  // The stage's stack is the process's own, which only the sanitizer knows: it tells when left.
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

bool Explorer::next_play() {
  while (!path_.empty() && path_.back().taken + 1 == path_.back().options) path_.pop_back();
  if (path_.empty()) return false;
  ++path_.back().taken;
  return true;
}

bool Explorer::ready(int actor) const {
  const Actor& one = actors_[actor];
  if (one.finished || one.sleeps_on != kNowhere) return false;
  return !(one.next.locks && places_[one.next.place].locked);
}

/// Who makes the next step; -1: the play is over.
int Explorer::pick() {
  const int count = scene_->threads();
  bool eager = false, unfinished = false;
  for (int i = 0; i < count; ++i) {
    eager = eager || (ready(i) && !actors_[i].yielded);
    unfinished = unfinished || !actors_[i].finished;
  }
  std::array<int, kThreadsMax> candidates{};
  size_t n = 0;
  bool somebody = false, may_go_on = false;
  for (int k = 0; k < count; ++k) {
    const int i = (running_ % count + k) % count;  // going on is the first choice
    if (!ready(i) || (eager && actors_[i].yielded)) continue;
    somebody = true;
    if ((asleep_ >> i & 1) != 0) continue;
    may_go_on = may_go_on || i == running_;
    candidates[n++] = i;
  }
  if (!somebody) {
    if (unfinished) fail("nobody can go on: a wake-up was lost");
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
    // With a bound a play cannot be replaced by its equal, which may have more preemptions.
    preemptions_ += may_go_on && taken != 0;
    return next;
  }
  for (size_t k = 0; k < taken; ++k) asleep_ |= 1u << candidates[k];
  for (int i = 0; i < count; ++i) {
    if (dependent(actors_[i].next, actors_[next].next)) asleep_ &= ~(1u << i);
  }
  return next;
}

// --- threads ------------------------------------------------------------------------------------

void Explorer::go(int actor) {
  if (actor == running_) return;
  Actor& from = actors_[running_];
  running_ = actor;
  switch_to(from.context, actors_[actor].context);
}

void Explorer::leave() {
  Actor& from = actors_[running_];
  running_ = kStage;
  switch_to(from.context, actors_[kStage].context);
  std::abort();  // nobody comes back to it
}

void Explorer::body() {
#if defined(FABRIC_EXPLORE_ASAN)
  const void* stack = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  ucontext_t& stage = explorer->actors_[kStage].context;
  if (stage.uc_stack.ss_sp == nullptr) {
    stage.uc_stack.ss_sp = const_cast<void*>(stack);
    stage.uc_stack.ss_size = bytes;
  }
#endif
  Explorer& all = *explorer;
  const int me = all.running_;
  if (all.phase_ == Phase::kCheck) {
    all.scene_->check();
    all.leave();
  }
  all.scene_->thread(me);
  all.actors_[me].finished = true;
  all.actors_[me].next = {};
  if (all.phase_ == Phase::kStart) all.leave();
  const int next = all.pick();
  if (next < 0) all.leave();
  all.go(next);
  std::abort();
}

void Explorer::start(int index) {
  Actor& actor = actors_[index];
  if (actor.stack == nullptr) actor.stack = std::make_unique<char[]>(kStackBytes);
#if defined(FABRIC_EXPLORE_ASAN)
  __asan_unpoison_memory_region(actor.stack.get(), kStackBytes);  // of a play left in the middle
#endif
  actor.now = actors_[kStage].now;
  ++actor.now.clocks[index];
  getcontext(&actor.context);
  actor.context.uc_stack.ss_sp = actor.stack.get();
  actor.context.uc_stack.ss_size = kStackBytes;
  actor.context.uc_link = nullptr;
  makecontext(&actor.context, &Explorer::body, 0);
  go(index);
}

void Explorer::play(Scene& scene) {
  scene_ = &scene;
  phase_ = Phase::kStart;
  for (int i = 0; i < scene.threads() && failure_.empty(); ++i) start(i);
  phase_ = Phase::kThreads;
  if (failure_.empty()) {
    if (const int first = pick(); first >= 0) go(first);
  }
  for (int i = 0; i < scene.threads(); ++i) actors_[kStage].now.join(actors_[i].now);
  phase_ = Phase::kCheck;
  if (failure_.empty() && !pruned_) start(0);
  phase_ = Phase::kSetUp;
}

void Explorer::step(const Step& next) {
  if (phase_ == Phase::kSetUp) return;
  if (phase_ != Phase::kCheck) {
    actors_[running_].next = next;
    const int chosen = phase_ == Phase::kStart ? kStage : pick();
    if (chosen < 0) leave();
    go(chosen);
  }
  if (++steps_ > kStepsMax) fail("comes to no end");
}

void Explorer::fail(const char* what) {
  if (failure_.empty()) failure_ = what;
  if (running_ != kStage) leave();
}

// --- memory -------------------------------------------------------------------------------------

PlaceId Explorer::enroll(uint64_t value) {
  if (place_count_ == kPlacesMax || phase_ != Phase::kSetUp)
    std::abort();  // a scene that is too large
  if (places_.size() == place_count_) places_.emplace_back();
  const auto place = static_cast<PlaceId>(place_count_++);
  Place& fresh = places_[place];
  fresh.stores.assign(1, {value, {}});
  fresh.locked = false;
  fresh.read_at = fresh.written_at = {};
  return place;
}

const Store& Explorer::choose_store(PlaceId place, bool seq_cst, const uint64_t* unlike,
                                    Site site) {
  const std::vector<Store>& stores = places_[place].stores;
  uint16_t& floor = now().stores[place];
  if (seq_cst) floor = std::max(floor, fences_.stores[place]);
  std::array<uint16_t, 64> allowed{};
  size_t n = 0;
  for (size_t i = stores.size(); i-- > floor && n < allowed.size();) {
    if (unlike == nullptr || stores[i].value != *unlike) allowed[n++] = static_cast<uint16_t>(i);
  }
  floor = allowed[choose(n)];
  actors_[running_].looked_at |= uint64_t{1} << place;
  note(site, place, stores[floor].value, stores.size() - 1 - floor);
  return stores[floor];
}

void Explorer::learn(const Store& store, bool acquire) {
  (acquire ? now() : actors_[running_].to_acquire).join(store.carried);
}

void Explorer::append(PlaceId place, uint64_t value, bool release, bool seq_cst,
                      const Store* carry_on) {
  Actor& me = actors_[running_];
  std::vector<Store>& stores = places_[place].stores;
  Store fresh{value, release ? me.now : me.released};
  // Read-modify-writes continue the release sequence of what they read.
  if (carry_on != nullptr) fresh.carried.join(carry_on->carried);
  const auto index = static_cast<uint16_t>(stores.size());
  fresh.carried.stores[place] = index;
  me.now.stores[place] = index;
  if (seq_cst) fences_.stores[place] = index;
  stores.push_back(fresh);
  for (Actor& other : actors_) {
    if (!other.yielded || (other.looked_at >> place & 1) == 0) continue;
    other.yielded = false;
    other.looked_at = 0;
    other.now.stores[place] = index;
  }
  tick();
}

void Explorer::full_fence() {
  Actor& me = actors_[running_];
  me.now.join(me.to_acquire);
  // Fences order what is seen; they do not by themselves make anything happen before.
  fences_.join_stores(me.now);
  me.now.join_stores(fences_);
  me.released = me.now;
  tick();
}

/// Looking again makes sense once one of the places has changed, and then sees that.
void Explorer::yield() {
  Actor& me = actors_[running_];
  bool changed = false;
  for (size_t i = 0; i < place_count_; ++i) {
    if ((me.looked_at >> i & 1) == 0) continue;
    const auto newest = static_cast<uint16_t>(places_[i].stores.size() - 1);
    changed = changed || newest > me.now.stores[i];
    me.now.stores[i] = newest;
  }
  if (changed || !threads_run()) {
    me.looked_at = 0;
  } else {
    me.yielded = true;
  }
}

void Explorer::plain(PlaceId place, bool write) {
  Place& data = places_[place];
  const View& known = now();
  for (size_t i = 0; i < known.clocks.size(); ++i) {
    const bool other = static_cast<int>(i) != running_;
    const bool race =
        data.written_at[i] > known.clocks[i] || (write && data.read_at[i] > known.clocks[i]);
    if (other && race) fail("plain data is touched without order");
  }
  (write ? data.written_at : data.read_at)[running_] = known.clocks[running_];
}

void Explorer::fall_asleep(PlaceId place) {
  actors_[running_].sleeps_on = place;
  step({.place = place, .writes = true});
}

void Explorer::wake(PlaceId place) {
  for (Actor& actor : actors_) {
    if (actor.sleeps_on == place) actor.sleeps_on = kNowhere;
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
  if (fence) use.ways.push_back(Weakening::kNoFence);
  if (!fence && order != Order::relaxed && order != Order::release) {
    use.ways.push_back(Weakening::kNoAcquire);
  }
  if (!fence && order != Order::relaxed && order != Order::acquire) {
    use.ways.push_back(Weakening::kNoRelease);
  }
  if (modifies) use.ways.insert(use.ways.end(), {Weakening::kTorn, Weakening::kNoWrite});
  sites_.push_back(use);
}

std::string Explorer::schedule() const {
  std::string text;
  for (const Line& line : trace_) {
    char buffer[160];
    std::snprintf(buffer, sizeof(buffer), "  thread %d  %s:%d %s  place %u  %#llx", line.actor,
                  line.site.function, line.site.line, line.site.operation, line.place,
                  static_cast<unsigned long long>(line.value));
    text += buffer;
    if (line.behind != 0) text += " (" + std::to_string(line.behind) + " stores old)";
    text += '\n';
  }
  return text;
}

Report Explorer::run(const MakeScene& make, const Options& options) {
  options_ = options;
  Report report;
  do {
    place_count_ = depth_ = 0;
    steps_ = 0;
    running_ = kStage;
    asleep_ = 0;
    preemptions_ = 0;
    pruned_ = false;
    fences_ = {};
    trace_.clear();
    for (Actor& actor : actors_) {
      actor.now = actor.to_acquire = actor.released = {};
      actor.finished = actor.yielded = false;
      actor.looked_at = 0;
      actor.sleeps_on = kNowhere;
    }
    actors_[kStage].now.clocks[kStage] = 1;
    const std::unique_ptr<Scene> scene = make();
    play(*scene);
    ++report.plays;
    if (!failure_.empty()) {
      report.failure = failure_;
      report.schedule = schedule();
      for (const Line& line : trace_) report.order += static_cast<char>('0' + line.actor);
    } else {
      report.complete = !next_play();
    }
  } while (failure_.empty() && !report.complete && report.plays < options.plays_max);
  report.sites = sites_;
  return report;
}

bool acquires(Order order) { return order != Order::relaxed && order != Order::release; }
bool releases(Order order) { return order != Order::relaxed && order != Order::acquire; }

}  // namespace

// Without the function: compilers write the arguments of a template into its name, or do not.
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

Report explore(const MakeScene& make, const Options& options) {
  Explorer fresh;
  explorer = &fresh;
  Report report = fresh.run(make, options);
  explorer = nullptr;
  return report;
}

void require(bool condition, const char* what) {
  if (!condition) explorer->fail(what);
}

PlaceId enroll(uint64_t value) { return explorer->enroll(value); }

uint64_t load(PlaceId place, Order order, Site site) {
  explorer->seen(site, order, false);
  const bool seq_cst = order == Order::seq_cst;
  explorer->step({.place = place, .everything = seq_cst});
  const Store& store = explorer->choose_store(place, seq_cst, nullptr, site);
  explorer->learn(store, acquires(order) && !explorer->weakened(site, Weakening::kNoAcquire));
  return store.value;
}

void store(PlaceId place, uint64_t value, Order order, Site site) {
  explorer->seen(site, order, false);
  const bool seq_cst = order == Order::seq_cst;
  explorer->step({.place = place, .writes = true, .everything = seq_cst});
  explorer->note(site, place, value);
  const bool release = releases(order) && !explorer->weakened(site, Weakening::kNoRelease);
  explorer->append(place, value, release, seq_cst, nullptr);
}

uint64_t begin_modify(PlaceId place, Order order, Site site) {
  explorer->seen(site, order, true);
  explorer->step({.place = place, .writes = true, .everything = order == Order::seq_cst});
  const Store& newest = explorer->at(place).stores.back();
  explorer->learn(newest, acquires(order) && !explorer->weakened(site, Weakening::kNoAcquire));
  return newest.value;
}

bool begin_exchange(PlaceId place, uint64_t expected, uint64_t* seen, Order success, Order failure,
                    Site site) {
  explorer->seen(site, success, true);
  const bool seq_cst = success == Order::seq_cst;
  explorer->step({.place = place, .writes = true, .everything = seq_cst});
  const Store& newest = explorer->at(place).stores.back();
  if (newest.value == expected) {
    explorer->learn(newest, acquires(success) && !explorer->weakened(site, Weakening::kNoAcquire));
    return true;
  }
  // Who fails only looks, and may see any store but the one it would have to replace.
  const Store& store = explorer->choose_store(place, seq_cst, &expected, site);
  explorer->learn(store, acquires(failure) && !explorer->weakened(site, Weakening::kNoAcquire));
  *seen = store.value;
  return false;
}

void end_modify(PlaceId place, uint64_t value, Order order, Site site) {
  const bool torn = explorer->weakened(site, Weakening::kTorn);
  if (torn) explorer->step({.place = place, .writes = true});
  explorer->note(site, place, value);
  if (explorer->weakened(site, Weakening::kNoWrite)) return;
  const bool release = releases(order) && !explorer->weakened(site, Weakening::kNoRelease);
  const Store read = explorer->at(place).stores.back();
  explorer->append(place, value, release, order == Order::seq_cst, torn ? nullptr : &read);
}

void fence(Site site) {
  explorer->seen(site, Order::seq_cst, false);
  if (explorer->weakened(site, Weakening::kNoFence)) return;
  // Fences meet each other and nothing else.
  explorer->step({.place = kPlacesMax, .writes = true});
  explorer->note(site, 0, 0);
  explorer->full_fence();
}

void yield() { explorer->yield(); }
const void* this_thread() { return explorer->this_thread(); }

void plain_read(PlaceId place) { explorer->plain(place, false); }
void plain_write(PlaceId place) { explorer->plain(place, true); }

void lock(PlaceId place) {
  explorer->step({.place = place, .writes = true, .locks = true});
  explorer->at(place).locked = true;
  explorer->learn(explorer->at(place).stores.back(), true);
}

void unlock(PlaceId place) {
  explorer->step({.place = place, .writes = true});
  explorer->at(place).locked = false;
  explorer->append(place, 0, true, false, nullptr);
}

void futex_wait(PlaceId place, uint64_t value) {
  explorer->step({.place = place, .writes = true});
  explorer->note(here("wait"), place, value);
  // The kernel compares on behalf of this thread, which sees nothing older afterwards.
  const auto& stores = explorer->at(place).stores;
  explorer->now().stores[place] = static_cast<uint16_t>(stores.size() - 1);
  if (stores.back().value == value) explorer->fall_asleep(place);
}

void futex_wake(PlaceId place) {
  explorer->step({.place = place, .writes = true});
  explorer->note(here("wake"), place, 0);
  explorer->wake(place);
}

}  // namespace fabric::interleave
