"""Real nodes under load, Prometheus and Alertmanager, on loopback: what the tests beside this file look at.

Time is shortened. Prometheus scrapes and evaluates every second, and reads a copy of the shipped rules whose windows and `for:` are seconds
(SHORT). Expressions, thresholds and labels are the shipped ones; promtool tests those with their real times.
"""

from __future__ import annotations

import http.server
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from programs import BUILD, ROOT, Etcd, Process, free_port, get

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus/kvstore.rules.yml"
NODE, BENCH = BUILD / "store/node/kvstore-node", BUILD / "client/tools/kvstore-bench"
FAULTY_DISK = BUILD / "tests/e2e/libkv_faulty_disk.so"
ALERTMANAGER = "prometheus-alertmanager"  # as Debian calls it

#: A scrape a second gives a window of five seconds the five samples that a window of five minutes has in production.
SHORT = {"1m": "1s", "2m": "2s", "5m": "5s", "10m": "10s", "15m": "6s", "30m": "3s", "1h": "5s", "1d": "40s"}


def missing() -> list[str]:
    """What is not there and has to be, in words."""
    programs = [f"{file} (build it)" for file in (NODE, BENCH, FAULTY_DISK) if not file.exists()]
    return programs + [
        f"{name} (deploy/install-dependencies.sh --observe)"
        for name in ("prometheus", "promtool", ALERTMANAGER, "amtool")
        if shutil.which(name) is None
    ]


def shortened(rules: str) -> str:
    """The rules with each window, offset and `for:` as SHORT has it. A time that SHORT lacks is an error."""
    return re.sub(r"(\[|offset |for: )(\d+[smhd])\b", lambda found: found[1] + SHORT[found[2]], rules)


class Disk:
    """A directory whose disk does what the test says: tests/e2e/faulty_disk.h, spoken to through the file that both map."""

    NONE, EIO, SLOW = 0, 1, 5  # enum fault_mode, the first member of struct fault_control; bytes_per_second is the next
    SLOW_BYTES_PER_SECOND = 4 << 20  # an eighth of what the load brings: writes stall and go on by turns

    def __init__(self, folder: Path) -> None:
        self.path, self.control = folder / "disk", folder / "fault-control"
        self.control.write_bytes(bytes(8) + self.SLOW_BYTES_PER_SECOND.to_bytes(8, "little") + bytes(16))

    def environment(self) -> dict[str, str]:
        of_the_library = {"KV_FAULT_DIRECTORY": str(self.path), "KV_FAULT_CONTROL": str(self.control)}
        return {"LD_PRELOAD": str(FAULTY_DISK), **of_the_library}

    def set(self, mode: int) -> None:
        with self.control.open("r+b") as control:
            control.write(mode.to_bytes(4, "little"))


class Node(Process):
    """A node of that many blocks of 4 KiB, on a Unix socket."""

    def __init__(
        self,
        folder: Path,
        name: str,
        blocks: int,
        *options: str,
        more: dict[str, str] | None = None,
        node_id: str | None = None,
        path: str = "readyz",
    ) -> None:
        self.instance = f"127.0.0.1:{free_port()}"
        self.socket = f"{folder / name}.sock"
        self.endpoint = f"unix://{self.socket}"
        addresses = [f"--listen={self.endpoint}", f"--admin={self.instance}", f"--node-id={node_id or name}"]
        capacity = [f"--capacity-blocks={blocks}", "--capacity-block-bytes=4096"]
        ready_url = f"http://{self.instance}/{path}"
        super().__init__(folder / f"{name}.log", [str(NODE), *addresses, *capacity, *options], ready_url, more)

    def metrics(self) -> str:
        return get(f"http://{self.instance}/metrics")


class Certificates:
    """A CA, its list of revoked certificates, and a node's certificate of so many days."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, self.crl = folder / "ca.pem", folder / "crl.pem"
        self.certificate, self.key = folder / "node.pem", folder / "node.key"
        (folder / "index.txt").touch()
        config = f"[ca]\ndefault_ca = own\n[own]\ndatabase = {folder}/index.txt\ndefault_md = sha256\n"
        (folder / "ca.cnf").write_text(config)
        extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
        self._new_key("-x509", "-days", "365", "-out", self.ca, key="ca.key", more=extensions)
        signer = ["-keyfile", folder / "ca.key", "-cert", self.ca]
        self._openssl("ca", "-config", folder / "ca.cnf", "-gencrl", "-crldays", "30", *signer, "-out", self.crl)

    def issue(self, days: int) -> None:
        """In place of the one before; a node takes it up within seconds."""
        self._new_key("-out", self.folder / "node.csr", key="new.key")
        (self.folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signer = ["-CA", self.ca, "-CAkey", self.folder / "ca.key", "-extfile", self.folder / "names", "-days", days]
        self._openssl("x509", "-req", "-in", self.folder / "node.csr", *signer, "-out", self.folder / "new.pem")
        (self.folder / "new.key").rename(self.key)
        (self.folder / "new.pem").rename(self.certificate)

    def _new_key(self, *arguments: object, key: str, more: list[str] | None = None) -> None:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=kvstore"]
        extensions = [word for each in more or [] for word in ("-addext", each)]
        self._openssl("req", *kind, "-keyout", self.folder / key, *extensions, *arguments)

    def _openssl(self, *arguments: object) -> None:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr


class Policy:
    """Prometheus, on this machine, may read metrics."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "policy.toml"
        self.mend()

    def mend(self) -> None:
        self._write('[prometheus]\nmatch = ["loopback"]\nroles = ["metrics"]\n')

    def spoil(self) -> None:
        self._write('[prometheus]\nmatch = ["loopback"]\nroles = ["reader of metrics"]\n')

    def _write(self, text: str) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)


