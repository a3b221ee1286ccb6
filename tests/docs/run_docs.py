#!/usr/bin/env python3
"""Runs the commands of README.md and the pages below docs, so that no page can say what is not so.

    tests/docs/run_docs.py                        # all pages; KV_BUILD names the build folder (build/release)
    tests/docs/run_docs.py --page docs/cli.md     # one; may be repeated
    tests/docs/run_docs.py --list                 # what would be run, and what is skipped and why

What is a command. A block that is indented by four blanks or more behind an empty line, or fenced as sh, is a shell block if one
of its lines begins with a program of kvstore's or of a shell. It is run as it stands, statement by statement, and each has to end
with 0. In a block whose first line begins with `$ `, the lines behind such a line are its output, to the letter; `...` stands for
anything, and the exit status does not matter. A block whose first line is `# /path` is a file: it is written there, and if it is a
node's configuration, checked. A `kvstore-node` without --check-config, --autotune or --help goes on in the background until the next
one. Nothing else is run: a page that wants a check writes it so.

Where. Each page has a folder, a network (loopback with 10.0.0.1 and 10.0.0.2) and /etc, /run, /var/lib of its own, in namespaces that
go with it: nothing of the machine is touched. pages.py has what a page needs before (files, a node), which of its words stand for
something (a capacity for this machine, a namespace), and which statements cannot run here, with the reason. A rule there that fits
nothing is an error, so that none outlives its page.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
from pages import CANNOT, OTHERS, PAGES, PLACEHOLDERS, SHELL_WORDS, Page  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE_SECONDS = 120
MARK = "\x01"
OWN_FOLDERS = ("build/release/", "deploy/", "tests/", "/tmp/")


@dataclass
class Block:
    line: int  # of the page, from 1
    lines: list[str]

    def is_file(self) -> bool:
        return re.match(r"# /\S+", self.lines[0]) is not None

    def is_session(self) -> bool:
        return self.lines[0].startswith("$ ")

    def is_shell(self) -> bool:
        words = [first_word(line) for line in self.lines if line[:1] not in " #"]
        return any(word in SHELL_WORDS or word.startswith(OWN_FOLDERS) for word in words)


@dataclass
class Plan:
    script: list[str] = field(default_factory=list)
    ran: int = 0
    skipped: list[str] = field(default_factory=list)


def first_word(line: str) -> str:
    words = re.sub(r"^(\$ |\(umask 077; |[A-Z_]+=\S* )+", "", line).split(" ")
    return words[0] if re.fullmatch(r"[\w./-]+(\(\))?", words[0]) else ""


def blocks_of(text: str) -> list[Block]:
    lines = text.split("\n")
    found: list[Block] = []
    at = 0
    while at < len(lines):
        fence = re.match(r"\s*```(\w*)$", lines[at])
        end = at + 1
        if fence:
            while end < len(lines) and lines[end].strip() != "```":
                end += 1
            if fence[1] in ("sh", "bash"):
                found.append(Block(at + 2, lines[at + 1 : end]))
            end += 1
        elif re.match(r" {4,}\S", lines[at]) and (at == 0 or not lines[at - 1].strip()):
            # A file, and what a session shows, may have empty lines.
            is_open = re.match(r" +(# /\S|\$ )", lines[at]) is not None
            while end < len(lines) and re.match(r" {4}", lines[end] or (next_line(lines, end) if is_open else "")):
                end += 1
            indent = min(len(line) - len(line.lstrip()) for line in lines[at:end] if line.strip())
            found.append(Block(at + 1, [line[indent:] for line in lines[at:end]]))
        at = end
    return found


def next_line(lines: list[str], at: int) -> str:
    return lines[at + 1] if at + 1 < len(lines) else ""


def is_whole(text: str) -> bool:
    """Whether bash takes the text as it is: no open quote, loop, function or line."""
    if text.rstrip().endswith("\\"):
        return False
    return subprocess.run(["bash", "-n", "-c", text], capture_output=True, check=False).returncode == 0


def statements(lines: list[str]) -> list[str]:
    found: list[str] = []
    text = ""
    for line in lines:
        text = f"{text}\n{line}" if text else line
        if is_whole(text):
            found.append(text)
            text = ""
    return [*found, text] if text else found


def why_not(statement: str, page: Page, used: set[str]) -> str:
    for words, reason in page.skip.items():
        if statement.strip().startswith(words):
            used.add(words)
            return reason
    for line in statement.split("\n"):
        for command in re.split(r"[;|&]+ ?", line.split("  #")[0]):
            word = first_word(command.strip())
            if word in CANNOT:
                return CANNOT[word]
            if word in OTHERS and shutil.which(word) is None:
                return f"{word} is not installed"
    if " ... " in statement or "=..." in statement:
        return "the page leaves something out"
    if found := PLACEHOLDERS.search(substituted(statement, page, set()).split("  #")[0]):
        return f"{found[0]} stands for something that the page does not name"
    return ""


def substituted(text: str, page: Page, used: set[str]) -> str:
    for words, other in page.substitute.items():
        if words in text:
            used.add(words)
            text = text.replace(words, other)
    return text


def is_daemon(statement: str) -> bool:
    return (
        first_word(statement).split("/")[-1] == "kvstore-node"
        and not re.search(r" (--check-config|--autotune|--help|disk)\b", statement)
        and not statement.rstrip().endswith("&")
    )


def as_run(statement: str, page: Page, used: set[str]) -> str:
    """A statement of a page as the script has it."""
    said = next((words for words in page.says if statement.startswith(words)), None)
    text = substituted(statement, page, used)
    if said is None:
        return f"serve {text}" if is_daemon(statement) else text
    used.add(said)
    command, _, comment = text.partition("  #")
    return shows(comment.strip(), command.strip())


def shows(output: str, command: str) -> str:
    return f"shows {shlex.quote(output)} <<'KV_END'\n{command}\nKV_END"


def script_of(block: Block, where: str, page: Page, used: set[str], plan: Plan) -> list[str]:
    """Empty: nothing of the block is run."""
    if block.is_file():
        path = block.lines[0].split(" ")[1].rstrip(",:")
        text = substituted("\n".join(block.lines), page, used)
        script = [
            f"mkdir -p {shlex.quote(os.path.dirname(path))}",
            f"cat > {shlex.quote(path)} <<'KV_END'\n{text}\nKV_END",
        ]
        if path.endswith("kvstore-node.toml"):
            script.append(f"kvstore-node --config {shlex.quote(path)} --check-config > /dev/null")
        return script
    if not block.is_shell():
        return []
    if reason := page.skip_blocks.get(block.lines[0], ""):
        used.add(block.lines[0])
        plan.skipped.append(f"{where}: {block.lines[0][:90]}: {reason}")
        return []
    if block.is_session():
        return [shows("\n".join(block.lines[1:]), substituted(block.lines[0][2:], page, used))]
    script = []
    for statement in statements(block.lines):
        if not statement.strip() or statement.lstrip().startswith("#"):
            continue
        if reason := why_not(statement, page, used):
            plan.skipped.append(f"{where}: {statement.strip().splitlines()[0][:90]}: {reason}")
        else:
            script.append(as_run(statement, page, used))
    return script


def plan_of(name: str, page: Page) -> Plan:
    plan = Plan()
    used: set[str] = set()
    for block in blocks_of((ROOT / name).read_text()):
        where = f"{name}:{block.line}"
        if script := script_of(block, where, page, used, plan):
            plan.script += [f"block {shlex.quote(where)}", *script]
            plan.ran += 1
        for words, after in page.after.items():
            if words in "\n".join(block.lines):
                used.add(words)
                plan.script.append(after)
    rules = {*page.skip, *page.skip_blocks, *page.substitute, *page.after, *page.says}
    if unused := rules - used:
        raise SystemExit(f"tests/docs/pages.py: {name}: rules that fit nothing there: {sorted(unused)}")
    return plan


PRELUDE = r"""
set -eE -o pipefail
trap 'status=$?; printf "\001failed %s: exit status %s of: %s\n" "$where" $status "$BASH_COMMAND"; tail -n 4 "$KV_SCRATCH"/node.*; exit 1' ERR
where=before
block() { where=$1; printf '\001block %s\n' "$1"; }
ip link set lo up
ip addr add 10.0.0.1/32 dev lo; ip addr add 10.0.0.2/32 dev lo
mount -t tmpfs none "$KV_SCRATCH"
mkdir -p "$KV_SCRATCH"/{etc,etc.work,lib,lib.work,here}
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$KV_SCRATCH/etc,workdir=$KV_SCRATCH/etc.work" /etc
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$KV_SCRATCH/lib,workdir=$KV_SCRATCH/lib.work" /var/lib
mount -t tmpfs none /run
mount -t tmpfs none /tmp
mkdir -p /run/kvstore /var/lib/kvstore /etc/kvstore
id kvstore > /dev/null 2>&1 || echo "kvstore:x:$(id -u):$(id -g)::/:/bin/false" >> /etc/passwd
cp deploy/kvstore-node.toml /etc/kvstore/kvstore-node.toml
ln -s "$PWD"/* "$KV_SCRATCH/here/"
cd "$KV_SCRATCH/here"
nodes=()
# One node after the other; `and` keeps those that are there.
start() {
  local log; log=$(mktemp "$KV_SCRATCH/node.XXXXXX")
  "$@" > "$log" 2>&1 &
  local node=$!
  nodes+=($node)
  local i
  for i in $(seq 600); do
    grep -q ' ready' "$log" && return 0
    kill -0 $node 2> /dev/null || break
    sleep 0.05
  done
  cat "$log"
  return 1
}
stop() {
  local node
  for node in "${nodes[@]}"; do kill "$node" 2> /dev/null || true; wait "$node" 2> /dev/null || true; done
  nodes=()
}
serve() { stop; start "$@"; }
# shows OUTPUT: a command comes by standard input
shows() {
  local said; said=$(bash -c "$(cat)" 2>&1 || true)
  printf '%s\n' "$said" > "$KV_SCRATCH/said"
  printf '%s\n' "$1" > "$KV_SCRATCH/shown"
  python3 - "$KV_SCRATCH/shown" "$KV_SCRATCH/said" <<'KV_PY'
import re, sys
shown, said = ("\n".join(line.rstrip() for line in open(name).read().strip().split("\n")) for name in sys.argv[1:])
pattern = ".*".join(re.escape(part) for part in shown.split("..."))
if not re.fullmatch(pattern, said, re.DOTALL):
    sys.exit(f"the page shows\n{shown}\nand the command said\n{said}")
KV_PY
}
trap stop EXIT
"""


def run_page(name: str, page: Page, plan: Plan, build: Path) -> tuple[int, str]:
    """How many blocks passed, and what failed."""
    with tempfile.TemporaryDirectory(prefix="kvstore-docs-", dir="/var/tmp") as scratch:
        script = "\n".join([PRELUDE, page.before, *plan.script, f"block {shlex.quote('the end')}"])
        programs = [build / "store/node", build / "client/tools", build / "store/replay"]
        environment = {
            "PATH": ":".join([*map(str, programs), os.environ["PATH"]]),
            "HOME": scratch,
            "LC_ALL": "C.UTF-8",
            "KV_BUILD": str(build),
            "KV_SCRATCH": scratch,
        }
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", *own, "bash", "-c", script]
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=PAGE_SECONDS, check=False,
            )  # fmt: skip
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired as over:
            status, said = (
                1,
                (over.stdout or b"").decode(errors="replace") + f"\n{MARK}failed: longer than {PAGE_SECONDS} s\n",
            )
    passed = max(0, len(re.findall(f"^{MARK}block ", said, re.MULTILINE)) - 1)
    if status == 0:
        return plan.ran, ""
    tail = "\n".join(said.replace(MARK, "== ").split("\n")[-40:])
    return passed, f"{name}: exit status {status}\n{tail}"


def can_unshare() -> bool:
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    return (
        subprocess.run(["unshare", "--net", "--mount", *own, "true"], capture_output=True, check=False).returncode == 0
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="append", help="only this one, as docs/cli.md")
    parser.add_argument("--script", action="store_true", help="only print what would be run, for bash")
    parser.add_argument("--list", action="store_true", help="only say what is run and skipped")
    given = parser.parse_args()
    build = (ROOT / os.environ.get("KV_BUILD", "build/release")).resolve()
    pages = {name: page for name, page in PAGES.items() if not given.page or name in given.page}
    everything = {"README.md", *(str(each.relative_to(ROOT)) for each in (ROOT / "docs").rglob("*.md"))}
    if missing := everything - PAGES.keys():
        raise SystemExit(f"tests/docs/pages.py: says nothing of {sorted(missing)}")
    only_says = given.list or given.script
    if not only_says and not (build / "store/node/kvstore-node").exists():
        raise SystemExit(f"{build}: no kvstore-node there; KV_BUILD names the build folder")
    if not only_says and not can_unshare():
        print("skipped: no namespaces of its own to be had here (unshare)")
        print("docs: 0 passed, 0 failed, 1 skipped")
        return 0
    passed = failed = skipped = 0
    for name, page in pages.items():
        lacking = [program for program in page.needs if shutil.which(program) is None]
        if page.whole or lacking:
            print(f"skipped  {name}: {page.whole or f'{lacking[0]} is not installed'}")
            skipped += 1
            continue
        plan = plan_of(name, page)
        if given.script:
            print("\n".join([PRELUDE, page.before, *plan.script]))
            continue
        for each in plan.skipped:
            print(f"skipped  {each}")
        skipped += len(plan.skipped)
        if given.list:
            print(f"runs     {name}: {plan.ran} blocks")
            continue
        count, wrong = run_page(name, page, plan, build)
        passed += count
        failed += bool(wrong)
        print(f"passed   {name}: {count} of {plan.ran} blocks" if not wrong else f"FAILED   {wrong}", flush=True)
    print(f"docs: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
