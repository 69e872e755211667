"""The contenders over verbs, inside the guest: from the first rail of its host A to that of B."""

import contextlib
import pathlib
import re

from comparison.contenders import Failed, Ours, end, free_port, run, start, wait_listening

HERE, THERE = "xa0", "xb0"
# RoCE v2 with the rail's IPv4 address; 0 is link-local. Ours chooses it by itself.
GID = 1
AT_HOST_B = "at_host_b"  # bench/peers
# A second, as in UCX. A guest that is descheduled for less than that must not retransmit: SoftRoCE
# connections break then (docs/verbs.md).
TIMEOUT = 18
# Of tests/guest/inside.sh, whose links take it.
MTU = 4096


def in_flight(workload):
    """Writes in flight, and how many of them are posted together: the best values found, for ours
    and for perftest. SoftRoCE sends up to 128 packets within the call that posts them; the rest is
    sent by a kernel thread, which shares its core with the polling process."""
    if workload.bytes >= 1 << 20:
        return 1, 1
    if workload.bytes >= 64 << 10:
        return 4, 1
    return (64, 32) if workload.bytes >= 8 << 10 else (256, 64)


def packets(device, counter):
    file = pathlib.Path("/sys/class/infiniband", device, "ports/1/hw_counters", counter)
    try:
        return int(file.read_text())
    except OSError as error:
        raise Failed(f"{device}: {error.strerror.lower()}") from error


@contextlib.contextmanager
def crossing():
    """Checks that packets sent by host A arrive at host B. A program with both ends on one device
    does not use the network, and would look 50 % faster."""
    sent, arrived = packets(HERE, "sent_pkts"), packets(THERE, "rcvd_pkts")
    yield
    sent, arrived = packets(HERE, "sent_pkts") - sent, packets(THERE, "rcvd_pkts") - arrived
    check_crossed(sent, arrived)


def check_crossed(sent, arrived):
    """Some packets may be lost or in flight."""
    if sent == 0 or arrived < 0.9 * sent:
        raise Failed(f"of {sent} packets {arrived} went from {HERE} to {THERE}")


class Paced:
    """For peers that take a count, not a time. The rate of a guest depends on the machine by
    a factor of a hundred: the first measurement guesses low, each next one uses the last rate."""

    def __init__(self):
        self.rates = {}  # workload -> operations a second

    def iterations(self, workload, duration, least):
        guess = 1 / (150e-6 + workload.bytes / 25e6)
        return max(least, int(duration * self.rates.get(workload, guess)))

    def paced(self, workload, rate):
        self.rates[workload] = rate


class OursOverVerbs(Ours):
    def measure(self, workload, settings):
        with crossing():
            return super().measure(workload, settings)

    def command(self, workload, settings):
        words = [settings.build / "fabric", "bench", workload.benchmark, "--network", "verbs",
                 "--json", "--devices", f"{HERE},timeout_code={TIMEOUT}", "--peer-devices", THERE,
                 "--pin", settings.cores, "--repetitions", 1, "--duration", settings.duration,
                 "--sizes", workload.bytes, "--progress", "inline"]
        if workload.benchmark != "latency":
            window, group = in_flight(workload)
            words += ["--window", window, "--group", group]
        return words


class Perftest:
    """ib_write_bw and ib_write_lat, a server and a client."""

    title = "perftest"

    def __init__(self):
        self.pace = Paced()

    def measure(self, workload, settings):
        latency = workload.benchmark == "latency"
        program = "ib_write_lat" if latency else "ib_write_bw"
        port = free_port()
        count = self.pace.iterations(workload, settings.duration, least=20)
        common = ["-F", "-p", port, "-x", GID, "-m", MTU, "-u", TIMEOUT, "-s", workload.bytes,
                  "-n", count]
        if not latency:
            window, group = in_flight(workload)
            count = (count // group + 1) * group
            common[-1] = count
            # A completion for each group; the rate is that of lists, with one doorbell.
            common += ["-t", window, "-Q", group,
                       "-l", group if workload.benchmark == "rate" else 1]
        pinned = [("taskset", "-c", core, program) for core in settings.pin]
        server = start([*pinned[1], "-d", THERE, *common])
        try:
            wait_listening(port, server, limit=20.0, name=program)
            with crossing():
                out = run([*pinned[0], "-d", HERE, *common, "127.0.0.1"])
        finally:
            end(server)
        value = self.value(workload, out)
        self.pace.paced(workload, 1e9 / value / 2 if latency else self.rate(workload, value))
        return value

    @staticmethod
    def rate(workload, value):
        return value * 1e6 if workload.benchmark == "rate" else value * 1e9 / workload.bytes

    @staticmethod
    def value(workload, out):
        """The last line that begins with the size: for bandwidth size, iterations, peak, mean and
        rate, where the mean has more digits than the rate; for latency size, iterations, least,
        most and median."""
        rows = re.findall(rf"^ *{workload.bytes} +(\d+(?:[ \t]+[\d.]+)+)", out, re.MULTILINE)
        if not rows:
            raise Failed("perftest printed no result")
        columns = [float(word) for word in rows[-1].split()]
        if workload.benchmark == "latency":
            return columns[3] * 1e3
        bytes_a_second = columns[2] * (1 << 20)
        if workload.benchmark == "rate":
            return bytes_a_second / workload.bytes / 1e6
        return bytes_a_second / 1e9


class UctRc:
    """UCX's lower interface over reliable connections. UCP, which its users call, does not work on
    SoftRoCE: it needs datagrams (ud_verbs) to connect, and aborts or hangs there."""

    title = "UCT put, rc"

    def __init__(self):
        self.pace = Paced()

    def measure(self, workload, settings):
        latency = workload.benchmark == "latency"
        port = free_port()
        environment = {"UCX_LOG_LEVEL": "error", "UCX_IB_GID_INDEX": str(GID)}
        count = self.pace.iterations(workload, settings.duration, least=20)
        common = ["-p", port, "-f", "-v"]
        # The server uses the client's device name; this library maps that name to the other device.
        swapped = {"LD_PRELOAD": settings.build / AT_HOST_B}
        server = start(["ucx_perftest", *common, "-c", settings.pin[1]], environment | swapped)
        try:
            wait_listening(port, server, limit=20.0)
            with crossing():
                out = run(["ucx_perftest", "127.0.0.1", *common, "-c", settings.pin[0],
                           "-t", "put_lat" if latency else "put_bw", "-x", "rc_verbs",
                           "-d", f"{HERE}:1", "-D", "short" if latency else "zcopy",
                           "-s", workload.bytes, "-n", count, "-w", count // 10 + 1], environment)
        finally:
            end(server)
        value = self.value(workload, out)
        self.pace.paced(workload, 1e9 / value / 2 if latency else Perftest.rate(workload, value))
        return value

    @staticmethod
    def value(workload, out):
        """CSV as Ucx.value() reads it. Few iterations a second: the bandwidth has the digits that
        the rate has not, and the median of the times of a stream is often 0."""
        try:
            columns = [float(word) for word in out.strip().splitlines()[-1].split(",")]
            median_us, megabytes = columns[1], columns[5]
        except (IndexError, ValueError):
            raise Failed("ucx_perftest printed no result") from None
        if workload.benchmark == "latency":
            return median_us * 1e3
        bytes_a_second = megabytes * (1 << 20)
        if workload.benchmark == "rate":
            return bytes_a_second / workload.bytes / 1e6
        return bytes_a_second / 1e9


ALL = {"ours_verbs": OursOverVerbs(), "perftest": Perftest(), "uct_rc": UctRc()}
