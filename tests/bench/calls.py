#!/usr/bin/env python3
"""What a call costs, and what the code behind it measures: one table, an old build beside a new one.

tests/bench/calls.py [BUILD] [--old BUILD] [--package FOLDER --python INTERPRETER] [--rounds N] [--seconds S] [--only WORDS]

Run it on a quiet machine. Every round takes each row's parts one after the other: memcached, Redis or bare sockets, the old build, the new
one. Shown are medians of the rounds, and of each round's ratio or difference. An old build is one of an earlier commit, in that commit's tree.
Needs a C compiler, and for some rows memcached, redis-server, the Python package (--package: the folder that holds `kvstore`, with its
extension) and lizard. A row that cannot be measured says why. Servers are its own, on loopback and Unix sockets in a temporary folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh", ".py"}
FUNCTION_LINES, FILE_LINES = 70, 800
#: For the rows of a submit: 64 in flight move 256 MiB.
GETS = ["--transport", "shm", "--block-bytes", "256KiB", "--batch", "16", "--concurrency", "64"]
#: For the row of the store's lock.
SIXTEEN = ["--op", "get", "--block-bytes", "64KiB", "--batch", "16", "--blocks", "1024", "--memory", "64MiB"]
EIGHT = [*SIXTEEN, "--connections", "8", "--concurrency", "16"]


def say(text: str) -> None:
    print(f"calls.py: {text}", file=sys.stderr)


def run(*command: object, **more: object) -> str:
    return subprocess.run([str(each) for each in command], check=True, stdout=subprocess.PIPE, text=True, **more).stdout


@contextmanager
def server(command: list[object], log: Path, is_up: Callable[[], bool]) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a server, waits until it is up, and ends it."""
    with log.open("wb") as out, subprocess.Popen([str(each) for each in command], stdout=out, stderr=out) as process:
        try:
            until = time.monotonic() + 60
            while not is_up():
                if process.poll() is not None or time.monotonic() > until:
                    raise SystemExit(f"calls.py: {command[0]} does not start:\n{log.read_text()}")
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()


def free_port() -> int:
    """Bound to none, so another program may take it first; the server then says so."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as to:
        return to.connect_ex(("127.0.0.1", port)) == 0


class Build:
    """A build with its tree, its node and its programs."""

    def __init__(self, folder: Path, name: str, scratch: Path, stack: ExitStack) -> None:
        self.name = name
        cache = folder / "CMakeCache.txt"
        if not cache.exists():
            raise SystemExit(f"calls.py: {folder} is no build folder")
        found = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(), re.MULTILINE)
        assert found
        self.tree = Path(found[1])
        self.bench = folder / "client/tools/kvstore-bench"
        self.node = folder / "store/node/kvstore-node"
        for program in (self.bench, self.node):
            if not os.access(program, os.X_OK):
                raise SystemExit(f"calls.py: no {program}; build kvstore-node, kvstore-bench and kvstore_c there")
        self.one_call: Path | None = scratch / f"one_call_{name}"
        source = self.tree / "tests/bench/one_call.c"
        library = folder / "client"
        if source.exists():
            flags = ["-O2", f"-I{self.tree}", f"-L{library}", f"-Wl,-rpath,{library.resolve()}"]
            run("cc", *flags, "-o", self.one_call, source, "-lkvstore")
        else:
            self.one_call = None
            say(f"{self.tree} has no tests/bench/one_call.c: no rows of the {name} build's kvs_run")
        self._scratch, self._stack = scratch, stack
        self.tcp, self.unix, _ = self.start("one", "--threads", 1, "--capacity", "64MiB")
        #: As many I/O threads as by default, a policy that takes every block, and room for the memory lent by `submit`.
        many = ["--capacity", "256MiB", "--eviction-policy", "lru", "--region-bytes-max", "8GiB"]
        _, self.many, self.admin = self.start("many", *many)

    def start(self, name: str, *options: object) -> tuple[str, str, str]:
        path, log = self._scratch / f"{self.name}_{name}", self._scratch / f"{self.name}_{name}.log"
        listen = ["--listen", "tcp://127.0.0.1:0", "--listen", f"unix://{path}", "--admin", "127.0.0.1:0"]
        self._stack.enter_context(server([self.node, *listen, *options], log, lambda: " ready " in log.read_text()))
        line = next(each for each in log.read_text().splitlines() if " ready " in each)
        found = re.search(r"listen=(tcp://\S+).*admin=(\S+)", line)
        assert found, line
        return found[1], f"unix://{path}", found[2]

    def bench_json(self, *arguments: object) -> dict[str, object]:
        return json.loads(run(self.bench, *arguments, "--json"))


class Table:
    """Figures by row and part, a list of one for each round."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.lines: list[tuple[str, str, str, str, str]] = []

    def add(self, row: str, part: str, value: float) -> None:
        self.figures[row][part].append(value)

    def has(self, row: str, part: str) -> bool:
        return bool(self.figures[row][part])

    def show(
        self, row: str, shown: Callable[[str], list[float]], target: str, limit: float | None, digits: int = 1
    ) -> None:
        """A line: the old build's median, and the new one's beside the limit."""
        old, new = shown("old"), shown("new")
        if not new:
            return
        median = statistics.median(new)
        spread = f"{median:.{digits}f} ({min(new):.{digits}f}-{max(new):.{digits}f})"
        verdict = "" if limit is None else "met" if median <= limit else "missed"
        self.lines.append((row, f"{statistics.median(old):.{digits}f}" if old else "-", spread, target, verdict))

    def value(self, row: str) -> Callable[[str], list[float]]:
        return lambda part: self.figures[row][part]

    def against(
        self, row: str, other: str, by: Callable[[float, float], float], part: str | None = None
    ) -> Callable[[str], list[float]]:
        """Of each round: the row's figure and the other's, of the same build or of ``part``."""
        return lambda mine: [
            by(a, b) for a, b in zip(self.figures[row][mine], self.figures[other][part or mine], strict=False)
        ]

    def print(self) -> None:
        print("| what | old | new (least-most) | target | |\n| --- | ---: | ---: | --- | --- |")
        for line in self.lines:
            print("| " + " | ".join(line) + " |")


