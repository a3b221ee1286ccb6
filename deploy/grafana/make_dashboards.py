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
from collections.abc import Iterable
from pathlib import Path

from panel import DATASOURCE, NEVER, Json, Panel, Stat, good_below, good_from, places

FOLDER = Path(__file__).resolve().parent
HIT_RATIO_NOW = "instance:kvstore_match_hit_ratio:rate5m"
HIT_RATIO_USUAL = "instance:kvstore_match_hit_ratio:avg1d"
NODE = 'job="kvstore",instance=~"$node"'
# Of the hit rate curve: the node's present size.
TIER = 'tier="memory"'
OWN_MEMORY = f'{TIER},scale="1",policy="own"'
LRU_MEMORY = f'{TIER},scale="1",policy="lru"'


def rate(metric: str, more: str = "") -> str:
    return f"rate(kvstore_{metric}{{{NODE}{more}}}[$__rate_interval])"


def summed(metric: str, by: str = "instance", more: str = "") -> str:
    return f"sum by ({by}) ({rate(metric, more)})"


def rates(metrics: dict[str, str]) -> dict[str, str]:
    return {name: rate(metric) for name, metric in metrics.items()}


def of(metric: str, more: str = "") -> str:
    return f"kvstore_{metric}{{{','.join(filter(None, (NODE, more)))}}}"


def recorded(rule: str) -> str:
    return f"{rule}{{{NODE}}}"


def share(*part: str, rest: tuple[str, ...]) -> str:
    """The share of `part` in the sum of itself and the rest."""
    whole = " + ".join(rate(metric) for metric in (*part, *rest))
    return f"({' + '.join(rate(metric) for metric in part)}) / ({whole} > 0)"


def rdma_share(metric: str) -> str:
    return summed(metric, more=',path="verbs"') + f" / ({summed(metric)} > 0)"


HIT_RATIO = Panel(
    "What share of the blocks asked for does each node hold?",
    good_from("percentunit", 0.3, 0.1),
    recorded(HIT_RATIO_NOW),
    "What is reachable depends on the prompts. A fall counts, not the height: runbook, KvstoreHitRateCollapsed.",
)
EVICTION_AGE = Panel(
    "How long does a block lie unused before memory evicts it?",
    good_from("s", 120, 30),
    recorded("instance:kvstore_eviction_age_seconds:p50_rate15m"),
    "The median. Below the time between two turns of a conversation (minutes), more memory buys more hits than anything else.",
)
LOCK = Panel(
    "Do requests wait for each other?",
    good_below("s", 1e-4, 1e-3),
    recorded("instance:kvstore_lock_waited_seconds:p99_rate5m"),
    "p99 of the wait for the store's one lock. Above 100 us: too many small requests for one node; add a node.",
)
DISK_IS_ON = Stat(
    "Does the disk tier work?",
    good_from("short", 1),
    of("disk_is_on"),
    "Off: the log says why. Runbook, KvstoreDiskOff.",
    words={"0": "off", "1": "on"},
)

FLEET = [
    Stat("Which nodes are up?", good_from("short", 1), f"up{{{NODE}}}", words={"0": "down", "1": "up"}),
    Stat(
        "How many alerts fire?",
        good_below("short", 1),
        'sum(ALERTS{alertname=~"Kvstore.+",alertstate="firing"}) or vector(0)',
        "docs/runbook.md has a section for each.",
        legend="firing",
    ),
    Stat(
        "What share of all blocks asked for is held?",
        good_from("percentunit", 0.3, 0.1),
        'job:kvstore_match_hit_ratio:rate5m{job="kvstore"}',
        legend="fleet",
    ),
    DISK_IS_ON,
    HIT_RATIO,
    Panel(
        "Does each node hit as often as it usually does?",
        good_from("percentunit", 0.8, 0.5),
        f"{recorded(HIT_RATIO_NOW)} / ({recorded(HIT_RATIO_USUAL)} > 0)",
        "The hit rate now over that of the day before. Below half for 15 minutes: KvstoreHitRateCollapsed.",
    ),
    Panel(
        "How fast do blocks go out and come in?",
        good_from("Bps", 1),
        {"out": summed("bytes_out_total"), "in": summed("bytes_in_total")},
        "Nothing at all: no worker uses the node.",
    ),
    Panel(
        "Is the load even?",
        good_below("percentunit", 1.5, 2),
        f"{summed('request_seconds_count')} / scalar(avg({summed('request_seconds_count')}) > 0)",
        "Each node's requests over the mean of all. Blocks are placed by their hashes, so one node far above the others holds a prefix that everybody asks for.",
    ),
    EVICTION_AGE,
    Panel(
        "How slow is one match in a hundred?",
        good_below("s", 1e-3, 1e-2),
        f'instance_op:kvstore_request_seconds:p99_rate5m{{{NODE},op="match"}}',
        "p99 above 1 ms: see the lock, then the processor.",
    ),
    LOCK,
    Panel(
        "Is anybody refused?",
        NEVER,
        {"connections": summed("sessions_refused_total"), "requests": summed("requests_refused_total")},
        "The dashboard of the node has the reasons.",
    ),
    Panel(
        "Is any byte wrong?",
        NEVER,
        {
            "damaged on arrival": rate("checksum_failures_total"),
            "put with other bytes": rate("put_conflict_blocks_total"),
            "lost on disk": rate("lost_blocks_total"),
        },
        "No worker sees a wrong byte. Runbook: KvstoreChecksumFailures, KvstorePutConflicts, KvstoreDiskDamage.",
    ),
    Panel(
        "How many versions run?",
        good_below("short", 2),
        f"count by (version) (kvstore_build_info{{{NODE}}})",
        "A node speaks its own wire version and the one before.",
        legend="{{version}}",
    ),
]

