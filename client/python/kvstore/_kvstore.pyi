# The extension module. Users see the Python package around it, and many of these classes as they are.
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ._arrays import Buffer, Hashes, Numbers
from .device import StreamLike
from .errors import Error
from .layouts import Move, Part, Rotation
from .paging import CascadePlan, ChunkPlan, Ints, Longs, PackedMasks, SharedPrefixes
from .pruning import KeepMode

T = TypeVar("T")

__version__: str
CACHE_FORMATS: list[str]

class Record:
    """The base of :class:`kvstore.Namespace`."""

    @overload
    def __init__(self, fields: Mapping[str, str]) -> None: ...
    @overload
    def __init__(self, text: str) -> None: ...
    @property
    def text(self) -> str:
        """The canonical text: sorted ``key=value`` lines."""
    @property
    def block_bytes(self) -> int:
        """Bytes of every block."""
    @property
    def block_size(self) -> int:
        """Tokens of every block."""
    @property
    def is_set(self) -> bool:
        """Whether the blocks stand alone (``kind="set"``), instead of forming prefixes."""
    @property
    def id(self) -> bytes:
        """The first 16 bytes of the text's SHA-256."""
    @property
    def digest(self) -> bytes: ...
    def hash_chain(
        self, tokens: Numbers, *, extra: Buffer | None = None, after: bytes | None = None
    ) -> npt.NDArray[np.uint8]:
        """The hashes of the full blocks of ``tokens``: uint8 ``[len(tokens) // block_size, 32]``.

        ``extra`` is hashed into each of these blocks besides its tokens (an image's digest, say). ``after`` is the hash of the block
        before, to continue a chain. A list works; an array of uint32 is used as it is.
        """

def checksum_seeds(record: Record, hashes: Hashes) -> npt.NDArray[np.uint64]: ...
def hashes(of: Hashes | Sequence[Buffer]) -> npt.NDArray[np.uint8]:
    """An engine's own block hashes, of any length, as an array of uint8 ``[n, 32]``: converts once instead of in each call."""

def extra_digest(extra: Buffer) -> bytes:
    """The 16 bytes that stand for extra data hashed into a block besides its tokens; 16 zeros for no data."""

def sha256(data: Any) -> bytes: ...

class FieldDifference:
    """A field in which two namespaces' records differ; "" where a record lacks it or it is secret (a salt)."""

    @property
    def field(self) -> str: ...
    @property
    def here(self) -> str: ...
    @property
    def there(self) -> str: ...

class OtherNamespace:
    """A namespace that looks like a mistaken twin of the one asked about."""

    @property
    def namespace_id(self) -> str: ...
    @property
    def has_block(self) -> bool:
        """The namespace has the missing block, behind the same blocks."""
    @property
    def block_count(self) -> int: ...
    @property
    def stored_blocks(self) -> int: ...
    @property
    def lookups(self) -> int: ...
    @property
    def empty_lookups(self) -> int: ...
    @property
    def differs(self) -> list[FieldDifference]: ...

class NamedContext:
    """A prefix that nodes keep in memory under a name, summed over the nodes that hold a part."""

    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> list[str]: ...
    @property
    def namespace_id(self) -> str:
        """Hexadecimal."""
    @property
    def model(self) -> str: ...
    @property
    def block_size(self) -> int:
        """Tokens."""
    @property
    def wanted_blocks(self) -> int: ...
    @property
    def kept_blocks(self) -> int:
        """In memory until the context ends."""
    @property
    def kept_bytes(self) -> int: ...
    @property
    def why(self) -> Error | None:
        """Why fewer are kept than wanted: NotFound, not in memory; Busy, the node's bound; OverQuota, the tenant's."""
    @property
    def lost_blocks(self) -> int:
        """Were kept, and dropped by a client."""
    @property
    def yielded_blocks(self) -> int:
        """Were kept, and given up for contexts of higher priority."""
    @property
    def priority(self) -> int:
        """0..9. The highest is kept first if the bounds are too small for all."""
    @property
    def is_sliding(self) -> bool: ...
    @property
    def ttl(self) -> float:
        """Seconds."""
    @property
    def created(self) -> float:
        """Seconds since 1970, by the nodes' clocks; so are ``expires`` and ``used``."""
    @property
    def expires(self) -> float: ...
    @property
    def used(self) -> float | None:
        """None: never."""
    @property
    def written_tokens(self) -> int: ...
    @property
    def read_tokens(self) -> int: ...
    @property
    def stored_token_seconds(self) -> float: ...
    @property
    def is_warming(self) -> bool:
        """Its blocks on disk are being brought to memory."""
    @property
    def memory_blocks(self) -> int | None:
        """Leading blocks in memory, kept or not; only if one context was asked for by name."""
    @property
    def disk_blocks(self) -> int | None:
        """The blocks on disk that follow them; the same condition."""

