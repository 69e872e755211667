/*
A named counter key that is closed: every peer that resolved it is asked to stop using it.

Mirrors: resolve(), release(), key_revoked() and peer_lost() in src/core/counters.cc, close() in
counter.cc, on_revoke_key(), on_resolved(), outdated(), add_drain() and check_drains() in
control_ops.cc, start_parts() in route.cc, key_revoked() and oldest_inflight() in transfer.cc. Numbered
messages arrive once each, in any order. A posted write may complete, or be in doubt on a broken
connection, where it may land until the target's report. An application keeps using every key that it
ever got.
Left out: reused key values, hence the number of the question by which outdated() detects them, and
refused_keys_, which prevents the reuse while the session is up; the half-wrap rule, which protects
counts even without proof (reuse.pml); how a broken connection is reconciled (failover.pml).
Proved: after close() has returned "proved" nothing lands under that key; close() always returns.

@small PEERS=1 WRITES=1 EPOCHS=2 KEEPS=1
@large PEERS=2 WRITES=1 EPOCHS=2 KEEPS=1
@finite
@unreached peer -end-
@unreached session -end-
@unreached wire -end-
@mutant before_drain assert:proved
  a peer that answers while its posted writes are in flight
@mutant queue_goes_on assert:proved
  what was queued under the key is posted after the answer
@mutant broken_forgotten assert:proved
  a drain that waits for paths, but not for broken connections
@mutant resolver_forgotten assert:proved
  a resolver that is not asked
@mutant lost_is_quiet assert:proved
  a lost peer is taken for quiet, though it is not fenced
@mutant any_answer assert:proved
  an answer that does not name its question: one about the previous key counts for this one
@mutant submits_later assert:proved
  the application still uses the key that it resolved, and is not refused
@mutant full_is_quiet assert:proved
  a peer that can keep no more revoked keys confirms nevertheless
@mutant revoke_overtakes assert:proved
  the question overtakes the key: the peer has nothing to drain, says so, and then learns the key
@mutant dead_answer assert:kept
  a resolve ends with a key that was revoked while its answer was on the way
*/

#define SLOTS (PEERS * WRITES)
#define KEYS (PEERS * (EPOCHS + 1))
#define KEY(p, k) ((p) * (EPOCHS + 1) + (k))
#define NO_KEY 0

mtype = {idle, queued, posted, in_doubt};

// The owner. Keys are numbered by epoch: the value is new each time.
byte epoch;
bool live;
bool proved[EPOCHS + 1];     // close() returned kProved
bool resolver[PEERS], awaited[PEERS];
bool unproved;               // a lost peer may still write

// Messages: the key that they are about, or none.
bool resolve_asked[PEERS];
byte resolved[PEERS], revoke[PEERS], answer[PEERS];
bool no_room[PEERS];         // the answer is that nothing more can be kept

// The peers.
bool has[KEYS];              // the application has got this key
bool kept[KEYS];             // it was revoked: nothing is started under it any more
byte kept_count[PEERS];
byte draining[PEERS];        // the key about which an answer is owed
bool asked_name[PEERS];      // it resolves once in each epoch
bool lost[PEERS];            // the owner has given it up

mtype write[SLOTS] = idle;
byte under[SLOTS];
bool waits[SLOTS];           // it was posted when the question came
byte writes_left[PEERS];

#define SLOT(p, i) ((p) * WRITES + (i))
#define FIRST SLOT(me, 0)
#define LAST SLOT(me, WRITES - 1)

#ifdef MUTANT_before_drain
#define QUIET(i) true
#elif defined(MUTANT_broken_forgotten)
#define QUIET(i) !(waits[i] && write[i] == posted)
#else
#define QUIET(i) !waits[i]
#endif

// What is posted ends, or breaks, or lands late. It lands at most once.
proctype wire(byte slot) {
end:
  do
  :: atomic { write[slot] == posted -> write[slot] = in_doubt }
  :: atomic {
       write[slot] == posted || write[slot] == in_doubt ->
       if
       :: assert(!proved[under[slot]])  // lands
       :: skip                          // completes, or is reconciled as not received
       fi;
       write[slot] = idle;
       under[slot] = NO_KEY;
       waits[slot] = false
     }
  od
}

// Drops what is queued under the key, and remembers what has to end before the answer.
inline revoke_one(which) {
#ifndef MUTANT_queue_goes_on
  if
  :: write[which] == queued && under[which] == key ->
     write[which] = idle;
     under[which] = NO_KEY
  :: else
  fi;
#endif
  waits[which] = write[which] == posted || write[which] == in_doubt
}

#ifdef MUTANT_submits_later
#define REFUSED(p, k) false
#else
#define REFUSED(p, k) kept[KEY(p, k)]
#endif

#ifdef MUTANT_revoke_overtakes
#define KNOWS(p, k) has[KEY(p, k)]
#else
#define KNOWS(p, k) true
#endif

#ifdef MUTANT_full_is_quiet
#define FULL(p) false
#else
#define FULL(p) (kept_count[p] == KEEPS)
#endif

