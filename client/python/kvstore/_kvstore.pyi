# The extension module. Users see the Python package around it.
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import Error

T = TypeVar("T")

__version__: str
CACHE_FORMATS: list[str]

class Record:
    @staticmethod
    def from_fields(fields: Mapping[str, str]) -> Record: ...
    @staticmethod
    def parse(text: str) -> Record: ...
    @property
    def text(self) -> str: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def is_set(self) -> bool: ...
    @property
    def id(self) -> bytes: ...
    @property
    def digest(self) -> bytes: ...
    def hash_chain(self, tokens: Any, extra: Any = None, after: Any = None) -> npt.NDArray[np.uint8]: ...

def checksum_seeds(record: Record, hashes: Any) -> npt.NDArray[np.uint64]: ...
def hashes(hashes: Any) -> npt.NDArray[np.uint8]: ...
def extra_digest(extra: Any) -> bytes: ...
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

class Verb(Enum):
    MATCH = 3
    GET = 4
    LOAD = 5
    PUT = 6
    TOUCH = 7
    PIN = 8
    UNPIN = 9
    DROP = 10
    MATCH_SET = 15
    GET_SET = 16
    PUT_SET = 17

class Call(Generic[T]):
    """A call on a queue, from its beginning on."""

    @property
    def queue(self) -> Queue: ...
    def done(self) -> bool: ...
    def wait(self, seconds: float) -> bool:
        """Negative: for ever, as in all of these."""
    def cancel(self) -> None: ...
    def result(self, seconds: float) -> T: ...
    @property
    def segments(self) -> list[int]: ...
    def wait_segments(self, count: int, seconds: float) -> int: ...
    def tell(self, told: Callable[[], object]) -> bool:
        """Has ``told`` called once, at the next landed segment or the end, in whichever thread takes it. False: the call has ended."""

class Queue:
    """The C++ client's queue of completions, whose descriptor is readable while some wait to be taken.

    ``is_shared``: each call of the client takes them; else only :meth:`reap` and questions about one of the calls.
    """

    def __init__(self, client: Client, waits: bool, is_shared: bool = False) -> None: ...
    def fileno(self) -> int: ...
    def check(self) -> None:
        """Raises Forked in a child of fork()."""
    def reap(self) -> None:
        """Takes all completions, and has those called who wait for them."""
    def wait(self, calls: Sequence[Call[Any]], count: int, seconds: float) -> bool: ...
    def release(self, lease: int) -> None: ...
    def call(
        self,
        verb: Verb,
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
    ) -> Call[Any]: ...
    def open(self, record: Record, deadline: float) -> Call[int]: ...

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

