"""The cases: what is measured, against which contenders, and the ratio that has to be reached."""

from dataclasses import dataclass, field

KIB = 1 << 10
MIB = 1 << 20
COLD_BYTES = 256 * MIB
PAGES = 1024

# Unit of a value, and whether more is better.
GB = ("GB/s", True)
MILLION_WRITES = ("M writes/s", True)
MILLION_PAGES = ("M pages/s", True)
NANOSECONDS = ("ns", False)
PERCENT = ("% of a core", False)

# Prefix of the cases that run in a guest: they need a kernel with SoftRoCE.
GUEST = "verbs/"


@dataclass(frozen=True)
class Workload:
    """One short measurement, the same for all contenders."""

    benchmark: str  # write, rate, paged, latency, fence, idle, kv, word
    bytes: int = 8
    memory: str = "allocated"
    footprint: int = 0  # rotate over this many bytes; 0: one hot buffer
    pages: int = 1
    tensors: int = 1  # of a layer, each with so many pages

    @property
    def layers(self):
        """How many layers the footprint is."""
        return max(1, self.footprint // (self.bytes * self.pages * self.tensors))


@dataclass(frozen=True)
class Baseline:
    contender: str  # a key of all_contenders.ALL
    floor: float | None = None  # what the ratio has to reach; None: printed for information
    note: str = ""


@dataclass(frozen=True)
class Case:
    name: str
    measure: tuple
    workload: Workload
    baselines: tuple
    ours: str = "ours"
    once: bool = False  # takes long and does not vary
    between_cores: bool = True  # depends on the distance between the two cores
    more_is_better: bool = field(init=False)
    unit: str = field(init=False)

    @property
    def in_guest(self):
        return self.name.startswith(GUEST)

    def __post_init__(self):
        object.__setattr__(self, "unit", self.measure[0])
        object.__setattr__(self, "more_is_better", self.measure[1])

    def ratio(self, ours, theirs):
        """Greater is better for every unit, so that a floor is a lower bound."""
        better, worse = (ours, theirs) if self.more_is_better else (theirs, ours)
        return better / worse


def writes():
    """Intermediate sizes have only peers with a floor: a full run takes at most ten minutes."""
    for size in (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB):
        baselines = [
            Baseline("ucx_posix", 1.0, "sends no notification"),
            Baseline("memcpy", 0.9 if size >= 64 * KIB else None, "no notification"),
        ]
        if size not in (16 * KIB, 256 * KIB, 4 * MIB):
            baselines += [Baseline("ucx_sysv", None, "sends no notification"),
                          Baseline("libfabric_shm"),
                       Baseline("libfabric_tcp")]
        if size == KIB:
            baselines.insert(
                1, Baseline("uct_posix", None, "UCX's lower interface, no notification"))
        if size in (64 * KIB, MIB):
            baselines += [Baseline("nixl"), Baseline("mooncake", None, "TCP, no notification")]
        yield Case(f"shm/write_imm/{size}", GB, Workload("write", size), tuple(baselines))


def cold_writes():
    """No intermediate sizes: they lie in between, and a full run takes at most ten minutes."""
    for size in (KIB, 4 * KIB, 64 * KIB, MIB, 16 * MIB):
        yield Case(f"shm/write_imm_cold/{size}", GB, Workload("write", size, footprint=COLD_BYTES),
                   (Baseline("memcpy", 0.9, "no notification"),))


def writes_into_ordinary_memory():
    for size in (64 * KIB, MIB, 16 * MIB):
        yield Case(f"shm/write_imm_registered/{size}", GB, Workload("write", size, "registered"),
                   (Baseline("ucx_cma", 1.0, "sends no notification"),))


def pages():
    for size in (KIB, 4 * KIB):
        yield Case(f"shm/paged_write/{size}", MILLION_PAGES, Workload("paged", size, pages=PAGES),
                   (Baseline("libfabric_shm", 4.0), Baseline("nixl", 10.0),
                    Baseline("memcpy", None, "the same pages in order, no notification"),
                    Baseline("mooncake", None, "TCP, no notification")))


def fences():
    for size in (4 * KIB, 64 * KIB, MIB):
        yield Case(f"shm/fence/{size}", GB, Workload("fence", size),
                   (Baseline("unguarded", 1 / 1.05, "the same copy without the fence protocol"),),
                   ours="guarded", between_cores=False)


def kv_caches():
    """A layer of a request against a bare paged write of the same pages, and what moves them in
    other libraries. One request after the other: each begins when the one before it is complete,
    and its layers are more than the caches hold. No memcpy: the copy is that of the bare write."""
    size = 32 * KIB
    for name, tensors in (("kv/layer", 1), ("kv/layer_k_v_apart", 2)):
        yield Case(f"{name}/{size}", GB,
                   Workload("kv", size, footprint=COLD_BYTES, pages=PAGES, tensors=tensors),
                   (Baseline("bare_pages", 0.95), Baseline("nixl"),
                    Baseline("mooncake", None, "TCP, no notification")), ours="ours_kv")
    # A layer of one post: the turn of the first post ends with it.
    yield Case("kv/word_to_post", NANOSECONDS, Workload("word", 8, footprint=4 * KIB, pages=32),
               (Baseline("word_bound", 1.0),
                Baseline("word_published", None, "its word is stored by a GPU: PCIe is included")),
               ours="ours_kv", between_cores=False)


def over_verbs():
    """Neither perftest of Debian 12 nor UCX put sends an immediate: the target is not notified."""
    silent = "sends no notification"
    for size in (KIB, 8 * KIB, 64 * KIB, MIB):
        floor = 0.95 if size >= 64 * KIB else None
        yield Case(f"verbs/write_imm/{size}", GB, Workload("write", size),
                   (Baseline("perftest", floor, silent), Baseline("uct_rc", floor, silent)),
                   ours="ours_verbs", between_cores=False)
    yield Case(f"verbs/write_imm_rate/{KIB}", MILLION_WRITES, Workload("rate", KIB),
               (Baseline("perftest", 1.0, silent + "; posts lists"),
                Baseline("uct_rc", 1.0, silent)),
               ours="ours_verbs", between_cores=False)
    yield Case("verbs/latency/8", NANOSECONDS, Workload("latency"),
               (Baseline("perftest", None, silent + ": the target polls the bytes"),
                Baseline("uct_rc", None, silent + ": the target polls the bytes")),
               ours="ours_verbs", between_cores=False)


ALL = (
    *writes(),
    *cold_writes(),
    *writes_into_ordinary_memory(),
    Case("shm/write_imm_rate/8", MILLION_WRITES, Workload("rate"), (
        Baseline("libfabric_shm", 5.0),
        Baseline("ucx_posix", 1.0, "sends no notification"),
        Baseline("uct_posix", None, "UCX's lower interface, no notification"),
        Baseline("ring", None, "a bare ring and a copy"),
        Baseline("libfabric_tcp"))),
    *pages(),
    Case("shm/latency/8", NANOSECONDS, Workload("latency"), (
        Baseline("ucx_am", 1 / 1.2),
        Baseline("uct_am", None, "UCX's lower interface"),
        Baseline("ucx_posix", None, "sends no notification: the target polls the bytes"),
        Baseline("libfabric_shm", 3.0),
        Baseline("nixl", 20.0, "from Python; its C API took 2,650 ns on a machine of this kind"),
        Baseline("libfabric_tcp"),
        Baseline("mooncake", None, "TCP"),
        Baseline("line", None, "one cache line, nothing else"))),
    *fences(),
    Case("shm/idle", PERCENT, Workload("idle"), (Baseline("one_percent", 1.0),), once=True,
         between_cores=False),
    *kv_caches(),
    *over_verbs(),
)
