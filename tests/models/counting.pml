/*
Counting writes that are cut over rails that break.

Mirrors: units_of() and whole() in src/core/counter_word.h, the cut of route.cc and shard.cc, slices
of one shard on one path (datapath.cc), reconcile_writes() and replay_shard() in failover.cc. A rail
executes in order; rails are independent. The target's drain report is modelled in steps here
(close, drain, report); how the report reaches the sender is in failover.pml.
Left out: keys and waiters (waiter.pml), messages, more than two slices, rails that stay down.
Proved: at every instant whole <= count <= begun; all writes are whole when the count reaches what
was issued; a shard counts once, after all its bytes; when all is quiet the count is exact.

@small WRITES=1 CUT_MAX=2 OTHERS_CUT=1 BREAKS=2
@large WRITES=2 CUT_MAX=2 OTHERS_CUT=1 BREAKS=2
@finite
@unreached rail -end-
@mutant other_cut assert:units
  a shard that is sent again under another cut: its share changes
@mutant slices_apart assert:bytes
  slices that are sent again separately, each on any rail: the count overtakes the bytes
@mutant before_drain assert:counted
  a report that omits what was received and not polled yet
@mutant before_close assert:counted
  a report about an end that is still open
@mutant gauge_is_proof assert:whole WRITES=2 OTHERS_CUT=2 BREAKS=0
  a reader that acts on a count below what was issued: two halves of two writes make one
*/

#define SHARDS (WRITES * CUT_MAX)
#define WRITE_OF(shard) ((shard) / CUT_MAX)
#define UNITS 2  // of a whole write; divides by every cut

// The shards of the first write go in two slices; the count comes with the second.
#define HEAD 1
#define TAIL 2
#define ALL (HEAD | TAIL)

mtype = {none, delivered, again};

// The target.
byte units;
byte bytes[SHARDS];
byte counted[SHARDS];
byte cut[WRITES];

// A connection of each rail, and what the sender knows of its shards.
chan wire[2] = [2 * SHARDS] of {byte, byte, byte};  // shard, bytes, cut
chan taken[2] = [SHARDS] of {byte, byte};           // completions that are not polled yet
bool up[2] = true;
bool closed[2];
byte epoch[2];
byte given[2], landed[2], acked[2];
byte breaks;
#ifdef MUTANT_before_close
bool reported[2];
#endif

byte rail_of[SHARDS];
byte number[SHARDS] = 255;  // among the immediates of its connection; 255: not posted
mtype result[SHARDS] = none;
byte sent_in[SHARDS] = 255;  // epoch

inline look() {
  d_step {
    whole = 0;
    begun = 0;
    i = 0;
    do
    :: i < WRITES ->
       n = counted[i * CUT_MAX] + (CUT_MAX > 1 -> counted[i * CUT_MAX + CUT_MAX - 1] : 0);
       whole = whole + (n == cut[i] -> 1 : 0);
       begun = begun + (n > 0 -> 1 : 0);
       i++
    :: else -> break
    od;
    assert(whole <= units / UNITS && units / UNITS <= begun);
#ifdef MUTANT_gauge_is_proof
    assert(units / UNITS <= whole);
#endif
    i = 0;
    n = 0;
    whole = 0;
    begun = 0
  }
}

