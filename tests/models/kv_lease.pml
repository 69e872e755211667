/*
Two requests of a decoder, one after the other on the same page, and one prefiller that writes into it.

Mirrors: Lease in src/workloads/common/lease.cc; launch(), send_cancel() and revoke() in
src/workloads/kv/decoder_session.cc, apply() in decoder_core.cc; dispatch(), cancel_message() in
prefiller_messages.cc, stop() in prefiller_push.cc, answer_end() in prefiller_core.cc. Messages of each
direction arrive in order; with writes they have none. A write is acknowledged before or after its bytes
and its count show, or its fate stays unknown; without FINAL its bytes may land once more until it is
acknowledged. The prefiller may die at any moment, with what it posted still on the way, and the decoder
learns that or does not.
Left out: several sources, keys for each layer, grants that several requests share, quarantine (a proof
that takes longer), offers.
Proved: nothing lands in a page that was given back; a page has one owner, and is given back once; both
requests end, whatever happens.

@small WRITES=1 FINAL=0
@large WRITES=2 FINAL=0
@finite
@unreached prefiller -end-
@unreached wire -end-
@mutant frees_at_confirm assert:given_back
  the confirmation frees the page, without a look at the counts
@mutant forgets assert:given_back
  a cancel after the prefiller has finished is answered with 0 and not with all
@mutant unknown_is_none assert:given_back
  writes of unknown fate are not fenced
@mutant lost_is_quiet assert:given_back
  a prefiller that is lost is taken for quiet
@mutant timer_is_proof assert:given_back
  after some time without an answer the page is given back
@mutant count_is_final assert:given_back
  the page is given back at the count, though bytes may land once more
@mutant quiet_is_count assert:given_back
  the prefiller says quiet before its writes are acknowledged
@mutant no_timer stuck
  a decoder that waits for the answer of a prefiller that does not answer
@mutant frees_twice assert:owner
  a late confirmation frees the page again
*/

#define NO_REQUEST 2
#define ALL 9
#define SLOT(r, i) ((r) * WRITES + (i))

mtype = {idle, asked, complete, stopping, draining, fencing, quiet};       // leases
mtype = {unseen, running, ending, over};                                // requests at the prefiller
mtype = {unposted, posted, acked, counted, in_doubt, done};            // writes
mtype = {DISPATCH, CANCEL, REFUSE, CONFIRM, FAILED, QUIET};            // messages

chan to_prefiller = [4] of {mtype, byte};
chan to_decoder = [8] of {mtype, byte, byte, byte};

byte owner = NO_REQUEST;  // of the page
mtype lease[2] = idle;
bool given_back[2];
bool said_quiet[2];
byte confirmed[2];
byte count[2];
bool revoked[2];
bool alive = true;
bool known_lost;

mtype request[2] = unseen;
mtype write[2 * WRITES] = unposted;
byte delivered[2], unknown[2];

#define PENDING(i) (write[i] == posted || write[i] == counted)
#define FIRST(r) SLOT(r, 0)
#define LAST(r) SLOT(r, WRITES - 1)
#define DRAINED(r) (!PENDING(FIRST(r)) && !PENDING(LAST(r)))
#define POSTED_ALL(r) (write[FIRST(r)] != unposted && write[LAST(r)] != unposted)

// ---- The network --------------------------------------------------------------------------------

inline land() {
  assert(!given_back[r])
}

proctype wire(byte r; byte slot) {
  bool again;
end:
  do
  // Under a revoked grant nothing lands; the sender learns that it was not delivered.
  :: atomic { PENDING(slot) && revoked[r] -> write[slot] = done }
  :: atomic { write[slot] == in_doubt && revoked[r] -> write[slot] = done }
  :: atomic { write[slot] == acked && revoked[r] -> write[slot] = done }
  :: atomic { write[slot] == posted && !revoked[r] -> delivered[r]++; write[slot] = acked }
  :: atomic { write[slot] == posted && !revoked[r] -> land(); count[r]++; write[slot] = counted }
  :: atomic { write[slot] == acked && !revoked[r] -> land(); count[r]++; write[slot] = done }
  :: atomic { write[slot] == counted && !revoked[r] -> delivered[r]++; write[slot] = done }
#if !FINAL
  :: atomic { write[slot] == counted && !again && !revoked[r] -> again = true; land() }
#endif
  // The acknowledgement is lost, or the cancel came first.
  :: atomic { write[slot] == posted && !revoked[r] -> unknown[r]++; write[slot] = in_doubt }
  :: atomic { write[slot] == posted && request[r] == ending -> write[slot] = done }
  :: atomic { write[slot] == in_doubt && !revoked[r] -> land(); count[r]++; write[slot] = done }
  od
}

// ---- The prefiller ------------------------------------------------------------------------------

inline take_cancel() {
  if
  :: request[r] == running -> request[r] = ending
  :: request[r] == unseen -> to_decoder!CONFIRM(r, 0, 0)
  :: request[r] == over ->
#ifdef MUTANT_forgets
     to_decoder!CONFIRM(r, 0, 0)
#else
     to_decoder!CONFIRM(r, ALL, 0)
#endif
  fi
}

inline post(which) {
  if
  :: write[FIRST(which)] == unposted -> write[FIRST(which)] = posted
#if WRITES > 1
  :: else -> write[LAST(which)] = posted
#endif
  fi
}

#ifdef MUTANT_quiet_is_count
#define MAY_END(r) (write[FIRST(r)] != posted && write[LAST(r)] != posted)
#else
#define MAY_END(r) DRAINED(r)
#endif

