/*
A deadline, then a drain, then a path that is torn down, then the target's word.

Mirrors: stop(), force(), piece_ended() and path_down() in src/core/transfer.cc, may_strand(),
make_wreck() and settle_pieces() in failover.cc, spoil(), oldest_piece() and check_drains(). One
path carries a piece of the operation that is stopped (the victim) and one of an operation that is
not (the innocent); a second path works. The NIC may hang: it sends and acknowledges nothing, and
gives pieces back only when the path is closed. What it has sent may land until the target has
closed its end. The timers run in their order and otherwise at any time: the target may be silent.
Left out: several rails and pieces, a peer that is lost, networks without an account.
Proved: each operation ends once, the victim always; when it has ended its NIC does not hold its
source; "not delivered" never lands, "delivered" is counted, "unknown" spoils the key; the innocent
is delivered and counted once; a confirmation that all is quiet is not given before the word.

@small PIECES=2 BREAKS=1
@large PIECES=3 BREAKS=1
@finite
@unreached nic -end-
@unreached target -end-
@unreached sender -end-
@mutant clock_ends_it assert:held
  the bound ends the operation although its NIC still holds the source
@mutant silence_is_no assert:counted
  no word from the target is taken for "not delivered"
@mutant no_spoil assert:spoiled
  an unknown end that nobody tells the receiver of
@mutant wreck_is_quiet assert:quiet
  a confirmation that looks at what is posted, and not at what a broken path has left behind
@mutant innocents_die assert:ending
  whatever was on the path that is torn down ends with it
@mutant innocents_twice assert:counted
  whatever was on the path that is torn down is sent again at once, without the word
@mutant waits_for_the_nic assert:piece
  a drain without a bound: the path of an operation that hangs is never torn down
*/

#define VICTIM 0
#define NOWHERE 255

mtype = {queued, posted, stranded, again, ended};
mtype = {none, delivered, not_delivered, unknown};
mtype = {ready, closing, wreck, settled};
mtype = {running, draining, forced, over};

// The sender.
mtype piece[PIECES] = queued;
mtype ending[PIECES] = none;
mtype stage = running;        // of the victim; over: its bound has passed
mtype path = ready;
byte number[PIECES] = NOWHERE;  // among the immediates of the path
byte given;
bool never_left[PIECES];      // so the NIC said when it gave it back
bool returned[PIECES];        // by a break: its fate is not known until the word
byte far = NOWHERE;           // the word, when it came before the wreck
bool asked_quiet, quiet;
bool old[PIECES];             // posted when quiet was asked for

// Messages.
bool path_close, path_state, abort_key;
byte word;

// NIC and wire.
bool held[PIECES];            // the NIC may read the source
byte fifo[PIECES];
byte sent, landed, acked;
bool hangs;
bool second[PIECES];          // it is on the path that works

// The target.
mtype inbound = ready;
byte looked;
byte counted[PIECES];
bool spoiled;
byte breaks;

inline finish(p, how) {
  assert(ending[p] == none);
  assert(!held[p]);
  assert(how != not_delivered || counted[p] == 0);
  ending[p] = how;
  piece[p] = ended;
#ifndef MUTANT_no_spoil
  abort_key = abort_key || how == unknown
#endif
}

#ifdef MUTANT_silence_is_no
#define WITHOUT_A_WORD(p) not_delivered
#else
#define WITHOUT_A_WORD(p) (never_left[p] -> not_delivered : unknown)
#endif

inline settle(taken) {
  i = 0;
  do
  :: i < PIECES ->
     if
     :: piece[i] == stranded && number[i] < taken -> finish(i, delivered)
     :: piece[i] == stranded && number[i] >= taken && i == VICTIM && stage != running ->
        finish(i, not_delivered)
     :: piece[i] == stranded && number[i] >= taken && (i != VICTIM || stage == running) ->
        piece[i] = again
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  path = settled
}

#define QUIET(p) \
  (!old[p] || (piece[p] != posted && (piece[p] != stranded || LOOKS_AWAY) && \
               (!returned[p] || path == settled || LOOKS_AWAY)))
#ifdef MUTANT_wreck_is_quiet
#define LOOKS_AWAY true
#else
#define LOOKS_AWAY false
#endif

#define NONE_POSTED \
  (piece[0] != posted && piece[1] != posted && piece[PIECES - 1] != posted)