NODE_PANELS = [
    HIT_RATIO,
    Panel(
        "Does get still find what match had found?",
        good_from("percentunit", 0.99, 0.9),
        share("get_hit_blocks_total", "get_disk_blocks_total", rest=("get_miss_blocks_total",)),
        "The share of the blocks asked for by get that were held. It falls: leases end too early (lease-seconds).",
    ),
    Panel(
        "How slow is one request in a hundred, by type?",
        good_below("s", 0.1, 1),
        {"{{op}}": f"instance_op:kvstore_request_seconds:p99_rate5m{{{NODE}}} >= 0"},
    ),
    Panel(
        "How many requests come, by type?",
        good_from("ops", 0.01),
        {"{{op}}": f"{summed('request_seconds_count', 'instance, op')} > 0"},
        "None: no worker uses the node.",
    ),
    Panel(
        "Which requests fail or are refused, and why?",
        NEVER,
        rates({"{{op}} failed": "request_failures_total", "{{reason}}": "requests_refused_total"}),
        "bad_request, bad_frame, mismatch: a client is broken or differs in version; the log names field and value.",
    ),
    Panel(
        "By which path do blocks travel?",
        good_from("Bps", 1),
        rates({"out {{path}}": "bytes_out_total", "in {{path}}": "bytes_in_total"}),
        "memfd is shared memory, verbs is RDMA, inline is a socket. Workers on this host that use inline lack the Unix socket or memory from `allocate`.",
    ),
    Panel(
        "How full is the memory?",
        ("percentunit", [("orange", None), ("green", 0.5)]),
        {
            "blocks": f"{of('allocated_bytes')} / {of('capacity_bytes')}",
            "slabs": f"{of('slab_bytes')} / {of('capacity_bytes')}",
        },
        "A cache is meant to be full. Half empty for long: less memory would do. Slabs far above blocks: many sizes in little memory.",
    ),
    EVICTION_AGE,
    Panel(
        "How much of the memory cannot be evicted now?",
        good_below("percentunit", 0.4, 0.5),
        {"leased": f"{of('leased_bytes')} / {of('capacity_bytes')}"},
        "Near leased-fraction-max (0.5): schedulers plan more than they fetch, or leases last too long.",
    ),
    Panel(
        "Are leases, blocks or puts turned away?",
        NEVER,
        {
            "leases refused": rate("leases_refused_total"),
            "blocks refused": rate("refused_blocks_total"),
            "puts out of time": rate("deadline_misses_total"),
        },
        "Refused blocks: all that could be evicted is pinned. Puts out of time: workers stop in the middle, or memory is short.",
    ),
    LOCK,
    Panel(
        "How long is the lock held?",
        good_below("s", 1e-4, 1e-3),
        f"histogram_quantile(0.99, {summed('lock_held_seconds_bucket', 'instance, le')})",
        "p99. Microseconds; more is a fault of kvstore.",
    ),
    Panel(
        "How many sessions are open?",
        good_below("short", 3072, 4096),
        of("sessions"),
        "session-count-max is 4096 unless configured otherwise.",
    ),
    Panel(
        "Why are connections refused or closed?",
        good_below("cps", 1, 10),
        rates({"refused {{reason}}": "sessions_refused_total", "closed {{reason}}": "sessions_closed_total"}),
        "slow_reader, slow_frame, hello_timeout: clients that hang, or something that is no client.",
    ),
    Panel(
        "Is there room in the index?",
        good_below("percentunit", 0.9, 1),
        f"{of('index_used_bytes')} / {of('index_bytes_max')}",
        "Near its bound: small blocks or many short prompts. More index-bytes-max.",
    ),
    Panel(
        "Is there room for lent memory?",
        good_below("percentunit", 0.9, 1),
        f"{of('region_node_bytes')} / {of('region_node_bytes_max')}",
        "Near the bound with honest clients: raise region-bytes-max-node.",
    ),
]

