/*
Shutting out a writer on the same host that has our memory mapped.

Mirrors: src/providers/shm/{cards,copy,proof}.cc (FenceKind::kHost). The writer announces a chunk by
an odd stored_intent on its card, in one section checks_early at the owner's epoch_valid, copies and commits, and
leaves by the next even stored_intent. The owner changes the epoch_valid, makes every writer's stores visible
(membarrier), reads the cards, and then waits for each that was odd until it announces another stored_intent,
or its thread is dead, or - where sections are restartable - off its CPU or was off it since. The
store of the stored_intent waits in a store buffer, as on every processor; a thread that is switched out
inside a restartable section starts it again, one with a plain section goes on.
Left out: fresh pages as a last resort, several permits in one section, pulling; a run of pieces is
one copy here, because nobody checks_early at its other slots before the one that is committed.
Proved: once the fence has said ok nothing is stored in that memory, and nothing committed; what is
counted has all its bytes; the fence ends.

@small WRITERS=1 CHUNKS=2 STORES=2 SWITCHES=2
@large WRITERS=2 CHUNKS=1 STORES=2 SWITCHES=2
@finite
@unreached cpu -end-
@unreached writer -end-
@mutant epoch_only assert:reused
  the owner changes the epoch_valid and checks_early at nobody
@mutant no_barrier assert:reused
  the owner reads an intent word whose last store is still in the writer's store buffer
@mutant resumes assert:reused
  a copy that goes on where it was switched out: memcpy instead of a restartable section
@mutant stale_epoch assert:reused
  a section that starts again behind its look at the epoch_valid
@mutant check_before_intent assert:reused
  the epoch_valid is looked at before the intent is shown
@mutant published_first assert:copied
  the slot of the ring is filled before the copy
@mutant commit_outside assert:committed
  the commit is stored behind the section, which may be switched out before it
@mutant plain_switched assert:reused
  a plain section is taken for proved because its thread was switched out
*/

bool epoch_valid = true;
byte intent[WRITERS], stored_intent[WRITERS];  // as others see it, and as the writer has stored it
bool buffered[WRITERS];               // the last stored_intent still waits in the store buffer
bool plain[WRITERS];
bool on_cpu[WRITERS] = true;
bool inside[WRITERS], restart[WRITERS], was_switched[WRITERS];
bool dead[WRITERS];
byte copied[WRITERS];     // stores of the present chunk
bool published[WRITERS];  // a slot of the w's ring
bool reused;            // the fence said ok
bool committed;         // behind it
byte switches;
bool killed;

mtype = {idle, checks_early, announces, enters, checks, copies, commits, leaves};

// The writer has the CPU, and is about to do this. Stores leave the buffer in order, one at a time.
#define AT(what) (at == what && on_cpu[me] && !dead[me])

#ifdef MUTANT_check_before_intent
#define FIRST_STEP checks_early
#define EPOCH_OK true
#else
#define FIRST_STEP announces
#define EPOCH_OK epoch_valid
#endif

proctype writer(byte me) {
  mtype at = idle;
  byte left = CHUNKS;
end:
  do
  :: atomic { AT(idle) && left > 0 && !published[me] -> left--; copied[me] = 0; at = FIRST_STEP }
#ifdef MUTANT_check_before_intent
  :: atomic { AT(checks_early) -> at = (epoch_valid -> announces : idle) }
#endif
  :: atomic {
       AT(announces) && !buffered[me] ->
       buffered[me] = true;
       stored_intent[me]++;
#ifdef MUTANT_published_first
       published[me] = true;
#endif
       at = enters
     }
  :: atomic { AT(enters) -> inside[me] = true; restart[me] = false; at = checks }
  :: atomic { AT(checks) && !restart[me] && EPOCH_OK -> copied[me] = 0; at = copies }
  :: atomic { AT(copies) && !restart[me] && copied[me] < STORES -> assert(!reused); copied[me]++ }
#ifdef MUTANT_published_first
  :: atomic { AT(copies) && !restart[me] && copied[me] == STORES -> inside[me] = false; at = leaves }
#else
  :: atomic {
       AT(copies) && !restart[me] && copied[me] == STORES ->
#ifdef MUTANT_commit_outside
       inside[me] = false;
#endif
       at = commits
     }
  :: atomic {
       AT(commits) && !restart[me] ->
       committed = reused;
       assert(!committed);
       published[me] = true;
       inside[me] = false;
       at = leaves
     }
#endif
#ifndef MUTANT_check_before_intent
  :: atomic { AT(checks) && !restart[me] && !epoch_valid -> inside[me] = false; at = leaves }
#endif
  // The kernel has sent the thread to the handler of its section.
  :: atomic {
       (AT(checks) || AT(copies) || AT(commits)) && restart[me] ->
       restart[me] = false;
#if defined(MUTANT_resumes)
       skip
#elif defined(MUTANT_stale_epoch)
       copied[me] = 0;
       at = copies
#else
       inside[me] = false;
       at = enters
#endif
     }
  :: atomic {
       AT(leaves) && !buffered[me] ->
       buffered[me] = true;
       stored_intent[me]++;
       at = idle
     }
  od
}

inline flush(w) {
  if
  :: buffered[w] -> intent[w] = stored_intent[w]; buffered[w] = false
  :: else
  fi
}

// What the processor and the kernel do to a writer, at any time.
proctype cpu(byte w) {
end:
  do
  :: atomic { buffered[w] -> flush(w) }
  :: atomic {
       on_cpu[w] && switches > 0 ->
       switches--;
       flush(w);
       on_cpu[w] = false;
       was_switched[w] = true;
       restart[w] = inside[w] && !plain[w]
     }
  :: atomic { !on_cpu[w] -> on_cpu[w] = true }
  :: atomic { !killed && w == 0 -> killed = true; flush(w); dead[w] = true }
  od
}

inline consume(w) {
  if
  :: published[w] -> assert(copied[w] == STORES); published[w] = false
  :: else
  fi
}

#ifdef MUTANT_plain_switched
#define SWITCHED(w) (!on_cpu[w] || was_switched[w])
#else
#define SWITCHED(w) (!plain[w] && (!on_cpu[w] || was_switched[w]))
#endif

proctype owner() {
  byte i, was;
  bool proved = true;
  // An ordinary turn, at some time before.
  atomic { consume(0) };
  epoch_valid = false;
  atomic {
    do
    :: i < WRITERS ->
#ifndef MUTANT_no_barrier
       flush(i);
#endif
       was_switched[i] = false;
       i++
    :: else -> break
    od;
    i = 0
  }
#ifndef MUTANT_epoch_only
  do
  :: i == WRITERS -> break
  :: i < WRITERS ->
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
    :: i < WRITERS -> consume(i); i++
    :: else -> break
    od
  }
}

init {
  byte i;
  atomic {
    select(switches : 0 .. SWITCHES);
    do
    :: i < WRITERS ->
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
