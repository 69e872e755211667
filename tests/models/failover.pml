/*
A connection whose two ends break at different times, and the drain report that reconciles it.

Mirrors: src/core/failover.cc (put_in_doubt, record_broken, on_drain_report, reconcile_writes, replay,
schedule_reopen, start_probe), transfer.cc (retire_write, path_down), datapath.cc (the numbering of
post()), and the target's side in control_ops.cc (on_path_open, on_path_close, on_inbound_down);
docs/design/0008-failover.md. One rail that is reopened after every break, so that old connections
with writes in doubt exist beside new ones; a reopened path carries a probe before anything else.
Numbered messages arrive once each, in any order (control/reliable.h); datagrams are repeated. A
target's NIC may die between acknowledgement and completion.
Left out: other rails (a new connection represents them), cutting (counting.pml), deadlines
(deadline.pml), a target without exact counts.
Proved: no write counts twice; what was reported as delivered has been counted, unless the session
was closed; every write is delivered in the end; stale reports reconcile nothing; no run is endless.

@small WRITES=2 BREAKS=1
@large WRITES=2 BREAKS=2
@finite
@unreached sender -end-
@unreached out -end-
@unreached inwards -end-
@unreached wire -end-
@mutant early_report assert:counted
  the target reports its count before its end is drained
@mutant open_end assert:counted
  the target answers and leaves its end open
@mutant acks_are_proof assert:counted
  writes that were not acknowledged are sent again without the target's report
@mutant any_report assert:counted BREAKS=2
  a report that does not name its connection reconciles any that waits for one
@mutant probe_is_numbered assert:counted BREAKS=2
  a probe, which carries no count, takes a number among the immediates
@mutant repeats_count assert:counted
  a duplicate message is acted on again: a closed end is reopened under its old number
@mutant lost_counts_ignored assert:counted
  fewer writes received than acknowledged, and the session continues
*/

#define CONNECTIONS (BREAKS + 1)
#define ENTRIES (WRITES + 1)  // on one connection: the writes and a probe
#define PROBE 99
#define UNSET 255

mtype = {absent, opening, ready, closing, broken, reconciled};
mtype = {queued, posted, in_doubt, delivered};

// Messages, one slot for each connection: sent and not acted on yet.
bool path_open[CONNECTIONS], path_answer[CONNECTIONS], path_close[CONNECTIONS];
bool path_drained[CONNECTIONS];
byte report[CONNECTIONS];      // of path_drained: immediates taken

// The sender.
mtype path[CONNECTIONS] = absent;
byte current;                // the newest connection
bool probed;                 // it has proved that it works
byte numbers[CONNECTIONS];   // immediates given to it
byte done[CONNECTIONS];      // of them acknowledged, as far as the sender has polled
byte far[CONNECTIONS] = UNSET;  // the target's report, if it came before this end broke
mtype write[WRITES] = queued;
byte write_path[WRITES], before[WRITES];
bool lost;                   // the session

// The wire: in order, and what was posted may land as long as the target's end is open.
byte entry[CONNECTIONS * ENTRIES];
byte entries[CONNECTIONS], landed[CONNECTIONS], acked[CONNECTIONS], seen[CONNECTIONS];

// The target.
mtype inbound[CONNECTIONS] = absent;
byte polled[CONNECTIONS];    // entries whose completion was taken and counted
byte taken[CONNECTIONS];     // immediates among them
byte counted[WRITES];
byte breaks;
bool nic_died;
#ifdef MUTANT_repeats_count
byte repeats = 1;
#endif

#define GOES_ON (!lost)  // a closed session is not modelled further
#define AT(c, i) entry[(c) * ENTRIES + (i)]

inline reconcile(c, r) {
  if
  :: r < done[c] ->
#ifdef MUTANT_lost_counts_ignored
     skip
#else
     lost = true
#endif
  :: else
  fi;
  i = 0;
  do
  :: i < WRITES ->
     if
     :: write[i] == in_doubt && write_path[i] == c ->
        write[i] = (before[i] < r -> delivered : queued);
        write_path[i] = 0;
        before[i] = 0
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0;
  path[c] = reconciled
}

// Everything that was posted on the connection comes back, then it is down.
inline drain(c) {
  i = 0;
  do
  :: i < WRITES ->
     write[i] = (write[i] == posted && write_path[i] == c -> in_doubt : write[i]);
     i++
  :: else -> break
  od;
  i = 0;
  path[c] = broken;
#ifdef MUTANT_acks_are_proof
  reconcile(c, done[c]);
#else
  if
  :: far[c] != UNSET -> reconcile(c, far[c])
  :: else -> path_close[c] = true
  fi;
#endif
}

inline post(what) {
  atomic {
    AT(current, entries[current]) = what;
    entries[current]++
  }
}