DISK = [
    DISK_IS_ON,
    Stat(
        "How many directories are left out?",
        good_below("short", 1),
        of("disk_directories_left_out"),
        "Of several --disk-path. The log names them.",
    ),
    Stat(
        "How often was the disk turned off today?",
        good_below("short", 1, 3),
        f"increase(kvstore_disk_outages_total{{{NODE}}}[1d])",
    ),
    Stat(
        "Is the index still being loaded?",
        good_below("short", 1),
        of("disk_is_loading"),
        "After a restart, newest blocks first. Until it is done, some of what is on disk is a miss.",
        words={"0": "loaded", "1": "loading"},
    ),
    Stat(
        "How often was the whole disk verified this week?",
        good_from("short", 1),
        f"increase(kvstore_disk_scrub_rounds_total{{{NODE}}}[7d])",
        "By the scrubber. Less than once: a higher disk-scrub-rate, or damage is found late.",
    ),
    Panel(
        "What share of the hits comes from the disk?",
        good_below("percentunit", 0.5, 0.8),
        share("match_disk_blocks_total", rest=("match_hit_blocks_total",)),
        "Of the blocks that match found (kvstore_match_hit_blocks_total counts those in memory). Most of them: more memory.",
    ),
    Panel(
        "How long does the disk keep a block?",
        good_from("s", 3600, 120),
        recorded("instance:kvstore_disk_keep_seconds:rate15m"),
        "Blocks held by blocks evicted a second. Nothing is shown while nothing is evicted, which is best.",
    ),
    Panel(
        "Are blocks lost because the disk is too slow?",
        good_below("percentunit", 0.01, 0.1),
        recorded("instance:kvstore_unspilled_ratio:rate10m"),
        "Of the blocks that left memory, those not written. Runbook, KvstoreDiskSlow.",
    ),
    Panel(
        "Does the disk fail or refuse reads?",
        NEVER,
        rates({"failed or damaged": "disk_read_failures_total", "refused": "disk_read_refusals_total"}),
        "Refused: more was being read than the disk keeps up with. Failed: replace the disk.",
    ),
    Panel(
        "How fast are blocks read and written?",
        good_below("Bps", 1e9, 3e9),
        rates({"read": "disk_read_bytes_total", "written": "disk_written_bytes_total"}),
        "The lines are what one NVMe device (1 to 3 GB/s) lasts for.",
    ),
    Panel(
        "How much more is the device given than blocks?",
        good_below("short", 1.1, 1.5),
        f"kvstore_disk_device_written_bytes_total{{{NODE}}} / (kvstore_disk_written_bytes_total{{{NODE}}} > 0)",
        "Since the start. Above 1.1 the device wears faster than it has to.",
    ),
    Panel(
        "How much do the files take?",
        good_below("bytes", 1e12, 2e12),
        {
            "files": of("disk_file_bytes"),
            "with dead blocks": of("disk_log_bytes"),
            "blocks nowhere else": of("disk_only_bytes"),
        },
        "Files take up to 1.25 x (disk-capacity + capacity) and two segments. Set the lines to your file system's size.",
    ),
    Panel(
        "Does the scrubber find damage?",
        NEVER,
        rate("disk_scrub_damaged_blocks_total"),
        "Ever: replace the disk. Runbook, KvstoreDiskDamage.",
    ),
    Panel(
        "Do drops survive a restart?",
        NEVER,
        {"hold until then only": rate("disk_drops_not_kept_total")},
        "The disk was off, slow to sync or full. Drop again.",
    ),
    Panel(
        "How much is written a second time?",
        good_below("percentunit", 0.08, 0.2),
        f"{rate('rewritten_blocks_total')} / ({rate('spilled_blocks_total')} > 0)",
        "Blocks that were alive when their segment was given back, over those written. Up to 8 % is how it is meant to be.",
    ),
]

