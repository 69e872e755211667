#!/usr/bin/env python3
"""Boots a guest with six SoftRoCE devices, runs commands in it, and ends as they ended.

    boot.py --bin build/release/tests tests/guest/suite
    boot.py --bin build/dev/tests -c '5 ibv_devices' -c '60 guest_tests --gtest_brief=1'

Each line of a suite, and each -c, is a time limit in seconds and a shell command. The guest sees
the host's root read-only, so that everything installed here runs there. Programs named in a command
and found in a --bin folder are copied to the guest's memory. Variables FABRIC_TEST_* go along.

The kernel is Debian's own package, unpacked and not installed. Exit code 77: it cannot be had, or
there is no QEMU, so nothing was run.
"""

import argparse
import hashlib
import os
import pathlib
import platform
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parent.parent / "build" / "guest"
MODULES = ["crc32_generic", "rdma_rxe", "ib_uverbs", "veth", "bridge", "virtio_pci", "9p",
           "9pnet_virtio", "sch_netem", "sch_prio", "cls_u32"]
# Unpacked once; another list of modules is another folder.
KERNEL = CACHE / f"kernel-{hashlib.sha256(' '.join(MODULES).encode()).hexdigest()[:16]}"
KVM_HANGS = CACHE / "kvm-hangs"  # found out once
SKIPPED = 77


