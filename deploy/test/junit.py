#!/usr/bin/env python3
"""Reads the JUnit file of ctest or pytest, for deploy/test/report.sh.

deploy/test/junit.py FILE    prints `counts PASSED FAILED SKIPPED`, then `fail<TAB>NAME` for each test that failed and
                             `skip<TAB>NAME<TAB>REASON` for each that was skipped
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


def words(text: str) -> str:
    return " ".join(text.split())


def main() -> int:
    passed = 0
    failed: list[str] = []
    skipped: list[tuple[str, str]] = []
    for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
        # Of ctest: run, fail, notrun, disabled. pytest has the elements alone.
        status = case.get("status", "")
        if status == "fail" or case.find("failure") is not None or case.find("error") is not None:
            failed.append(name_of(case))
        elif status in ("notrun", "disabled") or case.find("skipped") is not None:
            skipped.append((name_of(case), reason_of(case)))
        else:
            passed += 1
    print("counts", passed, len(failed), len(skipped))
    for name in failed:
        print("fail", name, sep="\t")
    for name, reason in skipped:
        print("skip", name, reason, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