class Load:
    """Replays the beginning of a trace against a node, again and again. With one salt it finds what it stored; with a new one each time
    it finds next to nothing, and what it stores is evicted."""

    def __init__(self, node: Node, trace: Path, warm_requests: int = 20, cold_requests: int = 60) -> None:
        self.node, self.trace = node, trace
        self.warm_requests, self.cold_requests = warm_requests, cold_requests  # 0: none
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count():
            self._replay("warm", self.warm_requests)
            self._replay(f"cold {number}", self.cold_requests)
            if self._stopped.wait(0.1):
                return

    def _replay(self, salt: str, requests: int) -> None:
        """A node that is down or fails is what some tests want: the result is of no interest."""
        if requests == 0:
            return
        what = [f"--trace={self.trace}", f"--limit-requests={requests}", f"--salt={salt}", "--block-bytes=4096"]
        command = [str(BENCH), "replay", f"--endpoint={self.node.endpoint}", *what]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=False)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def trace_file(folder: Path) -> Path:
    """A recorded trace if KVSTORE_TRACES names a folder that has one. Else a made one: conversations that take turns and grow by four
    blocks a turn."""
    if named := os.environ.get("KVSTORE_TRACES"):
        traces = sorted(Path(named).glob("*.jsonl.gz"))
        assert traces, f"KVSTORE_TRACES is '{named}', which holds no *.jsonl.gz"
        return traces[0]
    file = folder / "trace.jsonl"
    requests = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for turn in range(1, 9)
        for conversation in range(64)
        for ids in [[conversation * 1000 + i for i in range(4 * turn)]]
    ]
    file.write_text("".join(json.dumps(request) + "\n" for request in requests))
    return file


class Worker(Process):
    """A real client process whose metrics are scraped: it replays the trace slowly, so that it is there for as long as the tests last."""

    def __init__(self, folder: Path, node: Node, trace: Path) -> None:
        self.instance = f"127.0.0.1:{free_port()}"
        what = [f"--trace={trace}", "--salt=worker", "--block-bytes=4096", "--requests-per-second=2"]
        shows = [f"--metrics-listen={self.instance}", "--prefill-speed=20000"]
        command = [str(BENCH), "replay", f"--endpoint={node.endpoint}", *what, *shows]
        super().__init__(folder / "worker.log", command, f"http://{self.instance}/metrics")


def rdma_metrics() -> list[str]:
    """What a node has only beside an RDMA device, from its source."""
    source = (ROOT / "store/node/rdma/verbs_node.cc").read_text()
    metrics = re.findall(r'\{"(rdma_\w+)", [^"]*, (true|false),', source)
    assert metrics, "verbs_node.cc names its metrics in another way"
    return [f"kvstore_{name}_total" if is_counter == "true" else f"kvstore_{name}" for name, is_counter in metrics]