inline finish(which) {
  if
  :: unknown[which] > 0 -> to_decoder!FAILED(which, delivered[which], unknown[which])
  :: else -> to_decoder!QUIET(which, 0, 0)
  fi;
  request[which] = over
}

inline confirm(which) {
  to_decoder!CONFIRM(which, delivered[which], unknown[which]);
  request[which] = over
}

proctype prefiller() {
  byte r;
end:
  do
  :: atomic {
       alive && to_prefiller?[DISPATCH, _] ->
       to_prefiller?DISPATCH, r;
       if
       :: request[r] = running
       :: to_decoder!REFUSE(r, 0, 0); request[r] = over
       fi;
       r = 0
     }
  :: atomic { alive && to_prefiller?[CANCEL, _] -> to_prefiller?CANCEL, r; take_cancel(); r = 0 }
  :: atomic { alive && request[0] == running && !POSTED_ALL(0) -> post(0) }
  :: atomic { alive && request[1] == running && !POSTED_ALL(1) -> post(1) }
  :: atomic { alive && request[0] == running && POSTED_ALL(0) && MAY_END(0) -> finish(0) }
  :: atomic { alive && request[1] == running && POSTED_ALL(1) && MAY_END(1) -> finish(1) }
  :: atomic { alive && request[0] == ending && DRAINED(0) -> confirm(0) }
  :: atomic { alive && request[1] == ending && DRAINED(1) -> confirm(1) }
  :: atomic { alive -> alive = false; if :: known_lost = true :: skip fi }
  od
}

// ---- The decoder --------------------------------------------------------------------------------

inline give_back(which) {
  assert(owner == which);
  owner = NO_REQUEST;
  lease[which] = quiet;
  given_back[which] = true
}

inline fence(which) {
  lease[which] = fencing
}

inline counts_here(which) {
  if
#ifdef MUTANT_count_is_final
  :: true -> give_back(which)
#endif
  :: FINAL || said_quiet[which] -> give_back(which)
  :: else -> lease[which] = complete
  fi
}

inline take_end() {
  if
  :: lease[r] == asked || lease[r] == stopping ->
     if
#ifndef MUTANT_unknown_is_none
     :: u > 0 -> fence(r)
#endif
     :: else ->
        confirmed[r] = (l == ALL -> WRITES : l);
#ifdef MUTANT_frees_at_confirm
        give_back(r)
#else
        lease[r] = draining
#endif
     fi
  :: lease[r] == complete ->
     if
     :: u > 0 -> fence(r)
     :: else -> give_back(r)
     fi
#ifdef MUTANT_frees_twice
  :: lease[r] == quiet -> owner = NO_REQUEST
#endif
  :: else
  fi
}

inline take_message() {
  to_decoder?what, r, l, u;
  if
  :: what == REFUSE ->
     if
     :: lease[r] == asked || lease[r] == stopping -> give_back(r)
     :: else
     fi
  :: what == QUIET ->
     if
     :: lease[r] == complete -> give_back(r)
     :: else -> said_quiet[r] = true
     fi
  :: what == CONFIRM || what == FAILED -> take_end()
  fi;
  what = 0;
  r = 0;
  l = 0;
  u = 0
}

#ifdef MUTANT_timer_is_proof
#define EXPIRE(which) give_back(which)
#else
#define EXPIRE(which) fence(which)
#endif

#ifdef MUTANT_lost_is_quiet
#define LOSE(which) give_back(which)
#else
#define LOSE(which) fence(which)
#endif

#define WAITS(which) (lease[which] == stopping || lease[which] == draining || lease[which] == complete)

proctype decoder() {
  mtype what;
  byte r, l, u, next;
  do
  :: atomic {
       next < 2 && owner == NO_REQUEST ->
       owner = next;
       lease[next] = asked;
       if
       :: to_prefiller!DISPATCH(next)
       :: skip  // it does not arrive, and the report of that is late
       fi;
       next++
     }
  :: atomic { nempty(to_decoder) -> take_message() }
  :: atomic { lease[0] == asked && count[0] == WRITES -> counts_here(0) }
  :: atomic { lease[1] == asked && count[1] == WRITES -> counts_here(1) }
  :: atomic { lease[0] == stopping && count[0] == WRITES -> counts_here(0) }
  :: atomic { lease[1] == stopping && count[1] == WRITES -> counts_here(1) }
  // The user cancels, the deadline passes, or the counter key is poisoned.
  :: atomic { lease[0] == asked -> lease[0] = stopping; to_prefiller!CANCEL(0) }
  :: atomic { lease[1] == asked -> lease[1] = stopping; to_prefiller!CANCEL(1) }
  :: atomic { lease[0] == draining && count[0] == confirmed[0] -> give_back(0) }
  :: atomic { lease[1] == draining && count[1] == confirmed[1] -> give_back(1) }
#ifndef MUTANT_no_timer
  :: atomic { WAITS(0) -> EXPIRE(0) }
  :: atomic { WAITS(1) -> EXPIRE(1) }
#endif
  :: atomic { known_lost && (WAITS(0) || lease[0] == asked) -> LOSE(0) }
  :: atomic { known_lost && (WAITS(1) || lease[1] == asked) -> LOSE(1) }
  // The proof: from now on nothing lands under the grant.
  :: atomic { lease[0] == fencing -> revoked[0] = true; give_back(0) }
  :: atomic { lease[1] == fencing -> revoked[1] = true; give_back(1) }
  :: lease[0] == quiet && lease[1] == quiet && empty(to_decoder) -> break
  od
}

init {
  byte i;
  atomic {
    do
    :: i < WRITES -> run wire(0, SLOT(0, i)); run wire(1, SLOT(1, i)); i++
    :: else -> break
    od;
    run prefiller();
    run decoder()
  }
}
