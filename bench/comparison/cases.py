"""What is compared with whom, and what has to be reached."""

from dataclasses import dataclass, field

KIB = 1 << 10
MIB = 1 << 20
COLD_BYTES = 256 * MIB
PAGES = 1024

# How a value is read: the unit, what one of them is worth, and whether more is better.
GB = ("GB/s", True)
MILLION_WRITES = ("M writes/s", True)
MILLION_PAGES = ("M pages/s", True)
NANOSECONDS = ("ns", False)
PERCENT = ("% of a core", False)

# Of the networks that need a kernel of their own.
GUEST = "verbs/"


@dataclass(frozen=True)
class Shot:
    """One short measurement, the same for everybody."""

    verb: str  # write, rate, paged, latency, fence, idle
    bytes: int = 8
    memory: str = "allocated"
    footprint: int = 0  # rotate over so many bytes; 0: one hot buffer
    pages: int = 1


@dataclass(frozen=True)
class Rival:
    contender: str  # a key of everybody.ALL
    floor: float | None = None  # what the ratio has to reach; None: printed for information
    note: str = ""


@dataclass(frozen=True)
class Case:
    name: str
    measure: tuple
    shot: Shot
    rivals: tuple
    ours: str = "ours"
    once: bool = False  # takes long and does not vary
    between_cores: bool = True  # how far apart the two cores are shows
    more_is_better: bool = field(init=False)
    unit: str = field(init=False)

    @property
    def in_guest(self):
        return self.name.startswith(GUEST)

    def __post_init__(self):
        object.__setattr__(self, "unit", self.measure[0])
        object.__setattr__(self, "more_is_better", self.measure[1])

    def ratio(self, ours, theirs):
        """How many times as good we are, so that a floor is a lower bound for every unit."""
        better, worse = (ours, theirs) if self.more_is_better else (theirs, ours)
        return better / worse


def writes():
    """The sizes between have only the peers with a floor: a full run takes at most ten minutes."""
    for size in (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB):
        rivals = [
            Rival("ucx_posix", 1.0, "sends no notification"),
            Rival("memcpy", 0.9 if size >= 64 * KIB else None, "nobody is told"),
        ]
        if size not in (16 * KIB, 256 * KIB, 4 * MIB):
            rivals += [Rival("ucx_sysv", None, "sends no notification"), Rival("libfabric_shm"),
                       Rival("libfabric_tcp")]
        if size == KIB:
            rivals.insert(1, Rival("uct_posix", None, "UCX's lower interface, no notification"))
        if size in (64 * KIB, MIB):
            rivals += [Rival("nixl"), Rival("mooncake", None, "TCP, no notification")]
        yield Case(f"shm/write_imm/{size}", GB, Shot("write", size), tuple(rivals))


def cold_writes():
    """Those between lie between: a full run takes at most ten minutes."""
    for size in (KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB):
        yield Case(f"shm/write_imm_cold/{size}", GB, Shot("write", size, footprint=COLD_BYTES),
                   (Rival("memcpy", 0.9, "nobody is told"),))


def writes_into_ordinary_memory():
    for size in (64 * KIB, MIB, 16 * MIB):
        yield Case(f"shm/write_imm_registered/{size}", GB, Shot("write", size, "registered"),
                   (Rival("ucx_cma", 1.0, "sends no notification"),))


def pages():
    for size in (KIB, 4 * KIB):
        yield Case(f"shm/paged_write/{size}", MILLION_PAGES, Shot("paged", size, pages=PAGES),
                   (Rival("libfabric_shm", 4.0), Rival("nixl", 10.0),
                    Rival("memcpy", None, "the same pages in order, nobody is told"),
                    Rival("mooncake", None, "TCP, no notification")))


def fences():
    for size in (4 * KIB, 64 * KIB, MIB):
        yield Case(f"shm/fence/{size}", GB, Shot("fence", size),
                   (Rival("unguarded", 1 / 1.05, "the same moves without section and guard"),),
                   ours="guarded", between_cores=False)


def over_verbs():
    """Perftest has no writes with immediates in Debian 12, and UCX's puts have none: both tell
    nobody."""
    silent = "sends no notification"
    for size in (KIB, 8 * KIB, 64 * KIB, MIB):
        floor = 0.95 if size >= 64 * KIB else None
        yield Case(f"verbs/write_imm/{size}", GB, Shot("write", size),
                   (Rival("perftest", floor, silent), Rival("uct_rc", floor, silent)),
                   ours="ours_verbs", between_cores=False)
    yield Case(f"verbs/write_imm_rate/{KIB}", MILLION_WRITES, Shot("rate", KIB),
               (Rival("perftest", 1.0, silent + "; posts lists"), Rival("uct_rc", 1.0, silent)),
               ours="ours_verbs", between_cores=False)
    yield Case("verbs/latency/8", NANOSECONDS, Shot("latency"),
               (Rival("perftest", None, silent + ": the target looks at the bytes"),
                Rival("uct_rc", None, silent + ": the target looks at the bytes")),
               ours="ours_verbs", between_cores=False)


ALL = (
    *writes(),
    *cold_writes(),
    *writes_into_ordinary_memory(),
    Case("shm/write_imm_rate/8", MILLION_WRITES, Shot("rate"), (
        Rival("libfabric_shm", 5.0),
        Rival("ucx_posix", 1.0, "sends no notification"),
        Rival("uct_posix", None, "UCX's lower interface, no notification"),
        Rival("ring", None, "a bare ring and a copy"),
        Rival("libfabric_tcp"))),
    *pages(),
    Case("shm/latency/8", NANOSECONDS, Shot("latency"), (
        Rival("ucx_am", 1 / 1.2),
        Rival("uct_am", None, "UCX's lower interface"),
        Rival("ucx_posix", None, "sends no notification: the target looks at the bytes"),
        Rival("libfabric_shm", 3.0),
        Rival("nixl", 20.0, "from Python; its C API took 2,650 ns on a machine of this kind"),
        Rival("libfabric_tcp"),
        Rival("mooncake", None, "TCP"),
        Rival("line", None, "one cache line, nothing else"))),
    *fences(),
    Case("shm/idle", PERCENT, Shot("idle"), (Rival("one_percent", 1.0),), once=True,
         between_cores=False),
    *over_verbs(),
)
