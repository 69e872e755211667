/*
A deadline, then a drain, then a path that is torn down, then the target's drain report.

Mirrors: stop(), force_drain(), retire_write() and path_down() in src/core/transfer.cc, goes_in_doubt(),
record_broken() and reconcile_writes() in failover.cc, poison_key(), oldest_inflight(), check_drains().
One path carries a write of the operation that is stopped and one of another operation; a second path
works. The NIC may hang: it sends and acknowledges nothing, and returns writes only when the path is
closed. What it has sent may land until the target has closed its end. The timers expire in their
order and otherwise at any time: the target may be silent.
Left out: several rails, operations of several writes, a lost peer, networks without exact replay.
Proved: each operation completes once, the stopped one always; once it has completed its NIC does not
hold its source; "not delivered" never lands, "delivered" is counted, "unknown" poisons the counter;
the other operation is delivered and counted once; quiescence is not confirmed before the report.

@small WRITES=2 BREAKS=1
@large WRITES=3 BREAKS=1
@finite
@unreached nic -end-
@unreached target -end-
@unreached sender -end-
@mutant clock_ends_it assert:held
  the drain bound completes the operation although its NIC still holds the source
@mutant silence_is_no assert:counted
  a missing report from the target is taken for "not delivered"
@mutant no_poison assert:poisoned
  an unknown result that is not reported to the receiver
@mutant broken_is_quiet assert:quiet
  a confirmation that waits for posted writes, but not for those in doubt on a broken path
@mutant others_die assert:ending
  all other writes on the path that is torn down fail with it
@mutant others_twice assert:counted
  all other writes on the path that is torn down are sent again at once, without the report
@mutant waits_for_the_nic assert:write
  a drain without a bound: the path of an operation that hangs is never torn down
*/

#define STOPPED 0
#define UNSET 255

mtype = {queued, posted, in_doubt, again, ended};
mtype = {none, delivered, not_delivered, unknown};
mtype = {ready, closing, broken, reconciled};
mtype = {running, draining, forced, expired};

// The sender.
mtype write[WRITES] = queued;
mtype ending[WRITES] = none;
mtype op_state = running;     // of the stopped operation; expired: its drain bound has passed
mtype path = ready;
byte number[WRITES] = UNSET;  // among the immediates of the path
byte given;
bool never_left[WRITES];      // reported by the NIC when it returned the write
bool returned[WRITES];        // by a break: in doubt until the report
byte far = UNSET;             // the report, if it came before this end broke
bool asked_quiet, quiet;
bool old[WRITES];             // posted when quiet was asked for

// Messages.
bool path_close, path_drained, abort_key;
byte report;

// NIC and wire.
bool held[WRITES];            // the NIC may read the source
byte fifo[WRITES];
byte sent, landed, acked;
bool hangs;
bool second[WRITES];          // it is on the path that works

// The target.
mtype inbound = ready;
byte polled;
byte counted[WRITES];
bool poisoned;
byte breaks;

inline finish(p, how) {
  assert(ending[p] == none);
  assert(!held[p]);
  assert(how != not_delivered || counted[p] == 0);
  ending[p] = how;
  write[p] = ended;
#ifndef MUTANT_no_poison
  abort_key = abort_key || how == unknown
#endif
}

#ifdef MUTANT_silence_is_no
#define WITHOUT_A_REPORT(p) not_delivered
#else
#define WITHOUT_A_REPORT(p) (never_left[p] -> not_delivered : unknown)
#endif

inline reconcile(taken) {
  i = 0;
  do
  :: i < WRITES ->
     if
     :: write[i] == in_doubt && number[i] < taken -> finish(i, delivered)
     :: write[i] == in_doubt && number[i] >= taken && i == STOPPED && op_state != running ->
        finish(i, not_delivered)
     :: write[i] == in_doubt && number[i] >= taken && (i != STOPPED || op_state == running) ->
        write[i] = again
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  path = reconciled
}

#define QUIET(p) \
  (!old[p] || (write[p] != posted && (write[p] != in_doubt || LOOKS_AWAY) && \
               (!returned[p] || path == reconciled || LOOKS_AWAY)))
#ifdef MUTANT_broken_is_quiet
#define LOOKS_AWAY true
#else
#define LOOKS_AWAY false
#endif

