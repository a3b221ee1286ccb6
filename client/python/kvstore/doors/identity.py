"""A model's identity, for the namespaces of engine connectors: from the loaded and resolved model, not the given options.

Files are named by a digest of all their bytes, so a changed number in 50 GB changes the name. A small file in the user's cache folder keeps
the digests by file identity; without it, files are read again. In reading order: files (weights, adapters, remote code), configurations,
names. tensors.py has what is in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..errors import Unsupported

#: File names beside weights that do not affect the computation. All others count, so that an unforeseen kind of file is not missed.
_OTHER_NAMES = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state)\w*\.(bin|pt|pth)$"
    r"|(tokenizer|vocab|special_tokens|added_tokens|chat_template|generation_config|trainer_state|\w*_results).*\.json$"
    r"|(readme|licen[cs]e|notice|use_policy)[^.]*$|events\.out\.",
    re.IGNORECASE,
)
_OTHER_KINDS = re.compile(
    r"\.(md|txt|rst|html|jinja2?|tiktoken|model|bpe|ipynb|csv|tsv|log|ya?ml|png|jpe?g|gif|svg|webp|pdf|lock|incomplete|tmp|pyc?)\Z",
    re.IGNORECASE,
)
#: A thread hashes parts of this size; each read has _READ_BYTES.
_PART_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_THREADS_MAX = 16
#: A file written so recently may change again within the same tick of its file system's clock.
_YOUNG_NS = 2_000_000_000
_KNOWN_MAX = 1 << 14
#: How long one process waits for another one that reads files.
_WAIT_SECONDS = 120.0

# -- files


def weights_digest(place: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str:
    """Digests all bytes of the files in a model's folder, or of the given files, that may affect the loaded model, with their names below
    the folder, since names choose the files to load. Follows links: a hub snapshot counts as a folder.

    Raises Unsupported without weights, or if a file cannot be read.
    """
    if isinstance(place, (str, os.PathLike)) and os.path.isfile(place):
        place = [place]
    if isinstance(place, (str, os.PathLike)):
        folder = os.fspath(place)
        files = {name: path for name, path in _files_of(folder) if _counts(name)}
    else:
        folder = ", ".join(os.fspath(each) for each in place)
        paths = [os.path.abspath(each) for each in place]
        base = os.path.commonpath([os.path.dirname(each) for each in paths]) if paths else ""
        files = {os.path.relpath(each, base): each for each in paths}
        if len(paths) == 1:
            files = {"": paths[0]}  # the engine loads this file, whatever its name
    if all(name.endswith(".json") for name in files):
        raise Unsupported(f"weights: there are none in {folder}")
    return _digest_of_files(files)


def adapter_digest(folder: str | os.PathLike[str]) -> str:
    """Digests a LoRA adapter's weights and the computing fields of ``adapter_config.json``, without its name, path and base model."""
    folder = os.fspath(folder)
    files = {name: path for name, path in _files_of(folder) if _counts(name) and os.sep not in name}
    config = files.pop("adapter_config.json", None)
    if config is None or all(name.endswith(".json") for name in files):
        raise Unsupported(f"adapter: {folder} has no adapter_config.json beside weights")
    said = {
        key: sorted(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
        for key, value in _json(config).items()
        if key not in _NOT_OF_ADAPTERS and not (value is None or value is False or value in ([], {}, ""))
    }
    return digest([said, _digest_of_files(files)])


def remote_code_digest(folder: str | os.PathLike[str]) -> str:
    """Digests a model's own code (``trust_remote_code``) and the repositories in its ``auto_map``. Raises Unsupported if any is missing."""
    folder = os.fspath(folder)
    files = {name: path for name, path in _files_of(folder) if name.endswith(".py")}
    named = json.dumps(config_of(folder).get("auto_map") or {})
    for other in sorted(set(re.findall(r'"([^"]+?)--[^"]+"', named))):
        place = model_folder(other)
        if place is None:
            raise Unsupported(f"remote code: {other} is not on this machine")
        if os.path.realpath(place) != os.path.realpath(folder):
            files |= {f"{other}--{name}": path for name, path in _files_of(place) if name.endswith(".py")}
    return _digest_of_files(files)


def _counts(name: str) -> bool:
    """The model's ``config.json`` is covered by the engine's resolved configuration, code by :func:`remote_code_digest`."""
    own = os.path.basename(name)
    return name != "config.json" and not _OTHER_KINDS.search(own) and not _OTHER_NAMES.match(own)


def _files_of(folder: str) -> Iterator[tuple[str, str]]:
    """Name below the folder and path of each file; follows links, enters sub-folders, skips hidden ones."""

    def failed(error: OSError) -> None:
        raise _unreadable(error)

    seen = set()
    for at, folders, names in os.walk(folder, followlinks=True, onerror=failed):
        identity = os.path.realpath(at)
        if identity in seen:  # links may form a cycle
            folders.clear()
            continue
        seen.add(identity)
        folders[:] = [each for each in folders if not each.startswith(".") and each != "__pycache__"]
        for name in names:
            path = os.path.join(at, name)
            if not name.startswith("."):
                yield os.path.relpath(path, folder), path


def _digest_of_files(files: Mapping[str, str]) -> str:
    found = hashlib.sha256()
    with _Known() as known, ThreadPoolExecutor(thread_count()) as threads:
        for name in sorted(files):
            found.update(f"{quote(name)} {_digest_of_file(files[name], known, threads)}\n".encode())
    return found.hexdigest()


def _digest_of_file(path: str, known: _Known, threads: ThreadPoolExecutor) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            for _ in range(3):
                before = os.fstat(file.fileno())
                key = _Known.key(file.fileno(), before)
                if (held := known.get(key)) is not None:
                    return held
                starts = range(0, before.st_size, _PART_BYTES)
                parts = threads.map(lambda start: _digest_of_part(file.fileno(), start), starts)
                made = hashlib.sha256(b"".join(parts) + str(before.st_size).encode()).hexdigest()
                if _Known.key(file.fileno(), os.fstat(file.fileno())) == key:
                    known.put(key, before, made)
                    return made
    except OSError as error:
        raise _unreadable(error) from error
    raise Unsupported(f"weights: {path} is being written to")


def _digest_of_part(descriptor: int, start: int) -> bytes:
    made = hashlib.sha256()
    memory = memoryview(bytearray(_READ_BYTES))
    end = start + _PART_BYTES
    while start < end and (count := os.preadv(descriptor, [memory[: end - start]], start)):
        made.update(memory[:count])
        start += count
    return made.digest()


def thread_count() -> int:
    return min(_THREADS_MAX, len(os.sched_getaffinity(0)))


def _unreadable(error: OSError) -> Unsupported:
    return Unsupported(f"weights: {error.filename} cannot be read: {error.strerror}")


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            read = json.load(file)
    except OSError as error:
        raise _unreadable(error) from error
    except ValueError as error:
        raise Unsupported(f"{path} is no JSON: {error}") from error
    return read if isinstance(read, dict) else {}


class _Known:
    """Digests of files read before, kept in a file of the user's cache folder.

    1. A digest belongs to the file's bytes: a rewritten file has another identity. Digests of files younger than two seconds are not kept,
       nor those of a file system with times in whole seconds, or without a change time.
    2. Without the file, or without write access to it, results are the same but slower.
    3. One process at a time reads files, if locking works: the ranks of an engine then read them once.
    """

    def __init__(self) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        self._path = Path(base) / "kvstore" / "files.json"
        self._held: dict[str, str] = {}
        self._made: dict[str, str] = {}
        self._lock: Any = None

    @staticmethod
    def key(descriptor: int, stat: os.stat_result) -> str:
        system = os.fstatvfs(descriptor).f_fsid  # device numbers are reassigned
        return f"{system} {stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"

    def get(self, key: str) -> str | None:
        return self._made.get(key) or self._held.get(key)

    def put(self, key: str, stat: os.stat_result, made: str) -> None:
        is_old = time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > _YOUNG_NS
        if is_old and stat.st_ctime_ns % 1_000_000_000 != 0:
            self._made[key] = made

    def _read(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(self._path.read_text())
            if isinstance(read, dict):
                return {k: v for k, v in read.items() if isinstance(v, str) and re.fullmatch("[0-9a-f]{64}", v)}
        return {}

    def __enter__(self) -> _Known:
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = open(self._path.with_suffix(".lock"), "a")
            until = time.monotonic() + _WAIT_SECONDS
            while not _locked(self._lock) and time.monotonic() < until:
                time.sleep(0.05)
        self._held = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._made:
                kept = dict([*self._read().items(), *self._made.items()][-_KNOWN_MAX:])
                new = self._path.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(kept))
                os.replace(new, self._path)
        if self._lock is not None:
            self._lock.close()


def _locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# -- configurations

#: Configuration fields that do not affect the computation. The engine gives the element type; remote code is digested by content.
_NOT_COMPUTED = (
    *("_name_or_path", "name_or_path", "transformers_version", "_commit_hash", "torch_dtype", "dtype", "auto_map"),
    *("_attn_implementation", "_attn_implementation_internal", "_attn_implementation_autoset", "_auto_class"),
)
#: Bound even at the class's default, which another release may change: fields that affect values but no weight's size.
_ALWAYS = re.compile(
    r"_act\b|activation|_eps|epsilon|rope_|rotary|theta|window|layer_types|softcap|scal(e|ing)|multiplier|topk|experts_per"
    r"|n_group|scoring|attention_chunk"
)
_NOT_OF_ADAPTERS = (
    *("base_model_name_or_path", "revision", "peft_version", "inference_mode"),
    *("task_type", "auto_mapping", "parent_library"),
)


def computed(config: Any) -> dict[str, Any]:
    """The fields of a configuration that affect the computation. A transformers object is taken as it is in memory, without fields at their
    class's default, so that a release with more fields gives the same result for the same model; a mapping as a ``config.json`` has it.
    """
    if isinstance(config, Mapping):
        return {k: computed(v) if isinstance(v, Mapping) else v for k, v in config.items() if k not in _NOT_COMPUTED}
    default: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # some classes need arguments: then all fields count
        default = type(config)().to_dict()
    said: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        inner = getattr(config, key, None)
        if key in _NOT_COMPUTED:
            continue
        if hasattr(inner, "to_dict") and hasattr(inner, "model_type"):
            said[key] = computed(inner)
        elif key not in default or value != default[key] or key == "model_type" or _ALWAYS.search(key):
            said[key] = computed(value) if isinstance(value, Mapping) else value
    return said


# -- names


def config_of(folder: str) -> dict[str, Any]:
    """The ``config.json`` of a model's folder; empty if it is missing."""
    path = os.path.join(folder, "config.json")
    return _json(path) if os.path.exists(path) else {}


def model_folder(model: str, revision: str | None = None, cache: str | None = None) -> str | None:
    """Path of a model's files on this machine: its own folder or file, or the hub's snapshot of that revision in ``cache`` or its own."""
    if os.path.exists(model):
        return model
    try:
        from huggingface_hub import snapshot_download  # type: ignore[import-not-found,unused-ignore]

        # Engines seldom fetch all of a repository's files, and the hub's library takes such a snapshot for incomplete.
        return str(
            snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True, ignore_patterns="*")
        )
    except Exception:
        return None


def model_name(model: str) -> str:
    """A model's name in the hub, also for a snapshot's path (engines get one when offline); else its folder's name."""
    if not os.path.exists(model) and not model.startswith(("/", ".")) and model.count("/") <= 1:
        return model
    parts = Path(os.path.abspath(model)).parts
    if len(parts) > 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/")
    return parts[-1]


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_bytes(value: Any) -> bytes:
    """16 bytes of it, for names."""
    return bytes.fromhex(digest(value))[:16]


def short(text: str) -> str:
    """The text as a record's field allows it: printable ASCII of limited length."""
    if re.search("[^ -~]", text):
        text = quote(text, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}")
    return text if len(text) <= 1000 else "sha256 " + hashlib.sha256(text.encode()).hexdigest()
