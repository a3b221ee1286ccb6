"""What run_docs.py has to know of each page. The commands themselves stand on the pages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Page:
    whole: str = ""  # why nothing of the page is run; "": it is
    before: str = ""  # bash: files, nodes
    substitute: dict[str, str] = field(default_factory=dict)  # words of the page: what they are here
    skip: dict[str, str] = field(default_factory=dict)  # beginning of a statement: why it cannot run here
    skip_blocks: dict[str, str] = field(default_factory=dict)  # first line of a block: the same
    after: dict[str, str] = field(default_factory=dict)  # words of a block: bash to run behind it
    says: tuple[str, ...] = ()  # beginnings of statements whose comment is their output
    needs: tuple[str, ...] = ()  # programs without which the page is skipped


#: Programs that begin a line of a shell block.
SHELL_WORDS = {
    "kvstore-node", "kvstorectl", "kvstore-bench", "kvstore-policies", "openssl", "curl", "export", "printf", "systemctl", "journalctl", "pip", "python",
    "cc", "cmake", "apt", "apt-get", "sed", "kill", "chown", "rm", "for", "issue()", "issue", "deploy/test.sh", "dmesg", "df", "iostat",
    "ss", "top", "etcdctl", "podman", "kubectl", "vllm", "modprobe",
}  # fmt: skip

#: Programs that may be missing: then what needs them is skipped.
OTHERS = {"jq", "curl", "openssl", "etcd", "cc", "sha256sum"}

#: Programs that cannot be run here, and why.
CANNOT = {
    "systemctl": "needs systemd and the package (deploy/test.sh --packages)",
    "journalctl": "needs systemd and the package (deploy/test.sh --packages)",
    "apt": "installs packages",
    "apt-get": "installs packages",
    "deploy/package.sh": "builds packages (deploy/test.sh --packages runs it)",
    "pip": "installs packages (deploy/test.sh --python runs it)",
    "python": "needs the Python package (deploy/test.sh --python runs its pages)",
    "cmake": "builds (deploy/test.sh runs it)",
    "deploy/quickstart.sh": "builds; it is run by itself",
    "deploy/test.sh": "runs this",
    "deploy/observe.sh": "runs for ever (deploy/test.sh --observe runs it)",
    "deploy/install-dependencies.sh": "installs packages",
    "vllm": "needs vLLM (deploy/test.sh --engines)",
    "kubectl": "needs a cluster (deploy/test.sh --kubernetes)",
    "podman": "needs podman",
    "dmesg": "reads the machine's log",
    "smartctl": "reads a device",
    "iostat": "runs for ever",
    "top": "runs for ever",
    "ss": "is about other processes' sockets",
    "df": "names a directory of the reader's",
    "etcdctl": "needs etcd",
    "modprobe": "changes the machine",
}

#: What a page writes in capitals stands for something of the reader's.
PLACEHOLDERS = re.compile(
    r"(?<![\w$/{-])(MODEL|FILE|ENDPOINT|ADMIN|HOST|DIR|DIRECTORY|PORT|REGISTRY|ETCD|DEVICE|DISK_PATH|ENGINE_LOG|GID_INDEX|N)(?![\w=])"
)

#: A node as most pages take for granted: where the package's would listen.
NODE = "kvstore-node --config /etc/kvstore/kvstore-node.toml --capacity 64MiB --listen unix:///run/kvstore/kvstore.sock --listen tcp://127.0.0.1:7400"
START = f"start {NODE}\n"

#: README's C program, and with it four blocks of a prompt of 64 zeros in the namespace `example`.
FIRST_HIT = """
sed -n '/^```c$/,/^```$/{//!p}' README.md > hello.c
cc hello.c -I. -L"$KV_BUILD/client" -Wl,-rpath,"$KV_BUILD/client" -lkvstore -o hello
sed -i 's|unix:///tmp/kvstore.sock|unix:///run/kvstore/kvstore.sock|' hello.c
cc hello.c -I. -L"$KV_BUILD/client" -Wl,-rpath,"$KV_BUILD/client" -lkvstore -o hello_here
./hello_here > /dev/null
printf '0 %.0s' $(seq 64) > prompt.txt
python3 - <<'KV_PY'
import hashlib, json, subprocess
listing = subprocess.run(["kvstorectl", "namespaces", "--json"], capture_output=True, text=True, check=True).stdout
space = json.loads(listing)["namespaces"][0]
text = space["record"]
last = hashlib.sha256(text.encode()).digest()
with open("system-prompt.txt", "w") as out:
    for _ in range(4):
        last = hashlib.sha256(last + bytes(4 * 16)).digest()
        out.write(last.hex() + "\\n")