#define NONE_POSTED \
  (write[0] != posted && write[1] != posted && write[WRITES - 1] != posted)

// The engine's turns, apart from its timers.
proctype sender() {
  byte i;
end:
  do
  :: atomic { path == ready && breaks > 0 -> breaks--; path = closing }
  :: atomic {
       path == closing && NONE_POSTED ->
       path = broken;
       if
       :: far != UNSET -> reconcile(far)
       :: else -> path_close = true
       fi
     }
  :: atomic {
       path_drained ->
       path_drained = false;
       if
       :: path == broken -> reconcile(report)
       :: else -> far = report; path = closing
       fi
     }
  // A counter key or a region is revoked, and the peer asks for a confirmation of quiescence.
  :: atomic {
       !asked_quiet ->
       asked_quiet = true;
       do
       :: i < WRITES -> old[i] = write[i] == posted || write[i] == in_doubt || returned[i]; i++
       :: else -> break
       od;
       i = 0
     }
  :: atomic { asked_quiet && !quiet && QUIET(0) && QUIET(1) && QUIET(WRITES - 1) -> quiet = true }
  od
}

proctype timers() {
  // The deadline: stop().
  atomic {
    op_state = draining;
    if
    :: write[STOPPED] == queued || (write[STOPPED] == again && !second[STOPPED]) ->
       finish(STOPPED, not_delivered)
    :: else
    fi
  }
  // Three quarters of the drain bound: force_drain().
  atomic {
    op_state = forced;
#ifndef MUTANT_waits_for_the_nic
    path = (write[STOPPED] == posted && path == ready -> closing : path)
#endif
  }
  // The last quarter.
  atomic {
    op_state = expired;
    if
    :: write[STOPPED] == in_doubt -> finish(STOPPED, WITHOUT_A_REPORT(STOPPED))
#ifdef MUTANT_clock_ends_it
    :: write[STOPPED] == posted -> finish(STOPPED, unknown)
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
  :: p == STOPPED && op_state == expired -> finish(p, WITHOUT_A_REPORT(p))
#if defined(MUTANT_others_die)
  :: p != STOPPED -> finish(p, unknown)
#elif defined(MUTANT_others_twice)
  :: p != STOPPED -> write[p] = again
#endif
  :: else -> write[p] = in_doubt
  fi
}

proctype nic(byte me) {
end:
  do
  :: atomic {
       write[me] == queued && path == ready ->
       write[me] = posted;
       held[me] = true;
       number[me] = given;
       fifo[given] = me;
       given++
     }
  :: atomic { write[me] == queued && path != ready -> write[me] = again }
  :: atomic { number[me] == sent && path == ready && !hangs -> sent++ }
  :: atomic {
       number[me] == acked && acked < landed && path != broken && path != reconciled && held[me] &&
       !hangs ->
       acked++;
       held[me] = false;
       finish(me, delivered)
     }
  :: atomic { me == STOPPED && write[me] == posted && !hangs -> hangs = true }
  :: atomic { path == closing && write[me] == posted -> give_back(me) }
  :: atomic { write[me] == again && !second[me] -> second[me] = true; held[me] = true }
  :: atomic {
       write[me] == again && second[me] ->
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
       polled < landed ->
       p = fifo[polled];
       polled++;
       counted[p]++;
       assert(counted[p] <= 1);
       p = 0
     }
  :: atomic { inbound == ready && path_close -> path_close = false; inbound = closing }
  :: atomic { inbound == ready && breaks > 0 -> breaks--; inbound = closing }
  :: atomic {
       inbound == closing && polled == landed ->
       inbound = reconciled;
       report = polled;
       path_drained = true
     }
  :: atomic { abort_key -> abort_key = false; poisoned = true }
  od
}

init {
  byte i;
  atomic {
    select(breaks : 0 .. BREAKS);
    do
    :: i < WRITES -> run nic(i); i++
    :: else -> break
    od;
    i = 1;
    run sender();
    run timers();
    run target()
  }
  atomic {
    timeout ->
    assert(write[STOPPED] == ended);
    assert(ending[STOPPED] != delivered || counted[STOPPED] == 1);
    assert(ending[STOPPED] != unknown || poisoned);
    assert(asked_quiet && quiet);
    do
    :: i < WRITES -> assert(ending[i] == delivered && counted[i] == 1); i++
    :: else -> break
    od
  }
}
