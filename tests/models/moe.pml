/*
Two banks, credits, and a step that continues without a peer.

Mirrors: CounterGroupState in src/core/counter_group.cc (begin_expectation, mask, reap_expectation),
take_shares(), unlink() and deliver_and_forward() in counter_table.cc. Every peer has a key of its own in
each bank, a member of the bank's group; step s lands in bank s % 2. A round takes the share of one
member after another; the arrival that pays a share adds one count to the group, and between the two
other steps may run. A peer may send step s once it has received the credit for s - 2, which may come
late. A write is cut in two, and the network is unordered.
Left out: groups that are poisoned and renewed (renew), shares above one, kernels.
Proved: when a step is met, the write of every peer that is not masked is whole and of that step;
no peer overwrites a bank that is being read; a masked peer's late traffic is not counted; the
group's count at the end of a step is what it expects, no more; no run is endless or stuck.

@small STEPS=3 WORKERS=1
@large STEPS=3 WORKERS=2
@finite
@unreached peer -end-
@unreached worker -end-
@mutant no_credit assert:step
  a peer that sends as fast as it can: its next write lands in a bank that is being read
@mutant pays_always assert:step
  masking adds the count of a member that had already paid
@mutant prepaid assert:step
  masking adds a count to a group that has no open round
@mutant not_released assert:step
  a masked member that still pays: what comes late counts in place of another
*/

#define PEERS 2
#define BANKS 2
#define MEMBER(p, s) ((p) * BANKS + (s) % BANKS)

#define SENT 1
#define LANDED 2
#define SHARD(p, s, h) ((p) * STEPS * 2 + (s) * 2 + (h))
byte shard[PEERS * STEPS * 2];
byte next[PEERS];              // step to send
byte credit[PEERS] = 2;        // steps that may be sent
byte credit_sent[PEERS] = 2;          // the same, on its way

short member[PEERS * BANKS];   // balance, in halves of a write; negative: it owes
bool released[PEERS * BANKS];
byte group[BANKS];             // counts of the parent
byte owed[BANKS];              // members that owed when the round was opened
bool open[BANKS];              // a round is
byte step;
bool masked[PEERS];
byte masks = 1;

proctype peer(byte me) {
end:
  do
#ifdef MUTANT_no_credit
  :: atomic {
       next[me] < STEPS ->
#else
  :: atomic {
       next[me] < STEPS && next[me] < credit[me] ->
#endif
       shard[SHARD(me, next[me], 0)] = SENT;
       shard[SHARD(me, next[me], 1)] = SENT;
       next[me]++
     }
  :: atomic { credit[me] < credit_sent[me] -> credit[me] = credit_sent[me] }
  od
}

#define TAKES(x, h) shard[SHARD(from, x, h)] == SENT -> s = x; half = h

// A worker that takes what comes from a peer, in any order.
proctype worker(byte from) {
  byte s, half;
  bool pays;
end:
  do
  :: atomic {
       if
       :: TAKES(0, 0)
       :: TAKES(0, 1)
       :: TAKES(1, 0)
       :: TAKES(1, 1)
       :: TAKES(2, 0)
       :: TAKES(2, 1)
#if STEPS > 3
       :: TAKES(3, 0)
       :: TAKES(3, 1)
#endif
       fi;
       // The bank is read until its step has been consumed.
       assert(masked[from] || s < step + BANKS);
       shard[SHARD(from, s, half)] = LANDED;
       if
       :: !released[MEMBER(from, s)] ->
          member[MEMBER(from, s)]++;
          pays = member[MEMBER(from, s)] == 0
       :: else
       fi;
       half = 0
     }
     if
     :: atomic { pays -> group[s % BANKS]++; pays = false }
     :: !pays
     fi;
     s = 0
  od
}

inline take(p) {
  atomic {
    if
    :: !masked[p] ->
       member[MEMBER(p, step)] = member[MEMBER(p, step)] - 2;
       if
       :: member[MEMBER(p, step)] < 0 -> owed[step % BANKS]++
       :: else
       fi
    :: else
    fi
  }
}

inline leave(p, b) {
  atomic {
    owes = open[b] && member[MEMBER(p, b)] < 0;
#ifndef MUTANT_not_released
    released[MEMBER(p, b)] = true;
#endif
#ifdef MUTANT_pays_always
    owes = open[b];
#endif
#ifdef MUTANT_prepaid
    owes = owes || !open[b];
#endif
  }
  if
  :: atomic { owes -> group[b]++; owes = false }
  :: !owes
  fi
}

inline mask(p) {
  atomic { masks--; masked[p] = true };
  leave(p, 0);
  leave(p, 1)
}

#define WHOLE(p) \
  (shard[SHARD(p, step, 0)] == LANDED && shard[SHARD(p, step, 1)] == LANDED)

inline consume() {
  assert(masked[0] || WHOLE(0));
  assert(masked[1] || WHOLE(1));
  group[step % BANKS] = group[step % BANKS] - owed[step % BANKS];
  assert(group[step % BANKS] == 0);
  owed[step % BANKS] = 0;
  open[step % BANKS] = false;
  i = 0;
  do
  :: i < PEERS ->
     if
     :: !masked[i] -> credit_sent[i] = step + 1 + BANKS
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  step++
}

proctype reader() {
  byte i;
  bool owes;
  do
  :: step == STEPS -> break
  :: step < STEPS ->
     if
     :: !open[step % BANKS] ->
        take(0);
        take(1);
        open[step % BANKS] = true
     :: atomic {
          open[step % BANKS] && group[step % BANKS] >= owed[step % BANKS] -> consume()
        }
     :: masks > 0 -> mask(1)
     fi
  od
}

init {
  atomic {
    run peer(0);
    run peer(1);
    run worker(0);
    run worker(1);
#if WORKERS > 1
    run worker(0);
    run worker(1);
#endif
    run reader()
  }
}
