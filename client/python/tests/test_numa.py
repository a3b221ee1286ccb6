"""Placement of a client's memory and threads, as far as one machine shows it; tests/rdma_vm/numa.sh has two NUMA nodes."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kvstore import BadRequest, Client
from kvstore.doors.placement import numa_nodes_of
from kvstore.tools.doctor import check_numa


def test_nothing_is_placed_unless_somebody_asks():
    with Client("unix:///nowhere") as client:
        assert client.numa() == {"nodes": 0, "chosen": [], "processors": [], "misplaced_ratio": None, "why_not": ""}
        assert "\nkvstore_client_memory_numa_nodes 0\n" in client.metrics_text()


@pytest.mark.parametrize("wish", ["8191", "auto", "1,0", "pci:x", "pci:ffff:ff:1f.7"])
def test_a_wish_that_cannot_be_is_refused_by_name(wish):
    with pytest.raises(BadRequest, match=f"numa_nodes: '{wish}'"):
        Client("unix:///nowhere", numa_nodes=wish)


def test_memory_is_there_wherever_it_lies(node):
    with Client(node.endpoint, numa_nodes="0") as client:
        memory = client.allocate(1 << 20)
        assert memory.nbytes == 1 << 20
        numa = client.numa()
        assert numa["nodes"] >= 1 and numa["misplaced_ratio"] in (None, 0.0)
        assert numa["chosen"] == [0] or "one NUMA node" in numa["why_not"]


def gpu(**more):
    """torch's view of a GPU, on a machine without one."""
    there = SimpleNamespace(**more)
    return SimpleNamespace(
        cuda=SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 3, get_device_properties=lambda device: there
        )
    )


def test_an_engine_is_where_its_gpu_is(tmp_path, monkeypatch):
    assert numa_nodes_of("off") == "off" and numa_nodes_of("0-1", 5) == "0-1"
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert numa_nodes_of("auto", sysfs=str(tmp_path)) == "", "nobody has begun CUDA"
    monkeypatch.setitem(sys.modules, "torch", gpu(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0))
    assert numa_nodes_of("auto", sysfs=str(tmp_path)) == "", "the machine does not know the device"
    (tmp_path / "bus/pci/devices/0000:3b:00.0").mkdir(parents=True)
    assert numa_nodes_of("auto", sysfs=str(tmp_path)) == "pci:0000:3b:00.0"
    assert numa_nodes_of("auto", 0, sysfs=str(tmp_path)) == "pci:0000:3b:00.0"
    monkeypatch.setitem(sys.modules, "torch", gpu())
    assert numa_nodes_of("auto", 1000, sysfs=str(tmp_path)) == "", "an older torch, and no CUDA here"


def test_doctor_names_the_node_where_all_devices_are(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    assert check_numa(tmp_path) == [], "nothing is known"
    write("devices/system/node/has_memory", "0")
    assert check_numa(tmp_path) == [], "one node"
    write("devices/system/node/has_memory", "0-1")
    assert check_numa(tmp_path)[0].verdict == "ok", "no devices"
    for address, kind, vendor, numa_node in (
        ("0000:3b:00.0", "0x030200", "0x10de", "1"),
        ("0000:01:00.0", "0x010802", "0x144d", "0"),  # a disk
        ("0000:02:00.0", "0x030000", "0x1a03", "0"),  # a console
    ):
        write(f"bus/pci/devices/{address}/class", kind)
        write(f"bus/pci/devices/{address}/vendor", vendor)
        write(f"bus/pci/devices/{address}/numa_node", numa_node)
    write("class/infiniband/mlx5_0/device/numa_node", "1")
    (found,) = check_numa(tmp_path)
    assert found.verdict == "note" and 'numa_nodes="1"' in found.advice
    write("class/infiniband/mlx5_1/device/numa_node", "-1")
    assert check_numa(tmp_path)[0].verdict == "note", "one that does not say"
    write("class/infiniband/mlx5_2/device/numa_node", "0")
    (found,) = check_numa(tmp_path)
    assert found.verdict == "ok" and "0, 1" in found.found
