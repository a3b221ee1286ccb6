"""Placement of an engine's memory for the store: by default at the NUMA node of its accelerator."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from ..client import Client
from ..device import pci_address


def _pci_address(torch: Any, device: int | None) -> str:
    if device is None:
        device = int(torch.cuda.current_device())
    found = torch.cuda.get_device_properties(device)
    if not hasattr(found, "pci_bus_id"):  # an older torch
        return pci_address(device).lower()
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def numa_nodes_of(option: str, device: int | None = None, *, sysfs: str = "/sys") -> str:
    """``Client(numa_nodes=...)`` for an engine's option. ``auto``: the node of ``device``, or of this thread's CUDA device; "" if CUDA is
    not initialised here (a process that may still fork must not do so), or the machine does not list the device.
    """
    if option != "auto":
        return option
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return ""
        address = _pci_address(torch, device)
    except Exception:  # an unknown place must not keep an engine from its start
        return ""
    return "pci:" + address if os.path.isdir(f"{sysfs}/bus/pci/devices/{address}") else ""


def tell_numa(logger: logging.Logger, client: Client) -> None:
    """Writes the placement to the engine's log, if there was any."""
    numa = client.numa()
    if numa["chosen"] or numa["processors"]:
        logger.info("kvstore: memory on NUMA nodes %s, threads on processors %s", numa["chosen"], numa["processors"])
    if numa["why_not"] and numa["nodes"] != 1:
        logger.info("kvstore: not placed by NUMA node: %s", numa["why_not"])
