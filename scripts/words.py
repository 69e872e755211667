"""The words that are out, and what to write instead. `scripts/tidy.py` enforces the tables.

A reader who knows RDMA, UCX or NCCL should understand every name without a glossary. So no pictures
of our own, no word in a sense that the field uses for something else, and one word for one thing.
docs/style.md ("Words") explains how to add to the tables; tests/tidy/tidy_test.py plants one
violation of each kind.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Out:
    """Words that are out, in the files whose path starts with one of `where` but none of `but`."""

    words: str  # WORDS, ENGLISH: separated by blanks, lower case. NAMES: a regular expression
    instead: str
    where: tuple = ("",)
    but: tuple = ()

    def holds(self, name):
        return name.startswith(self.where) and not (self.but and name.startswith(self.but))


# An entry that reports a rename names the old name too.
CHANGELOG = ("CHANGELOG.md",)
# Where the kernel resolves neighbours (ARP, ND).
ARP = ("src/providers/verbs/", "tests/fake_verbs/", "tests/guest/", "tests/unit/providers/verbs",
       "docs/verbs.md", "docs/design/0013-verbs.md", "CHANGELOG.md")
SHM = ("src/providers/shm/", "tests/unit/providers/shm", "tests/threads/shm", "tests/process/shm",
       "tests/fuzz/shm")
SWARM = ("src/swarm/", "tests/swarm/", "tests/unit/swarm/", "tools/")
HARNESS = ("tests/", "examples/", "bench/", "tools/")

# Parts of identifiers (`train` is in TrainYard, first_train and train.h), words of comments,
# messages and documents, and file names.
WORDS = (
    Out("train trains", "post batch: PostBatch"),
    Out("boarding boarded board boards car cars yard yards",
        "post batch: add(), an entry of the batch, the pool", where=("src/", "include/", "tests/")),
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
    Out("verdict verdicts", "run result: RunResult", where=SWARM),
    Out("story stories trouble troubles", "plan: Plan; fault: Fault", where=SWARM),
    Out("resting suspect suspects", "backing off (kBackingOff), needs_probe",
        where=("src/", "include/", "docs/")),
)

# Ordinary words as names in a private sense: whole identifiers of code, and of `code` in documents.
NAMES = (
    # In prose a doorbell is the NIC's, and welcome.
    Out(r"\w*[Dd]oorbell\w*", "waker: Waker",
        but=("src/providers/verbs/", "tests/fake_verbs/", "bench/", "docs/")),
    Out(r"\w*Stages?", "a name that says what is set up: TwoEngines, FuzzSession, Runner"),
    Out(r"Ghost|Mute|Party|Crowd|Cast|Ground|\w+Ground",
        "SilentPeer, Host, StressCluster, process set, TestEnv", where=HARNESS),
    Out(r"Orders?|[a-z_]*order_slots?", "pull request: PullRequest", where=SHM),
    Out(r"Front", "SharedHeader", where=SHM),
    Out(r"Keys|KeyEntry", "say which key: rkey, lkey or counter key", where=SHM),
    Out(r"Peers", "PeerAccess (core::Peers is the table of peers)", where=SHM),
    Out(r"Lines?|kLines", "a connection, or an offload queue",
        where=SHM + ("src/base/", "src/runtime/", "src/providers/verbs/")),
    Out(r"Field|Place|Truth|Ends|Way|Round|Ear|Stage",
        "TargetArena, Slot, model, completions, Session, GroupWait, EventSink, Runner",
        where=SWARM),
    Out(r"Regular|Seat", "BiasedLock, its owner", where=("src/", "tests/threads/")),
    Out(r"Gate", "TurnLock", where=("src/", "tests/unit/runtime/")),
    Out(r"Express\w*|express\w*", "fast path", where=("src/core/", "tests/", "bench/")),
    Out(r"Entry|Route|Lane|Steps", "PendingFragment, CachedRoute, CachedPath, ProtocolCounters",
        where=("src/core/",)),
    Out(r"alike|loud|mixed", "same_flow, has_notify, uniform", where=("src/",)),
    Out(r"stock_?|spares?_?", "QP pool", where=("src/providers/verbs/",)),
    Out(r"life|lives", "generation, incarnation", where=("src/", "include/")),
    Out(r"Rest|kRested|kUnclaimed|whole", "Quiescence, kQuarantined, kUnhandled, unsplit",
        where=("include/", "src/core/")),
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
PROSE = ("include/", "src/", "tools/", "bench/", "examples/", "tests/support/", "docs/", "scripts/",
         "cmake/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
ENGLISH = (
    Out("nobody", "name the component: no thread, no peer, nothing", where=PROSE),
    Out("somebody anybody", "name the component: a thread, another peer, any caller", where=PROSE),
    Out("whoever whomever", "name the component: the thread that, the caller that", where=PROSE),
    Out("anew", "again", where=PROSE),
    Out("hears news", "receives; reports, events", where=PROSE),
    Out("meanwhile", "while ...: say which of the two runs first", where=PROSE),
)
# The same, where it takes more than one word. A line break in a comment may come between.
_BREAK = r"(?:\s|/|#)+"
PHRASES = (
    Out(rf"\bthe{_BREAK}own\b", "its own, or the engine's own", where=PROSE),
    Out(rf"\b(?:is|was|are|were){_BREAK}told\b(?!{_BREAK}apart)", "reported to, sent to", where=PROSE),
    Out(rf"\b(?:short|long){_BREAK}way\b", "fast path, slow path", where=PROSE + ("tests/",)),
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
