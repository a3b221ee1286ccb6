"""Things go wrong on real nodes: the alert comes to Alertmanager, and goes once the cause is gone. With the shortened times of stack.py."""

from __future__ import annotations

import contextlib
import socket

from programs import eventually
from stack import Disk, Node, Stack

#: A window and a `for:` of a few seconds each, some evaluations, and the way to Alertmanager.
ALERT_SECONDS = 60


def fires(stack: Stack, alert: str, node: Node) -> None:
    found = eventually(f"{alert} fires", lambda: stack.alertmanager.firing(alert, node.instance), ALERT_SECONDS)
    assert found["annotations"]["runbook_url"].endswith(alert.lower())


def resolves(stack: Stack, alert: str, node: Node) -> None:
    eventually(f"{alert} resolves", lambda: stack.alertmanager.firing(alert, node.instance) is None, ALERT_SECONDS)


def stays_quiet(stack: Stack, alert: str, node: Node) -> None:
    assert stack.alertmanager.firing(alert, node.instance) is None


def test_a_killed_node_is_down_until_it_is_back(stack: Stack) -> None:
    resolves(stack, "KvstoreNodeDown", stack.memory)
    stack.memory.kill()
    fires(stack, "KvstoreNodeDown", stack.memory)
    stays_quiet(stack, "KvstoreNodeDown", stack.disk)
    stack.memory.start()
    resolves(stack, "KvstoreNodeDown", stack.memory)


def test_a_failing_disk_is_off_until_it_is_well(stack: Stack) -> None:
    resolves(stack, "KvstoreDiskOff", stack.disk)
    stack.faults.set(Disk.EIO)
    fires(stack, "KvstoreDiskOff", stack.disk)
    stays_quiet(stack, "KvstoreDiskOff", stack.memory)  # which has no disk
    stack.faults.set(Disk.NONE)
    resolves(stack, "KvstoreDiskOff", stack.disk)


def test_a_disk_that_is_slower_than_puts_is_slow_until_it_keeps_up(stack: Stack) -> None:
    resolves(stack, "KvstoreDiskSlow", stack.disk)
    stack.faults.set(Disk.SLOW)
    fires(stack, "KvstoreDiskSlow", stack.disk)
    stack.faults.set(Disk.NONE)
    resolves(stack, "KvstoreDiskSlow", stack.disk)


def test_a_cache_whose_prompts_change_their_names_has_a_collapsed_hit_rate(stack: Stack) -> None:
    """As when workers start to write another namespace record."""
    usual = f'instance:kvstore_match_hit_ratio:avg1d{{instance="{stack.memory.instance}"}} > 0.5'
    eventually("it is usual to hit", lambda: stack.prometheus.query(usual), 60)
    resolves(stack, "KvstoreHitRateCollapsed", stack.memory)
    warm, cold = stack.memory_load.warm_requests, stack.memory_load.cold_requests
    stack.memory_load.warm_requests, stack.memory_load.cold_requests = 0, 60
    fires(stack, "KvstoreHitRateCollapsed", stack.memory)
    stays_quiet(stack, "KvstoreHitRateCollapsed", stack.disk)
    stack.memory_load.warm_requests, stack.memory_load.cold_requests = warm, cold
    resolves(stack, "KvstoreHitRateCollapsed", stack.memory)


def test_a_node_whose_sessions_are_all_taken_refuses_until_some_are_free(stack: Stack) -> None:
    resolves(stack, "KvstoreSessionsRefused", stack.young)

    def crowd() -> object:
        """More connections at once than the node has sessions, each time that Alertmanager is asked."""
        with contextlib.ExitStack() as connections:
            for _ in range(20):
                connection = connections.enter_context(socket.socket(socket.AF_UNIX))
                connection.settimeout(10)
                connection.connect(stack.young.socket)
            return stack.alertmanager.firing("KvstoreSessionsRefused", stack.young.instance)

    eventually("KvstoreSessionsRefused fires", crowd, ALERT_SECONDS)
    resolves(stack, "KvstoreSessionsRefused", stack.young)


def test_a_node_that_is_far_too_small_evicts_too_young_while_it_is_used(stack: Stack) -> None:
    fires(stack, "KvstoreEvictingTooYoung", stack.young)
    stack.young_load.stop()
    resolves(stack, "KvstoreEvictingTooYoung", stack.young)


def test_a_certificate_that_ends_in_thirteen_days_expires_until_it_is_renewed(stack: Stack) -> None:
    fires(stack, "KvstoreCertificateExpiring", stack.cluster)
    stack.certificates.issue(days=90)
    resolves(stack, "KvstoreCertificateExpiring", stack.cluster)


def test_a_policy_that_is_bad_is_not_in_force_until_it_is_mended(stack: Stack) -> None:
    resolves(stack, "KvstoreReloadFailed", stack.cluster)
    stack.policy.spoil()
    fires(stack, "KvstoreReloadFailed", stack.cluster)
    stack.policy.mend()
    resolves(stack, "KvstoreReloadFailed", stack.cluster)


def test_a_node_whose_etcd_does_not_run_does_not_reach_it_until_it_does(stack: Stack, etcd: str) -> None:
    fires(stack, "KvstoreEtcdUnreachable", stack.cluster)
    stays_quiet(stack, "KvstoreEtcdUnreachable", stack.memory)  # which knows of none
    stack.start_etcd()
    resolves(stack, "KvstoreEtcdUnreachable", stack.cluster)


def test_a_node_whose_id_another_process_takes_is_replaced_until_it_takes_it_back(stack: Stack, etcd: str) -> None:
    stack.start_etcd()
    serving = f'kvstore_cluster_members_serving{{instance="{stack.cluster.instance}"}} == 1'
    eventually("it is a member", lambda: stack.prometheus.query(serving), 60)
    other = Node(stack.folder, "other", 100, *stack.in_cluster, node_id="cluster", path="healthz")
    try:
        fires(stack, "KvstoreNodeReplaced", stack.cluster)
    finally:
        other.stop()
    stack.cluster.stop()
    stack.cluster.start()
    resolves(stack, "KvstoreNodeReplaced", stack.cluster)