RDMA = [
    Stat(
        "How many devices are in use?",
        good_from("short", 1),
        of("rdma_devices"),
        "No number at all: the node runs without RDMA, and the log's line `rdma:` says why.",
    ),
    Stat(
        "How many devices are left out?",
        good_below("short", 1),
        of("rdma_devices_left_out"),
        "They are tried again; the log says what each lacks.",
    ),
    Stat(
        "How many lanes are connected?",
        good_from("short", 1),
        of("rdma_lanes"),
        "None while workers are there: they use their sockets. docs/rdma.md, when it does not work.",
    ),
    Stat("How much memory is registered with each device?", good_from("bytes", 1), of("rdma_registered_bytes")),
    Panel(
        "Do lanes break, or are they refused?",
        NEVER,
        rates({"broken": "rdma_lanes_broken_total", "refused": "rdma_lanes_refused_total"}),
        "The log names session, lane and reason; then `rdma statistic` on the host.",
    ),
    Panel(
        "Do lanes come and go?",
        good_below("cps", 1, 10),
        rate("rdma_lanes_connected_total"),
        "It grows while no workers come: lanes break and are made again.",
    ),
    Panel(
        "What share of the bytes goes by RDMA?",
        good_from("percentunit", 0.9, 0.5),
        {way: rdma_share(f"bytes_{way}_total") for way in ("out", "in")},
        "The rest goes through sockets and shared memory. Workers on the node's own host use those by choice.",
    ),
    Panel(
        "How many small requests go by SEND?",
        good_from("ops", 0.01),
        rate("rdma_messages_total"),
        "It stands still beside small gets: the log says which lane broke, or rdma-messages-max is 0.",
    ),
]

QUALITY = [
    HIT_RATIO,
    Panel(
        "What would half the memory, or twice as much, hit?",
        good_from("percentunit", 0.3, 0.1),
        {"x {{scale}}": of("curve_hit_ratio", f'{TIER},policy="own"')},
        "By a sample, of memory alone. Twice is well above once: more memory brings hits. Half is not below: less would do.",
    ),
    Panel(
        "Does the node's policy hit more than LRU would?",
        good_from("percentunit", 0.998, 0.98),
        f"{of('curve_hit_ratio', OWN_MEMORY)} / ignoring (policy) ({of('curve_hit_ratio', LRU_MEMORY)} > 0)",
        "Above 1: more. Well below for days: eviction-policy = lru, and tell us of the load.",
    ),
    Panel(
        "Can the curve be believed?",
        good_below("percentunit", 0.01, 0.03),
        {
            "the sample's error": of("curve_hit_ratio_error", OWN_MEMORY),
            "off from what was hit": f"abs({of('curve_measured_hit_ratio', TIER)} - ignoring (scale, policy) {of('curve_hit_ratio', OWN_MEMORY)})",
        },
        "The error falls as the sample grows. A curve that is off by more than its error is no guide for this load.",
    ),
    Panel(
        "What share of the offered blocks is worth its place?",
        good_from("percentunit", 0.2, 0.05),
        share("stored_blocks_total", rest=("not_admitted_blocks_total",)),
        "The rest would have driven out blocks that promise more. A low share is no fault; more memory would take more.",
    ),
    EVICTION_AGE,
]

CLUSTER = [
    Stat(
        "Do all nodes tell the same map?",
        good_below("short", 1),
        f"max({of('cluster_epoch')}) - min({of('cluster_epoch')})",
        "For longer than seconds: those behind have lost etcd.",
        legend="epochs apart",
    ),
    Stat("How many members take new blocks?", good_from("short", 1), of("cluster_members_serving")),
    Stat(
        "Does etcd answer?",
        good_from("short", 1),
        of("cluster_etcd_is_reachable"),
        "Traffic goes on without it. Runbook, KvstoreEtcdUnreachable.",
        words={"0": "no", "1": "yes"},
    ),
    Stat(
        "Is a node's id taken by another process?",
        good_below("short", 1),
        of("cluster_is_replaced"),
        "Runbook, KvstoreNodeReplaced.",
        words={"0": "no", "1": "yes"},
    ),
    Panel(
        "Do nodes lose their leases?",
        NEVER,
        rate("cluster_joins_total"),
        "Each is a node that stood still for longer than etcd-lease-seconds, or lost etcd for as long.",
    ),
    Panel("How often does etcd fail a call?", NEVER, rate("cluster_etcd_failures_total")),
    Panel(
        "How fast do blocks move to their new owners?",
        good_from("Bps", 1e-9),
        rate("cluster_moved_bytes_total"),
        "Nothing, but for joins and drains. move-rate bounds it.",
    ),
    Panel(
        "How much is still to be moved, and does it get there?",
        good_below("short", 100_000),
        {"paths to go": of("cluster_move_remaining_paths"), "paths that could not go": of("cluster_unmoved_paths")},
        "It does not fall: move-rate is small for what there is. Paths that could not go: runbook, KvstoreHandOverFailed.",
    ),
]

