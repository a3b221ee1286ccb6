"""The client: blocking calls, futures and asyncio.

Every call is one entry into C++. It holds the GIL only to check arguments and to convert the result.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, cached_property
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import quote, urlencode
from weakref import finalize

from . import _kvstore
from ._access import Node, access_of
from ._arrays import Buffer, Hashes, Numbers, Seconds, seconds
from ._kvstore import (
    ArchivedContext,
    Caller,
    ContextList,
    DeviceMemory,
    Future,
    GetResult,
    LoadResult,
    MatchResult,
    Memory,
    MissReport,
    NamedContext,
    Op,
    PutResult,
)
from ._reuse import Reuse, reuse_number
from .errors import BadRequest, Error, NotFound, TimedOut, Unavailable
from .futures import forget
from .namespaces import Namespace
from .sets import SetSpace
from .spaces import Lease, OpenedNamespace, forms, lease_number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Client", "Lease", "Node", "Space"]

#: A point in time: a datetime with a time zone, or seconds since 1970.
Date: TypeAlias = "datetime | float"

# Before the interpreter shuts down: calls in flight stop, and all C++ threads end.
atexit.register(_kvstore.abandon_all)


@cache
def _tell_unknown_variables() -> None:
    """Warns once per process: a misspelt variable would otherwise look like an unset one."""
    for each in _kvstore.unknown_variables():
        logging.getLogger("kvstore").warning("%s", each)


def _context_time(ttl: Seconds | None, sliding: bool, until: Date | None) -> tuple[float, bool, float]:
    if ttl is not None and until is None:
        return seconds(ttl), sliding, 0.0
    if ttl is not None or until is None:
        raise BadRequest("a context: give ttl, or until")
    if sliding:
        raise BadRequest("sliding: goes with ttl")
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise BadRequest("until: a datetime without a time zone; datetime(..., tzinfo=timezone.utc), for example")
        return 0.0, False, until.timestamp()
    return 0.0, False, float(until)


def _read_answer(told: Mapping[str, Any]) -> dict[str, Any]:
    """Of one node: a node whose answer cannot be read must not cost those of the others."""
    if told["error"]:
        return {"error": told["error"], "answer": None}
    try:
        answer = json.loads(told["json"])
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return {"error": "the answer is no JSON object", "answer": None}
    return {"error": None, "answer": answer}


def _priority(given: int) -> int:
    if not 0 <= given <= 9:
        raise BadRequest(f"priority: {given}, allowed are 0 to 9")
    return given


class Client:
    """A client of one or several nodes. The constructor opens no connection; the first use does.

    ``nodes``: endpoints or :class:`Node`, the same on all clients of a cluster: a list, or (endpoints alone) one text with commas or blanks
    between; by default ``KVSTORE_ENDPOINTS``.
    ``deadline``: seconds, the default for every call. A dead or slow node costs that much at most.
    ``extent_blocks``: one block of a chain in so many begins an extent, kept on one node (docs/cluster.md); equal on all clients.
    ``hedge_share``: at most this share of matches and gets is sent to a second node too, when the first is late; 0 turns hedging off.
    ``zone``: this client's zone; among nodes with equal copies those of this zone are asked (docs/cluster.md).
    ``numa_nodes``: where memory of :meth:`allocate` lies and which processors the client's own threads use: NUMA nodes such as ``"1"`` or
    ``"0-1"``, or the node of a PCI device, such as ``"pci:0000:3b:00.0"``. Unset: no placement.
    ``follow_cluster``: follow the cluster map if the nodes keep one in etcd; False: ask ``nodes`` alone.
    ``staging_bytes``: memory lent to nodes on this host for set blocks in other memory, which is faster than their socket; blocks larger
    than half of ``staging_bytes`` use the socket. By default there is none.
    ``wait_while_away``: ``submit_...`` calls wait, as blocking ones do, for a node that is being connected. False: they answer at once for
    such a node's blocks, with Unavailable as the reason.
    ``tls_cert``, ``tls_key``, ``tls_ca``: PEM files, all three for ``tls://`` endpoints; ``tls_crl`` lists revoked certificates,
    ``tls_server_name`` is the name nodes must prove instead of the endpoint's host. Defaults come from ``KVSTORE_TLS_CERT``,
    ``KVSTORE_TLS_KEY`` and so on. Changed files are read again for the next connection.
    ``tls_names``: with a token, the certificate names allowed for nodes that only a cluster map lists, such as ``"*.kvstore.example.org"``;
    by default ``KVSTORE_TLS_NAMES``, with commas between, and the hosts of ``nodes``.
    ``token``, or ``token_file`` with one: identifies this client to the nodes' policy; by default ``KVSTORE_TOKEN_FILE`` or
    ``KVSTORE_TOKEN``. It is sent over ``tls://``, ``unix://`` and loopback only.

    All methods are thread-safe. After ``fork()`` the client is the parent's: the child's calls raise Forked; it makes its own client.
    """

    def __init__(
        self,
        nodes: str | Node | Sequence[str | Node] | None = None,
        *,
        deadline: Seconds = 1.0,
        identity: str = "python",
        connections_per_node: int = 2,
        connect_timeout: Seconds = 1.0,
        calls_max: int = 1024,
        region_bytes_max: int = 8 << 30,
        rdma: bool = True,
        rdma_devices: Sequence[str] = (),
        rdma_lanes: int = 0,
        verify: bool = True,
        busy_poll: Seconds = 0.0,
        wait_while_away: bool = False,
        extent_blocks: int = 256,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_crl: str | os.PathLike[str] | None = None,
        tls_server_name: str | None = None,
        tls_names: str | Sequence[str] | None = None,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        hedge_share: float = 0.02,
        zone: str = "",
        numa_nodes: str = "",
        follow_cluster: bool = True,
        staging_bytes: int = 0,
    ) -> None:
        _tell_unknown_variables()
        self.deadline = seconds(deadline)
        access = access_of(
            nodes,
            tls_cert=tls_cert,
            tls_key=tls_key,
            tls_ca=tls_ca,
            tls_crl=tls_crl,
            tls_server_name=tls_server_name,
            tls_names=tls_names,
            token=token,
            token_file=token_file,
        )
        self._endpoints = [each if isinstance(each, str) else each.endpoint for each in access["nodes"]]
        self._native = _kvstore.Client(
            **access,
            identity=identity,
            connections_per_node=connections_per_node,
            connect_timeout=seconds(connect_timeout),
            calls_max=calls_max,
            region_bytes_max=region_bytes_max,
            rdma=rdma,
            rdma_devices=list(rdma_devices),
            rdma_lanes=rdma_lanes,
            verify=verify,
            busy_poll=seconds(busy_poll),
            extent_blocks=extent_blocks,
            hedge_share=hedge_share,
            zone=zone,
            numa_nodes=numa_nodes,
            follow_cluster=follow_cluster,
            staging_bytes=staging_bytes,
        )
        self._waits_while_away = wait_while_away
        self._forget: Callable[[], object] = lambda: None

    @cached_property
    def _submits(self) -> _kvstore.Queue:
        """Of submitted calls. Calls that block need none."""
        queue = _kvstore.Queue(self._native, self._waits_while_away, True)
        self._forget = finalize(self, forget, queue)
        return queue

    def _deadline(self, deadline: Seconds | None) -> float:
        return self.deadline if deadline is None else seconds(deadline)

    # -- namespaces

    @staticmethod
    def _record(namespace: Namespace, *, is_set: bool) -> Namespace:
        if namespace.is_set and not is_set:
            raise BadRequest("namespace: of blocks that stand alone: open_set()")
        if is_set and not namespace.is_set:
            raise BadRequest('namespace: of chains: open(), or kind="set"')
        return namespace

    def _open(self, record: Namespace, deadline: Seconds | None, wait: bool) -> int:
        if wait:
            return self._native.open(record, self._deadline(deadline))
        # By the client's own thread, which goes on connecting: it would pause behind a call of this thread.
        return cast(int, self._submits.open(record, 0.0).result())

    def open(self, namespace: Namespace, *, deadline: Seconds | None = None, wait: bool = True) -> Space:
        """Opens a namespace. The nodes may be away: lookups then miss, and nodes open the namespace when they come. Waits for the first,
        but not while none can be reached; ``wait=False`` returns at once. Raises Mismatch, BadRequest, ... if a node refuses the record.
        """
        return Space(self, self._open(self._record(namespace, is_set=False), deadline, wait), namespace)

    def open_set(self, namespace: Namespace, *, deadline: Seconds | None = None, wait: bool = True) -> SetSpace:
        """As :meth:`open`, for a namespace of blocks that stand alone (``kind="set"``)."""
        return SetSpace(self, self._open(self._record(namespace, is_set=True), deadline, wait), namespace)

    def submit_open(self, namespace: Namespace, *, deadline: Seconds | None = None) -> Future[Space]:
        """As :meth:`open`, without waiting."""
        record = self._record(namespace, is_set=False)
        return self._submits.open(record, self._deadline(deadline), lambda space: Space(self, space, namespace))

    def submit_open_set(self, namespace: Namespace, *, deadline: Seconds | None = None) -> Future[SetSpace]:
        """As :meth:`open_set`, without waiting."""
        record = self._record(namespace, is_set=True)
        return self._submits.open(record, self._deadline(deadline), lambda space: SetSpace(self, space, namespace))

    # -- memory

    def allocate(self, nbytes: int, *, page_locked: bool = False) -> Memory:
        """Allocates memory that nodes read and write directly, without a socket: nodes on this host and nodes reached by RDMA. NumPy arrays
        and torch tensors over it (``memory.array()``, ``memory.tensor()``) keep it alive.

        Touches all pages before it returns: 0.3 s per GiB, more on slow machines, without a deadline. Ctrl-C ends the wait; the unfinished
        memory is then freed, and counts against ``region_bytes_max`` until it is.

        ``page_locked``: GPUs can reach the memory while it lives; takes as much time again. Raises Unavailable where the CUDA module or a
        device is missing. Off by default, because it makes this process a CUDA process, on the thread's device.
        """
        return self._native.allocate(nbytes, page_locked)

    def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = "uint8") -> npt.NDArray[Any]:
        """As ``numpy.empty``, in memory of :meth:`allocate`."""
        import numpy as np

        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(sizes) * np.dtype(dtype).itemsize
        return self.allocate(max(nbytes, 1)).array(sizes, dtype)

    def empty_tensor(self, shape: int | Sequence[int], dtype: Any) -> Any:
        """As ``torch.empty``, on the host, in memory of :meth:`allocate`."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return self.allocate(max(math.prod(sizes) * dtype.itemsize, 1)).tensor(sizes, dtype)

    def lend(self, memory: Memory | DeviceMemory, *, deadline: Seconds | None = None) -> int:
        """Lends memory of :meth:`allocate` to all nodes now instead of at its first use. Returns the number of connections it is lent to; 0
        if it suits none of the nodes. ``deadline`` defaults to 10 s plus 5 s per GiB: nodes map all of the memory, and RDMA devices
        register it. Raises TimedOut if no node has it by then. For memory of :meth:`lend_device`, lends it to nodes that came later.
        """
        time = 10.0 + 5.0 * memory.nbytes / (1 << 30) if deadline is None else seconds(deadline)
        try:
            return self._native.lend(memory, time)
        except TimedOut:
            raise TimedOut(f"memory: no node has taken {memory.nbytes} bytes within {time:g} s") from None

    def lend_device(self, memory: Buffer | tuple[int, int], *, deadline: Seconds | None = None) -> DeviceMemory:
        """Lends a GPU's memory to all nodes: their RDMA devices then fill and drain it, past the host and its processors. ``memory`` is
        a CUDA tensor or any array with DLPack or ``__cuda_array_interface__``, in C order without gaps, or ``(address, bytes)``.

        :meth:`Space.get`, :meth:`Space.load` and :meth:`Space.put` take blocks in it, with ``checksums``: this process does not read or
        write the memory, so a kernel verifies what came (:func:`scatter_verified`) and sums up what goes
        (:func:`gather_with_checksums`). The bytes reach it by RDMA or not at all. docs/rdma.md, "GPU memory".

        The array is kept, and RDMA devices may reach it, until :meth:`take_back` returns or the client is closed, also if the result is
        dropped. Behind a bare address the memory has to stay allocated as long. ``deadline`` as in :meth:`lend`.

        Raises Unavailable where there is no CUDA device, or no node can reach the memory (neither dma-bufs nor nvidia-peermem, no RDMA
        device, nodes on Unix sockets alone), with the reason; BadRequest for host memory, memory that is lent already, and addresses that
        the CUDA driver does not know; TimedOut if no node has it in time; Busy beyond ``region_bytes_max``. Nothing is lent then.
        """
        lent = self._native.add_device_memory(memory)
        try:
            if self.lend(lent, deadline=deadline) == 0:
                why = "; ".join(
                    f"{node['endpoint']}: {node['rdma_text'] or 'RDMA is not ready'}" for node in self.nodes()
                )
                raise Unavailable(f"memory: no node can reach it by RDMA: {why}")
        except BaseException:
            with suppress(Error):
                self.take_back(lent)
            raise
        return lent

    def take_back(self, memory: DeviceMemory, *, deadline: Seconds = 10.0) -> None:
        """Ends :meth:`lend_device`. Once it has returned, no RDMA device reaches the memory, whatever a node does. Raises Busy while a call
        uses the memory, and TimedOut if this machine's devices have not let go by then: calls that name the memory raise Quarantined, and
        this has to be called again.
        """
        self._native.take_back(memory, seconds(deadline))

    def is_quarantined(self, memory: Memory | DeviceMemory) -> bool:
        """Whether a node may still write to a part of it for a get that missed its deadline."""
        return self._native.is_quarantined(memory)

    # -- nodes

    def ask(
        self, path: str, query: Mapping[str, str] | None = None, *, node: str = "", deadline: Seconds | None = None
    ) -> list[dict[str, Any]]:
        """Asks all nodes, or the one called ``node``, a question of docs/wire.md, such as ``/slowlog.json``. For each: name, error or None,
        answer (None after an error).
        """
        words = urlencode(query or {}, quote_via=quote)
        told = self._native.ask(path, words, node, self._deadline(deadline))
        return [{"name": each["name"], **_read_answer(each)} for each in told]

    def stats(self, *, deadline: Seconds | None = None) -> list[dict[str, Any]]:
        """The figures of each node (``/stats.json`` in docs/wire.md): name, error or None, values, hit_rate, namespaces, ..."""
        nodes = []
        for each in self.ask("/stats.json", deadline=deadline):
            told = each["answer"] or {}
            node = {"name": each["name"], "error": each["error"], "values": {}, "namespaces": [], **told}
            for _ in range(4096):  # an answer has some of the namespaces
                if "next" not in told:
                    break
                (more,) = self.ask("/stats.json", {"after": told["next"]}, node=node["name"], deadline=deadline)
                told = more["answer"] or {}
                node["namespaces"] += told.get("namespaces", [])
            node.pop("next", None)
            nodes.append(node)
        return nodes

    def ping(self, *, deadline: Seconds | None = None) -> list[float | None]:
        """Round-trip seconds per node; None without an answer, and then :meth:`nodes` gives the reason."""
        return self._native.ping(self._deadline(deadline))

    def nodes(self) -> list[dict[str, Any]]:
        """This client's state of each node: endpoint, transport, connected, calls, failures, last_error, ..."""
        return self._native.nodes()

    def metrics_text(self) -> str:
        """This client's metrics as Prometheus text: durations, missed deadlines, breakers, bytes by transport, hits by tier, tokens that
        need not be computed. Asks no node. docs/operating.md lists the names.
        """
        return self._native.metrics_text()

    # -- named contexts (docs/contexts.md); Space.create_context makes one

    def contexts(self, name: str = "", *, deadline: Seconds | None = None) -> ContextList:
        """All contexts of the caller's tenant, or the one called ``name``, with their usage."""
        return self._native.list_contexts(name, self._deadline(deadline))

    def extend_context(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        sliding: bool = False,
        until: Date | None = None,
        priority: int | None = None,
        deadline: Seconds | None = None,
    ) -> NamedContext:
        """Sets the context's remaining life, as :meth:`Space.create_context`, and its priority if one is given. Raises NotFound."""
        time, wanted = _context_time(ttl, sliding, until), None if priority is None else _priority(priority)
        call = self._native.extend_context(name, *time, wanted, self._deadline(deadline))
        return call

    def delete_context(self, name: str, *, deadline: Seconds | None = None) -> NamedContext:
        """Ends the context and returns its last state. Raises NotFound."""
        return self._native.delete_context(name, self._deadline(deadline))

    def warm_context(self, name: str, *, wait: Seconds | None = None, deadline: Seconds | None = None) -> NamedContext:
        """Makes the nodes bring the context's blocks from disk to memory, in the background, within the bounds on kept blocks. With
        ``wait``: returns when that is done, or raises TimedOut after so many seconds while it continues. ``is_warming``, ``memory_blocks``
        and ``disk_blocks`` show the progress. Raises NotFound.
        """
        time = self._deadline(deadline)
        now = self._native.warm_context(name, time)
        if wait is None:
            return now
        until = monotonic() + seconds(wait)
        while now.is_warming:
            if monotonic() >= until:
                raise TimedOut(f"the context {name!r}: {now.disk_blocks} blocks of it are on disk still")
            sleep(min(0.1, max(0.0, until - monotonic())))
            listed = self._native.list_contexts(name, time)
            for error in listed.silent.values():
                raise error
            if not listed.contexts:
                raise NotFound(f"the context {name!r} has ended")
            now = listed.contexts[0]
        return now

    def stop_warming_context(self, name: str, *, deadline: Seconds | None = None) -> NamedContext:
        """Stops :meth:`warm_context`; blocks already in memory stay. Raises NotFound."""
        return self._native.stop_warming_context(name, self._deadline(deadline))

    def export_context(
        self,
        name: str,
        file: str | os.PathLike[str],
        *,
        partial: bool = False,
        replace: bool = False,
        key_file: str | os.PathLike[str] | None = None,
        deadline: Seconds | None = None,
    ) -> ArchivedContext:
        """Writes a context with its blocks to a file, to have the same prefix on another cluster (docs/contexts.md). Raises NotFound where
        blocks are missing; with ``partial`` the file has the blocks before the first missing one. Overwrites an existing file only with
        ``replace``. ``deadline`` holds for each batch of 16 MiB. Blocks only the calling thread; an error or Ctrl-C leaves no file. The
        file is not encrypted. ``key_file`` has the key (64 hexadecimal digits) that signs it; by default the file named in
        ``KVSTORE_ARCHIVE_KEY_FILE``, if set.
        """
        key = "" if key_file is None else os.fspath(key_file)
        return self._native.export_context(name, os.fspath(file), partial, replace, key, self._deadline(deadline))

    def import_context(
        self,
        file: str | os.PathLike[str],
        *,
        name: str = "",
        ttl: Seconds | None = None,
        sliding: bool = False,
        until: Date | None = None,
        priority: int | None = None,
        key_file: str | os.PathLike[str] | None = None,
        deadline: Seconds | None = None,
    ) -> ArchivedContext:
        """Puts the blocks of an exported file and creates the context. Options not given come from the file, with a time to live from now.
        Checks the whole file first: raises CorruptBlock for a damaged file, Unsupported for one of a later version, and, with a key (as for
        an export), PermissionDenied for a file that key did not sign.
        """
        time = (0.0, False, 0.0) if ttl is None and until is None else _context_time(ttl, sliding, until)
        if sliding and ttl is None:
            raise BadRequest("sliding: goes with ttl")
        wanted = None if priority is None else _priority(priority)
        key = "" if key_file is None else os.fspath(key_file)
        return self._native.import_context(os.fspath(file), name, *time, wanted, key, self._deadline(deadline))

    def numa(self) -> dict[str, Any]:
        """The effect of ``numa_nodes``: ``nodes`` with memory on this machine (0: not checked), those ``chosen``, the client threads'
        ``processors``, ``misplaced_ratio`` (memory elsewhere, by a sample; None: unknown), ``why_not`` for failed placement.
        """
        return self._native.numa()

    def tell_prefill_speed(self, tokens_per_second: float) -> None:
        """Reports the engine's prefill speed as it measured it, for ``kvstore_client_saved_compute_seconds_total``."""
        self._native.tell_prefill_speed(tokens_per_second)

    # -- life

    @property
    def is_closed(self) -> bool:
        return self._native.is_closed

    def close(self) -> None:
        """Cancels the calls in flight and closes the connections. Memory of :meth:`allocate` lives as long as it is referenced."""
        self._native.close()
        self._forget()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvstore.Client of {', '.join(self._endpoints)}{', closed' if self.is_closed else ''}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Client cannot be pickled: each process makes one of its own")


