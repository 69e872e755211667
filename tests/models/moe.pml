/*
Two banks, credits, and a step that continues without a peer.

Mirrors: CounterGroup in src/core/counter.cc (expect, mask, take_member_shares), set_parent() and
deliver_and_forward() in counter_table.cc. Every peer has a key of its own in each bank, a member of
the bank's group; step s lands in bank s % 2. A peer may send step s once it has received the credit
for s - 2, which may come late. A write is cut in two, and the network is unordered; between the count
at a member and the count at the group other steps may run.
Left out: groups that are poisoned and renewed (renew_group), shares above one, kernels.
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
@mutant key_per_bank assert:shard
  one key for all peers of a bank: half of one write and half of another step's look whole
@mutant pays_always assert:shard
  masking adds the share of a member that had already been counted
@mutant not_released assert:shard
  a masked member that still passes on: what comes late counts in a later step
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

byte member[PEERS * BANKS];    // in halves of a write
bool released[PEERS * BANKS];
byte group[BANKS];             // in whole writes
byte needed[BANKS] = 2;        // a masked peer's share is paid once; after that it is not expected
byte step;
bool masked[PEERS];
byte masks = 1;

#ifdef MUTANT_key_per_bank
#define KEY(p, s) MEMBER(0, s)
#else
#define KEY(p, s) MEMBER(p, s)
#endif

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
  bool passes;
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
       :: !released[KEY(from, s)] ->
          member[KEY(from, s)]++;
          passes = member[KEY(from, s)] % 2 == 0
       :: else
       fi;
       half = 0
     }
     if
     :: atomic { passes -> group[s % BANKS]++; passes = false }
     :: !passes
     fi;
     s = 0
  od
}

inline mask(p) {
  atomic {
    masks--;
    masked[p] = true;
    i = 0;
    do
    :: i < BANKS ->
       had[i] = member[MEMBER(p, i)] / 2;
#if !defined(MUTANT_not_released) && !defined(MUTANT_key_per_bank)
       released[MEMBER(p, i)] = true;
#endif
       i++
    :: else -> break
    od;
    i = 0
  }
#ifdef MUTANT_pays_always
  atomic { had[0] = 0; had[1] = 0 };
#endif
  atomic { group[0] = group[0] + 1 - had[0]; had[0] = 0 };
  atomic { group[1] = group[1] + 1 - had[1]; had[1] = 0 }
}

#define WHOLE(p) \
  (shard[SHARD(p, step, 0)] == LANDED && shard[SHARD(p, step, 1)] == LANDED)

inline consume() {
  assert(masked[0] || WHOLE(0));
  assert(masked[1] || WHOLE(1));
  group[step % BANKS] = group[step % BANKS] - needed[step % BANKS];
  assert(group[step % BANKS] == 0);
  needed[step % BANKS] = (masked[1] -> 1 : 2);
  i = 0;
  do
  :: i < PEERS ->
     if
     :: !masked[i] ->
        member[KEY(i, step)] = member[KEY(i, step)] - 2;
        credit_sent[i] = step + 1 + BANKS
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
  byte had[BANKS];
  do
  :: step == STEPS -> break
  :: step < STEPS ->
     if
     :: atomic { group[step % BANKS] >= needed[step % BANKS] -> consume() }
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