open("id", "w").write(hashlib.sha256(text.encode()).hexdigest()[:8])
open("record.txt", "w").write(text)
KV_PY
"""
TRACE = "kvstore-bench generate --kind chat --requests 300 --seed 1 --out conversation_trace.jsonl.gz > /dev/null\n"


#: docs/security.md, step 3: both nodes, and whoever has a certificate of step 2 is let in by both.
TWO_NODES = """
sed -e 's/10\\.0\\.0\\.1/10.0.0.2/g; s/node1/node2/g; s|, "unix:///run/kvstore/kvstore.sock"||' /etc/kvstore/kvstore-node.toml > /etc/kvstore/node2.toml
stop
start kvstore-node --config /etc/kvstore/kvstore-node.toml --capacity 64MiB
start kvstore-node --config /etc/kvstore/node2.toml --capacity 64MiB
"""
ALL_LET_IN = """
for who in worker operator prometheus node1 node2; do
  for node in 10.0.0.1 10.0.0.2; do
    kvstorectl ping --count 1 -e tls://$node:7400 --tls-ca ca.pem --tls-cert $who.pem --tls-key $who.key > /dev/null
  done
done
"""
WITH_POLICY = """
for file in /etc/kvstore/kvstore-node.toml /etc/kvstore/node2.toml; do echo 'policy-file = "/etc/kvstore/policy.toml"' >> $file; done
stop
start kvstore-node --config /etc/kvstore/kvstore-node.toml --capacity 64MiB
start kvstore-node --config /etc/kvstore/node2.toml --capacity 64MiB
export KVSTORE_TLS_CERT=operator.pem KVSTORE_TLS_KEY=operator.key
kvstorectl namespaces > /dev/null
! KVSTORE_TLS_CERT=worker.pem KVSTORE_TLS_KEY=worker.key kvstorectl namespaces > /dev/null 2>&1
curl -sf --cert prometheus.pem --key prometheus.key --cacert ca.pem https://10.0.0.1:7401/metrics > /dev/null
"""
#: A node with a disk tier whose directory can be changed, once its disk is open.
WITH_DISK = """
mkdir -p "$KV_SCRATCH/disk1" "$KV_SCRATCH/disk2"
stop
start kvstore-node --config /etc/kvstore/kvstore-node.toml --capacity 64MiB --disk-path "$KV_SCRATCH/disk1/kv" --disk-capacity 64MiB
for i in $(seq 100); do
  curl -s 127.0.0.1:7401/metrics | grep -q '^kvstore_disk_is_on 1' && curl -s 127.0.0.1:7401/metrics | grep -q '^kvstore_disk_is_loading 0' && break
  sleep 0.05
