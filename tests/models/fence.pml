/*
Revoking the access of a writer on the same host that has our memory mapped.

Mirrors: src/providers/shm/{writer_slots,copy,proof}.cc (FenceKind::kHost). For each chunk the writer
makes its section number odd, in one section checks the owner's epoch, copies and commits, and then makes
the section number even. The owner changes the epoch, makes every writer's stores visible (membarrier),
reads the section numbers, and waits for each that was odd until it has another value, or its thread is
dead, or - if sections are restartable - is or was off its CPU. The store to the section number goes
through a store buffer, as on every processor; a thread that is preempted inside a restartable section
restarts it, one with a plain section resumes.
Left out: fresh pages as a last resort, several epochs in one section, pulling; a burst of writes is
one copy here, because the target reads none of its other slots before the one that is committed.
Proved: once the fence has completed nothing is stored in that memory, and nothing committed; what is
published has all its bytes; the fence ends.

@small WRITERS=1 CHUNKS=2 STORES=2 SWITCHES=2
@large WRITERS=2 CHUNKS=1 STORES=2 SWITCHES=2
@finite
@unreached cpu -end-
@unreached writer -end-
@mutant epoch_only assert:reused
  the owner changes the epoch and checks no writer
@mutant no_barrier assert:reused
  the owner reads a section number whose last store is still in the writer's store buffer
@mutant resumes assert:reused
  a copy that resumes where it was preempted: memcpy instead of a restartable section
@mutant stale_epoch assert:reused
  a section that restarts after its check of the epoch
@mutant check_before_section_seq assert:reused
  the epoch is checked before the section number is made odd
@mutant published_first assert:copied
  the slot of the ring is filled before the copy
@mutant commit_outside assert:committed
  the commit is stored after the section, which may be preempted before it
@mutant plain_switched assert:reused
  a plain section is taken for proved because its thread was preempted
*/

bool epoch_valid = true;
byte section_seq[WRITERS], stored_section_seq[WRITERS];  // as others see it, and as the writer stored it
bool buffered[WRITERS];                        // the last store is still in the store buffer
bool plain[WRITERS];
bool on_cpu[WRITERS] = true;
bool inside[WRITERS], restart[WRITERS], was_switched[WRITERS];
bool dead[WRITERS];
byte copied[WRITERS];     // stores of the current chunk
bool published[WRITERS];  // a slot of the writer's ring
bool reused;              // the fence has completed
bool committed;           // after the fence
byte switches;
bool killed;

mtype = {idle, checks_early, announces, enters, checks, copies, commits, leaves};

// The writer has the CPU, and is about to do this. Stores leave the buffer in order, one at a time.
#define AT(what) (at == what && on_cpu[me] && !dead[me])

#ifdef MUTANT_check_before_section_seq
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
#ifdef MUTANT_check_before_section_seq
  :: atomic { AT(checks_early) -> at = (epoch_valid -> announces : idle) }
#endif
  :: atomic {
       AT(announces) && !buffered[me] ->
       buffered[me] = true;
       stored_section_seq[me]++;
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
#ifndef MUTANT_check_before_section_seq
  :: atomic { AT(checks) && !restart[me] && !epoch_valid -> inside[me] = false; at = leaves }
#endif
  // The kernel resumed the thread at the abort handler of its section.
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
       stored_section_seq[me]++;
       at = idle
     }
  od
}

inline flush(w) {
  if
  :: buffered[w] -> section_seq[w] = stored_section_seq[w]; buffered[w] = false
  :: else
  fi
}

// What the processor and the kernel may do to writer w at any time.
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
  // An ordinary turn at some time before the fence.
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
     was = section_seq[i];
     if
     :: was % 2 == 0 || section_seq[i] != was || dead[i] || SWITCHED(i) -> i++
     :: atomic { proved = false; i++ }  // the deadline: the memory stays in quarantine
     fi
  od;
#endif
  atomic {
    i = 0;
    reused = proved;
    // What was published has landed.
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
