#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Plays a program of two or three threads in every order that matters, on a model of weak memory.
//
// The sources under test are the shipped ones, compiled against shadow/base/sync.h: every access of
// an Atomic, a Mutex or a futex is a place where another thread may come first, and a load has a
// choice among all stores that the orders of memory allow it to see. Depth first, one play after
// the other; what was chosen is kept, so that each play is replayed up to its last choice and goes
// another way there. Plays that differ only in the order of steps that do not touch each other are
// left out (sleep sets).
//
// The model is the usual one of views: a place keeps all its stores in order, a thread knows for
// each place which store it must not look behind, a store with release carries what its writer
// knew, a load with acquire learns it, read-modify-writes see the newest and carry on what was
// there, and sequentially consistent fences share one view among themselves. Plain data must be
// ordered by what was learnt that way, or it is a race. What it leaves out, and hardware may do:
// stores that overtake earlier stores in the order of one location, loads that see stores of the
// future, compare-exchanges that fail for no reason. A thread that yields goes on once a
// place has changed that it looked at, and sees the change: waiting has an end.

namespace fabric::interleave {

inline constexpr int kThreadsMax = 3;

/// What is played. The constructor and check() run alone, before and after the threads. A play that
/// has failed is left in the middle: nothing on the stack of thread() and check() may own memory.
class Program {
 public:
  virtual ~Program() = default;
  virtual int threads() const = 0;
  virtual void thread(int index) = 0;
  virtual void check() = 0;
};
using MakeProgram = std::function<std::unique_ptr<Program>()>;

/// An operation in the sources: what the explorer names and can weaken.
struct Site {
  const char* operation = "";
  const char* file = "";
  const char* function = "";
  int line = 0;
  bool operator==(const Site& other) const;
};
constexpr Site here(const char* operation, const char* file = __builtin_FILE(),
                    const char* function = __builtin_FUNCTION(), int line = __builtin_LINE()) {
  return {operation, file, function, line};
}

/// How an operation may be made worse than it is.
enum class Weakening : uint8_t {
  kNone,
  kNoAcquire,
  kNoRelease,
  kNoFence,
  kTorn,     ///< a read-modify-write falls apart into a load and a store
  kNoWrite,  ///< a read-modify-write looks and answers, and changes nothing
};
const char* to_string(Weakening how);

struct Mutant {
  Site site{};
  Weakening how = Weakening::kNone;
};

/// An operation that was seen in a play, and in which ways it could be weakened.
struct SiteUse {
  Site site{};
  std::vector<Weakening> weakenings{};
};

struct Options {
  Mutant mutant{};
  int preemptions_max = -1;  ///< how often a thread is left that could go on; -1: no limit
  uint64_t executions_max = 2'000'000;
};

struct Report {
  uint64_t executions = 0;
  bool complete = false;   ///< every play was tried
  std::string failure{};   ///< of the first play that failed; empty: none did
  std::string order{};     ///< whose steps they were, in that play
  std::string schedule{};  ///< that play, a line a step
  std::vector<SiteUse> sites{};
};

Report explore(const MakeProgram& make, const Options& options = {});

/// For programs: the play has failed unless `condition`.
void require(bool condition, const char* what);

// --- what shadow/base/sync.h is made of --------------------------------------------------------

using LocationId = uint16_t;
using Order = std::memory_order;

LocationId new_location(uint64_t value);
uint64_t load(LocationId location, Order order, Site site);
void store(LocationId location, uint64_t value, Order order, Site site);
/// A read-modify-write in two halves, so that the caller can compute between them.
uint64_t begin_modify(LocationId location, Order order, Site site);
void end_modify(LocationId location, uint64_t value, Order order, Site site);
/// True: `expected` was there, and end_modify() has to follow. False: `seen` was.
bool begin_exchange(LocationId location, uint64_t expected, uint64_t* seen, Order success, Order failure,
                    Site site);
void fence(Site site);
void yield();
/// The same for all that a thread of the program does, another for each.
const void* this_thread();

void plain_read(LocationId location);
void plain_write(LocationId location);

void lock(LocationId location);
void unlock(LocationId location);
void futex_wait(LocationId location, uint64_t value);
void futex_wake(LocationId location);

}  // namespace fabric::interleave