def engine_metrics() -> list[str]:
    """What engines show of their doors to the store, as the tables of docs/operating.md have them."""
    section = (ROOT / "docs/operating.md").read_text().split("### Of engines\n")[1].split("\n## ")[0]
    metrics = []
    for table in re.split(r"(?m)^(?=\|.*\| meaning \|$)", section)[1:]:
        heading, *rows = table.splitlines()
        prefix = re.findall(r"`(\w+:kvstore_(?:\w+_)?)`", heading)[0]
        names = [name for row in rows if row.startswith("| `") for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
        metrics += [prefix + re.sub(r"{(\w+)}", r'{\1="one"}', name) for name in names]
    return metrics


class StandIn:
    """A target with metrics of what is not here. Each scrape adds one to the counters."""

    def __init__(self, metrics: list[str]) -> None:
        scrapes = itertools.count(1)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                value = next(scrapes)
                self.send_response(200)
                self.end_headers()
                for name in metrics:
                    self.wfile.write(f"{name} {value if name.partition('{')[0].endswith('_total') else 1}\n".encode())

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.instance = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Prometheus(Process):
    """Runs the shipped prometheus.yml, faster, on these targets."""

    def __init__(self, folder: Path, targets: list[str], workers: list[str], alertmanager_port: int) -> None:
        config = (DEPLOY / "prometheus/prometheus.yml").read_text()
        config = re.sub(r"_interval: 15s", "_interval: 1s", config)
        config = config.replace("127.0.0.1:9093", f"127.0.0.1:{alertmanager_port}")
        (folder / "prometheus.yml").write_text(config)
        (folder / "kvstore.rules.yml").write_text(shortened(RULES.read_text()))
        (folder / "kvstore.targets.yml").write_text(json.dumps([{"targets": targets}]))  # JSON is YAML
        (folder / "kvstore-client.targets.yml").write_text(json.dumps([{"targets": workers}]))
        self.url = f"http://127.0.0.1:{free_port()}"
        arguments = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        listen = f"--web.listen-address={self.url.removeprefix('http://')}"
        super().__init__(folder / "prometheus.log", [*arguments, listen], f"{self.url}/-/ready")

    def api(self, path: str, **parameters: object) -> Any:
        try:
            answer = json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.api("query", query=expr)["result"]
        return result

    def query_range(self, expr: str) -> list[dict[str, Any]]:
        """As a panel asks: the last minute, in 240 steps."""
        now = time.time()
        result: list[dict[str, Any]] = self.api("query_range", query=expr, start=now - 60, end=now, step=0.25)["result"]
        return result


class Alertmanager(Process):
    """Runs the shipped alertmanager.yml."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        arguments = [f"--config.file={DEPLOY}/prometheus/alertmanager.yml", f"--storage.path={folder}/alertmanager"]
        listen = [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        super().__init__(folder / "alertmanager.log", [ALERTMANAGER, *arguments, *listen], f"{self.url}/-/ready")

    def firing(self, alert: str, instance: str) -> dict[str, Any] | None:
        """That alert of that node, if Alertmanager holds it as active."""
        matchers = urllib.parse.urlencode({"filter": [f'alertname="{alert}"', f'instance="{instance}"']}, doseq=True)
        found: list[dict[str, Any]] = json.loads(get(f"{self.url}/api/v2/alerts?{matchers}"))
        return found[0] if found else None


class Stack:
    """Three nodes under load: `memory` has memory only and finds what it is asked for, `disk` evicts to a small disk and from it,
    `young` is far too small and has eight sessions. `cluster` has no load: its certificate ends in thirteen days, and the etcd that it was
    told of does not run before start_etcd()."""

    def __init__(self, folder: Path) -> None:
        self._running: list[Process | StandIn | Load] = []
        try:
            self._start(folder)
        except BaseException:
            self.stop()
            raise

    def _start(self, folder: Path) -> None:
        trace = trace_file(folder)
        self.faults = Disk(folder)
        disk = [f"--disk-path={self.faults.path}", "--disk-capacity-blocks=2000", "--disk-retry-seconds=0.2"]
        disk += ["--eviction-policy=lru"]  # yield learns that cold prompts do not return, and keeps them off the disk
        self.memory = self._add(Node(folder, "memory", 4000))
        self.disk = self._add(Node(folder, "disk", 500, *disk, more=self.faults.environment()))
        self.young = self._add(Node(folder, "young", 100, "--session-count-max=8"))
        self.folder, self.etcd_url = folder, f"http://127.0.0.1:{free_port()}"
        self.certificates = Certificates(folder)
        self.certificates.issue(days=13)
        self.policy = Policy(folder)
        self.in_cluster = [f"--etcd={self.etcd_url}", "--etcd-lease-seconds=3"]
        files = [f"--tls-cert={self.certificates.certificate}", f"--tls-key={self.certificates.key}"]
        files += [
            f"--tls-ca={self.certificates.ca}",
            f"--tls-crl={self.certificates.crl}",
            f"--policy-file={self.policy.file}",
            "--listen=tls://127.0.0.1:0",
        ]
        self.cluster = self._add(Node(folder, "cluster", 100, *files, *self.in_cluster, path="healthz"))
        self.nodes = [self.memory, self.disk, self.young, self.cluster]
        self.rdma = self._add(StandIn(rdma_metrics()))
        self.engine = self._add(StandIn(engine_metrics()))
        port = free_port()
        self.alertmanager = self._add(Alertmanager(folder, port))
        self.worker = self._add(Worker(folder, self.disk, trace))
        targets = [each.instance for each in (*self.nodes, self.rdma)]
        self.prometheus = self._add(Prometheus(folder, targets, [self.worker.instance, self.engine.instance], port))
        self.memory_load = self._add(Load(self.memory, trace, cold_requests=0))
        self.disk_load = self._add(Load(self.disk, trace))
        self.young_load = self._add(Load(self.young, trace))

    def start_etcd(self) -> None:
        """Once; it goes with the stack."""
        if not any(isinstance(part, Etcd) for part in self._running):
            self._running.insert(0, Etcd(self.folder, self.etcd_url))  # the last to stop: nodes that leave tell it

    def _add(self, part: Any) -> Any:
        self._running.append(part)
        return part

    def stop(self) -> None:
        for part in reversed(self._running):
            part.stop()
