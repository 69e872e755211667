/*
Counter key values that are reused, and traffic that is late.

Mirrors: acquire() and release() in src/core/counter_table.cc (first in first out over SLOTS slots,
generations of a few bits, the half-wrap rule), Counters::quarantine_ns() in counters.cc.
Left out: the add itself (waiter.pml), proofs by revocation (revoke.pml), more than one live key.
Time comes in ticks. A write may arrive up to LATE ticks after the release of its key, which is what
its deadline and drain bound allow; a released value stays in quarantine longer than that.
Proved: an arrival counts for the key that it was sent for, or for none; the next key is always
available after the quarantine.

@small SLOTS=2 GENERATIONS=4 ISSUES=13 LATE=2 WRITES=1
@large SLOTS=2 GENERATIONS=4 ISSUES=21 LATE=3 WRITES=2
@claim goes_on
@unreached sender -end-
@unreached clock -end-
@mutant no_quarantine assert:sent_for
  values that are reused as soon as they are free
@mutant quarantine_too_short assert:sent_for
  a quarantine as long as the longest write, not longer
@mutant one_landmark assert:sent_for
  a rule that checks once per wrap: a value released late in the wrap is quarantined too briefly
*/

// As quarantine_ns() has it. With acquire(), which wants more than that, one tick above what is needed.
#define QUARANTINE (LATE + 1)
#define LANDMARK(generation) ((generation) % (GENERATIONS / 2) == 0)

byte generation[SLOTS];
byte since[SLOTS];   // ticks since the slot's generation stepped onto a landmark, up to QUARANTINE + 1
byte head;           // of the ring of free slots: they take turns, because one is live at a time
bool live;
byte issued;           // how many there were

bool sent[WRITES];
byte sent_slot[WRITES], sent_generation[WRITES], sent_for[WRITES];
byte age[WRITES];    // since the release of what it was sent for
bool counted, stale, done;

ltl goes_on { <> done }

#ifdef MUTANT_no_quarantine
#define QUARANTINE_OVER(slot) true
#elif defined(MUTANT_quarantine_too_short)
#define QUARANTINE_OVER(slot) (since[slot] >= LATE)
#else
#define QUARANTINE_OVER(slot) (since[slot] > QUARANTINE)
#endif

#ifdef MUTANT_one_landmark
#define LOOKS(generation) ((generation) == 0)
#else
#define LOOKS(generation) LANDMARK(generation)
#endif

proctype owner() {
  byte next;
  do
  :: issued == ISSUES -> break
  :: issued < ISSUES ->
     atomic {
       next = (generation[head] + 1) % GENERATIONS;
       !LOOKS(next) || QUARANTINE_OVER(head) ->
       since[head] = (LOOKS(next) -> 0 : since[head]);
       generation[head] = next;
       issued++;
       live = true;
       next = 0
     }
     atomic { live = false; head = (head + 1) % SLOTS }
  od;
  done = true
}

proctype sender(byte me) {
end:
  do
  :: atomic {
       live && !sent[me] ->
       sent[me] = true;
       sent_slot[me] = head;
       sent_generation[me] = generation[head];
       sent_for[me] = issued
     }
     atomic {
       if
       :: live && head == sent_slot[me] && generation[head] == sent_generation[me] ->
          assert(sent_for[me] == issued);
          counted = true
       :: else -> stale = true
       fi;
       sent[me] = false;
       sent_slot[me] = 0;
       sent_generation[me] = 0;
       sent_for[me] = 0;
       age[me] = 0
     }
  od
}

#define OUTLIVES(me) (sent[me] && age[me] == LATE)

// Time does not pass beyond the last moment of a write: it has arrived by then, or never will.
proctype clock() {
  byte i;
end:
  do
  :: atomic {
       !OUTLIVES(0) && !OUTLIVES(WRITES - 1) && (issued < ISSUES || sent[0] || sent[WRITES - 1]) ->
       i = 0;
       do
       :: i < WRITES ->
          age[i] = age[i] + (sent[i] && !(live && sent_for[i] == issued) -> 1 : 0);
          i++
       :: else -> break
       od;
       i = 0;
       do
       :: i < SLOTS -> since[i] = (since[i] > QUARANTINE -> since[i] : since[i] + 1); i++
       :: else -> break
       od;
       i = 0
     }
  od
}

init {
  byte i;
  atomic {
    do
    :: i < SLOTS -> since[i] = QUARANTINE + 1; i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < WRITES -> run sender(i); i++
    :: else -> break
    od;
    run owner();
    run clock()
  }
}
