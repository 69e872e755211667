/*
Shutting out a writer on the same host that has our memory mapped.

Mirrors: src/providers/shm/{cards,copy,proof}.cc (FenceKind::kHost). The writer announces a chunk by
an odd number on its card, in one section looks at the owner's permit, copies and commits, and
leaves by the next even number. The owner changes the permit, makes every writer's stores visible
(membarrier), reads the cards, and then waits for each that was odd until it shows another number,
or its thread is dead, or - where sections are restartable - off its CPU or was off it since. The
store of the number waits in a store buffer, as on every processor; a thread that is switched out
inside a restartable section starts it again, one with a plain section goes on.
Left out: fresh pages as a last resort, several permits in one section, pulling; a run of pieces is
one copy here, because nobody looks at its other slots before the one that is committed.
Proved: once the fence has said ok nothing is stored in that memory, and nothing committed; what is
counted has all its bytes; the fence ends.

@small LANES=1 CHUNKS=2 STORES=2 SWITCHES=2
@large LANES=2 CHUNKS=1 STORES=2 SWITCHES=2
@finite
@unreached cpu -end-
@unreached writer -end-
@mutant permit_only assert:reused
  the owner changes the permit and looks at nobody
@mutant no_barrier assert:reused
  the owner reads an intent word whose last store is still in the writer's store buffer
@mutant goes_on assert:reused
  a copy that goes on where it was switched out: memcpy instead of a restartable section
@mutant old_permit assert:reused
  a section that starts again behind its look at the permit
@mutant look_then_intend assert:reused
  the permit is looked at before the intent is shown
@mutant published_first assert:copied
  the slot of the ring is filled before the copy
@mutant commit_outside assert:committed
  the commit is stored behind the section, which may be switched out before it
@mutant plain_switched assert:reused
  a plain section is taken for proved because its thread was switched out
*/

bool permit = true;
byte intent[LANES], number[LANES];  // as others see it, and as the writer has stored it
bool buffered[LANES];               // the last number still waits in the store buffer
bool plain[LANES];
bool on_cpu[LANES] = true;
bool inside[LANES], restart[LANES], moved[LANES];
bool dead[LANES];
byte copied[LANES];     // stores of the present chunk
bool published[LANES];  // a slot of the lane's ring
bool reused;            // the fence said ok
bool committed;         // behind it
byte switches;
bool killed;

mtype = {rests, looks, shows, begins, checks, copies, publishes, clears};

// The writer has the CPU, and is about to do this. Stores leave the buffer in order, one at a time.
#define AT(what) (at == what && on_cpu[me] && !dead[me])

#ifdef MUTANT_look_then_intend
#define FIRST looks
#define LOOK true
#else
#define FIRST shows
#define LOOK permit
#endif

proctype writer(byte me) {
  mtype at = rests;
  byte left = CHUNKS;
end:
  do
  :: atomic { AT(rests) && left > 0 && !published[me] -> left--; copied[me] = 0; at = FIRST }
#ifdef MUTANT_look_then_intend
  :: atomic { AT(looks) -> at = (permit -> shows : rests) }
#endif
  :: atomic {
       AT(shows) && !buffered[me] ->
       buffered[me] = true;
       number[me]++;
#ifdef MUTANT_published_first
       published[me] = true;
#endif
       at = begins
     }
  :: atomic { AT(begins) -> inside[me] = true; restart[me] = false; at = checks }
  :: atomic { AT(checks) && !restart[me] && LOOK -> copied[me] = 0; at = copies }
  :: atomic { AT(copies) && !restart[me] && copied[me] < STORES -> assert(!reused); copied[me]++ }
#ifdef MUTANT_published_first
  :: atomic { AT(copies) && !restart[me] && copied[me] == STORES -> inside[me] = false; at = clears }
#else
  :: atomic {
       AT(copies) && !restart[me] && copied[me] == STORES ->
#ifdef MUTANT_commit_outside
       inside[me] = false;
#endif
       at = publishes
     }
  :: atomic {
       AT(publishes) && !restart[me] ->
       committed = reused;
       assert(!committed);
       published[me] = true;
       inside[me] = false;
       at = clears
     }
#endif
#ifndef MUTANT_look_then_intend
  :: atomic { AT(checks) && !restart[me] && !permit -> inside[me] = false; at = clears }
#endif
  // The kernel has sent the thread to the handler of its section.
  :: atomic {
       (AT(checks) || AT(copies) || AT(publishes)) && restart[me] ->
       restart[me] = false;
#if defined(MUTANT_goes_on)
       skip
#elif defined(MUTANT_old_permit)
       copied[me] = 0;
       at = copies
#else
       inside[me] = false;
       at = begins
#endif
     }
  :: atomic {
       AT(clears) && !buffered[me] ->
       buffered[me] = true;
       number[me]++;
       at = rests
     }
  od
}

inline flush(lane) {
  if
  :: buffered[lane] -> intent[lane] = number[lane]; buffered[lane] = false
  :: else
  fi
}

// What the processor and the kernel do to a writer, at any time.
proctype cpu(byte lane) {
end:
  do
  :: atomic { buffered[lane] -> flush(lane) }
  :: atomic {
       on_cpu[lane] && switches > 0 ->
       switches--;
       flush(lane);
       on_cpu[lane] = false;
       moved[lane] = true;
       restart[lane] = inside[lane] && !plain[lane]
     }
  :: atomic { !on_cpu[lane] -> on_cpu[lane] = true }
  :: atomic { !killed && lane == 0 -> killed = true; flush(lane); dead[lane] = true }
  od
}

inline count(lane) {
  if
  :: published[lane] -> assert(copied[lane] == STORES); published[lane] = false
  :: else
  fi
}

#ifdef MUTANT_plain_switched
#define SWITCHED(lane) (!on_cpu[lane] || moved[lane])
#else
#define SWITCHED(lane) (!plain[lane] && (!on_cpu[lane] || moved[lane]))
#endif

proctype owner() {
  byte i, was;
  bool proved = true;
  // An ordinary turn, at some time before.
  atomic { count(0) };
  permit = false;
  atomic {
    do
    :: i < LANES ->
#ifndef MUTANT_no_barrier
       flush(i);
#endif
       moved[i] = false;
       i++
    :: else -> break
    od;
    i = 0
  }
#ifndef MUTANT_permit_only
  do
  :: i == LANES -> break
  :: i < LANES ->
     was = intent[i];
     if
     :: was % 2 == 0 || intent[i] != was || dead[i] || SWITCHED(i) -> i++
     :: atomic { proved = false; i++ }  // its deadline: the memory stays in quarantine
     fi
  od;
#endif
  atomic {
    i = 0;
    reused = proved;
    // What was published had landed.
    do
    :: i < LANES -> count(i); i++
    :: else -> break
    od
  }
}

init {
  byte i;
  atomic {
    select(switches : 0 .. SWITCHES);
    do
    :: i < LANES ->
       if
       :: plain[i] = true
       :: skip
       fi;
       run writer(i);
       run cpu(i);
       i++
    :: else -> break
    od;
    run owner()
  }
}