// The engine's turns, apart from its timers.
proctype sender() {
  byte i;
end:
  do
  :: atomic { path == ready && breaks > 0 -> breaks--; path = closing }
  :: atomic {
       path == closing && NONE_POSTED ->
       path = wreck;
       if
       :: far != NOWHERE -> settle(far)
       :: else -> path_close = true
       fi
     }
  :: atomic {
       path_state ->
       path_state = false;
       if
       :: path == wreck -> settle(word)
       :: else -> far = word; path = closing
       fi
     }
  // Somebody revokes a key or a region, and wants to hear that all is quiet.
  :: atomic {
       !asked_quiet ->
       asked_quiet = true;
       do
       :: i < PIECES -> old[i] = piece[i] == posted || piece[i] == stranded || returned[i]; i++
       :: else -> break
       od;
       i = 0
     }
  :: atomic { asked_quiet && !quiet && QUIET(0) && QUIET(1) && QUIET(PIECES - 1) -> quiet = true }
  od
}

proctype timers() {
  // The deadline: stop().
  atomic {
    stage = draining;
    if
    :: piece[VICTIM] == queued || (piece[VICTIM] == again && !second[VICTIM]) ->
       finish(VICTIM, not_delivered)
    :: else
    fi
  }
  // Three quarters of the drain bound: force().
  atomic {
    stage = forced;
#ifndef MUTANT_waits_for_the_nic
    path = (piece[VICTIM] == posted && path == ready -> closing : path)
#endif
  }
  // The last quarter.
  atomic {
    stage = over;
    if
    :: piece[VICTIM] == stranded -> finish(VICTIM, WITHOUT_A_WORD(VICTIM))
#ifdef MUTANT_clock_ends_it
    :: piece[VICTIM] == posted -> finish(VICTIM, unknown)
#endif
    :: else
    fi
  }
}

inline give_back(p) {
  held[p] = false;
  never_left[p] = number[p] >= sent;
  returned[p] = true;
  if
  :: p == VICTIM && stage == over -> finish(p, WITHOUT_A_WORD(p))
#if defined(MUTANT_innocents_die)
  :: p != VICTIM -> finish(p, unknown)
#elif defined(MUTANT_innocents_twice)
  :: p != VICTIM -> piece[p] = again
#endif
  :: else -> piece[p] = stranded
  fi
}

proctype nic(byte me) {
end:
  do
  :: atomic {
       piece[me] == queued && path == ready ->
       piece[me] = posted;
       held[me] = true;
       number[me] = given;
       fifo[given] = me;
       given++
     }
  :: atomic { piece[me] == queued && path != ready -> piece[me] = again }
  :: atomic { number[me] == sent && path == ready && !hangs -> sent++ }
  :: atomic {
       number[me] == acked && acked < landed && path != wreck && path != settled && held[me] &&
       !hangs ->
       acked++;
       held[me] = false;
       finish(me, delivered)
     }
  :: atomic { me == VICTIM && piece[me] == posted && !hangs -> hangs = true }
  :: atomic { path == closing && piece[me] == posted -> give_back(me) }
  :: atomic { piece[me] == again && !second[me] -> second[me] = true; held[me] = true }
  :: atomic {
       piece[me] == again && second[me] ->
       held[me] = false;
       counted[me]++;
       assert(counted[me] <= 1);
       finish(me, delivered)
     }
  od
}

proctype target() {
  byte p;
end:
  do
  :: atomic {
       inbound == ready && landed < sent ->
       p = fifo[landed];
       assert(ending[p] != not_delivered);
       assert(!(quiet && old[p]));
       landed++;
       p = 0
     }
  :: atomic {
       looked < landed ->
       p = fifo[looked];
       looked++;
       counted[p]++;
       assert(counted[p] <= 1);
       p = 0
     }
  :: atomic { inbound == ready && path_close -> path_close = false; inbound = closing }
  :: atomic { inbound == ready && breaks > 0 -> breaks--; inbound = closing }
  :: atomic {
       inbound == closing && looked == landed ->
       inbound = settled;
       word = looked;
       path_state = true
     }
  :: atomic { abort_key -> abort_key = false; spoiled = true }
  od
}

init {
  byte i;
  atomic {
    select(breaks : 0 .. BREAKS);
    do
    :: i < PIECES -> run nic(i); i++
    :: else -> break
    od;
    i = 1;
    run sender();
    run timers();
    run target()
  }
  atomic {
    timeout ->
    assert(piece[VICTIM] == ended);
    assert(ending[VICTIM] != delivered || counted[VICTIM] == 1);
    assert(ending[VICTIM] != unknown || spoiled);
    assert(asked_quiet && quiet);
    do
    :: i < PIECES -> assert(ending[i] == delivered && counted[i] == 1); i++
    :: else -> break
    od
  }
}