proctype sender(byte me) {
end:
  do
  :: atomic {
       path[current] == ready && probed && write[me] == queued && GOES_ON ->
       write[me] = posted;
       write_path[me] = current;
       before[me] = numbers[current];
       numbers[current]++;
       post(me)
     }
  od
}

proctype out(byte c) {
  byte i, id;
end:
  do
  :: atomic {  // a turn that polls an acknowledgement
       (path[c] == ready || path[c] == closing) && seen[c] < acked[c] && GOES_ON ->
       id = AT(c, seen[c]);
       seen[c]++;
       if
       :: id == PROBE -> probed = true
       :: else -> write[id] = delivered; done[c]++
       fi;
       id = 0
     }
  :: atomic {
       path_drained[c] && GOES_ON ->
       path_drained[c] = false;
#ifdef MUTANT_any_report
       id = (path[current] == broken -> current : c);
#else
       id = c;
#endif
       if
       :: path[id] == broken -> reconcile(id, report[c])
       :: path[id] == opening || path[id] == ready || path[id] == closing ->
          far[id] = report[c];
          path[id] = closing
#if defined(MUTANT_open_end) || defined(MUTANT_any_report) || defined(MUTANT_repeats_count)
       :: else  // otherwise there is one report per connection, and none for a reconciled one
#endif
       fi;
       id = 0
     }
  :: atomic { path[c] == closing && GOES_ON -> drain(c) }
  :: atomic {
       path_answer[c] && GOES_ON ->
       path_answer[c] = false;
       if
       :: path[c] == opening ->
          path[c] = ready;
          probed = c == 0;
          if
          :: !probed ->
#ifdef MUTANT_probe_is_numbered
             numbers[c]++;
#endif
             post(PROBE)
          :: else
          fi
       :: else -> path_close[c] = true  // given up before the answer came
       fi
     }
  // The NIC gives up, or the port goes down.
  :: atomic { path[c] == ready && breaks > 0 && GOES_ON -> breaks--; path[c] = closing }
  // A path that is down is reopened.
  :: atomic {
       c == current && (path[c] == broken || path[c] == reconciled) && GOES_ON ->
       current++;
       path[current] = opening;
       path_open[current] = true
     }
  od
}

inline send_report(c) {
  report[c] = taken[c];
  path_drained[c] = true
}

proctype inwards(byte c) {
  byte i, id;
end:
  do
  :: atomic {
       path_open[c] && GOES_ON ->
       path_open[c] = false;
       inbound[c] = ready;
       // One path per pair of rails: the peer has torn down the previous one.
       i = 0;
       do
       :: i < c -> inbound[i] = (inbound[i] == ready -> closing : inbound[i]); i++
       :: else -> break
       od;
       i = 0;
       path_answer[c] = true
     }
#ifdef MUTANT_repeats_count
  :: atomic { inbound[c] == broken && repeats > 0 -> repeats--; inbound[c] = ready }
#endif
  :: atomic {
       inbound[c] == ready && path_close[c] && GOES_ON ->
       path_close[c] = false;
#ifdef MUTANT_open_end
       send_report(c)
#else
       inbound[c] = closing
#endif
     }
  :: atomic {
       polled[c] < landed[c] && GOES_ON ->
       id = AT(c, polled[c]);
       polled[c]++;
       if
       :: id == PROBE
       :: else ->
          counted[id]++;
          assert(counted[id] <= 1);
          taken[c]++
       fi;
       id = 0
     }
  :: atomic { inbound[c] == ready && breaks > 0 && GOES_ON -> breaks--; inbound[c] = closing }
  // A NIC that dies loses completions that it has acknowledged.
  :: atomic {
       inbound[c] == closing && polled[c] < landed[c] && !nic_died && GOES_ON ->
       nic_died = true;
       landed[c] = polled[c]
     }
#ifdef MUTANT_early_report
  :: atomic { inbound[c] == closing -> inbound[c] = broken; send_report(c) }
#else
  :: atomic {
       inbound[c] == closing && polled[c] == landed[c] && GOES_ON ->
       inbound[c] = broken;
       send_report(c)
     }
#endif
  od
}

proctype wire(byte c) {
end:
  do
  :: atomic { inbound[c] == ready && landed[c] < entries[c] && GOES_ON -> landed[c]++ }
  :: atomic {
       acked[c] < landed[c] && (path[c] == ready || path[c] == closing) && GOES_ON -> acked[c]++
     }
  od
}

init {
  byte i;
  atomic {
    select(breaks : 0 .. BREAKS);
    path[0] = opening;
    path_open[0] = true;
    do
    :: i < CONNECTIONS -> run out(i); run inwards(i); run wire(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < WRITES -> run sender(i); i++
    :: else -> break
    od;
    i = 0
  }
  atomic {
    timeout ->
    do
    :: i < WRITES -> assert(lost || (write[i] == delivered && counted[i] == 1)); i++
    :: else -> break
    od
  }
}