// What was revoked is not to be learnt; the question is put once more.
inline learn() {
  if
#ifndef MUTANT_dead_answer
  :: kept[KEY(me, resolved[me])] -> resolve_asked[me] = true
#endif
  :: else ->
     assert(!kept[KEY(me, resolved[me])]);
     has[KEY(me, resolved[me])] = true
  fi;
  resolved[me] = NO_KEY
}

inline start(which) {
  if
  :: REFUSED(me, key)
  :: else ->
     write[which] = queued;
     under[which] = key
  fi
}

// Keeps the key if there is room; if not, it says so at once.
inline take_revoke() {
  if
  :: FULL(me) ->
     answer[me] = key;
     no_room[me] = true
  :: else ->
     if
     :: kept_count[me] < KEEPS && KNOWS(me, key) ->
        kept[KEY(me, key)] = true;
        kept_count[me]++
     :: else
     fi;
     draining[me] = key
  fi
}

#define FREE (write[FIRST] == idle || write[LAST] == idle)

proctype peer(byte me) {
  byte slot, key;
end:
  do
  :: atomic {
       live && !asked_name[me] && !resolve_asked[me] && !lost[me] ->
       asked_name[me] = true;
       resolve_asked[me] = true
     }
  :: atomic {
       resolved[me] != NO_KEY && !lost[me] ->
       learn()
     }
  :: atomic {
       (has[KEY(me, 1)] || has[KEY(me, EPOCHS)]) && writes_left[me] > 0 && FREE && !lost[me] ->
       if
       :: has[KEY(me, 1)] -> key = 1
       :: has[KEY(me, EPOCHS)] -> key = EPOCHS
       fi;
       slot = (write[FIRST] == idle -> FIRST : LAST);
       start(slot);
       writes_left[me]--;
       slot = 0;
       key = NO_KEY
     }
  :: atomic { write[FIRST] == queued && !lost[me] -> write[FIRST] = posted }
#if WRITES > 1
  :: atomic { write[LAST] == queued && !lost[me] -> write[LAST] = posted }
#endif
  :: atomic {
       revoke[me] != NO_KEY && draining[me] == NO_KEY && answer[me] == NO_KEY && !lost[me] ->
       key = revoke[me];
       revoke[me] = NO_KEY;
       take_revoke();
       revoke_one(FIRST);
#if WRITES > 1
       revoke_one(LAST);
#endif
       key = NO_KEY
     }
  :: atomic {
       draining[me] != NO_KEY && QUIET(FIRST) && QUIET(LAST) && answer[me] == NO_KEY ->
       answer[me] = draining[me];
       draining[me] = NO_KEY;
       waits[FIRST] = false;
       waits[LAST] = false
     }
  od
}

#ifdef MUTANT_resolver_forgotten
#define KNOWN(p) (p != 0)
#else
#define KNOWN(p) true
#endif

#ifdef MUTANT_any_answer
#define BELONGS(p) true
#else
#define BELONGS(p) (answer[p] == epoch)
#endif

// The owner's session with one peer.
proctype session(byte p) {
end:
  do
  :: atomic {
       live && resolve_asked[p] && resolved[p] == NO_KEY && !lost[p] ->
       resolve_asked[p] = false;
       resolver[p] = KNOWN(p);
       resolved[p] = epoch
     }
  :: atomic {
       answer[p] != NO_KEY && !lost[p] ->
       unproved = unproved || (no_room[p] && awaited[p] && BELONGS(p));
       awaited[p] = awaited[p] && !BELONGS(p);
       answer[p] = NO_KEY;
       no_room[p] = false
     }
  // One peer is enough to be lost.
  :: atomic {
       !lost[p] && p == 0 ->
       lost[p] = true;
#ifndef MUTANT_lost_is_quiet
       unproved = unproved || awaited[p] || resolver[p];
#endif
       awaited[p] = false;
       resolver[p] = false
     }
  od
}

#define ALL_ANSWERED (!awaited[0] && !awaited[PEERS - 1])

proctype owner() {
  byte i;
  do
  :: epoch == EPOCHS -> break
  :: epoch < EPOCHS ->
     atomic {
       epoch++;
       live = true;
       unproved = false;
       i = 0;
       do
       :: i < PEERS ->
          resolver[i] = false;
          asked_name[i] = false;
          writes_left[i] = WRITES;
          i++
       :: else -> break
       od;
       i = 0
     }
     // close()
     atomic {
       live = false;
       i = 0;
       do
       :: i < PEERS ->
          awaited[i] = resolver[i];
          revoke[i] = (resolver[i] -> epoch : revoke[i]);
          i++
       :: else -> break
       od;
       i = 0
     }
     if
     :: atomic { ALL_ANSWERED -> proved[epoch] = !unproved }
     :: atomic { awaited[0] = false; awaited[PEERS - 1] = false }  // its timeout
     fi
  od
}

init {
  byte i;
  atomic {
    do
    :: i < PEERS -> run peer(i); run session(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < SLOTS -> run wire(i); i++
    :: else -> break
    od;
    run owner()
  }
}