def ratio(a: float, b: float) -> float:
    return a / b


def difference(a: float, b: float) -> float:
    return a - b


def p99_of_lock(before: str, after: str, name: str) -> float:
    """In microseconds, of the values recorded between two pages of metrics: inside its bucket as if they were spread evenly."""
    pattern = re.compile(rf'^kvstore_lock_{name}_seconds_bucket{{le="([^"]+)"}} (\d+)', re.MULTILINE)
    counts = dict(pattern.findall(before))
    buckets = [(float(bound), int(count) - int(counts.get(bound, 0))) for bound, count in pattern.findall(after)]
    wanted, low, below = 0.99 * buckets[-1][1], 0.0, 0
    for bound, count in buckets:
        if count >= wanted:
            return 1e6 * (low + (bound - low) * (wanted - below) / max(1, count - below))
        low, below = bound, count
    return float("inf")


class Calls:
    """The rows that need servers."""

    def __init__(self, given: argparse.Namespace, scratch: Path, stack: ExitStack) -> None:
        self.seconds, self.table = given.seconds, Table()
        self.builds = [Build(given.old, "old", scratch, stack)] if given.old else []
        self.builds.append(Build(given.build, "new", scratch, stack))
        self.new = self.builds[-1]
        self.memcached = self.redis = ""
        self.python = [given.python, ROOT / "tests/bench/calls_from_python.py"] if given.package else []
        self.environment = {**os.environ, "PYTHONPATH": str(given.package)}
        self.call_count = given.calls
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        port = free_port()
        memcached: list[object] = ["memcached", "-l", "127.0.0.1", "-p", port, "-U", 0, "-t", 1, *user]
        self.memcached = self._start(stack, memcached, scratch, port)
        port = free_port()
        redis: list[object] = ["redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", scratch]
        self.redis = self._start(stack, redis, scratch, port)

    @staticmethod
    def _start(stack: ExitStack, command: list[object], scratch: Path, port: int) -> str:
        name = str(command[0])
        if shutil.which(name) is None:
            say(f"{name} is not installed: no row of it")
            return ""
        stack.enter_context(server(command, scratch / f"{name}.log", lambda: answers(port)))
        return f"127.0.0.1:{port}"

    def one_call(self, build: Build, row: str, part: str, what: str, endpoint: str) -> None:
        if build.one_call is not None:
            p50, _ = run(build.one_call, what, endpoint, 4096, self.seconds).split()
            self.table.add(row, part, float(p50))

    def get(self) -> None:
        for what, endpoint in (("memcached", self.memcached), ("redis", self.redis)):
            if endpoint:
                self.one_call(self.new, f"get, {what}", "new", what, endpoint)
        shape = [
            "--op",
            "get",
            "--block-bytes",
            4096,
            "--batch",
            1,
            "--blocks",
            64,
            "--connections",
            1,
            "--memory",
            "16MiB",
        ]
        for build in self.builds:
            self.one_call(build, "get, kvs_run", build.name, "get", build.tcp)
            told = build.bench_json("run", *shape, "--duration", f"{self.seconds}s", "--endpoint", build.tcp)
            self.table.add("get, kvstore-bench run", build.name, float(told["p50_us"]))

    def match(self) -> None:
        for transport in ("tcp", "unix"):
            case = f"{transport}_ping_8k_request"
            told = self.new.bench_json("limit", "--only", case, "--rounds", 1, "--duration", f"{self.seconds}s")
            self.table.add(f"match over {transport}, bare", "new", told["cases"][case]["p50_us"]["median"])
            for build in self.builds:
                self.one_call(build, f"match over {transport}", build.name, "match", getattr(build, transport))

    def submit(self) -> None:
        for build in self.builds:
            told = build.bench_json("submit", *GETS, "--endpoint", build.many, "--duration", f"{self.seconds}s")
            for quantile in ("p50", "p99"):
                self.table.add(f"submit, {quantile}", build.name, told["submit_get"][f"{quantile}_us"])

    def from_python(self) -> None:
        if not self.python:
            return
        for what in ("match", "get", "await"):
            self.one_call(self.new, f"{what} in C", "new", what, self.new.tcp)
            told = run(*self.python, self.new.tcp, what, self.seconds, env=self.environment)
            self.table.add(f"{what} in Python", "new", float(told.split()[0]))

    def memory(self) -> None:
        """Once, not in each round."""
        if not self.python or self.table.has("memory", "new"):
            return
        few, many = run(*self.python, self.new.unix, "memory", self.call_count, env=self.environment).split()
        self.table.add("memory, few", "new", float(few))
        self.table.add("memory", "new", float(many))

    def lock(self) -> None:
        for build in self.builds:
            page = f"http://{build.admin}/metrics"
            before = urllib.request.urlopen(page).read().decode()
            build.bench_json(
                "run", *EIGHT, "--duration", f"{self.seconds}s", "--endpoint", build.many, "--transport", "unix"
            )
            after = urllib.request.urlopen(page).read().decode()
            for name in ("held", "waited"):
                self.table.add(f"lock, {name}", build.name, p99_of_lock(before, after, name))

    def show(self) -> None:
        table = self.table
        show, value, against = table.show, table.value, table.against
        show("get 4 KiB, TCP, memcached, p50 us", value("get, memcached"), "", None)
        show("get 4 KiB, TCP, Redis, p50 us", value("get, redis"), "", None)
        show("get 4 KiB, TCP, kvstore-bench run, p50 us", value("get, kvstore-bench run"), "", None)
        show("get 4 KiB, TCP, kvs_run, p50 us", value("get, kvs_run"), "", None)
        show("- beside memcached", against("get, kvs_run", "get, memcached", ratio, "new"), "at most 1.1", 1.1, 2)
        show("- beside Redis", against("get, kvs_run", "get, redis", ratio, "new"), "below 1", 1.0, 2)
        bench = against("get, kvs_run", "get, kvstore-bench run", difference)
        show("- above kvstore-bench run, us", bench, "at most 5", 5.0)
        for transport in ("tcp", "unix"):
            row = f"match over {transport}"
            show(f"match of 256, {transport}, bare sockets, p50 us", value(f"{row}, bare"), "", None)
            show(f"match of 256, {transport}, kvs_run, p50 us", value(row), "", None)
            show("- beside bare sockets", against(row, f"{row}, bare", ratio, "new"), "at most 1.2", 1.2, 2)
        for row, text in (
            ("submit, p50", "submit a get, p50 us"),
            ("submit, p99", "submit a get, p99 us"),
            ("lock, held", "store's lock, 8 connections, held p99 us"),
            ("lock, waited", "store's lock, 8 connections, waited p99 us"),
        ):
            show(text, value(row), "", None, 2)
            show("- beside the old build", against(row, row, ratio, "old"), "at most 1.05", 1.05, 2)
        for what in ("match", "get", "await"):
            above = against(f"{what} in Python", f"{what} in C", difference)
            show(f"Python's {what} above C's, p50 us", above, "at most 8", 8.0)
        show("memory after a tenth of the calls, KiB", value("memory, few"), "", None, 0)
        few = value("memory, few")("new")
        show("memory after all calls, KiB", value("memory"), "no growth", few[0] * 1.01 if few else None, 0)


