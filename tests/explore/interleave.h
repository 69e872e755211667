#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// A stateless model checker: runs a program of two or three threads in every interleaving that
// matters, on a model of weak memory.
//
// The sources under test are the shipped ones, compiled against shadow/base/sync.h: before every
// access of an Atomic, a Mutex or a futex another thread may run, and a load may read any store
// that the memory orders allow. Depth-first search, one execution after the other; the choices are
// kept, so that each execution replays the previous one up to its last choice and then takes
// another. Executions that differ only in the order of independent accesses are skipped (sleep
// sets).
//
// The model is a view-based one: a location keeps all its stores in modification order, a thread
// has for each location the oldest store that it may still read, a release store carries its
// writer's view, an acquire load joins it, read-modify-writes read the newest store and continue
// its release sequence, and sequentially consistent fences share one view. Plain data must be
// ordered by happens-before, or it is a data race. Not modelled, though hardware may do it: stores
// that are inserted before earlier ones in modification order, loads of future stores, spurious
// failures of compare-exchange. A thread that yields continues once a location that it has read
// changes, and reads the change: waiting is finite.

namespace fabric::interleave {

inline constexpr int kThreadsMax = 3;

/// The program under test. The constructor and check() run alone, before and after the threads. A
/// failed execution is abandoned in the middle: nothing on the stack of thread() and check() may
/// own memory.
class Program {
 public:
  virtual ~Program() = default;
  virtual int threads() const = 0;
  virtual void thread(int index) = 0;
  virtual void check() = 0;
};
using MakeProgram = std::function<std::unique_ptr<Program>()>;

/// An operation in the sources, which the explorer can name and weaken.
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

/// How an operation can be weakened.
enum class Weakening : uint8_t {
  kNone,
  kNoAcquire,
  kNoRelease,
  kNoFence,
  kTorn,     ///< a read-modify-write is split into a load and a store
  kNoWrite,  ///< a read-modify-write only reads
};
const char* to_string(Weakening how);

struct Mutant {
  Site site{};
  Weakening how = Weakening::kNone;
};

/// An operation that an execution used, and how it can be weakened.
struct SiteUse {
  Site site{};
  std::vector<Weakening> weakenings{};
};

struct Options {
  Mutant mutant{};
  int preemptions_max = -1;  ///< switches away from a thread that could continue; -1: no limit
  uint64_t executions_max = 2'000'000;
};

struct Report {
  uint64_t executions = 0;
  bool complete = false;   ///< every execution was tried
  std::string failure{};   ///< of the first failed execution; empty: none failed
  std::string order{};     ///< which threads ran, in that execution
  std::string schedule{};  ///< that execution, one line per access
  std::vector<SiteUse> sites{};
};

Report explore(const MakeProgram& make, const Options& options = {});

/// For programs: fails the execution unless `condition`.
void require(bool condition, const char* what);

// --- used by shadow/base/sync.h -----------------------------------------------------------------

using LocationId = uint16_t;
using Order = std::memory_order;

LocationId new_location(uint64_t value);
uint64_t load(LocationId location, Order order, Site site);
void store(LocationId location, uint64_t value, Order order, Site site);
/// A read-modify-write in two halves, so that the caller can compute in between.
uint64_t begin_modify(LocationId location, Order order, Site site);
void end_modify(LocationId location, uint64_t value, Order order, Site site);
/// True: it read `expected`, and end_modify() has to follow. False: it read `seen`.
bool begin_exchange(LocationId location, uint64_t expected, uint64_t* seen, Order success,
                    Order failure, Site site);
void fence(Site site);
void yield();
/// Identifies the running thread of the program.
const void* this_thread();

void plain_read(LocationId location);
void plain_write(LocationId location);

void lock(LocationId location);
void unlock(LocationId location);
void futex_wait(LocationId location, uint64_t value);
void futex_wake(LocationId location);

}  // namespace fabric::interleave
