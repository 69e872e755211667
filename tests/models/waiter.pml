/*
A waiter against arrivals, cancels, an abort and a release of its counter.

Mirrors: src/core/counter_table.cc (change, expect, claim_record, fire, cancel, abort, release,
acquire, result), base/event_count.h, and the waiting loop of wait.cc. An atomic instruction there is
a step here; change() is one step, since a failed compare-exchange has no visible effect, and accesses
that only the holder of the record may make belong to the step that makes it the holder.
Left out: memory order (sequential consistency here; the stress test under ThreadSanitizer and
tests/unit/core/counter_interleaving_test.cc look at that), parents, cutting (counting.pml),
time-outs of the wait, so that a lost wake-up shows as a process that is stuck.
Proved: an armed expectation completes exactly once, and its waiter wakes; "ok" means that so many
arrived and were not taken before; no arrival counts in another generation; a late cancel does not
touch another expectation; the balance is what arrived less what was taken.

@small WAITERS=2 ROUNDS=1 WORKERS=1 FRESH=0 ARRIVALS=2 GENERATIONS=2 CANCELLERS=1
@large WAITERS=2 ROUNDS=1 WORKERS=1 FRESH=1 ARRIVALS=2 GENERATIONS=2 CANCELLERS=1
@finite
@mutant check_then_add assert:generation
  an arrival that checks the generation first and adds later: a late one counts in the next one
@mutant no_pin assert:balance
  a cancel that reads n without holding the record: it gives n back to the next expectation
@mutant one_check stuck
  a waiter that registers itself and sleeps without a second check
@mutant wake_first stuck
  a completion that wakes the waiter before it is published
@mutant result_not_kept assert:mine
  a completion that frees the record before its waiter has read it
*/

#define IN_USE (armed || pinned || unread)

// The word.
byte generation = 1;
bool live = true;
bool poisoned;
short balance;

// The record: its claim, and how many were asked for.
byte seq;
bool armed, pinned, unread;
byte code;
byte asked;

// The event count, and which waiters sleep in the kernel.
byte event_count;
bool asleep[WAITERS];

// The specification.
short surplus;     // arrivals in this generation less what completed expectations took
byte waiting_for;  // of the armed expectation

#define OK 1
#define ABORTED 2

inline wake() {
  if
  :: (event_count & 1) != 0 ->
     if
     :: atomic { (event_count & 1) != 0 -> event_count++ };
        d_step { asleep[0] = false; asleep[WAITERS - 1] = false }
     :: (event_count & 1) == 0
     fi
  :: (event_count & 1) == 0
  fi
}

// Only by the process whose change of the word ended the expectation.
inline fire(how, pin) {
#ifdef MUTANT_wake_first
  wake();
#endif
  atomic {
    assert(armed);
    armed = false;
    pinned = pinned && !pin;
#ifndef MUTANT_result_not_kept
    unread = true;
#endif
    code = how
  }
#ifndef MUTANT_wake_first
  ;
  wake()
#endif
}

#define OF(key) (live && generation == key)

proctype worker(byte key) {
  byte left = ARRIVALS;
  bool ends;
  do
  :: left > 0 ->
#ifdef MUTANT_check_then_add
     if
     :: OF(key) && !poisoned
     :: else -> goto out
     fi;
#endif
     atomic {
       left--;
       ends = false;
       if
#ifdef MUTANT_check_then_add
       :: live ->
#else
       :: OF(key) && !poisoned ->
#endif
          assert(generation == key);
          ends = balance < 0 && balance + 1 >= 0;
          balance++;
          surplus = surplus + 1 - (ends -> waiting_for : 0);
          waiting_for = (ends -> 0 : waiting_for);
          assert(surplus >= 0)
       :: else
       fi
     }
     if
     :: ends -> fire(OK, false)
     :: else
     fi;
  :: else -> break
  od
#ifdef MUTANT_check_then_add
out: skip
#endif
}

inline is_done() {
  atomic {
    done_seen = seq != mine || !armed;
    assert(!done_seen || seq == mine)
  }
}

