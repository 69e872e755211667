"""The words that are out, and what to write instead. `scripts/tidy.py` enforces the tables.

A reader who knows RDMA, UCX or NCCL should understand every name without a glossary. So no pictures
of our own, no word in a sense that the field uses for something else, and one word for one thing.
docs/style.md ("Words") explains how to add to the tables; tests/tidy/tidy_test.py plants a violation
of every entry, in each of its folders.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Out:
    """Words that are out, in the files whose path starts with one of `where` but none of `but`."""

    words: str  # WORDS, ENGLISH: separated by blanks, lower case. NAMES, PHRASES: regular expressions
    instead: str
    where: tuple = ("",)
    but: tuple = ()
    samples: tuple = ()  # NAMES, PHRASES: violations that tidy_test.py plants, one per alternative

    def holds(self, name):
        return name.startswith(self.where) and not (self.but and name.startswith(self.but))


# An entry that reports a rename names the old name too.
CHANGELOG = ("CHANGELOG.md",)
# Where the kernel resolves neighbours (ARP, ND).
ARP = ("src/providers/verbs/", "tests/fake_verbs/", "tests/guest/", "tests/unit/providers/verbs",
       "docs/verbs.md", "docs/design/0013-verbs.md", "CHANGELOG.md")
SHM = ("src/providers/shm/", "tests/unit/providers/shm", "tests/threads/shm", "tests/process/shm",
       "tests/fuzz/shm")
VERBS = ("src/providers/verbs/", "tests/fake_verbs/", "tests/guest/", "tests/unit/providers/verbs")
SWARM = ("src/swarm/", "tests/swarm/", "tests/unit/swarm/", "tools/")
PROGRAMS = ("tests/", "examples/", "bench/", "tools/")
# The Unix user of that name, and names of files in the fuzz corpus.
UNIX_NOBODY = ("tests/process/", "tests/fuzz/sequence_seeds.h")
CORPUS = ("tests/fuzz/sequence_seeds.h",)

# Parts of identifiers (`train` is in TrainYard, first_train and train.h), words of comments,
# messages and documents, and file names.
WORDS = (
    Out("train trains", "post batch: PostBatch"),
    Out("boarding boarded board boards car cars yard yards",
        "post batch: add(), an entry of the batch, the pool; shared for a page of two processes"),
    Out("dissolve dissolves dissolved dissolving", "expand"),
    Out("wreck wrecks wrecked", "broken connection: BrokenConnection", but=CHANGELOG),
    Out("stranded", "in doubt"),
    Out("piece pieces",
        "in-flight write (InflightWrite), work request when posted, fragment for a byte range",
        but=CHANGELOG),
    Out("deed deeds", "action: Action"),
    Out("puppet puppets", "scripted peer: ScriptedPeer"),
    Out("witness witnesses", "event recorder: EventRecorder"),
    Out("ledger ledgers", "write auditor: WriteAuditor"),
    Out("loner loners", "a process without peers"),
    Out("mourn mourned bury buried buries", "closed, dead: name the state"),
    Out("neighbour neighbours neighbor neighbors", "peer: ShmPeer for one on this host", but=ARP),
    Out("bell bells", "waker: Waker, wake(), sleep_epoch"),
    Out("mailbox mailboxes mail mails", "frames of a socket, JobResults for offloaded jobs"),
    Out("spoil spoils spoiled spoiling", "poison, poisoned", but=CHANGELOG),
    Out("expel expels expelled", "revoke the bias"),
    Out("crew crews hire hires hired dismiss dismissed", "worker threads, attach, detach"),
    Out("dice", "seed, rng"),
    Out("tally tallies", "counter model: CounterModel"),
    Out("price prices", "cost"),
    Out("alarm alarms", "timer: Timer", but=CHANGELOG),
    Out("unclaimed", "unhandled", but=CHANGELOG),
    Out("stir stirs stirred stirring", "pending work, request a turn: kick()"),
    Out("card cards", "NIC or HCA; WriterSlot; fake NIC in tests"),
    Out("permit permits", "validity epoch", where=SHM),
    # Elsewhere a guest has one: the exit code of its suite.
    Out("verdict verdicts", "run result: RunResult", where=SWARM),
    Out("story stories trouble troubles", "plan: Plan; fault: Fault", but=CHANGELOG),
    Out("ghost ghosts crowd crowds", "stale or silent peer; a set, many peers", but=CORPUS),
    Out("resting suspect suspects", "backing off (kBackingOff), needs_probe"),
    # Peers, reports, counters, directories: each settled in a sense of its own.
    Out("settle settles settled settling",
        "reconcile (in doubt), flush (reports), wait_idle, reap an expectation, warm up (a seed)"),
)

# Ordinary words as names in a private sense: whole identifiers of code, and of `code` in documents.
NAMES = (
    # In prose a doorbell is the NIC's, and welcome.
    Out(r"\w*[Dd]oorbell\w*", "waker: Waker",
        but=("src/providers/verbs/", "tests/fake_verbs/", "bench/", "docs/"),
        samples=("Doorbell", "doorbell_fd", "ring_doorbell")),
    Out(r"\w*Stages?", "a name that says what is set up: TwoEngines, FuzzSession, Runner",
        samples=("Stage", "ShmStages")),
    Out(r"Ghost|Mute|Party|Crowd|Cast|Ground|\w+Ground",
        "SilentPeer, Host, StressCluster, process set, TestEnv", where=PROGRAMS,
        samples=("Ghost", "Mute", "Party", "Crowd", "Cast", "Ground", "FakeGround")),
    # In the explorer an Order is a std::memory_order.
    Out(r"Orders?|[a-z_]*order_slots?", "pull request: PullRequest", where=SHM,
        samples=("Order", "Orders", "free_order_slots")),
    Out(r"Front", "SharedHeader", where=SHM + ("tests/",), samples=("Front",)),
    Out(r"Keys|KeyEntry", "say which key: rkey, lkey, counter key or job key",
        where=("src/providers/",) + PROGRAMS, samples=("Keys", "KeyEntry")),
    Out(r"(?:remote|local|import|wire)_keys?_?", "rkey, lkey, import_rkey(), wire_rkey",
        samples=("remote_key", "local_keys", "import_key", "wire_key_")),
    Out(r"WireEvent|PathState|(?:on_)?path_state", "RailEvent, PathDrained",
        samples=("WireEvent", "PathState", "on_path_state")),
    Out(r"Peers", "PeerAccess (core::Peers is the table of peers)", where=SHM, samples=("Peers",)),
    Out(r"Lines?|kLines", "a connection, or an offload queue",
        where=("src/providers/", "src/base/", "src/runtime/", "tests/"),
        samples=("Line", "Lines", "kLines")),
    Out(r"Field|Place|Truth|Ends|Way|Round|Ear",
        "TargetArena, Slot, model, completions, Session, GroupWait, EventSink",
        where=("src/swarm/",) + PROGRAMS,
        samples=("Field", "Place", "Truth", "Ends", "Way", "Round", "Ear")),
    Out(r"told|heard|(?:\w+_)?truth", "reported, received; reports", where=("src/",) + PROGRAMS,
        samples=("told", "heard", "check_truth", "truth")),
    Out(r"Regular|Seat", "BiasedLock, its owner", samples=("Regular", "Seat")),
    Out(r"Gate", "TurnLock", samples=("Gate",)),
    Out(r"Express\w*|express\w*", "fast path", samples=("ExpressLane", "express_post")),
    Out(r"Entry|Route|Lane|Steps", "PendingFragment, CachedRoute, CachedPath, ProtocolCounters",
        where=("src/core/",) + PROGRAMS, samples=("Entry", "Route", "Lane", "Steps")),
    Out(r"alike|loud", "same_flow, has_notify", samples=("alike", "loud")),
    # A hash function in tests mixes bits.
    Out(r"mixed", "uniform", where=("src/",), samples=("mixed",)),
    Out(r"board_run|(?!callbacks_)\w+_run", "burst, repeated", where=("src/core/",),
        samples=("board_run", "small_run")),
    Out(r"stock_?|spares?_?", "QP pool", where=VERBS, samples=("stock_", "spares")),
    Out(r"(?:\w+_)?(?:life|lives)|kLives", "generation, incarnation",
        samples=("life", "lives", "next_life", "kLives")),
    Out(r"Rest|kRested|kUnclaimed", "Quiescence, kQuarantined, kUnhandled", but=CHANGELOG,
        samples=("Rest", "kRested", "kUnclaimed")),
    # Of a write. In tests a whole message, a whole file.
    Out(r"whole", "unsplit", where=("include/", "src/core/"), samples=("whole",)),
)

# One name, one meaning: a type of this name may be defined once in src, include and tests. Programs
# in examples and bench are read alone.
ONCE_WHERE = ("src/", "include/", "tests/")
ONCE = ("Outcome", "Step", "Place", "Slot", "Session", "Host", "Action", "Fault", "Plan", "Runner",
        "TestEnv", "WriteAuditor", "EventRecorder", "ScriptedPeer", "InflightWrite", "PostBatch",
        "Rail", "Network", "Shard", "Traffic", "Op", "Link", "Peer", "Engine", "Counter")
DEFINITION = (r"\b(?:struct|class|enum\s+class|using)\s+(?:\w+\s+)?(" + "|".join(ONCE) +
              r")\b\s*(?:final\s*)?(?::[^:;{]+)?[{=]")

# English that puts persons where components act, or that no native speaker writes.
PROSE = ("include/", "src/", "tools/", "bench/", "examples/", "tests/", "docs/", "scripts/", "cmake/",
         "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
ENGLISH = (
    Out("nobody", "name the component: no thread, no peer, nothing", where=PROSE, but=UNIX_NOBODY),
    Out("somebody anybody", "name the component: a thread, another peer, any caller", where=PROSE),
    Out("whoever whomever", "name the component: the thread that, the caller that", where=PROSE),
    Out("anew", "again", where=PROSE),
    Out("hears news", "receives; reports, events", where=PROSE),
    Out("meanwhile", "while ...: say which of the two runs first", where=PROSE),
)
# The same, where it takes more than one word. A line break in a comment may come between.
_BREAK = r"(?:\s|/|#)+"
PHRASES = (
    Out(rf"\bthe{_BREAK}own\b", "its own, or the engine's own", where=PROSE,
        samples=("the own address", "takes the\n// own")),
    Out(rf"\b(?:is|was|are|were){_BREAK}told\b(?!{_BREAK}apart)", "reported to, sent to", where=PROSE,
        samples=("the peer is told", "it was told", "they are\n// told", "both were told so")),
    Out(rf"\b(?:short|long){_BREAK}way\b", "fast path, slow path", where=PROSE,
        samples=("the short way", "takes the long way")),
    Out(rf"\btarget's{_BREAK}word\b", "the target's drain report", where=PROSE,
        samples=("waits for the target's word",)),
    # Something lies behind a wall or an interface; what comes later comes after.
    Out(rf"\bbehind{_BREAK}(?:it|them|this|that|which|each{_BREAK}other)\b", "after", where=PROSE,
        samples=("posted behind it", "and those behind them", "behind this", "all behind that",
                 "a write behind which", "behind each other")),
    # UCX stands for UCP; a connection is up.
    Out(rf"\bstands\b(?!{_BREAK}for\b)", "is, exists, is up", where=PROSE,
        samples=("once the connection stands", "it stands between")),
)

TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]{2,}")


def is_system_call(text, start):
    """Of an identifier at `start`: ::alarm and Python's signal.alarm are calls of the system."""
    before = text[max(0, start - 8):start]
    return re.search(r"(?:^|[^\w>])::$|\bsignal\.$", before) is not None


def by_word(tables):
    """Every word of the tables with the entries that name it."""
    found = {}
    for table in tables:
        for out in table:
            for word in out.words.split():
                found.setdefault(word, []).append(out)
    return found


BY_WORD = by_word((WORDS, ENGLISH))