SECURITY = [
    Stat(
        "How long is the next certificate, CA or list good?",
        good_from("s", 1_209_600, 172_800),
        f"min by (instance) ({recorded('instance_option:kvstore_tls_expiry_timestamp_seconds')}) - time()",
        "Runbook, KvstoreCertificateExpiring.",
    ),
    Stat(
        "Is a changed file not in force?",
        good_below("short", 1),
        {"certificates": of("tls_reload_failed"), "policy": of("policy_reload_failed")},
        "Runbook, KvstoreReloadFailed.",
        words={"0": "all are", "1": "not in force"},
    ),
    Stat(
        "How many listeners speak plain text to a network?",
        good_below("short", 1),
        of("plaintext_network_listeners"),
        "Whoever is on that network reads prompts' blocks. docs/security.md.",
    ),
    Stat(
        "How many connections wait for their handshake?",
        good_below("short", 100, 1000),
        of("tls_half_open"),
        "Many that stay: somebody opens connections and says nothing.",
    ),
    Panel(
        "Is anybody turned away at the door?",
        NEVER,
        {
            "handshakes that failed": rate("tls_handshake_failures_total"),
            "too many at once": rate("tls_handshakes_refused_total"),
            "unknown tokens": rate("tokens_refused_total"),
        },
        "The log has the peer and the reason. docs/security.md, when a handshake fails.",
    ),
    Panel(
        "Does anybody try what it has no right to?",
        NEVER,
        {"{{right}}": rate("requests_denied_total")},
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
    Stat(
        "How many tokens a second need not be computed?",
        good_from("short", 1),
        seen("saved_tokens_total"),
        "Loaded from the store. 0 for hours: kvstorectl doctor.",
    ),
    Stat(
        "How many processors' worth of prefill is saved, net of loading?",
        good_from("short", 1e-9),
        f"sum by (instance) ({seen('saved_compute_seconds_total')}) - sum by (instance) ({SECONDS_OF_GETS})",
        "An estimate: seconds of computing a second, less the seconds of the gets that brought it. Below 0 loading costs more than it saves. Without data: the engine has not said how fast it computes.",
    ),
    Stat(
        "Do calls miss their deadlines?",
        NEVER,
        {"{{call}}": seen_by("call_errors_total", "call", 'error_type="deadline_exceeded"')},
        "A worker computed what it could have had. A node is slow or away, or the deadline is shorter than the transfer takes.",
    ),
    Stat(
        "Does any worker leave a node alone?",
        good_below("short", 1e-9),
        {"{{node}}": "kvstore_client_breaker_open"},
        "1: its breaker is open, after failures in a row. What that node has is missed by this worker.",
    ),
    Panel(
        "What share of the blocks asked for was there?",
        good_from("percentunit", 0.3, 0.1),
        f"sum by (instance) ({FOUND_BLOCKS}) / (sum by (instance) ({seen('match_blocks_total')}) > 0)",
        "As each worker sees it, over all nodes. Workers that differ have different prompts, or write other namespace records.",
    ),
    Panel(
        "Where do hits come from?",
        good_from("short", 0),
        {"{{tier}}": seen_by("match_blocks_total", "tier")},
        "Blocks looked up a second. none: a miss.",
    ),
    Panel(
        "How long does a call take, from the worker's side?",
        good_below("s", 0.1, 1),
        f"histogram_quantile(0.99, sum by (call, le) ({seen('call_duration_seconds_bucket')}))",
        "Above the nodes' own time (kvstore_request_seconds): the network, or a worker's thread that is busy.",
        legend="{{call}} p99",
    ),
    Panel(
        "Why do calls bring less than was asked for?",
        good_below("cps", 1),
        {"{{error_type}}": seen_by("call_errors_total", "error_type")},
        "Plain misses are not in it.",
    ),
    Panel(
        "How do bytes travel?",
        good_from("Bps", 0),
        {"{{transport}} {{direction}}": seen_by("io_bytes_total", "transport, direction")},
        "tcp, tls and unix are sockets; memfd is shared memory, verbs is RDMA. A worker on the node's host that uses a socket: give it the Unix socket and memory of allocate().",
    ),
    Panel(
        "Do blocks that were found arrive?",
        good_from("cps", 0),
        {"{{result}}": seen_by("get_blocks_total", "result")},
        "corrupt: bytes that did not match their name on arrival; never more than 0.",
    ),
]


# The doors of engines to the store, by the beginning of their metrics' names in the engines' own /metrics (docs/operating.md).
DOORS = {
    "vllm:kvstore": "connector",
    "vllm:kvstore_tier": "tier",
    "vllm:kvstore_encoder": "encoder",
    "sglang:kvstore": "HiCache",
}
CONNECTOR, TIER_OF_VLLM, ENCODER, HICACHE = DOORS


def door(metric: str, which: str = CONNECTOR) -> str:
    return f"sum by (instance) (rate({which}_{metric}_total[$__rate_interval]))"


def doors(metric: str, what: str, among: Iterable[str] = DOORS) -> dict[str, str]:
    return {DOORS[each] + what: door(metric, each) for each in among}


ENGINES = [
    Stat(
        "How many tokens a second do engines load instead of computing them?",
        good_from("short", 1),
        door("loaded_tokens"),
        "Of vLLM's connector. 0 for hours: kvstorectl doctor names namespaces that are looked up in vain.",
    ),
    Stat(
        "Does an engine leave the store alone?",
        good_below("short", 1e-9),
        {f"{name}, {{{{calls}}}}": f"max by (instance, calls) ({each}_paused)" for each, name in DOORS.items()},
        "1: after failures. It computes everything meanwhile. Runbook, KvstoreEngineFailing.",
        words={"0": "no", "1": "yes"},
    ),
    Panel(
        "Do calls of engines fail?",
        NEVER,
        doors("failures", "") | {"connector, lookups too late": door("lookups_timed_out")},
        "The engine's log says why. Runbook, KvstoreEngineFailing.",
    ),
    Panel(
        "Does what was found arrive?",
        NEVER,
        {
            "connector": door("missing_blocks"),
            "tier": door("missing_chunks", TIER_OF_VLLM),
            "HiCache": door("missing_pages", HICACHE),
        },
        "Parts of loads that did not come: nodes evict between lookup and load, or deadlines are short.",
    ),
    Panel(
        "How much does a lookup find?",
        good_from("short", 1e-9),
        {
            "connector, tokens that the engine has not": f"{door('hit_tokens')} / ({door('lookups')} > 0)",
            "tier, chunks": f"{door('hit_chunks', TIER_OF_VLLM)} / ({door('lookups', TIER_OF_VLLM)} > 0)",
            "encoder, outputs": f"{door('hit_outputs', ENCODER)} / ({door('lookups', ENCODER)} > 0)",
            "HiCache, pages": f"{door('hit_pages', HICACHE)} / ({door('lookups', HICACHE)} > 0)",
        },
        "0 while nodes hold blocks: two sides name the same prompt differently. docs/operating.md, why nothing hits.",
    ),
    Panel(
        "What is found and computed all the same?",
        good_below("short", 1_000),
        {"tokens a second": door("computed_hit_tokens")},
        "Loading would take longer, or they are fewer than load_blocks_min.",
    ),
    Panel(
        "What do engines compute that is not stored?",
        NEVER,
        {
            "connector, not given to be stored": door("unsaved_blocks"),
            "connector, waited too long": door("dropped_blocks"),
            "connector, not taken": door("refused_blocks"),
            "tier": door("unsaved_chunks", TIER_OF_VLLM),
            "encoder": door("dropped_outputs", ENCODER),
            "HiCache, not taken": door("refused_pages", HICACHE),
        },
        "Not given, or waited: storing is slower than computing, or the store is away. Not taken: nodes are full of pinned blocks, or do not admit it.",
    ),
    Panel(
        "How many bytes do engines load and store?",
        good_from("Bps", 0),
        doors("loaded_bytes", " loaded") | doors("stored_bytes", " stored", (CONNECTOR, TIER_OF_VLLM, HICACHE)),
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


def dashboard(name: str) -> Json:
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