// Round about: two are asked for first, then one, so that a wrong n shows.
proctype waiter(byte me) {
  byte round, key, n, mine, ticket;
  bool used, done_seen, waits, made;
  do
  :: round == ROUNDS -> break
  :: else ->
     atomic { round++; n = ((round + me) % 2) + 1; key = generation };
     // claim_record()
claim:
     atomic { mine = seq; used = IN_USE };
     atomic {
       waits = balance < 0 && !poisoned;
       if
       :: !OF(key) || poisoned -> goto next
       :: else
       fi
     }
     if
     :: !used ->
        atomic {
          if
          :: seq == mine && !IN_USE -> seq++; mine = seq; armed = true; code = 0;
             asked = n  // not read before the word waits
          :: else -> goto claim
          fi
        }
     :: used && waits -> goto next  // kBusy
     :: used && !waits -> !IN_USE -> goto claim
     fi;
     atomic {
       made = OF(key) && !poisoned;
       if
       :: made ->
          balance = balance - n;
          waits = balance < 0;
          waiting_for = (waits -> n : 0);
          surplus = surplus - (waits -> 0 : n);
          assert(surplus >= 0)
       :: else
       fi
     }
     if
     :: !made -> armed = false; goto next
     :: made && !waits -> armed = false; goto next
     :: made && waits
     fi;
     // block()
     do
     :: is_done();
        if
        :: done_seen -> break
        :: else
        fi;
        atomic { event_count = event_count | 1; ticket = event_count };
#ifndef MUTANT_one_check
        is_done();
        if
        :: done_seen -> break
        :: else
        fi;
#endif
        atomic {
          if
          :: event_count == ticket -> asleep[me] = true
          :: else
          fi
        }
        !asleep[me]
     od;
     atomic {
       // result()
       assert(seq == mine && !armed);
       unread = false;
       code = 0
     }
next:
     atomic { mine = 0; used = false; waits = false; made = false; ticket = 0; done_seen = false }
  od
}

inline cancel() {
#ifdef MUTANT_no_pin
  if
  :: seq == meant && armed -> n = asked
  :: else -> goto out
  fi;
#else
  atomic {
    if
    :: seq == meant && armed && !pinned -> pinned = true
    :: else -> goto out
    fi
  }
#endif
  atomic {
#ifndef MUTANT_no_pin
    n = asked;
#endif
    undone = OF(key) && !poisoned && balance < 0;
    balance = balance + (undone -> n : 0);
    waiting_for = (undone -> 0 : waiting_for);
    n = 0
  }
  if
#ifdef MUTANT_no_pin
  :: undone -> fire(ABORTED, false)
  :: else
#else
  :: undone -> fire(ABORTED, true)
  :: else -> pinned = false
#endif
  fi
}

inline abort() {
  atomic {
    undone = OF(key) && !poisoned && balance < 0;
    poisoned = poisoned || OF(key);
    balance = (OF(key) -> 0 : balance);
    waiting_for = (OF(key) -> 0 : waiting_for)
  }
  if
  :: undone -> fire(ABORTED, false)
  :: else
  fi
}

// The owner of an operation that has passed its deadline, or a peer that was lost: at any time
// later, against whatever was armed then.
proctype canceller() {
  byte key, meant, n;
  bool undone;
end:
  atomic { armed && balance < 0 -> key = generation; meant = seq };
  if
  :: cancel()
  :: abort()
  fi;
out:
  skip
}

proctype releaser() {
  bool waits;
  do
  :: atomic {
       waits = balance < 0 && !poisoned;
       assert(poisoned || balance == surplus - waiting_for);
       surplus = 0;
       waiting_for = 0;
       live = false;
       poisoned = false;
       balance = 0
     }
     if
     :: waits -> fire(ABORTED, false)
     :: else
     fi;
     if
     :: generation == GENERATIONS -> break
     :: else
     fi;
     // acquire(): other slots are used in between.
     atomic { !IN_USE -> generation++; live = true; waits = false }
  od
}

init {
  byte i;
  atomic {
    i = 0;
    do
    :: i < WAITERS -> run waiter(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < CANCELLERS -> run canceller(); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < WORKERS -> run worker(1); i++
    :: else -> break
    od;
#if FRESH
    run worker(GENERATIONS);  // for a waiter in the last generation
#endif
    run releaser()
  }
}
