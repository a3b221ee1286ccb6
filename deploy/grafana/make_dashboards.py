#!/usr/bin/env python3
"""Writes the Grafana dashboards beside this file. Edit here, run it, commit both.

    deploy/grafana/make_dashboards.py           writes kvstore-*.json
    deploy/grafana/make_dashboards.py --check   writes nothing; exits 1 if a file is not what it would write

Each panel's title is a question, and its threshold is where the answer turns bad. Metrics: docs/operating.md. Alerts: docs/runbook.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT, STAT_WIDTH, STAT_HEIGHT = 24, 12, 8, 6, 4

Step = tuple[str, float | None]  # colour, and its lowest value; None: from the start


def good_below(bad: float, worse: float | None = None) -> list[Step]:
    return [("green", None), ("orange", bad), *([("red", worse)] if worse is not None else [])]


def good_from(good: float, fair: float | None = None) -> list[Step]:
    return [("red", None), *([("orange", fair)] if fair is not None else []), ("green", good)]


NONE_IS_GOOD = good_below(1e-9)


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = "{{instance}}"


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str  # of Grafana: s, bytes, Bps, percentunit (0 to 1), cps (counts a second), ops, short
    steps: list[Step]
    queries: list[Query]
    about: str = ""  # meaning of the answer, and actions
    is_stat: bool = False  # one number, large enough to read from afar
    mappings: dict[str, str] = field(default_factory=dict)  # values that are better shown as words

    def to_json(self, number: int, place: dict[str, int]) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "min": 0,
            "thresholds": {"mode": "absolute", "steps": [{"color": color, "value": at} for color, at in self.steps]},
        }
        if self.mappings:
            texts = {value: {"text": text, "index": i} for i, (value, text) in enumerate(self.mappings.items())}
            defaults["mappings"] = [{"type": "value", "options": texts}]
        if self.is_stat:
            defaults["color"] = {"mode": "thresholds"}
            options: dict[str, Any] = {
                "colorMode": "background",
                "graphMode": "area",
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            }
        else:
            defaults["custom"] = {"fillOpacity": 8, "showPoints": "never", "thresholdsStyle": {"mode": "dashed"}}
            options = {"legend": {"displayMode": "list"}, "tooltip": {"mode": "multi", "sort": "desc"}}
        targets = [
            {"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": query.expr, "legendFormat": query.legend}
            for i, query in enumerate(self.queries)
        ]
        return {
            "id": number,
            "type": "stat" if self.is_stat else "timeseries",
            "title": self.title,
            "description": self.about,
            "datasource": DATASOURCE,
            "gridPos": place,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": options,
            "targets": targets,
        }


def one(expr: str, legend: str = "{{instance}}") -> list[Query]:
    return [Query(expr, legend)]


HIT_RATIO_NOW = "instance:kvstore_match_hit_ratio:rate5m"
HIT_RATIO_USUAL = "instance:kvstore_match_hit_ratio:avg1d"
NODE = 'job="kvstore",instance=~"$node"'
# Of the hit rate curve: the node's present size.
TIER = 'tier="memory"'
OWN_MEMORY = f'{TIER},scale="1",policy="own"'
LRU_MEMORY = f'{TIER},scale="1",policy="lru"'


def rate(metric: str, more: str = "") -> str:
    return f"rate(kvstore_{metric}{{{NODE}{more}}}[$__rate_interval])"


def of(metric: str, more: str = "") -> str:
    return f"kvstore_{metric}{{{','.join(filter(None, (NODE, more)))}}}"


def recorded(rule: str) -> str:
    return f"{rule}{{{NODE}}}"


def share(*part: str, rest: tuple[str, ...]) -> str:
    """The share of `part` in the sum of itself and the rest."""
    whole = " + ".join(rate(metric) for metric in (*part, *rest))
    return f"({' + '.join(rate(metric) for metric in part)}) / ({whole} > 0)"


def rdma_share(metric: str) -> str:
    by_rdma = rate(metric, ',path="verbs"')
    return f"sum by (instance) ({by_rdma}) / (sum by (instance) ({rate(metric)}) > 0)"


def p99(metric: str, by: str) -> str:
    return f"histogram_quantile(0.99, sum by ({by}, le) ({rate(metric + '_bucket')}))"


HIT_RATIO = Panel(
    "What share of the blocks asked for does each node hold?",
    "percentunit",
    good_from(0.3, 0.1),
    one(recorded(HIT_RATIO_NOW)),
    "What is reachable depends on the prompts. A fall counts, not the height: runbook, KvstoreHitRateCollapsed.",
)
EVICTION_AGE = Panel(
    "How long does a block lie unused before memory evicts it?",
    "s",
    good_from(120, 30),
    one(recorded("instance:kvstore_eviction_age_seconds:p50_rate15m")),
    "The median. Below the time between two turns of a conversation (minutes), more memory buys more hits than anything else.",
)
LOCK = Panel(
    "Do requests wait for each other?",
    "s",
    good_below(1e-4, 1e-3),
    one(recorded("instance:kvstore_lock_waited_seconds:p99_rate5m")),
    "p99 of the wait for the store's one lock. Above 100 us: too many small requests for one node; add a node.",
)
DISK_IS_ON = Panel(
    "Does the disk tier work?",
    "short",
    good_from(1),
    one(of("disk_is_on")),
    "Off: the log says why. Runbook, KvstoreDiskOff.",
    is_stat=True,
    mappings={"0": "off", "1": "on"},
)

FLEET = [
    Panel(
        "Which nodes are up?",
        "short",
        good_from(1),
        one(f"up{{{NODE}}}"),
        is_stat=True,
        mappings={"0": "down", "1": "up"},
    ),
    Panel(
        "How many alerts fire?",
        "short",
        good_below(1),
        one('sum(ALERTS{alertname=~"Kvstore.+",alertstate="firing"}) or vector(0)', "firing"),
        "docs/runbook.md has a section for each.",
        is_stat=True,
    ),
    Panel(
        "What share of all blocks asked for is held?",
        "percentunit",
        good_from(0.3, 0.1),
        one('job:kvstore_match_hit_ratio:rate5m{job="kvstore"}', "fleet"),
        is_stat=True,
    ),
    DISK_IS_ON,
    HIT_RATIO,
    Panel(
        "Does each node hit as often as it usually does?",
        "percentunit",
        good_from(0.8, 0.5),
        one(f"{recorded(HIT_RATIO_NOW)} / ({recorded(HIT_RATIO_USUAL)} > 0)"),
        "The hit rate now over that of the day before. Below half for 15 minutes: KvstoreHitRateCollapsed.",
    ),
    Panel(
        "How fast do blocks go out and come in?",
        "Bps",
        good_from(1),
        [
            Query(f"sum by (instance) ({rate('bytes_out_total')})", "{{instance}} out"),
            Query(f"sum by (instance) ({rate('bytes_in_total')})", "{{instance}} in"),
        ],
        "Nothing at all: no worker uses the node.",
    ),
    Panel(
        "Is the load even?",
        "percentunit",
        good_below(1.5, 2),
        one(
            f"sum by (instance) ({rate('request_seconds_count')})"
            f" / scalar(avg(sum by (instance) ({rate('request_seconds_count')})) > 0)"
        ),
        "Each node's requests over the mean of all. Blocks are placed by their hashes, so one node far above the others "
        "holds a prefix that everybody asks for.",
    ),
    EVICTION_AGE,
    Panel(
        "How slow is one match in a hundred?",
        "s",
        good_below(1e-3, 1e-2),
        one(f'instance_verb:kvstore_request_seconds:p99_rate5m{{{NODE},verb="match"}}'),
        "p99 above 1 ms: see the lock, then the processor.",
    ),
    LOCK,
    Panel(
        "Is anybody refused?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(f"sum by (instance) ({rate('sessions_refused_total')})", "{{instance}} connections"),
            Query(f"sum by (instance) ({rate('requests_refused_total')})", "{{instance}} requests"),
        ],
        "The dashboard of the node has the reasons.",
    ),
    Panel(
        "Is any byte wrong?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("checksum_failures_total"), "{{instance}} damaged on arrival"),
            Query(rate("put_conflict_blocks_total"), "{{instance}} put with other bytes"),
            Query(rate("lost_blocks_total"), "{{instance}} lost on disk"),
        ],
        "No worker sees a wrong byte. Runbook: KvstoreChecksumFailures, KvstorePutConflicts, KvstoreDiskDamage.",
    ),
    Panel(
        "How many versions run?",
        "short",
        good_below(2),
        one(f"count by (version) (kvstore_build_info{{{NODE}}})", "{{version}}"),
        "A node speaks its own wire version and the one before.",
    ),
]

NODE_PANELS = [
    HIT_RATIO,
    Panel(
        "Does get still find what match had found?",
        "percentunit",
        good_from(0.99, 0.9),
        one(share("get_hit_blocks_total", "get_disk_blocks_total", rest=("get_miss_blocks_total",))),
        "The share of the blocks asked for by get that were held. It falls: leases end too early (lease-seconds).",
    ),
    Panel(
        "How slow is one request in a hundred, by type?",
        "s",
        good_below(0.1, 1),
        one(f"instance_verb:kvstore_request_seconds:p99_rate5m{{{NODE}}} >= 0", "{{instance}} {{verb}}"),
    ),
    Panel(
        "How many requests come, by type?",
        "ops",
        good_from(0.01),
        one(f"sum by (instance, verb) ({rate('request_seconds_count')}) > 0", "{{instance}} {{verb}}"),
        "None: no worker uses the node.",
    ),
    Panel(
        "Which requests fail or are refused, and why?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("request_failures_total"), "{{instance}} {{verb}} failed"),
            Query(rate("requests_refused_total"), "{{instance}} {{reason}}"),
        ],
        "bad_request, bad_frame, mismatch: a client is broken or differs in version; the log names field and value.",
    ),
    Panel(
        "By which path do blocks travel?",
        "Bps",
        good_from(1),
        [
            Query(rate("bytes_out_total"), "{{instance}} out {{path}}"),
            Query(rate("bytes_in_total"), "{{instance}} in {{path}}"),
        ],
        "memfd is shared memory, verbs is RDMA, inline is a socket. Workers on this host that use inline lack the Unix socket or "
        "memory from `allocate`.",
    ),
    Panel(
        "How full is the memory?",
        "percentunit",
        [("orange", None), ("green", 0.5)],
        [
            Query(f"{of('allocated_bytes')} / {of('capacity_bytes')}", "{{instance}} blocks"),
            Query(f"{of('slab_bytes')} / {of('capacity_bytes')}", "{{instance}} slabs"),
        ],
        "A cache is meant to be full. Half empty for long: less memory would do. Slabs far above blocks: many sizes in little memory.",
    ),
    EVICTION_AGE,
    Panel(
        "How much of the memory cannot be evicted now?",
        "percentunit",
        good_below(0.4, 0.5),
        one(f"{of('leased_bytes')} / {of('capacity_bytes')}", "{{instance}} leased"),
        "Near leased-fraction-max (0.5): schedulers plan more than they fetch, or leases last too long.",
    ),
    Panel(
        "Are leases, blocks or puts turned away?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("leases_refused_total"), "{{instance}} leases refused"),
            Query(rate("refused_blocks_total"), "{{instance}} blocks refused"),
            Query(rate("deadline_misses_total"), "{{instance}} puts out of time"),
        ],
        "Refused blocks: all that could be evicted is pinned. Puts out of time: workers stop in the middle, or memory is short.",
    ),
    LOCK,
    Panel(
        "How long is the lock held?",
        "s",
        good_below(1e-4, 1e-3),
        one(p99("lock_held_seconds", "instance")),
        "p99. Microseconds; more is a fault of kvstore.",
    ),
    Panel(
        "How many sessions are open?",
        "short",
        good_below(3072, 4096),
        one(of("sessions")),
        "session-count-max is 4096 unless configured otherwise.",
    ),
    Panel(
        "Why are connections refused or closed?",
        "cps",
        good_below(1, 10),
        [
            Query(rate("sessions_refused_total"), "{{instance}} refused {{reason}}"),
            Query(rate("sessions_closed_total"), "{{instance}} closed {{reason}}"),
        ],
        "slow_reader, slow_frame, hello_timeout: clients that hang, or something that is no client.",
    ),
    Panel(
        "Is there room in the index?",
        "percentunit",
        good_below(0.9, 1),
        one(f"{of('index_used_bytes')} / {of('index_bytes_max')}"),
        "Near its bound: small blocks or many short prompts. More index-bytes-max.",
    ),
    Panel(
        "Is there room for lent memory?",
        "percentunit",
        good_below(0.9, 1),
        one(f"{of('region_node_bytes')} / {of('region_node_bytes_max')}"),
        "Near the bound with honest clients: raise region-bytes-max-node.",
    ),
]

DISK = [
    DISK_IS_ON,
    Panel(
        "How many directories are left out?",
        "short",
        good_below(1),
        one(of("disk_directories_left_out")),
        "Of several --spill-path. The log names them.",
        is_stat=True,
    ),
    Panel(
        "How often was the disk turned off today?",
        "short",
        good_below(1, 3),
        one(f"increase(kvstore_disk_outages_total{{{NODE}}}[1d])"),
        is_stat=True,
    ),
    Panel(
        "Is the index still being loaded?",
        "short",
        good_below(1),
        one(of("disk_is_loading")),
        "After a restart, newest blocks first. Until it is done, some of what is on disk is a miss.",
        is_stat=True,
        mappings={"0": "loaded", "1": "loading"},
    ),
    Panel(
        "How often was the whole disk verified this week?",
        "short",
        good_from(1),
        one(f"increase(kvstore_disk_scrub_rounds_total{{{NODE}}}[7d])"),
        "By the scrubber. Less than once: a higher spill-scrub-rate, or damage is found late.",
        is_stat=True,
    ),
    Panel(
        "What share of the hits comes from the disk?",
        "percentunit",
        good_below(0.5, 0.8),
        one(share("match_disk_blocks_total", rest=("match_hit_blocks_total",))),
        "Of the blocks that match found (kvstore_match_hit_blocks_total counts those in memory). Most of them: more memory.",
    ),
    Panel(
        "How long does the disk keep a block?",
        "s",
        good_from(3600, 120),
        one(recorded("instance:kvstore_disk_keep_seconds:rate15m")),
        "Blocks held by blocks evicted a second. Nothing is shown while nothing is evicted, which is best.",
    ),
    Panel(
        "Are blocks lost because the disk is too slow?",
        "percentunit",
        good_below(0.01, 0.1),
        one(recorded("instance:kvstore_unspilled_ratio:rate10m")),
        "Of the blocks that left memory, those not written. Runbook, KvstoreDiskSlow.",
    ),
    Panel(
        "Does the disk fail or refuse reads?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("disk_read_failures_total"), "{{instance}} failed or damaged"),
            Query(rate("disk_read_refusals_total"), "{{instance}} refused"),
        ],
        "Refused: more was being read than the disk keeps up with. Failed: replace the disk.",
    ),
    Panel(
        "How fast are blocks read and written?",
        "Bps",
        good_below(1e9, 3e9),
        [
            Query(rate("disk_read_bytes_total"), "{{instance}} read"),
            Query(rate("disk_written_bytes_total"), "{{instance}} written"),
        ],
        "The lines are what one NVMe device (1 to 3 GB/s) lasts for.",
    ),
    Panel(
        "How much more is the device given than blocks?",
        "short",
        good_below(1.1, 1.5),
        one(f"kvstore_disk_device_written_bytes_total{{{NODE}}} / (kvstore_disk_written_bytes_total{{{NODE}}} > 0)"),
        "Since the start. Above 1.1 the device wears faster than it has to.",
    ),
    Panel(
        "How much do the files take?",
        "bytes",
        good_below(1e12, 2e12),
        [
            Query(of("disk_file_bytes"), "{{instance}} files"),
            Query(of("disk_log_bytes"), "{{instance}} with dead blocks"),
            Query(of("disk_only_bytes"), "{{instance}} blocks nowhere else"),
        ],
        "Files take up to 1.25 x (spill-capacity + capacity) and two segments. Set the lines to your file system's size.",
    ),
    Panel(
        "Does the scrubber find damage?",
        "cps",
        NONE_IS_GOOD,
        one(rate("disk_scrub_damaged_blocks_total")),
        "Ever: replace the disk. Runbook, KvstoreDiskDamage.",
    ),
    Panel(
        "Do drops survive a restart?",
        "cps",
        NONE_IS_GOOD,
        one(rate("disk_drops_not_kept_total"), "{{instance}} hold until then only"),
        "The disk was off, slow to sync or full. Drop again.",
    ),
    Panel(
        "How much is written a second time?",
        "percentunit",
        good_below(0.08, 0.2),
        one(f"{rate('rewritten_blocks_total')} / ({rate('spilled_blocks_total')} > 0)"),
        "Blocks that were alive when their segment was given back, over those written. Up to 8 % is how it is meant to be.",
    ),
]

RDMA = [
    Panel(
        "How many devices are in use?",
        "short",
        good_from(1),
        one(of("rdma_devices")),
        "No number at all: the node runs without RDMA, and the log's line `rdma:` says why.",
        is_stat=True,
    ),
    Panel(
        "How many devices are left out?",
        "short",
        good_below(1),
        one(of("rdma_devices_left_out")),
        "They are tried again; the log says what each lacks.",
        is_stat=True,
    ),
    Panel(
        "How many lanes are connected?",
        "short",
        good_from(1),
        one(of("rdma_lanes")),
        "None while workers are there: they use their sockets. docs/rdma.md, when it does not work.",
        is_stat=True,
    ),
    Panel(
        "How much memory is registered with each device?",
        "bytes",
        good_from(1),
        one(of("rdma_registered_bytes")),
        is_stat=True,
    ),
    Panel(
        "Do lanes break, or are they refused?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("rdma_lanes_broken_total"), "{{instance}} broken"),
            Query(rate("rdma_lanes_refused_total"), "{{instance}} refused"),
        ],
        "The log names session, lane and reason; then `rdma statistic` on the host.",
    ),
    Panel(
        "Do lanes come and go?",
        "cps",
        good_below(1, 10),
        one(rate("rdma_lanes_connected_total")),
        "It grows while no workers come: lanes break and are made again.",
    ),
    Panel(
        "What share of the bytes goes by RDMA?",
        "percentunit",
        good_from(0.9, 0.5),
        [Query(rdma_share(f"bytes_{way}_total"), "{{instance}} " + way) for way in ("out", "in")],
        "The rest goes through sockets and shared memory. Workers on the node's own host use those by choice.",
    ),
    Panel(
        "How many small requests go by SEND?",
        "ops",
        good_from(0.01),
        one(rate("rdma_messages_total")),
        "It stands still beside small gets: the log says which lane broke, or rdma-messages-max is 0.",
    ),
]

QUALITY = [
    HIT_RATIO,
    Panel(
        "What would half the memory, or twice as much, hit?",
        "percentunit",
        good_from(0.3, 0.1),
        one(of("curve_hit_ratio", f'{TIER},policy="own"'), "{{instance}} x {{scale}}"),
        "By a sample, of memory alone. Twice is well above once: more memory brings hits. Half is not below: less would do.",
    ),
    Panel(
        "Does the node's policy hit more than LRU would?",
        "percentunit",
        good_from(0.998, 0.98),
        one(f"{of('curve_hit_ratio', OWN_MEMORY)} / ignoring (policy) ({of('curve_hit_ratio', LRU_MEMORY)} > 0)"),
        "Above 1: more. Well below for days: eviction-policy = lru, and tell us of the load.",
    ),
    Panel(
        "Can the curve be believed?",
        "percentunit",
        good_below(0.01, 0.03),
        [
            Query(of("curve_hit_ratio_error", OWN_MEMORY), "{{instance}} the sample's error"),
            Query(
                f"abs({of('curve_measured_hit_ratio', TIER)} - ignoring (scale, policy) {of('curve_hit_ratio', OWN_MEMORY)})",
                "{{instance}} off from what was hit",
            ),
        ],
        "The error falls as the sample grows. A curve that is off by more than its error is no guide for this load.",
    ),
    Panel(
        "What share of the offered blocks is worth its place?",
        "percentunit",
        good_from(0.2, 0.05),
        one(share("stored_blocks_total", rest=("not_admitted_blocks_total",))),
        "The rest would have driven out blocks that promise more. A low share is no fault; more memory would take more.",
    ),
    EVICTION_AGE,
]

CLUSTER = [
    Panel(
        "Do all nodes tell the same map?",
        "short",
        good_below(1),
        one(f"max({of('cluster_epoch')}) - min({of('cluster_epoch')})", "epochs apart"),
        "For longer than seconds: those behind have lost etcd.",
        is_stat=True,
    ),
    Panel(
        "How many members take new blocks?",
        "short",
        good_from(1),
        one(of("cluster_members_serving")),
        is_stat=True,
    ),
    Panel(
        "Does etcd answer?",
        "short",
        good_from(1),
        one(of("cluster_etcd_is_reachable")),
        "Traffic goes on without it. Runbook, KvstoreEtcdUnreachable.",
        is_stat=True,
        mappings={"0": "no", "1": "yes"},
    ),
    Panel(
        "Is a node's id taken by another process?",
        "short",
        good_below(1),
        one(of("cluster_is_replaced")),
        "Runbook, KvstoreNodeReplaced.",
        is_stat=True,
        mappings={"0": "no", "1": "yes"},
    ),
    Panel(
        "Do nodes lose their leases?",
        "cps",
        NONE_IS_GOOD,
        one(rate("cluster_joins_total")),
        "Each is a node that stood still for longer than etcd-lease-seconds, or lost etcd for as long.",
    ),
    Panel(
        "How often does etcd fail a call?",
        "cps",
        NONE_IS_GOOD,
        one(rate("cluster_etcd_failures_total")),
    ),
    Panel(
        "How fast do blocks move to their new owners?",
        "Bps",
        good_from(1e-9),
        one(rate("cluster_moved_bytes_total")),
        "Nothing, but for joins and drains. move-rate bounds it.",
    ),
    Panel(
        "How much is still to be moved, and does it get there?",
        "short",
        good_below(100_000),
        [
            Query(of("cluster_move_remaining_paths"), "{{instance}} paths to go"),
            Query(of("cluster_unmoved_paths"), "{{instance}} paths that could not go"),
        ],
        "It does not fall: move-rate is small for what there is. Paths that could not go: runbook, KvstoreHandOverFailed.",
    ),
]

SECURITY = [
    Panel(
        "How long is the next certificate, CA or list good?",
        "s",
        good_from(1_209_600, 172_800),
        one(f"min by (instance) ({recorded('instance_option:kvstore_tls_expiry_timestamp_seconds')}) - time()"),
        "Runbook, KvstoreCertificateExpiring.",
        is_stat=True,
    ),
    Panel(
        "Is a changed file not in force?",
        "short",
        good_below(1),
        [
            Query(of("tls_reload_failed"), "{{instance}} certificates"),
            Query(of("policy_reload_failed"), "{{instance}} policy"),
        ],
        "Runbook, KvstoreReloadFailed.",
        is_stat=True,
        mappings={"0": "all are", "1": "not in force"},
    ),
    Panel(
        "How many listeners speak plain text to a network?",
        "short",
        good_below(1),
        one(of("plaintext_network_listeners")),
        "Whoever is on that network reads prompts' blocks. docs/security.md.",
        is_stat=True,
    ),
    Panel(
        "How many connections wait for their handshake?",
        "short",
        good_below(100, 1000),
        one(of("tls_half_open")),
        "Many that stay: somebody opens connections and says nothing.",
        is_stat=True,
    ),
    Panel(
        "Is anybody turned away at the door?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(rate("tls_handshake_failures_total"), "{{instance}} handshakes that failed"),
            Query(rate("tls_handshakes_refused_total"), "{{instance}} too many at once"),
            Query(rate("tokens_refused_total"), "{{instance}} unknown tokens"),
        ],
        "The log has the peer and the reason. docs/security.md, when a handshake fails.",
    ),
    Panel(
        "Does anybody try what it has no right to?",
        "cps",
        NONE_IS_GOOD,
        one(rate("requests_denied_total"), "{{instance}} {{right}}"),
        "A client lacks a role, or tries what it should not. The log has who.",
    ),
]


def seen(metric: str, only: str = "") -> str:
    """The rate of a metric of clients, from any job that scrapes an engine."""
    return f"rate(kvstore_client_{metric}{f'{{{only}}}' if only else ''}[$__rate_interval])"


def seen_by(metric: str, by: str, only: str = "") -> str:
    return f"sum by (instance, {by}) ({seen(metric, only)})"


SECONDS_OF_GETS = seen("call_duration_seconds_sum", 'call="get"')
# Blocks, not tokens: engines mostly store sets, whose token counts a client does not have.
FOUND_BLOCKS = seen("match_blocks_total", 'tier!="none"')
CLIENTS = [
    Panel(
        "How many tokens a second need not be computed?",
        "short",
        good_from(1),
        one(seen("saved_tokens_total")),
        "Loaded from the store. 0 for hours: kvstorectl doctor.",
        is_stat=True,
    ),
    Panel(
        "How many processors' worth of prefill is saved, net of loading?",
        "short",
        good_from(1e-9),
        one(f"sum by (instance) ({seen('saved_compute_seconds_total')}) - sum by (instance) ({SECONDS_OF_GETS})"),
        "An estimate: seconds of computing a second, less the seconds of the gets that brought it. Below 0 loading costs more than it saves. "
        "Without data: the engine has not said how fast it computes.",
        is_stat=True,
    ),
    Panel(
        "Do calls miss their deadlines?",
        "cps",
        NONE_IS_GOOD,
        one(seen_by("call_errors_total", "call", 'error_type="deadline_exceeded"'), "{{instance}} {{call}}"),
        "A worker computed what it could have had. A node is slow or away, or the deadline is shorter than the transfer takes.",
        is_stat=True,
    ),
    Panel(
        "Does any worker leave a node alone?",
        "short",
        NONE_IS_GOOD,
        one("kvstore_client_breaker_open", "{{instance}} {{node}}"),
        "1: its breaker is open, after failures in a row. What that node has is missed by this worker.",
        is_stat=True,
    ),
    Panel(
        "What share of the blocks asked for was there?",
        "percentunit",
        good_from(0.3, 0.1),
        one(
            f"sum by (instance) ({FOUND_BLOCKS}) / (sum by (instance) ({seen('match_blocks_total')}) > 0)",
        ),
        "As each worker sees it, over all nodes. Workers that differ have different prompts, or write other namespace records.",
    ),
    Panel(
        "Where do hits come from?",
        "short",
        good_from(0),
        one(seen_by("match_blocks_total", "tier"), "{{instance}} {{tier}}"),
        "Blocks looked up a second. none: a miss.",
    ),
    Panel(
        "How long does a call take, from the worker's side?",
        "s",
        good_below(0.1, 1),
        one(
            f"histogram_quantile(0.99, sum by (call, le) ({seen('call_duration_seconds_bucket')}))",
            "{{call}} p99",
        ),
        "Above the nodes' own time (kvstore_request_seconds): the network, or a worker's thread that is busy.",
    ),
    Panel(
        "Why do calls bring less than was asked for?",
        "cps",
        good_below(1),
        one(seen_by("call_errors_total", "error_type"), "{{instance}} {{error_type}}"),
        "Plain misses are not in it.",
    ),
    Panel(
        "How do bytes travel?",
        "Bps",
        good_from(0),
        one(seen_by("io_bytes_total", "transport, direction"), "{{instance}} {{transport}} {{direction}}"),
        "tcp, tls and unix are sockets; memfd is shared memory, verbs is RDMA. A worker on the node's host that uses a socket: give it "
        "the Unix socket and memory of allocate().",
    ),
    Panel(
        "Do blocks that were found arrive?",
        "cps",
        good_from(0),
        one(seen_by("get_blocks_total", "result"), "{{instance}} {{result}}"),
        "corrupt: bytes that did not match their name on arrival; never more than 0.",
    ),
]


# The doors of engines to the store, by the beginning of their metrics' names in the engines' own /metrics (docs/operating.md).
CONNECTOR, TIER_OF_VLLM, ENCODER, HICACHE = (
    "vllm:kvstore",
    "vllm:kvstore_tier",
    "vllm:kvstore_encoder",
    "sglang:kvstore",
)
DOORS = {CONNECTOR: "connector", TIER_OF_VLLM: "tier", ENCODER: "encoder", HICACHE: "HiCache"}


def door(metric: str, of: str = CONNECTOR) -> str:
    return f"sum by (instance) (rate({of}_{metric}_total[$__rate_interval]))"


def doors(metric: str, what: str, among: Iterable[str] = DOORS) -> list[Query]:
    return [Query(door(metric, each), f"{{{{instance}}}} {DOORS[each]}{what}") for each in among]


ENGINES = [
    Panel(
        "How many tokens a second do engines load instead of computing them?",
        "short",
        good_from(1),
        one(door("loaded_tokens")),
        "Of vLLM's connector. 0 for hours: kvstorectl doctor names namespaces that are looked up in vain.",
        is_stat=True,
    ),
    Panel(
        "Does an engine leave the store alone?",
        "short",
        NONE_IS_GOOD,
        [
            Query(f"max by (instance, calls) ({each}_paused)", f"{{{{instance}}}} {name}, {{{{calls}}}}")
            for each, name in DOORS.items()
        ],
        "1: after failures. It computes everything meanwhile. Runbook, KvstoreEngineFailing.",
        is_stat=True,
        mappings={"0": "no", "1": "yes"},
    ),
    Panel(
        "Do calls of engines fail?",
        "cps",
        NONE_IS_GOOD,
        [*doors("failures", ""), Query(door("lookups_timed_out"), "{{instance}} connector, lookups too late")],
        "The engine's log says why. Runbook, KvstoreEngineFailing.",
    ),
    Panel(
        "Does what was found arrive?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(door("missing_blocks"), "{{instance}} connector"),
            Query(door("missing_chunks", TIER_OF_VLLM), "{{instance}} tier"),
            Query(door("missing_pages", HICACHE), "{{instance}} HiCache"),
        ],
        "Parts of loads that did not come: nodes evict between lookup and load, or deadlines are short.",
    ),
    Panel(
        "How much does a lookup find?",
        "short",
        good_from(1e-9),
        [
            Query(
                f"{door('hit_tokens')} / ({door('lookups')} > 0)",
                "{{instance}} connector, tokens that the engine has not",
            ),
            Query(
                f"{door('hit_chunks', TIER_OF_VLLM)} / ({door('lookups', TIER_OF_VLLM)} > 0)",
                "{{instance}} tier, chunks",
            ),
            Query(
                f"{door('hit_outputs', ENCODER)} / ({door('lookups', ENCODER)} > 0)", "{{instance}} encoder, outputs"
            ),
            Query(f"{door('hit_pages', HICACHE)} / ({door('lookups', HICACHE)} > 0)", "{{instance}} HiCache, pages"),
        ],
        "0 while nodes hold blocks: two sides name the same prompt differently. docs/operating.md, why nothing hits.",
    ),
    Panel(
        "What is found and computed all the same?",
        "short",
        good_below(1_000),
        one(door("computed_hit_tokens"), "{{instance}} tokens a second"),
        "Loading would take longer, or they are fewer than load_blocks_min.",
    ),
    Panel(
        "What do engines compute that is not stored?",
        "cps",
        NONE_IS_GOOD,
        [
            Query(door("unsaved_blocks"), "{{instance}} connector, not given to be stored"),
            Query(door("dropped_blocks"), "{{instance}} connector, waited too long"),
            Query(door("refused_blocks"), "{{instance}} connector, not taken"),
            Query(door("unsaved_chunks", TIER_OF_VLLM), "{{instance}} tier"),
            Query(door("dropped_outputs", ENCODER), "{{instance}} encoder"),
            Query(door("refused_pages", HICACHE), "{{instance}} HiCache, not taken"),
        ],
        "Not given, or waited: storing is slower than computing, or the store is away. Not taken: nodes are full of pins, or do not admit it.",
    ),
    Panel(
        "How many bytes do engines load and store?",
        "Bps",
        good_from(0),
        [*doors("loaded_bytes", " loaded"), *doors("stored_bytes", " stored", (CONNECTOR, TIER_OF_VLLM, HICACHE))],
    ),
]

DASHBOARDS = {
    "fleet": ("kvstore: fleet", "Is the store well, and where not?", FLEET),
    "node": ("kvstore: node", "What does one node do, and what hinders it?", NODE_PANELS),
    "disk": ("kvstore: disk tier", "Does the disk keep up, and is it sound?", DISK),
    "rdma": ("kvstore: RDMA", "Do blocks go by RDMA, and if not, why?", RDMA),
    "quality": ("kvstore: cache quality", "Would more memory bring more hits, or another policy?", QUALITY),
    "cluster": ("kvstore: cluster", "Do the nodes agree on who is there, and do blocks get to their owners?", CLUSTER),
    "clients": ("kvstore: clients", "What do the workers have of the store?", CLIENTS),
    "engines": ("kvstore: engines", "What do engines do with the store?", ENGINES),
    "security": ("kvstore: security", "Who is turned away, and what ends soon?", SECURITY),
}


def places(panels: list[Panel]) -> Iterator[dict[str, int]]:
    """From left to right; a new row where a panel does not fit, or is of another height."""
    x = y = row_height = 0
    for panel in panels:
        width, height = (STAT_WIDTH, STAT_HEIGHT) if panel.is_stat else (PANEL_WIDTH, PANEL_HEIGHT)
        if x + width > COLUMNS or (x > 0 and height != row_height):
            x, y = 0, y + row_height
        row_height = height
        yield {"x": x, "y": y, "w": width, "h": height}
        x += width


def dashboard(name: str) -> dict[str, Any]:
    title, about, panels = DASHBOARDS[name]
    node_values = 'label_values(up{job="kvstore"}, instance)'
    return {
        "uid": f"kvstore-{name}",
        "title": title,
        "description": about,
        "tags": ["kvstore"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [{"type": "dashboards", "title": "", "tags": ["kvstore"], "keepTime": True, "includeVars": True}],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                {
                    "name": "node",
                    "label": "Node",
                    "type": "query",
                    "datasource": DATASOURCE,
                    "definition": node_values,
                    "query": {"query": node_values, "refId": "node"},
                    "refresh": 2,  # with each change of the time range: nodes come and go
                    "sort": 1,
                    "multi": True,
                    "includeAll": True,
                    "current": {"text": ["All"], "value": ["$__all"]},
                },
            ]
        },
        "annotations": {"list": []},
        "panels": [
            panel.to_json(i, place) for i, (panel, place) in enumerate(zip(panels, places(panels), strict=True), 1)
        ],
    }


def text_of(name: str) -> str:
    return json.dumps(dashboard(name), indent=2) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is another")
    check = parser.parse_args().check
    stale = []
    for name in DASHBOARDS:
        file, text = FOLDER / f"kvstore-{name}.json", text_of(name)
        if check and (not file.exists() or file.read_text() != text):
            stale.append(file.name)
        elif not check:
            file.write_text(text)
    if stale:
        print(f"make_dashboards: not what it writes: {', '.join(stale)}. Run it without --check", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
