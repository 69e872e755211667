/*
The barrier on one counter key.

Mirrors: Signal in include/fabric/transfer.h and route.cc (one count to every member), and an
expectation of n on one counter that is used for every step (expect() in counter_table.cc).
Left out: lost peers (a signal that fails poisons the counter), cutting (a signal has no bytes).
Proved: when a rank passes step s, every rank has entered s, though all steps share one counter key
and counts overtake each other; no rank waits for ever.

@small RANKS=3 STEPS=2
@large RANKS=3 STEPS=4
@finite
@unreached wire -end-
@mutant one_short assert:entered
  a rank that counts itself among those it waits for
@mutant enters_ahead assert:entered
  a rank that signals the next step before it has passed this one
@mutant starts_from_zero stuck
  a wait that ignores arrivals from before it began: early arrivals are lost
*/

byte entered[RANKS];
byte passed[RANKS];
byte on_wire[RANKS * RANKS];  // from * RANKS + to
short balance[RANKS];

#ifdef MUTANT_one_short
#define NEEDED (RANKS - 2)
#else
#define NEEDED (RANKS - 1)
#endif

#ifdef MUTANT_enters_ahead
#define AHEAD 1
#else
#define AHEAD 0
#endif

inline signal_all() {
  d_step {
    entered[me]++;
    i = 0;
    do
    :: i < RANKS -> on_wire[me * RANKS + i] = on_wire[me * RANKS + i] + (i != me -> 1 : 0); i++
    :: else -> break
    od;
    i = 0
  }
}

proctype rank(byte me) {
  byte i;
  do
  :: passed[me] == STEPS -> break
  :: passed[me] < STEPS ->
     do
     :: entered[me] < STEPS && entered[me] <= passed[me] + AHEAD -> signal_all()
     :: else -> break
     od;
#ifdef MUTANT_starts_from_zero
     balance[me] = 0;
#endif
     balance[me] = balance[me] - NEEDED;
     balance[me] >= 0;
     d_step {
       passed[me]++;
       i = 0;
       do
       :: i < RANKS -> assert(entered[i] >= passed[me]); i++
       :: else -> break
       od;
       i = 0
     }
  od
}

#define ARRIVES(from)                             \
  atomic {                                        \
    on_wire[(from) * RANKS + to] > 0 ->           \
    on_wire[(from) * RANKS + to]--; balance[to]++ \
  }

// One wire to each rank, unordered.
proctype wire(byte to) {
end:
  do
  :: ARRIVES(0)
  :: ARRIVES(1)
  :: ARRIVES(2)
#if RANKS > 3
  :: ARRIVES(3)
#endif
  od
}

init {
  byte i;
  atomic {
    do
    :: i < RANKS -> run rank(i); run wire(i); i++
    :: else -> break
    od
  }
}