class Space(OpenedNamespace):
    """A namespace whose blocks form prefixes: each hash names a block and all before it. Stays valid while nodes come and go.

    As in :class:`SetSpace`, calls block, and each has a form ``submit_...`` that does not.
    """

    __slots__ = ()

    @property
    def client(self) -> Client:
        return cast("Client", self._client)

    @property
    def block_bytes(self) -> int:
        return self.namespace.block_bytes

    @property
    def block_size(self) -> int:
        return self.namespace.block_size

    @property
    def stripe_count(self) -> int:
        """Checksums of a block: one for each 64 KiB, or part of them."""
        return -(-self.block_bytes // (64 << 10))

    def checksum_seeds(self, hashes: Hashes) -> npt.NDArray[np.uint64]:
        """What binds checksums to the blocks' names, for :func:`gather_with_checksums` and :func:`scatter_verified`."""
        return _kvstore.checksum_seeds(self.namespace, hashes)

    def hash_chain(self, tokens: Numbers, *, extra: Buffer | None = None) -> npt.NDArray[np.uint8]:
        """As :meth:`Namespace.hash_chain`."""
        return self.namespace.hash_chain(tokens, extra=extra)

    def _match(
        self,
        on: Caller,
        hashes: Hashes,
        *,
        deadline: Seconds | None = None,
        lease: bool = False,
        prefetch: bool = False,
        token_ids: Numbers | None = None,
        extras: npt.NDArray[np.uint8] | None = None,
        reuse: Reuse = None,
    ) -> Future[MatchResult]:
        """Returns how many leading blocks of the chain are held. ``lease``: keep the found blocks for a while (:meth:`lease` is the context
        manager). ``prefetch``: bring blocks from disk to memory for a get to come. ``token_ids`` of the blocks and up to one more ask for a
        partial block too. ``reuse``: when the blocks will be asked for again, as far as you can predict: "never", within so many seconds,
        "later" than in ten minutes (docs/cache-quality.md).
        """
        return on.call(
            Op.MATCH,
            self._id,
            hashes,
            self._client._deadline(deadline),
            token_ids=token_ids,
            extras=extras,
            reuse=reuse_number(reuse),
            wants_lease=lease,
            prefetch=prefetch,
        )

    match, submit_match = forms(_match)

    def why(self, hashes: Hashes, *, deadline: Seconds | None = None) -> MissReport:
        """Why :meth:`match` does not find the whole chain: the missing block's history on the node that owns it, and whether another
        namespace has it. Does not count as a use. docs/operating.md, "Why nothing hits".
        """
        return self._client._native.why(self._id, hashes, self._client._deadline(deadline))

    def create_context(
        self,
        name: str,
        hashes: Hashes,
        *,
        ttl: Seconds | None = None,
        sliding: bool = False,
        until: Date | None = None,
        tags: Sequence[str] = (),
        priority: int = 5,
        deadline: Seconds | None = None,
    ) -> NamedContext:
        """Keeps the prefix in memory under a name: blocks in memory at once, the others when they come. Lasts ``ttl`` seconds from now
        (``sliding``: and from each use), or ``until`` a date, as a ``datetime`` with a time zone or seconds since 1970. Where the bounds on
        kept blocks are too small for all contexts of a tenant, those of higher ``priority`` (0 to 9) have precedence, and among equals the
        ones kept first. Replaces a context of that name. The result tells how much is kept now, and why not more. Needs the right to
        operate (docs/contexts.md). Raises OverQuota or Busy at the limit on contexts.
        """
        life, time = _context_time(ttl, sliding, until), self._client._deadline(deadline)
        call = self._client._native.create_context(self._id, hashes, name, *life, list(tags), _priority(priority), time)
        return call

    def lease(self, hashes: Hashes, *, deadline: Seconds | None = None, prefetch: bool = False) -> Lease:
        """A match whose blocks stay cached until the ``with`` block or the lease's own time ends."""
        return Lease(self, self.match(hashes, deadline=deadline, lease=True, prefetch=prefetch))

    def _get(
        self,
        on: Caller,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
        lease: Lease | int = 0,
        segment_ends: Sequence[int] = (),
        memory_only: bool = False,
        checksums: Buffer | None = None,
    ) -> Future[GetResult]:
        """Copies the longest cached prefix of ``hashes`` into ``blocks``; later blocks are unspecified.

        ``blocks`` is one array whose first axis counts blocks, or a list of arrays of ``block_bytes`` each. With ``rows``, block i goes to
        row ``rows[i]`` of the array: a pool's free rows, say. Read-only and strided (but for the first axis) memory is refused by name, as
        is a device's, unless it is in one part of :meth:`Client.lend_device`. ``lease``: from an earlier match; this get ends it.

        ``checksums``: receives the expected checksums, uint64 ``[blocks, stripe_count]``, for :func:`scatter_verified`. Required for a
        device's memory: there ``block_count`` counts blocks that landed, and nobody has verified them; it ends before blocks on disk.

        ``segment_ends`` are byte offsets in a block (layer ranges), the last ``block_bytes``: a future's ``segments`` grow as they land.
        """
        return on.call(
            Op.GET,
            self._id,
            hashes,
            self._client._deadline(deadline),
            blocks=blocks,
            rows=rows,
            checksums=checksums,
            segment_ends=segment_ends,
            lease=lease_number(lease),
            memory_only=memory_only,
        )

    get, submit_get = forms(_get)

    def _load(
        self,
        on: Caller,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
        block_count_min: int = 1,
        segment_ends: Sequence[int] = (),
        memory_only: bool = False,
        reuse: Reuse = None,
        checksums: Buffer | None = None,
    ) -> Future[LoadResult]:
        """Match and get in one call: copies the longest cached prefix into ``blocks``, as :meth:`get`, unless it has fewer than
        ``block_count_min`` blocks: a short prefix is cheaper to compute. Found blocks stay cached until copied.
        """
        if block_count_min < 1:
            raise BadRequest(f"block_count_min: {block_count_min} is not 1 or more")
        return on.call(
            Op.LOAD,
            self._id,
            hashes,
            self._client._deadline(deadline),
            blocks=blocks,
            rows=rows,
            checksums=checksums,
            segment_ends=segment_ends,
            block_count_min=block_count_min,
            reuse=reuse_number(reuse),
            memory_only=memory_only,
        )

    load, submit_load = forms(_load)

    def _put(
        self,
        on: Caller,
        hashes: Hashes,
        blocks: Buffer | Sequence[Buffer],
        *,
        rows: Numbers | None = None,
        deadline: Seconds | None = None,
        token_ids: Numbers | None = None,
        extras: npt.NDArray[np.uint8] | None = None,
        reuse: Reuse = None,
        checksums: Buffer | None = None,
    ) -> Future[PutResult]:
        """Stores the chain's blocks, block i from ``blocks[i]``; each node takes only the blocks it lacks. ``blocks`` and ``rows`` as in
        :meth:`get`; they must not change until the call has ended. ``token_ids``: block_size for each block, kept for partial matches.
        ``checksums``: of :func:`gather_with_checksums`, which saves computing them here, and is required for a device's memory. Nodes
        refuse a block that does not match its own.
        """
        return on.call(
            Op.PUT,
            self._id,
            hashes,
            self._client._deadline(deadline),
            blocks=blocks,
            rows=rows,
            checksums=checksums,
            token_ids=token_ids,
            extras=extras,
            reuse=reuse_number(reuse),
        )

    put, submit_put = forms(_put)
