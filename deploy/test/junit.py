#!/usr/bin/env python3
"""Reads the JUnit file of ctest or pytest, for deploy/test/report.sh.

deploy/test/junit.py FILE    prints `counts PASSED FAILED SKIPPED`, then `fail<TAB>NAME<TAB>MESSAGE` for each test that
                             failed and `skip<TAB>NAME<TAB>REASON` for each that was skipped
"""

import re
import sys
import xml.etree.ElementTree as tree


def name_of(case: tree.Element) -> str:
    name = case.get("name", "")
    folder = case.get("classname", "")
    if folder and folder != name:  # pytest: the module, with its class; ctest repeats the name
        name = f"{folder[found.start() :] if (found := re.search(r'test_', folder)) else folder}::{name}"
    return words(name.partition("  # GetParam()")[0])


def reason_of(case: tree.Element) -> str:
    if case.get("status") == "disabled":
        return "disabled"
    # GoogleTest puts the reason on the line after "FILE:LINE: Skipped".
    said = case.findtext("system-out") or ""
    if found := re.search(r": Skipped\n(.+)", said):
        return words(found[1])
    skip = case.find("skipped")
    message = skip.get("message", "") if skip is not None else ""
    return (
        "did not run"
        if re.fullmatch(r"|SKIP_(REGULAR_EXPRESSION_MATCHED|RETURN_CODE=\d+)", message)
        else words(message)
    )


def message_of(case: tree.Element) -> str:
    """Where the first check failed and what it said. Without one: the end of what the test printed."""
    # GoogleTest: "FILE:LINE: Failure", then lines up to the next result.
    said = case.findtext("system-out") or ""
    if found := re.search(r"^(\S+:\d+): Failure\n((?:(?!\[  ).+\n?){1,8})", said, re.MULTILINE):
        return words(f"{found[1]}: {found[2]}")
    for kind in ("failure", "error"):
        if not said and (element := case.find(kind)) is not None:
            # pytest's text ends with the line of the check: "FILE:LINE: KIND".
            place = (element.text or "").rstrip().rpartition("\n")[2]
            message = element.get("message", "")
            return words(f"{place}: {message}" if re.match(r"\S+:\d+: ", place) else message)
    return words(said[-400:])


def words(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    passed = 0
    failed: list[tuple[str, str]] = []
    skipped: list[tuple[str, str]] = []
    for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
        # Of ctest: run, fail, notrun, disabled. pytest has the elements alone.
        status = case.get("status", "")
        if status == "fail" or case.find("failure") is not None or case.find("error") is not None:
            failed.append((name_of(case), message_of(case)))
        elif status in ("notrun", "disabled") or case.find("skipped") is not None:
            skipped.append((name_of(case), reason_of(case)))
        else:
            passed += 1
    print("counts", passed, len(failed), len(skipped))
    for name, message in failed:
        print("fail", name, message[:400], sep="\t")
    for name, reason in skipped:
        print("skip", name, reason, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