def sources(tree: Path) -> list[Path]:
    listed = run("git", "-C", tree, "ls-files").splitlines()
    return [tree / each for each in listed if Path(each).suffix in SUFFIXES and (tree / each).exists()]


def is_product(file: Path, tree: Path) -> bool:
    parts = file.relative_to(tree).parts
    return parts[0] in {"store", "index", "transport", "gpu", "base", "client"} and "tests" not in parts


def line_count(file: Path) -> int:
    return file.read_bytes().count(b"\n")


def show_tree(table: Table, builds: list[Build], interpreter: str) -> None:
    """What the sources measure: no rounds."""
    has_lizard = subprocess.call([interpreter, "-c", "import lizard"], stderr=subprocess.DEVNULL) == 0
    if not has_lizard:
        say(f"{interpreter} has no lizard: no row of long functions")
    for build in builds:
        files = sources(build.tree)
        product = [each for each in files if is_product(each, build.tree)]
        table.add("lines", build.name, sum(line_count(each) for each in product))
        long_files = [each for each in files if line_count(each) > FILE_LINES]
        table.add("files", build.name, len(long_files))
        for each in long_files:
            say(f"{each} has {line_count(each)} lines")
        if has_lizard:
            told = run(interpreter, "-m", "lizard", "--csv", *product)
            lengths = [int(row[4]) for row in csv.reader(told.splitlines()) if len(row) > 4 and row[4].isdigit()]
            long = sum(each > FUNCTION_LINES for each in lengths)
            table.add("functions", build.name, 100 * long / max(1, len(lengths)))
    old = table.value("lines")("old")
    wanted = old[0] - 4000 if old else None
    table.show("lines of the product", table.value("lines"), "4,000 fewer", wanted, 0)
    table.show(f"functions of more than {FUNCTION_LINES} lines, %", table.value("functions"), "under 0.2", 0.2, 2)
    table.show(f"files of more than {FILE_LINES} lines", table.value("files"), "none", 0, 0)
    check = [ROOT / "cmake/check_walks", builds[-1].tree]
    told = subprocess.run(check, check=False, stdout=subprocess.PIPE, text=True)
    for name, files, lines in re.findall(r"walk (.*): (\d+) files, (\d+) lines", told.stdout):
        table.add(f"{name}, files", "new", float(files))
        table.add(f"{name}, lines", "new", float(lines))
        table.show(f"{name}: files to follow", table.value(f"{name}, files"), "at most 15", 15, 0)
        table.show("- lines in them", table.value(f"{name}, lines"), "at most 5,000", 5000, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=Path, default=ROOT / "build/release")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--package", type=Path, help="the folder that holds the Python package")
    parser.add_argument("--python", default=sys.executable, help="the package's interpreter")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--calls", type=int, default=1_000_000, help="for the row of memory")
    parser.add_argument("--only", default="get,match,submit,lock,python,memory,tree", help="these groups of rows")
    given = parser.parse_args()
    only = given.only.split(",")
    if not given.package:
        say("no --package: no rows of Python")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        calls = Calls(given, Path(folder), stack)
        groups = {
            "get": calls.get,
            "match": calls.match,
            "submit": calls.submit,
            "lock": calls.lock,
            "python": calls.from_python,
            "memory": calls.memory,
        }
        for _ in range(given.rounds):
            for name, measure in groups.items():
                if name in only:
                    measure()
        calls.show()
        if "tree" in only:
            show_tree(calls.table, calls.builds, given.python)
        calls.table.print()
    load = os.getloadavg()[0]
    print(
        f"\n{os.cpu_count()} cores, load {load:.1f} at the end; {given.rounds} rounds, {given.seconds:g} s for each figure"
    )


if __name__ == "__main__":
    main()