class ArchivedContext:
    """A context written to a file, or read from one."""

    @property
    def name(self) -> str: ...
    @property
    def namespace_id(self) -> str:
        """Hexadecimal."""
    @property
    def blocks(self) -> int:
        """In the file."""
    @property
    def wanted_blocks(self) -> int:
        """Of the exported context."""
    @property
    def bytes(self) -> int:
        """Size of the file."""
    @property
    def is_signed(self) -> bool:
        """An export: signed with the key. An import: signed with the key, or without a key given, by any key."""
    @property
    def stored_blocks(self) -> int:
        """An import: the blocks the nodes lacked."""
    @property
    def context(self) -> NamedContext:
        """Its state at the export, or after the import."""

class ContextList:
    @property
    def contexts(self) -> list[NamedContext]:
        """Sorted by name."""
    @property
    def silent(self) -> dict[str, Error]:
        """Nodes that did not answer, with the reason. All figures lack their share."""

class MissReport:
    """Why a chain is not found."""

    @property
    def block_count(self) -> int:
        """Leading blocks held; the next one is missing."""
    @property
    def disk_block_count(self) -> int: ...
    @property
    def is_whole(self) -> bool:
        """All are held."""
    @property
    def reason(self) -> str:
        """not_remembered, evicted, dropped, not_admitted, refused, over_quota, lost, disk_off, being_stored; or unknown."""
    @property
    def why(self) -> Error | None:
        """Why the node that owns the block did not answer."""
    @property
    def node(self) -> str: ...
    @property
    def left_seconds(self) -> float: ...
    @property
    def idle_seconds(self) -> float: ...
    @property
    def remembers_seconds(self) -> float: ...
    @property
    def stored_blocks(self) -> int: ...
    @property
    def lookups(self) -> int: ...
    @property
    def empty_lookups(self) -> int: ...
    @property
    def others(self) -> list[OtherNamespace]: ...
    @property
    def text(self) -> list[str]:
        """The whole report in sentences."""

class MatchResult:
    """The result of a match."""

    @property
    def block_count(self) -> int:
        """Leading blocks held by their owners, in memory or on disk."""
    @property
    def disk_block_count(self) -> int:
        """How many of these are on disk. A lease does not cover them."""
    @property
    def disk_seconds(self) -> float:
        """Estimated seconds to read the blocks on disk."""
    @property
    def why(self) -> Error | None:
        """Why not more; None for a plain miss."""
    @property
    def lease(self) -> int:
        """0: no lease."""
    @property
    def partial_token_count(self) -> int:
        """Leading tokens of the next block that a stored block shares."""
    @property
    def partial_block(self) -> bytes:
        """That block's hash: get it as the hash after the matched ones."""

class GetResult:
    """The result of a get."""

    @property
    def block_count(self) -> int:
        """Leading blocks landed and verified. Later destinations are unspecified."""
    @property
    def corrupt_count(self) -> int:
        """Blocks whose checksum failed here."""
    @property
    def why(self) -> Error | None:
        """Why not more; None for a plain miss."""

class LoadResult:
    """The result of a load."""

    @property
    def found_count(self) -> int:
        """Leading blocks held by their owners, in memory or on disk."""
    @property
    def disk_block_count(self) -> int:
        """How many of these are on disk."""
    @property
    def block_count(self) -> int:
        """Leading blocks landed and verified; 0 if fewer than ``block_count_min`` were found. Later ones are unspecified."""
    @property
    def corrupt_count(self) -> int:
        """Blocks whose checksum failed here."""
    @property
    def why(self) -> Error | None:
        """Why not more; None for a plain miss."""