class Client:
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
    def call(
        self,
        verb: Verb,
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
    ) -> Any: ...
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
    @staticmethod
    def of(name: str, parts: Sequence[tuple[list[Any], str, list[str], str]]) -> Layout: ...
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
    ) -> Layout: ...
    def store_block(self, block_count: int, head_groups: int = 1, block_tokens: int = 0) -> Layout: ...
    @property
    def store_block_bytes(self) -> int: ...
    def slice_heads(self, first: int, count: int) -> Layout: ...
    def tensor_bytes(self, tensor: int = 0) -> int: ...
    def bind(self, tensors: Sequence[Any]) -> Cache: ...
    @property
    def name(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_count(self) -> int: ...
    @property
    def layer_count(self) -> int: ...
    @property
    def tensor_count(self) -> int: ...
    @property
    def components(self) -> list[dict[str, Any]]: ...

class Cache:
    @property
    def layout(self) -> Layout: ...
    @property
    def device(self) -> int | None: ...
    def slice_layers(self, first: int, count: int) -> Cache: ...
    def slice_heads(self, first: int, count: int) -> Cache: ...

class Event:
    @property
    def device(self) -> int: ...
    def is_passed(self) -> bool: ...
    def wait(self, seconds: float | None) -> bool: ...
    def hold(self, stream: int) -> None: ...

class Stream:
    def __init__(self, device: int) -> None: ...
    @property
    def device(self) -> int: ...
    @property
    def handle(self) -> int: ...
    def synchronise(self) -> None: ...

class Where:
    """Where a call runs: a stream and its limit on CUDA blocks, or None for the host."""

    def __init__(self, stream: int | None, grid_max: int) -> None: ...

def record_event(stream: int, device: int) -> Event: ...
def device_count() -> int: ...
def why_no_device() -> str: ...
def pci_address(device: int) -> str: ...
def warm_up(device: int) -> None:
    """Loads all kernels on that device now: otherwise each kernel's first call takes milliseconds longer."""

def scatter(
    cache: Cache, source: Cache, slots: Any, blocks: Any, count: int | None, options: dict[str, Any], where: Where
) -> Event | None: ...
def gather(
    target: Cache, cache: Cache, slots: Any, blocks: Any, count: int | None, options: dict[str, Any], where: Where
) -> Event | None: ...
def gather_with_checksums(
    target: Cache,
    cache: Cache,
    slots: Any,
    blocks: Any,
    count: int | None,
    seeds: Any,
    checksums: Any,
    options: dict[str, Any],
    where: Where,
) -> Event | None: ...
def scatter_verified(
    cache: Cache,
    source: Cache,
    slots: Any,
    blocks: Any,
    count: int | None,
    seeds: Any,
    checksums: Any,
    verdicts: Any,
    options: dict[str, Any],
    where: Where,
) -> Event | None: ...
def relayout(
    to: Cache, to_blocks: Any, source: Cache, from_blocks: Any, options: dict[str, Any], where: Where
) -> Event | None: ...
def copy_blocks(cache: Cache, sources: Any, targets: Any, where: Where) -> Event | None: ...
def table_slots(
    table: Any, width: int, block_tokens: int, starts: Any, lengths: Any, drops_missing: bool
) -> npt.NDArray[np.int64]: ...
def slots_of_csr(
    indptr: Any, indices: Any, page_tokens: int, batch_indices: Any, positions: Any
) -> npt.NDArray[np.int64]: ...
def append_positions(
    append_indptr: Any, seq_lens: Any, row_count: int | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...

class KeptRows:
    @staticmethod
    def of(slots: Any, tokens: Any, heads: Any, token_counts: Any) -> KeptRows: ...
    def __len__(self) -> int: ...
    @property
    def slots(self) -> npt.NDArray[np.int64]: ...
    @property
    def tokens(self) -> npt.NDArray[np.int64]: ...
    @property
    def heads(self) -> npt.NDArray[np.int32]: ...
    @property
    def token_counts(self) -> npt.NDArray[np.int32]: ...

def plan_keep_rows(
    mode: str, head_count: int, seq_lens: Any, windows: Any, first_slots: Any, offsets: Any
) -> KeptRows: ...
def scatter_kept(cache: Cache, rows: KeptRows, source: Cache, where: Where) -> Event | None: ...

class PagePool:
    def __init__(self, page_count: int, keeps_removed: bool) -> None: ...
    @property
    def page_count(self) -> int: ...
    @property
    def free_count(self) -> int: ...
    @property
    def free_pages(self) -> npt.NDArray[np.int32]: ...
    def user_count(self, page: int, /) -> int: ...
    def take(self, count: int, /) -> npt.NDArray[np.int32]: ...
    def release(self, pages: Any, /) -> None: ...
    def touch(self, pages: Any, /) -> None: ...
    def find(self, hash: Any, group: int, /) -> int | None: ...
    def set_name(self, page: int, hash: Any, group: int, /) -> None: ...
    def forget_name(self, page: int, /) -> None: ...
    def forget_all_names(self) -> bool: ...
    def take_removed(self) -> list[tuple[bytes, int]]: ...

class PagedCache:
    def __init__(
        self, pool: PagePool, block_size: int, window_tokens: int, drops_last_block: bool, group: int
    ) -> None: ...
    def find(self, hashes: Any, token_count: int, /) -> tuple[npt.NDArray[np.int32], int]: ...
    def pages_needed(self, hashes: Any, token_count: int, /) -> int: ...
    def open(self, hashes: Any, token_count: int) -> tuple[int, int]: ...
    def append(self, sequence: int, token_count: int, /) -> npt.NDArray[np.int64]: ...
    def fork(self, sequence: int, /) -> int: ...
    def crop(self, sequence: int, token_count: int, /) -> None: ...
    def close(self, sequence: int, /) -> None: ...
    def name_blocks(self, sequence: int, hashes: Any, /) -> None: ...
    def token_count(self, sequence: int, /) -> int: ...
    def page_table(self, sequence: int, /) -> npt.NDArray[np.int32]: ...
    def slot_mapping(self, sequence: int, begin: int, end: int | None) -> npt.NDArray[np.int64]: ...
    @property
    def sequence_count(self) -> int: ...

def plan_shared_prefixes(
    hashes: Any, token_counts: Any, block_size: int, query_counts: Any, sequence_count_min: int
) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[np.int64], ...], npt.NDArray[np.int64]]: ...

class LayerCache:
    @staticmethod
    def growing() -> LayerCache: ...
    @staticmethod
    def fixed(capacity: int, /) -> LayerCache: ...
    @staticmethod
    def sliding(window_tokens: int, /) -> LayerCache: ...
    @staticmethod
    def sink(
        window_tokens: int, sink_tokens: int, frequencies: Sequence[float], interleaved: bool, /
    ) -> LayerCache: ...
    @staticmethod
    def quantised(bits: int, group_size: int, residual_tokens: int, /) -> LayerCache: ...
    def update(self, keys: Any, values: Any, is_torch: bool) -> tuple[Any, Any]: ...
    def next_position(self, added_count: int, /) -> int: ...
    def crop(self, token_count: int, /) -> None: ...
    def select(self, sequences: Any, /) -> None: ...
    @property
    def token_count(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...

def plan_cascade(
    page_tables: Any,
    hashes: Any,
    token_counts: Any,
    block_size: int,
    query_counts: Any,
    sequence_count_min: int,
    level_count_max: int | None,
) -> tuple[npt.NDArray[np.int64], list[tuple[npt.NDArray[np.int32], ...]]]: ...
def plan_chunks(
    page_tables: Any, hashes: Any, token_counts: Any, block_size: int, sharing_threshold: int
) -> dict[str, Any]: ...
def pack_masks(
    query_counts: Any, kv_counts: Any, mask: Any
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...

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
