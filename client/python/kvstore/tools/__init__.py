"""The commands of ``python -m kvstore``. Each answers a person's question, or with ``--json`` a script's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from ..errors import Error
from . import bench, doctor, size, status


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, 1 for a problem, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(prog="python -m kvstore", description="A client of kvstore.")
    parser.add_argument("--version", action="version", version=f"kvstore {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (doctor, status, bench, size):
        module.add_command(commands)
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except Error as error:
        print(f"kvstore: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130