done
"""
ETCD = """
etcd --data-dir "$KV_SCRATCH/etcd" > "$KV_SCRATCH/etcd.log" 2>&1 &
for i in $(seq 200); do curl -sf 127.0.0.1:2379/health > /dev/null && break; sleep 0.05; done
"""
MEASURES = "a measurement, of minutes or hours"
AUTOTUNE = "measures for half a minute (tests/e2e/autotune_test.cc)"
ENGINES = "needs engines (deploy/test.sh --engines and --python)"
ENGINE_PAGES = ("vllm", "vllm-tier", "sglang", "lmcache", "encoders", "transformers", "routers", "nixl")

PAGES = {
    "README.md": Page(
        before=START,
        substitute={
            "-Lbuild/release/client -Wl,-rpath,$PWD/build/release/client": '-L"$KV_BUILD/client" -Wl,-rpath,"$KV_BUILD/client"',
            "kvstore-node --config deploy/kvstore-node.toml": "kvstore-node --config deploy/kvstore-node.toml --capacity 64MiB",
            "build/release/": '"$KV_BUILD"/',
            "kvstore-bench run": "kvstore-bench run --duration 0.2s --blocks 64 --block-bytes 64KiB",
            "kvstore-bench limit": "kvstore-bench limit --duration 0.1s",
        },
        skip={
            "build/release/store/node/kvstore-node --capacity 4GiB": "is for an engine that is not here",
            "build/release/store/node/kvstore-node --config deploy/kvstore-node.toml --autotune": AUTOTUNE,
        },
        says=("/tmp/hello",),
    ),
    "docs/cli.md": Page(
        before=START + FIRST_HIT + TRACE + "cp system-prompt.txt prompt.txt; id=$(cat id)\n",
        substitute={
            "3fa9": '"$id"',
            "--requests 20000": "--requests 200",
            "3000,10000,30000": "30,100",
            "30000 ": "3000 ",
            "96000,320000": "960,3200",
        },
    ),
    "docs/operating.md": Page(
        before=f"start {NODE} --capacity-max 128MiB\n",
        substitute={
            "capacity=96GiB": "capacity=96MiB",
            "--capacity 64GiB": "--capacity 64MiB",
            "--disk-capacity 800GiB": "--disk-capacity 256MiB",
            "=/disk": '="$KV_SCRATCH"/disk',
        },
        skip={
            "kvstore-node --config /etc/kvstore/kvstore-node.toml --autotune": AUTOTUNE,
            "kvstore-node --capacity 64GiB --disk-path /nvme0/blocks": AUTOTUNE,
        },
        after={"kvstore-node --capacity 64GiB --disk-path /var/lib/kvstore/disk": WITH_DISK},
    ),
    "docs/security.md": Page(
        after={
            "issue prometheus": "cp ./*.pem ./*.key /etc/kvstore/\n",
            "# /etc/kvstore/kvstore-node.toml": TWO_NODES + ALL_LET_IN,
            "# /etc/kvstore/policy.toml": WITH_POLICY,
        },
        substitute={"kvstorectl erase research ": "kvstorectl erase research --yes "},
        skip={"KV_CROSS_TENANT_TRIES": "takes minutes, and is a test of every run"},
        skip_blocks={
            "kvstore-bench run --op get -e tls://HOST:7400 --block-bytes 2MiB --batch 16 --connections 1": MEASURES
        },
        needs=("openssl", "curl"),
    ),
    "docs/cluster.md": Page(
        before=ETCD,
        substitute={
            "--etcd http://127.0.0.1:2379": "--etcd http://127.0.0.1:2379 --capacity 64MiB",
            "kvstore-bench chat": "kvstore-bench chat --block-bytes 4KiB --sessions 2 --turns 2 --system-blocks 4",
        },
        skip_blocks={
            "n=64                     # and --capacity 8388608 with n=8": MEASURES,
            'tests/netns/with_links.sh --nodes 4 --rate 1gbit --node-args "--capacity 1GiB" -- build/release/client/tools/kvstore-bench run \\': MEASURES,
            "for i in 0 1 2; do": MEASURES,
            "for i in 0 1 2 3 4 5 6 7; do": MEASURES,
        },
        needs=("etcd", "curl"),
    ),
    "docs/contexts.md": Page(
        before=START + FIRST_HIT + "start kvstore-node --listen tcp://127.0.0.1:7500 --admin none --capacity 64MiB\n",
        substitute={"my-model": "example", "tls://other-cluster:7400": "tcp://127.0.0.1:7500"},
        after={
            "kvstorectl contexts delete support-prompt": "kvstorectl contexts create support-prompt --namespace example --tokens prompt.txt --ttl 1h > /dev/null\n"
            "rm support-prompt.kvctx\n"
        },
    ),
    "docs/install.md": Page(
        before=START,
        substitute={"editor /etc/kvstore/kvstore-node.toml": "true"},
        skip={
            "cp -r /usr/share/doc/libkvstore-dev/examples": "needs the package (deploy/test.sh --packages)",
            "/tmp/first_hit/build/first_hit_c": "needs the package (deploy/test.sh --packages)",
        },
    ),
    "docs/runbook.md": Page(
        before=ETCD + f"start {NODE} --node-id n0 --etcd http://127.0.0.1:2379\nsleep 0.5\n",
        substitute={"ENDPOINT": "unix:///run/kvstore/kvstore.sock", "ADMIN": "127.0.0.1:7401"},
        skip={"kvstorectl top -e ENDPOINT": "runs until somebody types q"},
        needs=("etcd", "curl"),
    ),
    "docs/disk-format.md": Page(
        before='start kvstore-node --admin none --capacity 64MiB --disk-path "$KV_SCRATCH/disk" --disk-capacity 64MiB\nsleep 1\nstop\n',
        substitute={" DIR": ' "$KV_SCRATCH"/disk'},
    ),
    "docs/cache-quality.md": Page(
        before=TRACE + "mv conversation_trace.jsonl.gz mine.jsonl.gz\n",
        substitute={"10000,30000,100000": "30,100"},
        skip_blocks={"cmake --build --preset release --target kvstore-bench kvstore-policies": MEASURES},
    ),
    "docs/python.md": Page(
        skip_blocks={"$ python -m kvstore size --model gemma-2-9b --new-tokens 100": CANNOT["python"]}
    ),
    "docs/kubernetes.md": Page(),
    "docs/engines.md": Page(whole=ENGINES),
    **{f"docs/engines/{name}.md": Page(whole=ENGINES) for name in ENGINE_PAGES},
    "docs/performance.md": Page(whole=MEASURES),
    "docs/rdma.md": Page(whole="needs RDMA devices (deploy/test.sh --rdma runs doctor on some)"),
    "docs/testing.md": Page(whole="is about deploy/test.sh"),
    "docs/architecture.md": Page(whole="has no commands"),
    "docs/compatibility.md": Page(whole="has no commands"),
    "docs/kernels.md": Page(whole="has no commands but those of measurements"),
    "docs/namespace-record.md": Page(whole="has no commands"),
    "docs/paged-cache.md": Page(whole="has no commands"),
    "docs/papers.md": Page(whole="has no commands"),
    "docs/modules.md": Page(whole="has no commands but measurements of a quarter of an hour"),
    "docs/wire.md": Page(whole="has no commands"),
}