class Missing(Exception):
    """What a guest needs and this machine cannot give it."""


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Missing(f"{shlex.join(map(str, command))}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def kernel_package():
    def named():
        shown = run("apt-cache", "show", "--no-all-versions", "linux-image-amd64")
        return re.search(r"^Depends: (linux-image-\S+)", shown, re.MULTILINE).group(1)

    try:
        return named()
    except Missing:
        run("apt-get", "-q", "update")  # an image without package lists
        return named()


def fetch_kernel():
    """Unpacks kernel and modules, and keeps the modules that the guest loads, in their order."""
    work = CACHE / "unpacked"
    for old in (work, *CACHE.glob("kernel*")):
        shutil.rmtree(old, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        run("apt-get", "-q", "download", kernel_package(), cwd=work)
        run("dpkg", "-x", next(work.glob("*.deb")), work)
        version = next((work / "lib/modules").iterdir()).name
        run("depmod", "-b", work, version)
        files = []
        for module in MODULES:
            shown = run("modprobe", "-d", work, "-S", version, "--show-depends", module)
            files += [pathlib.Path(line.split()[1]) for line in shown.splitlines()
                      if line.startswith("insmod")]
        kept = CACHE / "kernel.new"
        (kept / "modules").mkdir(parents=True)
        for order, file in enumerate(dict.fromkeys(files)):
            shutil.copy(file, kept / "modules" / f"{order:02}-{file.name}")
        shutil.copy(next((work / "boot").glob("vmlinuz-*")), kept / "vmlinuz")
        kept.rename(KERNEL)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_initramfs(kernel):
    """A busybox, the modules and init, made again when one of them is another."""
    parts = [pathlib.Path("/bin/busybox"), HERE / "init", *sorted((kernel / "modules").iterdir())]
    digest = hashlib.sha256(b"".join(part.read_bytes() for part in parts)).hexdigest()[:16]
    made = CACHE / f"initramfs-{digest}"
    if made.exists():
        return made
    for old in CACHE.glob("initramfs*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    root = CACHE / "initramfs"
    for folder in ("bin", "proc", "sys", "dev", "tmp", "run", "host"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/bin/busybox", root / "bin")
    shutil.copy(HERE / "init", root / "init")
    (root / "init").chmod(0o755)
    shutil.copytree(kernel / "modules", root / "modules")
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(["cpio", "--create", "--format=newc", "--quiet"], cwd=root, check=True,
                            input=names.encode(), stdout=subprocess.PIPE).stdout
    partial = CACHE / "initramfs.partial"
    partial.write_bytes(packed)
    partial.rename(made)
    return made


def sweep():
    """Removes what scripts that were killed have left behind."""
    for job in CACHE.glob("job-*"):
        if not pathlib.Path("/proc", job.name.removeprefix("job-")).exists():
            shutil.rmtree(job, ignore_errors=True)


def stage(job, lines, folders):
    """Puts into the job's folder what its commands need from this host."""
    shutil.rmtree(job, ignore_errors=True)
    (job / "bin").mkdir(parents=True)
    carried = {}
    for folder in folders:
        for word in re.findall(r"[\w-]+", " ".join(lines)):
            program = folder / word
            if program.is_file() and os.access(program, os.X_OK):
                carried.setdefault(word, program)
    for program in list(carried.values()):
        needed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        for library in re.findall(r"=> (/\S+)", needed):  # of a script: nothing
            if not library.startswith(("/lib", "/usr/lib")):
                carried.setdefault(pathlib.Path(library).name, pathlib.Path(library))
    for name, file in carried.items():
        shutil.copy(file, job / "bin" / name)
    shutil.copy(HERE / "inside.sh", job)
    (job / "commands").write_text("".join(line + "\n" for line in lines))
    (job / "environment").write_text("".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in sorted(os.environ.items())
        if name.startswith(("FABRIC_TEST_", "GTEST_"))))


def accelerators(allowed):
    """QEMU's options, the quick one first. A KVM that is there can still be one that hangs."""
    if allowed and os.access("/dev/kvm", os.R_OK | os.W_OK) and not KVM_HANGS.exists():
        yield "kvm", 20
    for _ in range(2):  # on a very busy host a boot can get stuck
        yield "tcg,thread=multi", 75


class Guest:
    """A QEMU of which each line is passed on, once it has said that it is up."""

    def __init__(self, job, accelerator):
        share = "local,security_model=none,multidevs=remap"
        self.qemu = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL",  # whoever ends this script ends the guest
             "qemu-system-x86_64", "-accel", accelerator, "-cpu", "max", "-smp", "2", "-m", "3072",
             "-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio",
             "-kernel", KERNEL / "vmlinuz", "-initrd", make_initramfs(KERNEL),
             "-append", "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check "
             "random.trust_cpu=on tsc=reliable",
             "-virtfs", f"{share},path=/,mount_tag=host,readonly=on",
             "-virtfs", f"{share},path={job},mount_tag=job"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.rest = b""
        self.up = False
        self.verdict = None
        self.unsaid = []  # what firmware and kernel said before, for the case that it stays at that

    def follow(self, seconds, enough):
        """Reads until enough() or for so long. False: it has gone away, or time is over."""
        end = time.monotonic() + seconds
        ready = selectors.DefaultSelector()
        ready.register(self.qemu.stdout, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if not ready.select(left):
                continue
            chunk = os.read(self.qemu.stdout.fileno(), 65536)
            if not chunk:
                break
            *lines, self.rest = (self.rest + chunk).split(b"\n")
            for line in lines:
                self.take(line.decode(errors="replace").rstrip("\r"))
            if enough():
                return True
        self.unsaid.append(self.rest.decode(errors="replace"))
        return False

    def take(self, line):
        if answer := re.fullmatch(r"guest: ended with (\d+)", line):
            self.verdict = int(answer.group(1))
        elif line.endswith("guest: up"):  # behind the firmware's last words
            self.up = True
        elif self.up and self.verdict is None:
            print(line, flush=True)
        else:
            self.unsaid.append(line)

    def end(self):
        self.qemu.kill()
        self.qemu.wait()


def boot(job, limit, kvm_allowed):
    """The guest's verdict, or 1 when it came to none in time."""
    for accelerator, patience in accelerators(kvm_allowed):
        guest = Guest(job, accelerator)
        try:
            if guest.follow(patience, lambda: guest.up):
                guest.follow(limit, lambda: guest.verdict is not None)
                break
        finally:
            guest.end()
        if accelerator == "kvm":
            KVM_HANGS.touch()
    if guest.verdict is None:
        print(*guest.unsaid, "guest: it came to no verdict in time", sep="\n")
        return 1
    return guest.verdict


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="?", type=pathlib.Path, help="a file of commands")
    parser.add_argument("-c", dest="commands", action="append", default=[], metavar="COMMAND",
                        help="a time limit in seconds and a command; can be repeated")
    parser.add_argument("--bin", dest="folders", action="append", default=[], type=pathlib.Path,
                        help="a folder of programs; can be repeated")
    parser.add_argument("--limit", type=float, help="seconds for all of it, otherwise the sum")
    parser.add_argument("--stretch", type=int, default=1, metavar="N",
                        help="N times as long for every command")
    parser.add_argument("--tcg", action="store_true", help="never KVM")
    return parser, parser.parse_args()


def main():
    parser, args = parse()
    lines = args.commands
    if args.suite:
        lines = args.suite.read_text().splitlines() + lines
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not lines or not all(re.match(r"\d+ \S", line) for line in lines):
        parser.error("each command is a time limit in seconds and what to run")
    lines = [f"{int(seconds) * args.stretch} {command}"
             for seconds, command in (line.split(" ", 1) for line in lines)]
    limit = args.limit or 10 + sum(int(line.split()[0]) for line in lines)
    job = CACHE / f"job-{os.getpid()}"
    try:
        if platform.machine() != "x86_64":
            raise Missing(f"the guest is x86_64, this host is {platform.machine()}")
        for tool in ("qemu-system-x86_64", "busybox", "cpio", "depmod", "rdma", "tc"):
            if not shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
                raise Missing(f"no {tool}: scripts/install-deps guest")
        if not KERNEL.exists():
            fetch_kernel()
        sweep()
        stage(job, lines, [folder.resolve() for folder in args.folders])
        return boot(job, limit, not args.tcg)
    except Missing as why:
        print(f"guest: skipped, nothing was run: {why}")
        return SKIPPED
    finally:
        shutil.rmtree(job, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
