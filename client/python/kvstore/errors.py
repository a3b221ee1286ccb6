"""Errors, one class for each status of the C interface (``client/kvstore.h``).

A dead, slow or full node raises no exception in match, get and put: the result is smaller, and its ``why`` is one of these objects, not
raised. A lookup without a hit is also a result.
"""

from __future__ import annotations

__all__ = [
    "BadFrame",
    "BadRequest",
    "Busy",
    "Cancelled",
    "CorruptBlock",
    "DiskFailed",
    "Draining",
    "Error",
    "Forked",
    "Internal",
    "Mismatch",
    "NoNamespace",
    "NoRegion",
    "NotAdmitted",
    "NotFound",
    "OutOfMemory",
    "OverQuota",
    "PermissionDenied",
    "Quarantined",
    "StaleLease",
    "System",
    "TimedOut",
    "TooLarge",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """The base class. ``status`` is the C interface's number, ``status_name`` its name, such as KVS_BUSY."""

    status: int = 0
    status_name: str = "KVS_OK"


class OutOfMemory(Error):
    """The node has no evictable memory left."""

    status = 1
    status_name = "KVS_OUT_OF_MEMORY"


class StaleLease(Error):
    """The lease has ended: look the blocks up again."""

    status = 2
    status_name = "KVS_STALE_LEASE"


class CorruptBlock(Error):
    """A checksum did not match."""

    status = 3
    status_name = "KVS_CORRUPT_BLOCK"


class BadFrame(Error):
    """The node sent invalid bytes; the client reconnects."""

    status = 4
    status_name = "KVS_BAD_FRAME"


class BadRequest(Error, ValueError):
    """An argument breaks the rules: a bug in the caller. The text names the argument."""

    status = 5
    status_name = "KVS_BAD_REQUEST"


class Unsupported(Error):
    """This library or the node does not support it."""

    status = 6
    status_name = "KVS_UNSUPPORTED"


class NoNamespace(Error):
    """Unknown namespace."""

    status = 7
    status_name = "KVS_NO_NAMESPACE"


class Mismatch(Error):
    """Two sides describe one thing differently."""

    status = 8
    status_name = "KVS_MISMATCH"


class TooLarge(Error):
    """Over a limit of the node: split the request."""

    status = 9
    status_name = "KVS_TOO_LARGE"


class Busy(Error):
    """A limit is reached: back off."""

    status = 10
    status_name = "KVS_BUSY"


class Unavailable(Error):
    """The node cannot be reached."""

    status = 11
    status_name = "KVS_UNAVAILABLE"


class NoRegion(Error):
    """Memory cannot be lent."""

    status = 12
    status_name = "KVS_NO_REGION"


class Quarantined(Error):
    """A timed-out get may still write this memory, or it is being taken back."""

    status = 13
    status_name = "KVS_QUARANTINED"


class Draining(Error):
    """The node is shutting down."""

    status = 14
    status_name = "KVS_DRAINING"


class Cancelled(Error):
    """Given up."""

    status = 15
    status_name = "KVS_CANCELLED"


class NotFound(Error):
    """The disk tier lacks the key."""

    status = 16
    status_name = "KVS_NOT_FOUND"


class DiskFailed(Error):
    """The disk tier failed."""

    status = 17
    status_name = "KVS_DISK_FAILED"


class NotAdmitted(Error):
    """The blocks to evict for this one are worth more to the cache. Do not retry."""

    status = 18
    status_name = "KVS_NOT_ADMITTED"


class PermissionDenied(Error, PermissionError):
    """The node's policy denies this client the right. Continue without; a person has to fix it."""

    status = 19
    status_name = "KVS_PERMISSION_DENIED"


class OverQuota(Error):
    """A limit of the client's tenant is reached. Recompute; ask again later."""

    status = 20
    status_name = "KVS_OVER_QUOTA"


class TimedOut(Error, TimeoutError):
    """The deadline has passed."""

    status = 1000
    status_name = "KVS_TIMED_OUT"


class System(Error):
    """An error of the operating system; the text names it."""

    status = 1001
    status_name = "KVS_SYSTEM"


class Internal(Error):
    """A bug in this library; the client is disabled, the process goes on."""

    status = 1002
    status_name = "KVS_INTERNAL"


class Forked(Error):
    """The client is the parent's, and this is a child of fork(): make one of its own."""

    status = 1003
    status_name = "KVS_FORKED"


BY_STATUS: dict[int, type[Error]] = {each.status: each for each in Error.__subclasses__()}


def error_of(status: int, text: str) -> Error:
    """The exception for a status, not raised. The extension module calls this."""
    made = BY_STATUS.get(status, Internal)(text)
    if status not in BY_STATUS:
        made.status = status
    return made