class PutResult:
    """The result of a put."""

    @property
    def stored(self) -> int: ...
    @property
    def already_stored(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def why(self) -> Error | None:
        """Why some were refused."""

class DropResult:
    """The result of a drop."""

    @property
    def block_count(self) -> int: ...
    @property
    def until_restart(self) -> bool:
        """A node's disk was not updated in time: the blocks may come back when that node restarts."""

class SetMatchResult:
    """Whether each hash's block is held."""

    @property
    def held(self) -> npt.NDArray[np.uint8]:
        """0 missing, 1 in memory, 2 on disk."""
    @property
    def block_bytes(self) -> npt.NDArray[np.uint32]:
        """Length of each block; 0 if it is missing."""
    @property
    def held_count(self) -> int: ...
    @property
    def disk_count(self) -> int: ...
    @property
    def disk_seconds(self) -> float: ...
    @property
    def why(self) -> Error | None: ...
    @property
    def lease(self) -> int: ...

class SetGetResult:
    """The result per block."""

    @property
    def landed(self) -> npt.NDArray[np.bool_]:
        """The block is at the start of its destination, verified. Other destinations are unspecified."""
    @property
    def block_bytes(self) -> npt.NDArray[np.uint64]:
        """Length of each block; 0 if unknown. For a block too long for its destination, the bytes it needs."""
    def why_of(self, i: int) -> Error | None:
        """Why block i did not land; None for a plain miss."""
    @property
    def landed_count(self) -> int: ...
    @property
    def corrupt_count(self) -> int: ...
    @property
    def why(self) -> Error | None: ...

class SetPutResult:
    """The result per block."""

    @property
    def states(self) -> npt.NDArray[np.uint8]:
        """0 refused, 1 stored, 2 already stored, 3 stored with other bytes or another length."""
    @property
    def stored(self) -> int: ...
    @property
    def already_stored(self) -> int: ...
    @property
    def conflicts(self) -> int: ...
    @property
    def refused(self) -> int: ...
    @property
    def why(self) -> Error | None: ...

class Op(Enum):
    MATCH = 3
    GET = 4
    LOAD = 5
    PUT = 6
    TOUCH = 7
    RETAIN = 8
    UNRETAIN = 9
    DROP = 10
    MATCH_SET = 15
    GET_SET = 16
    PUT_SET = 17

class Future(Generic[T]):
    """A call in flight. ``result()`` blocks, ``await`` does not.

    Every call ends by its deadline, or soon after :meth:`cancel`. Dropping a future drops only the answer: the call goes on, and keeps its
    buffers until it ends. Cancelling a task that awaits it cancels the call; then the buffers are the call's until ``done()``.
    """

    @property
    def _queue(self) -> Queue: ...
    def _tell(self, told: Callable[[], object]) -> bool:
        """Has ``told`` called once, at the next landed segment or the end, in whichever thread takes it. False: the call has ended."""
    def done(self) -> bool:
        """Whether it has ended. A future in flight at a fork() has ended in the child: its result raises Forked."""
    def result(self, timeout: float | None = None) -> T:
        """The result, or the call's exception. Raises TimedOut after ``timeout`` seconds, and the call goes on."""
    def cancel(self) -> None:
        """Gives the call up: it ends soon, whatever the node does. A match, get or put reports this in its ``why``, and counts the work
        done by then; others raise Cancelled. Memory that a node may still write is quarantined.
        """
    def wait(self, timeout: float | None = None) -> bool:
        """Whether the call has ended within ``timeout`` seconds."""
    @property
    def segments(self) -> list[int]:
        """For each landed segment of a get: how many leading blocks have it."""
    def wait_segments(self, count: int, timeout: float | None = None) -> int:
        """Waits until ``count`` segments have landed or the call has ended. Returns how many have."""
    async def landed(self, count: int) -> int:
        """As :meth:`wait_segments`, in an event loop."""
    def __await__(self) -> Generator[Any, None, T]: ...

class Caller:
    def call(
        self,
        op: Op,
        space: int,
        hashes: Any,
        deadline: float,
        *,
        blocks: Any = None,
        rows: Any = None,
        checksums: Any = None,
        groups: Any = None,
        token_ids: Any = None,
        extras: Any = None,
        segment_ends: Sequence[int] = (),
        lease: int = 0,
        block_count_min: int = 1,
        reuse: int = 0,
        wants_lease: bool = False,
        prefetch: bool = False,
        memory_only: bool = False,
    ) -> Future[Any]:
        """On a client, which waits, the future's result instead."""

class Queue(Caller):
    """The C++ client's queue of completions, whose descriptor is readable while some wait to be taken.

    ``is_shared``: each call of the client takes them; else only :meth:`reap` and questions about one of the futures.
    """

    def __init__(self, client: Client, waits: bool, is_shared: bool = False) -> None: ...
    def fileno(self) -> int: ...
    def check(self) -> None:
        """Raises Forked in a child of fork()."""
    def reap(self) -> None:
        """Takes all completions, and has those called who wait for them."""
    def wait(self, futures: Sequence[Future[Any]], count: int, timeout: float | None) -> bool: ...
    def open(self, record: Record, deadline: float, then: Callable[[int], Any] | None = None) -> Future[Any]: ...
    def release(self, lease: int) -> None: ...

class Memory:
    """Memory that nodes read and write directly. Has the buffer protocol: arrays and tensors over it keep it alive."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def is_page_locked(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def array(self, shape: int | Sequence[int], dtype: npt.DTypeLike = "uint8", offset: int = 0) -> npt.NDArray[Any]:
        """A NumPy array over a part."""
    def tensor(self, shape: int | Sequence[int], dtype: Any, offset: int = 0) -> Any:
        """A torch tensor over a part."""

class DeviceMemory:
    """A GPU's memory that nodes reach by RDMA, of :meth:`kvstore.Client.lend_device`."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> int:
        """The CUDA device that has it."""
    @property
    def has_dmabuf(self) -> bool:
        """The driver exported it as a dma-buf. Else RDMA devices register its addresses, which needs nvidia-peermem."""

class Client(Caller):
    def __init__(
        self,
        *,
        nodes: Sequence[Any],
        identity: str,
        connections_per_node: int,
        connect_timeout: float,
        calls_max: int,
        region_bytes_max: int,
        rdma: bool,
        rdma_devices: Sequence[str],
        rdma_lanes: int,
        verify: bool,
        busy_poll: float,
        extent_blocks: int,
        tls: dict[str, str],
        token: str,
        token_file: str,
        hedge_share: float,
        zone: str,
        numa_nodes: str,
        follow_cluster: bool,
        staging_bytes: int,
    ) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    def close(self) -> None: ...
    def open(self, record: Record, deadline: float) -> int: ...
    def wait_open(self, space: int, deadline: float) -> None: ...
    def why(self, space: int, hashes: Any, deadline: float) -> MissReport: ...
    def create_context(
        self,
        space: int,
        hashes: Any,
        name: str,
        ttl: float,
        sliding: bool,
        until: float,
        tags: Sequence[str],
        priority: int,
        deadline: float,
    ) -> NamedContext: ...
    def extend_context(
        self, name: str, ttl: float, sliding: bool, until: float, priority: int | None, deadline: float
    ) -> NamedContext: ...
    def delete_context(self, name: str, deadline: float) -> NamedContext: ...
    def warm_context(self, name: str, deadline: float) -> NamedContext: ...
    def stop_warming_context(self, name: str, deadline: float) -> NamedContext: ...
    def list_contexts(self, name: str, deadline: float) -> ContextList: ...
    def export_context(
        self, name: str, file: str, partial: bool, replaces: bool, key_file: str, deadline: float
    ) -> ArchivedContext: ...
    def import_context(
        self,
        file: str,
        name: str,
        ttl: float,
        sliding: bool,
        until: float,
        priority: int | None,
        key_file: str,
        deadline: float,
    ) -> ArchivedContext: ...
    def ask(self, path: str, query: str, node: str, deadline: float) -> list[dict[str, Any]]: ...
    def ping(self, deadline: float) -> list[float | None]: ...
    def nodes(self) -> list[dict[str, Any]]: ...
    def metrics_text(self) -> str: ...
    def numa(self) -> dict[str, Any]: ...
    def tell_prefill_speed(self, tokens_per_second: float) -> None: ...
    def allocate(self, nbytes: int, page_locked: bool) -> Memory: ...
    def lend(self, memory: Memory | DeviceMemory, deadline: float) -> int: ...
    def is_quarantined(self, memory: Memory | DeviceMemory) -> bool: ...
    def add_device_memory(self, memory: Any) -> DeviceMemory: ...
    def take_back(self, memory: DeviceMemory, deadline: float) -> None: ...

def abandon_all() -> None: ...
def unknown_variables() -> list[str]: ...

class Layout:
    """The place of each element of a cache, without its memory."""

    @staticmethod
    def of(
        tensors: Buffer | Sequence[Buffer],
        axes: str,
        *,
        roles: Sequence[str] = ("key", "value"),
        element: str = "",
        name: str = "tensor",
    ) -> Layout:
        """From the shape and strides of a tensor, or of one for each layer. Raises BadRequest that names the axis."""
    @staticmethod
    def of_parts(parts: Sequence[Part], *, name: str = "tensors") -> Layout:
        """The same for several tensors per layer: K and V apart, scales beside codes."""
    @staticmethod
    def named(
        name: str,
        *,
        block_count: int,
        block_tokens: int = 16,
        heads: int = 1,
        key_size: int = 128,
        value_size: int = 0,
        layer_count: int = 1,
        element: str = "bf16",
    ) -> Layout:
        """An engine's layout by its name: nhd, hnd, joint_nhd, packed_hnd, mla, ... (docs/kernels.md draws them)."""
    def store_block(self, block_count: int, *, head_groups: int = 1, block_tokens: int | None = None) -> Layout:
        """The store's own blocks of all of this cache's content. ``head_groups`` lets tensor-parallel ranks read contiguous parts."""
    @property
    def store_block_bytes(self) -> int:
        """Bytes of one block of :meth:`store_block`: the namespace's block_bytes."""
    def slice_heads(self, first: int, count: int) -> Layout:
        """Only these heads: one rank's part."""
    def tensor_bytes(self, tensor: int = 0) -> int:
        """One past the last byte of that allocation that the layout uses."""
    def bind(self, tensors: Buffer | Sequence[Buffer]) -> Cache:
        """The layout with its memory: one tensor, or all, layer by layer. All are in host memory, or all on one CUDA device (by DLPack or
        ``__cuda_array_interface__``; Unavailable without the CUDA module).
        """
    @property
    def name(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_count(self) -> int: ...
    @property
    def layer_count(self) -> int: ...
    @property
    def components(self) -> list[dict[str, Any]]:
        """For each component: role, element, heads, features, tensor."""

class Cache:
    """A layout bound to memory, which it keeps alive."""

    @property
    def layout(self) -> Layout: ...
    @property
    def device(self) -> int | None:
        """The CUDA device that has the memory; None: the host."""
    def slice_layers(self, first: int, count: int) -> Cache:
        """Only these layers, renumbered from 0."""
    def slice_heads(self, first: int, count: int) -> Cache:
        """Only these heads, renumbered from 0."""

class Event:
    """A moment on a stream: passed once all earlier work of the stream is done. Never waits by itself."""

    @property
    def is_passed(self) -> bool:
        """Takes about a microsecond."""
    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has passed, or ``timeout`` seconds; returns whether it has. Other Python threads run meanwhile."""
    def hold(self, stream: StreamLike) -> None:
        """Later work of ``stream`` waits for this moment on the device; the caller does not wait."""

class Stream:
    """A CUDA stream, independent of all others, including the default one, unless told to wait."""

    def __init__(self, device: int = 0) -> None: ...
    @property
    def device(self) -> int: ...
    @property
    def handle(self) -> int:
        """The ``cudaStream_t``: for ``torch.cuda.ExternalStream``, say."""
    def record(self) -> Event: ...
    def wait(self, event: Event) -> None:
        """Later work of this stream waits for ``event``, on the device."""
    def synchronise(self) -> None:
        """Waits here for all work of the stream."""

def record(stream: StreamLike, device: int | None = None) -> Event:
    """The current moment on ``stream``. ``device`` is the stream's; None: the thread's current one."""

def stream_handle(stream: StreamLike) -> int:
    """The ``cudaStream_t`` as a number."""

def device_count() -> int:
    """Number of CUDA devices; 0 without the CUDA module."""

def why_no_device() -> str:
    """Why calls cannot run on a GPU in this process; empty if they can."""

def pci_address(device: int = 0) -> str:
    """PCI address of a device, such as ``0000:3B:00.0``: for ``Client(numa_nodes="pci:...")``."""

def warm_up(device: int) -> None:
    """Loads all kernels on that device now: otherwise each kernel's first call takes milliseconds longer."""

def scatter(
    cache: Cache,
    source: Cache,
    *,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: Move | Rotation | None = None,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Row r of ``source`` to slot ``slots[r]`` of ``cache``, or block i to block ``blocks[i]``; negative: skip. Loads a prefix into an
    engine's pages. ``move`` None: a copy. Returns None when done; on a device, the event that passes when it is.
    """

def gather(
    target: Cache,
    cache: Cache,
    *,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: Move | Rotation | None = None,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Slot ``slots[r]`` of ``cache`` to row r of ``target``, or block ``blocks[i]`` to block i. Stores a prefix. As :func:`scatter`."""

def gather_with_checksums(
    target: Cache,
    cache: Cache,
    *,
    seeds: Numbers,
    checksums: Buffer,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: Move | Rotation | None = None,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """As :func:`gather`, into blocks of the store (:meth:`Layout.store_block`), whose checksums are computed in the same pass: for a put
    of a GPU's memory, which must bring them. ``seeds``: :meth:`kvstore.Space.checksum_seeds` of the blocks. ``checksums``: receives uint64
    ``[blocks, space.stripe_count]``; with a stream it is page-locked host memory, complete once the event has passed.
    """

def scatter_verified(
    cache: Cache,
    source: Cache,
    *,
    seeds: Numbers,
    checksums: Buffer,
    verdicts: Buffer,
    slots: Numbers | None = None,
    blocks: Numbers | None = None,
    count: int | None = None,
    move: Move | Rotation | None = None,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """As :func:`scatter`, from blocks of the store, of which only those that match their checksums are scattered: for what a get brought to
    a GPU's memory, where nobody has verified it. ``seeds`` as in :func:`gather_with_checksums`; ``checksums`` from the get, read before
    this returns. ``verdicts``: receives uint32 ``[blocks]``, 0 for a sound block, else 1; with a stream it is page-locked host memory,
    complete once the event has passed. On the host, blocks behind the first bad one count as bad too.
    """

def relayout(
    to: Cache,
    to_blocks: Numbers,
    source: Cache,
    from_blocks: Numbers,
    *,
    move: Move | Rotation | None = None,
    stream: StreamLike | None = None,
    grid_max: int = 0,
) -> Event | None:
    """Block ``from_blocks[i]`` of ``source`` to block ``to_blocks[i]`` of ``to``; also a swap between two memories. As :func:`scatter`."""

def copy_blocks(
    cache: Cache, sources: Numbers, targets: Numbers, *, stream: StreamLike | None = None, grid_max: int = 0
) -> Event | None:
    """Copy on write: block ``sources[i]`` to ``targets[i]``, in every layer. The two lists are disjoint. As :func:`scatter`."""

def table_slots(
    table: Any,
    lengths: Numbers,
    *,
    block_tokens: int,
    starts: Numbers | None = None,
    drop_missing: bool = False,
) -> Longs:
    """Slots of tokens ``[starts[s], starts[s] + lengths[s])`` of each sequence s of a padded block table, end to end."""

def slots_of_csr(
    indptr: Numbers, indices: Numbers, page_tokens: int, batch_indices: Numbers, positions: Numbers
) -> Longs:
    """Slot of each token, int64 [n], from a page table in compressed rows (FlashInfer's): token ``positions[e]`` of request
    ``batch_indices[e]`` lies in page ``indices[indptr[b] + position // page_tokens]``. A negative request, or a negative page, gives a
    negative slot, which :func:`scatter` and :func:`gather` skip.

    Raises BadRequest that names the argument and its element: a request that ``indptr`` lacks, a position beyond its request's pages.
    """

def append_positions(append_indptr: Numbers, seq_lens: Numbers, row_count: int | None = None) -> tuple[Ints, Ints]:
    """Request and position of each appended token, int32 [row_count] each (FlashInfer's ``get_batch_indices_positions``).

    Request b appends rows ``append_indptr[b]`` to ``append_indptr[b + 1] - 1``; the last is its last token, at position
    ``seq_lens[b] - 1``: lengths count the appended tokens. ``row_count`` None: the last of ``append_indptr``. Rows beyond that, as a CUDA
    graph of fixed size has them, get request -1 and position 0. Raises BadRequest that names the argument and its element: an indptr that
    falls, a request that appends more than its length.
    """

class KeptRows:
    """The rows to write, one for each kept token or mean. Row r is the mean of ``token_counts[r]`` tokens (mostly one) of head
    ``heads[r]`` from token ``tokens[r]`` of the packed source on, and goes to slot ``slots[r]``. Immutable; the arrays are views.
    """

    @staticmethod
    def of(slots: Numbers, tokens: Numbers, heads: Numbers, token_counts: Numbers | None = None) -> KeptRows:
        """Rows that a policy of the caller's own has chosen: a head's heaviest tokens, say. All arrays have one element a row;
        ``token_counts`` None: single tokens. Raises BadRequest for unequal lengths; :func:`scatter_kept` checks the numbers.
        """
    def __len__(self) -> int: ...
    @property
    def slots(self) -> Longs: ...
    @property
    def tokens(self) -> Longs: ...
    @property
    def heads(self) -> Ints: ...
    @property
    def token_counts(self) -> Ints: ...

def plan_keep_rows(
    mode: KeepMode,
    *,
    head_count: int,
    seq_lens: Numbers,
    windows: Numbers,
    first_slots: Numbers,
    offsets: Numbers | None = None,
) -> KeptRows:
    """Which tokens each head of each new sequence keeps, and in which slots.

    ==================  =============  =================================================================================
    ``mode``            of Ascend      keeps of a sequence of n tokens, with window w and offset p
    ==================  =============  =================================================================================
    ``"last"``          KVHEAD         the last w tokens; takes no offsets
    ``"mean"``          KVHEAD_ROPE    all, but tokens p to p + w - 1 become one, their mean (RazorAttention's)
    ``"drop"``          OMNI           all but tokens p to p + w - 1
    ==================  =============  =================================================================================

    ``seq_lens`` [batch]: new tokens of each sequence, packed end to end in the source. ``windows``, ``offsets``, ``first_slots``
    [batch * head_count], or [batch, head_count]: of each sequence and head, in tokens; the kept tokens go to ``first_slots[i]`` and
    the slots behind it. A negative first slot keeps nothing. A window of 0 keeps nothing in "last" and everything in the other modes,
    as does an offset of -1, whatever the window. Windows are what Ascend calls ``wins``.

    Raises BadRequest that names the argument and its element: a window longer than its sequence, a window that ends beyond it.
    """

def scatter_kept(
    cache: Cache, rows: KeptRows, source: Cache, *, stream: StreamLike | None = None, grid_max: int = 0
) -> Event | None:
    """Writes the rows of ``source`` ([tokens, heads, size], as in ``Layout.named("ragged", ...)`` or any other layout) to the head-folded
    ``cache``, in every layer: K, V, and the log counts if it has them. The log count of a mean of w tokens is ln(w), of others 0:
    attention adds it to q.k *after* scaling, so that the mean weighs as much as w tokens. Means are summed in fp32 in token order and
    rounded once. Of two rows with one slot, either may win.

    Raises BadRequest for a slot, token, head or count out of range, before anything is written, and Mismatch that names the component if
    the layouts differ, or for means of int8. ``stream`` and the result are as in :func:`scatter`.
    """

class PagePool:
    """The pages of one device: users, names and the order of reuse. Page 0 is reserved. Not for several threads at once."""

    def __init__(self, page_count: int, *, keep_removed: bool = False) -> None: ...
    @property
    def page_count(self) -> int: ...
    @property
    def free_count(self) -> int: ...
    @property
    def free_pages(self) -> Ints:
        """In the order of their reuse."""
    def take(self, count: int) -> Ints:
        """The next free pages, each with one user. Raises OutOfMemory without taking any."""
    def touch(self, pages: Numbers) -> None:
        """Adds a user to each page."""
    def release(self, pages: Numbers) -> None:
        """Removes a user from each page, from the last to the first."""
    def user_count(self, page: int) -> int: ...
    def find(self, block: Buffer, group: int = 0) -> int | None:
        """The page with the block of this hash."""
    def set_name(self, page: int, block: Buffer, group: int = 0) -> None:
        """Marks the page as complete and findable."""
    def forget_name(self, page: int) -> None: ...
    def forget_all_names(self) -> bool:
        """Forgets all names (the weights changed). False while any page is used."""
    def take_removed(self) -> list[tuple[bytes, int]]:
        """Hash and group of the blocks removed from all pages since the last call (with ``keep_removed``)."""

class PagedCache:
    """The sequences of one cache group and the pages that hold their tokens. Several may share a pool."""

    def __init__(
        self,
        pool: PagePool,
        block_size: int,
        *,
        window_tokens: int = 0,
        drop_last_block: bool = False,
        group: int = 0,
    ) -> None: ...
    @property
    def pool(self) -> PagePool: ...
    @property
    def block_size(self) -> int: ...
    def find(self, hashes: Hashes, token_count: int) -> tuple[Ints, int]:
        """Pages of the longest cached prefix of a sequence of so many tokens, and its token count."""
    def pages_needed(self, hashes: Hashes, token_count: int) -> int:
        """Free pages that :meth:`open` takes."""
    def open(self, hashes: Hashes | None, token_count: int) -> tuple[int, int]:
        """Opens a sequence that begins with the longest cached prefix. Returns its number and the cached tokens. Raises OutOfMemory."""
    def append(self, sequence: int, token_count: int) -> Longs:
        """Makes room for more tokens. The returned pages, [n, 2] from and to, have to be copied before they are written."""
    def fork(self, sequence: int) -> int:
        """A second sequence with the same tokens in the same pages."""
    def crop(self, sequence: int, token_count: int) -> None:
        """Cuts the sequence to its first tokens (a rejected draft)."""
    def close(self, sequence: int) -> None:
        """Ends the sequence."""
    def name_blocks(self, sequence: int, hashes: Hashes) -> None:
        """Makes the sequence's computed full blocks findable under these hashes."""
    def token_count(self, sequence: int) -> int: ...
    def page_table(self, sequence: int) -> Ints: ...
    def slot_mapping(self, sequence: int, begin: int = 0, end: int | None = None) -> Longs:
        """page * block_size + offset of tokens [begin, end); -1 where the window has left the page behind."""
    @property
    def sequence_count(self) -> int: ...

def plan_shared_prefixes(
    hashes: Sequence[Hashes],
    *,
    token_counts: Numbers | None = None,
    block_size: int,
    query_counts: Numbers | None = None,
    sequence_count_min: int = 2,
) -> SharedPrefixes:
    """The order in which requests share most: those with a common beginning are neighbours, and closer the more they share. It is a
    depth-first walk of the tree of their prefixes, which RadixAttention calls longest shared prefix first. In this order a cache that
    holds the longest request computes each shared block once. Requests and branches otherwise keep their order.

    ``hashes[i]``: of sequence i's full blocks of ``block_size`` tokens. ``token_counts`` None: all of them can be shared, as suits requests
    that wait (no pages are needed). For a batch to attend to, ``token_counts[i]`` are its tokens, and the last ``query_counts[i]`` of them,
    by default one, are queries, whose blocks are not shared. Runs of fewer than ``sequence_count_min`` sequences are not listed. Raises
    BadRequest that names the argument: lists of unequal lengths, a sequence without tokens, more queries than tokens.
    """

def plan_cascade(
    page_tables: Sequence[Numbers],
    hashes: Sequence[Hashes],
    token_counts: Numbers,
    *,
    block_size: int,
    query_counts: Numbers | None = None,
    sequence_count_min: int = 2,
    level_count_max: int | None = None,
) -> CascadePlan:
    """Page tables level by level for cascade attention: shared pages are read once. Sequence i has ``token_counts[i]`` tokens in
    ``page_tables[i]``, its full blocks have ``hashes[i]``, and its last ``query_counts[i]`` tokens ask (by default one).
    """

def plan_chunks(
    page_tables: Sequence[Numbers],
    hashes: Sequence[Hashes],
    token_counts: Numbers,
    *,
    block_size: int,
    sharing_threshold: int = 1,
) -> ChunkPlan:
    """The same for decoding, chunk first and sequence second. A chunk is shared if more than ``sharing_threshold`` sequences contain it."""

def pack_masks(query_counts: Numbers, kv_counts: Numbers, mask: Buffer | None = None) -> PackedMasks:
    """Attention masks as bits, as FlashInfer's kernels take them (``packed_custom_mask``). Request r has ``query_counts[r]`` rows of
    ``kv_counts[r]`` keys, and begins in a new byte; its first pair is the lowest bit. ``mask`` is bool or uint8, all requests' pairs
    end to end, true where the query reads the key; it is not copied. None: causal, the queries being the last tokens.

    Raises BadRequest that names the argument: a negative count, a mask of another size, 2^31 pairs or more.
    """

class LayerCache:
    """Keys and values of one layer, for a batch whose sequences grow in step. Not for several threads at once."""

    def update(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Adds tokens, and returns all that they read: views, to be used before the next call, when their content may change."""
    @property
    def token_count(self) -> int:
        """Tokens added and not cropped, those included that have left a window."""
    @property
    def memory_bytes(self) -> int:
        """Of the tokens kept, with the spare memory of growing and fixed caches."""
    def next_position(self, added_count: int) -> int:
        """The position at which the first of so many tokens has to be computed if they are added next. Bounded for a sink cache."""
    def crop(self, token_count: int) -> None:
        """Keeps the first tokens; a negative number removes so many. Raises Unsupported if tokens would be read that are gone."""
    def select(self, sequences: Numbers) -> None:
        """Replaces the batch by these of its sequences, in this order (beams, forks)."""

class GrowingCache(LayerCache):
    """Keeps all tokens."""

    def __init__(self) -> None: ...

class StaticCache(LayerCache):
    """Keeps up to ``capacity`` tokens, in memory of fixed size and place. Raises TooLarge beyond it, unchanged."""

    def __init__(self, capacity: int) -> None: ...

class SlidingCache(LayerCache):
    """Keeps the last ``window_tokens`` tokens. Tokens that come together read what the first of them reads: mask the rest."""

    def __init__(self, window_tokens: int) -> None: ...

class SinkCache(LayerCache):
    """Keeps the first ``sink_tokens`` tokens and the last ones, ``window_tokens`` in all, at positions 0, 1, 2, ... (StreamingLLM).

    ``frequencies``: radians per position of each pair of features, the model's ``inv_freq``. Pairs are (i, i + R/2), or, with
    ``interleaved``, (2i, 2i + 1). Added keys are rotated for the positions from :meth:`next_position`.
    """

    def __init__(
        self, window_tokens: int, sink_tokens: int = 4, *, frequencies: Iterable[float], interleaved: bool = False
    ) -> None: ...

class QuantisedCache(LayerCache):
    """Keeps old tokens in ``bits`` (2, 4 or 8) a number, rounded once, and the last ``residual_tokens`` as they came (KIVI). ``group_size``
    numbers share a scale and a zero point: keys of one feature over tokens, values of one token over features.
    """

    def __init__(self, bits: int = 4, *, group_size: int = 64, residual_tokens: int = 128) -> None: ...

class ModelShape:
    layer_count: int
    kv_head_count: int
    head_size: int
    latent_size: int
    rope_size: int
    has_sparse_index: bool
    query_head_count: int
    value_head_size: int
    query_latent_size: int
    hidden_size: int
    ffn_size: int
    has_gated_ffn: bool
    vocabulary_size: int
    def __init__(self) -> None: ...
    @staticmethod
    def from_config(json: str) -> ModelShape: ...
    def bytes_per_token(self, format: str = "fp16") -> int: ...
    def parameter_count(self) -> float: ...
    def attention_flops(self, tokens: float, context: float = 0) -> float: ...

class LayerGroup:
    @property
    def kind(self) -> str: ...
    @property
    def token_limit(self) -> int: ...
    @property
    def layers(self) -> list[int]: ...
    @property
    def sharing_layer_count(self) -> int: ...

class ModelCache:
    @staticmethod
    def from_config(json: str) -> ModelCache: ...
    @property
    def shape(self) -> ModelShape: ...
    @property
    def groups(self) -> list[LayerGroup]: ...
    def without_windows(self) -> ModelCache: ...
    def parameter_count(self) -> float: ...
    def group_bytes_per_token(self, group: LayerGroup, format: str = "fp16") -> int: ...
    def group_state_bytes(self, group: LayerGroup, format: str = "fp16") -> int: ...
    def peak_bytes(self, batch: int, prompt_tokens: int, new_tokens: int, format: str = "fp16") -> int: ...

class GenerationWork:
    def __init__(self, model: ModelCache, parameter_count: float) -> None: ...
    def masked_pass(self, tokens: int) -> float: ...
    def figures(self, batch: int, prompt_tokens: int, new_tokens: int) -> dict[str, tuple[float, float]]: ...

def known_models() -> list[tuple[str, str, str]]: ...