proctype shard(byte me) {
  byte r, now;
  byte last = TAIL;
  now = cut[WRITE_OF(me)];
repeat:
  atomic {
    if
    :: up[0] -> r = 0
    :: up[1] -> r = 1
    fi;
    rail_of[me] = r;
    sent_in[me] = epoch[r];
#if WRITES > 1
    if
    :: WRITE_OF(me) > 0 -> last = ALL
    :: else -> last = TAIL; wire[r] ! me, HEAD, now
    fi
#else
    wire[r] ! me, HEAD, now
#endif
  }
#ifdef MUTANT_slices_apart
  if
  :: result[me] == none && counted[me] == 0 && epoch[0] + epoch[1] > 0 ->
     if
     :: atomic { up[0] -> r = 0; rail_of[me] = 0; sent_in[me] = epoch[0] }
     :: atomic { up[1] -> r = 1; rail_of[me] = 1; sent_in[me] = epoch[1] }
     fi
  :: else
  fi;
#endif
  atomic {
    if
    :: up[r] && epoch[r] == sent_in[me] ->
       wire[r] ! me, last, now;
       number[me] = given[r];
       given[r]++
    :: else  // the rest of a shard whose first slice was on a broken connection
    fi
  }
  atomic {
    result[me] != none ->
    number[me] = 255;
    sent_in[me] = 255;
    if
    :: result[me] == again ->
       result[me] = none;
#ifdef MUTANT_other_cut
       now = 1;
#endif
       goto repeat
    :: else
    fi
  }
}

#define BROKE(r) (!up[r] || epoch[r] > 0)

inline reconcile() {
  d_step {
    i = 0;
    do
    :: i < SHARDS ->
       if
       :: sent_in[i] == epoch[me] && rail_of[i] == me && result[i] == none ->
#ifdef MUTANT_before_drain
          result[i] = (number[i] != 255 && number[i] < landed[me] - len(taken[me]) ->
                        delivered : again)
#else
          result[i] = (number[i] != 255 && number[i] < landed[me] -> delivered : again)
#endif
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

proctype rail(byte me) {
  byte i, n, id, slice, share, whole, begun;
end:
  do
  :: atomic {
       !closed[me] && nempty(wire[me]) ->
       wire[me] ? id, slice, share;
       bytes[id] = bytes[id] | slice;
       if
       :: (slice & TAIL) != 0 -> taken[me] ! id, share; landed[me]++
       :: else
       fi;
       id = 0; slice = 0; share = 0
     }
  :: atomic {
       nempty(taken[me]) ->
       taken[me] ? id, share;
       assert(bytes[id] == ALL);
       counted[id]++;
       assert(counted[id] <= 1);
       units = units + UNITS / share;
       look();
       id = 0; share = 0
     }
  :: atomic {  // an acknowledgement
       up[me] && acked[me] < landed[me] ->
       i = 0;
       do
       :: sent_in[i] == epoch[me] && rail_of[i] == me && number[i] == acked[me] -> break
       :: else -> i++
       od;
       result[i] = delivered;
       acked[me]++;
       i = 0
     }
  // The first to break is rail 0: the other way round would look the same.
  :: atomic { up[me] && breaks > 0 && (me == 0 || BROKE(0)) -> breaks--; up[me] = false }
#ifdef MUTANT_before_close
  :: atomic { !up[me] && !closed[me] && !reported[me] -> reconcile(); reported[me] = true }
  :: atomic {
       reported[me] && !closed[me] ->
#else
  :: atomic {
       !up[me] && !closed[me] ->
#endif
       closed[me] = true;
       do
       :: nempty(wire[me]) -> wire[me] ? id, slice, share
       :: else -> break
       od;
       id = 0; slice = 0; share = 0
     }
#ifdef MUTANT_before_drain
  :: atomic {
       closed[me] ->
#else
  :: atomic {
       closed[me] && empty(taken[me]) ->
#endif
#ifdef MUTANT_before_close
       reported[me] = false;
#else
       reconcile();
#endif
       // The next connection.
       given[me] = 0;
       landed[me] = 0;
       acked[me] = 0;
       epoch[me]++;
       closed[me] = false;
       up[me] = true
     }
  od
}

init {
  byte w, k;
  atomic {
    select(breaks : 0 .. BREAKS);
    do
    :: w < WRITES ->
       select(k : 1 .. (w == 0 -> CUT_MAX : OTHERS_CUT));
       cut[w] = k;
       do
       :: k > 0 -> k--; run shard(w * CUT_MAX + k)
       :: else -> break
       od;
       w++
    :: else -> break
    od;
    w = 0;
    run rail(0);
    run rail(1)
  }
  atomic { timeout -> assert(units == WRITES * UNITS) }
}
