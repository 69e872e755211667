"""One exception class for each error code; most are also the built-in class that callers expect."""

from fabric_lib._native import Errc


class FabricError(Exception):
    """A call or an operation failed.

    code: why, as in C++. native: errno, or the value that would have been right. what: names the
    argument or the call. where: the line of the library that found it.
    """

    code: Errc = Errc.OK
    native: int = 0
    what: str = ""
    where: str = ""


class InvalidArgument(FabricError, ValueError):
    pass


class OutOfBounds(FabricError, ValueError):
    pass


class Unsupported(FabricError, NotImplementedError):
    pass


class Exhausted(FabricError, BlockingIOError):
    """A bounded resource is full: make progress, then try again."""


class TooLarge(FabricError, ValueError):
    pass


class BadFormat(FabricError, ValueError):
    pass


class VersionMismatch(FabricError, ValueError):
    pass


class NotFound(FabricError, LookupError):
    pass


class Timeout(FabricError, TimeoutError):
    pass


class Cancelled(FabricError):
    pass


class Aborted(FabricError):
    """A write to this counter failed: its count proves nothing."""


class Released(FabricError):
    pass


class Overrun(FabricError):
    pass


class Busy(FabricError):
    pass


class WouldDeadlock(FabricError, RuntimeError):
    """A blocking call from a callback."""


class Closed(FabricError):
    """The engine is closed, or was opened in a parent before fork()."""


class PermissionDenied(FabricError, PermissionError):
    pass


class PeerLost(FabricError, ConnectionError):
    pass


class Unreachable(FabricError, ConnectionError):
    pass


class RemoteAccess(FabricError, ConnectionError):
    pass


class WrongJob(FabricError, ConnectionError):
    pass


class RailLost(FabricError, ConnectionError):
    pass


CLASSES: dict[Errc, type[FabricError]] = {
    Errc.INVALID_ARGUMENT: InvalidArgument,
    Errc.OUT_OF_BOUNDS: OutOfBounds,
    Errc.UNSUPPORTED: Unsupported,
    Errc.EXHAUSTED: Exhausted,
    Errc.TOO_LARGE: TooLarge,
    Errc.BAD_FORMAT: BadFormat,
    Errc.VERSION: VersionMismatch,
    Errc.NOT_FOUND: NotFound,
    Errc.TIMEOUT: Timeout,
    Errc.CANCELLED: Cancelled,
    Errc.ABORTED: Aborted,
    Errc.RELEASED: Released,
    Errc.OVERRUN: Overrun,
    Errc.BUSY: Busy,
    Errc.WOULD_DEADLOCK: WouldDeadlock,
    Errc.CLOSED: Closed,
    Errc.PERMISSION: PermissionDenied,
    Errc.PEER_LOST: PeerLost,
    Errc.UNREACHABLE: Unreachable,
    Errc.REMOTE_ACCESS: RemoteAccess,
    Errc.WRONG_JOB: WrongJob,
    Errc.RAIL_LOST: RailLost,
}


def make(code: Errc, what: str, native: int, where: str) -> FabricError:
    """The exception for a code. The native module calls this."""
    name = code.name
    error = CLASSES.get(code, FabricError)(f"{what} ({name})" if what else name)
    error.code, error.native, error.what, error.where = code, native, what, where
    return error
