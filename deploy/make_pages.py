#!/usr/bin/env python3
"""Writes man pages and shell completions of the programs. Their --help is the one source: nothing is described twice.

    deploy/make_pages.py --bin build/release/bin --out DIR [--version 0.1.0] [--date 2026-11-25]

DIR/man has one page for each command (kvstorectl-cluster-drain.1), DIR/bash and DIR/zsh one file for each program. The programs are
run, so this is for a build for the machine that it runs on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# The man section of each program. The lists omit kvstore-node's command `disk`, which `kvstorectl disk` documents.
PROGRAMS = {"kvstore-node": 8, "kvstorectl": 1, "kvstore-bench": 1, "kvstore-policies": 1}
UNLISTED = {"kvstore-node": ["disk"]}
WORDS_OF_LISTS = {"positionals", "subcommands"}


@dataclass(frozen=True)
class Entry:
    """An option, an argument or a command."""

    name: str  # -e,--endpoint URL ... (Env:KVSTORE_ENDPOINTS)
    about: str

    def flags(self) -> list[str]:
        return re.findall(r"(?<![\w-])--?[a-z][\w-]*", self.name.split(" ")[0])

    def takes_value(self) -> bool:
        has_type = re.match(r"[^\s{]+ (?!\(Env:|Needs:|Excludes:)[A-Z]", self.name) is not None
        return has_type or self.about.startswith("TOML file")  # CLI11 shows no type for the configuration's file

    def choices(self) -> list[str]:
        found = re.search(r":\{([^}]*)\}", self.name)
        return found[1].split(",") if found else []

    def is_file(self) -> bool:
        is_named = re.search(r" (FILE|DIR)\b", self.name) is not None
        return is_named or re.match(r"(PEM|TOML|A) file|File whose|Directory", self.about) is not None


@dataclass
class Section:
    title: str
    entries: list[Entry] = field(default_factory=list)


@dataclass
class Command:
    """The content of one --help."""

    words: list[str]  # kvstorectl cluster drain
    about: str
    usage: str
    sections: list[Section]
    footer: str
    commands: list[Command] = field(default_factory=list)

    def options(self) -> list[Entry]:
        return [entry for section in self.sections for entry in section.entries if entry.flags()]

    def everything(self) -> list[Command]:
        return [self, *(each for command in self.commands for each in command.everything())]


def help_of(binaries: Path, words: list[str]) -> str:
    path = f"{binaries.resolve()}:{os.environ['PATH']}"  # `kvstorectl disk` looks for kvstore-node
    done = subprocess.run(
        [str(binaries.resolve() / words[0]), *words[1:], "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": path, "LC_ALL": "C.UTF-8"},
    )
    return done.stdout


def read_entries(lines: list[str], column: int) -> list[Entry]:
    """The list begins at lines[0]. A text stands from `column` on, beside its name; or below it, where the name is too long."""
    names: list[str] = []
    texts: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not re.match(r"  \S", line):
            texts[-1] = f"{texts[-1]} {line.strip()}".strip()
            continue
        # A long name may have a blank at the column, too: then its text is below, and no gap is before the column.
        has_gap = line[:column].endswith("  ") and line[column : column + 1].strip() != ""
        is_beside = has_gap or (column < len(line) and not below.startswith(" " * column))
        names.append(line[:column].strip() if is_beside else line.strip())
        texts.append(line[column:].strip() if is_beside else "")
    return [Entry(name, text) for name, text in zip(names, texts, strict=True)]


def read_command(binaries: Path, words: list[str]) -> Command:
    text = help_of(binaries, words)
    before, usage, after = re.split(r"^Usage: (.*)$", text, maxsplit=1, flags=re.MULTILINE)
    usage = re.sub(r"^\S*/", "", usage)
    lines = after.splitlines()
    column = next((line.index("Print this help") for line in lines if "Print this help" in line), 0)
    if column == 0:
        raise ValueError(f"{' '.join(words)}: its help has no line about --help")
    sections: list[Section] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        below = lines[at + 1] if at + 1 < len(lines) else ""
        is_list = re.match(r"\S.*:$", line) is not None and (
            re.match(r"  -", below) is not None or (line[:-1].lower() in WORDS_OF_LISTS and below.startswith("  "))
        )
        if line.strip() and not is_list:
            break  # the footer
        at += 1
        if not is_list:
            continue
        end = at
        while end < len(lines) and lines[end].startswith("  "):
            end += 1
        sections.append(Section(line[:-1], read_entries(lines[at:end], column)))
        at = end
    command = Command(words, before.strip(), usage, sections, "\n".join(lines[at:]).strip())
    below_it = [
        entry.name.split(" ")[0]
        for section in sections
        if section.title.lower() == "subcommands"
        for entry in section.entries
    ]
    if len(words) == 1:
        below_it += UNLISTED.get(words[0], [])
    command.commands = [read_command(binaries, [*words, word]) for word in below_it]
    return command


def troff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def paragraphs(text: str) -> list[str]:
    """Lines that are indented are shown as they are, others are filled."""
    out: list[str] = []
    as_is = False
    for line in text.splitlines():
        if line.startswith("  ") != as_is:
            as_is = not as_is
            out += [".PP", ".nf"] if as_is else [".fi"]
        if as_is:
            out.append(troff(line[2:]))
        elif not line.strip():
            out.append(".PP")
        elif not out or out[-1].startswith("."):
            out.append(troff(line))
        else:
            out += [".br", troff(line)] if re.search(r"[.:]$", out[-1]) and len(out[-1]) < 80 else [troff(line)]
    if as_is:
        out.append(".fi")
    return out


def bold_flags(name: str) -> str:
    head, _, rest = name.partition(" ")
    return f"\\fB{troff(head)}\\fR {troff(rest)}".strip()


def page_name(words: list[str]) -> str:
    return "-".join(words)


def one_line(about: str) -> str:
    first = about.split("\n", maxsplit=1)[0]
    return re.sub(r"^[\w -]+: ", "", first).rstrip(".")


def man_page(command: Command, parent: Command | None, root: Command, version: str, date: str) -> str:
    number = PROGRAMS[root.words[0]]
    name = page_name(command.words)
    out = [
        f'.TH {name.upper()} {number} {date} "kvstore {version}" "kvstore"'.replace("-", "\\-"),
        ".SH NAME",
        f"{troff(name)} \\- {troff(one_line(command.about))}",
        ".SH SYNOPSIS",
        f"\\fB{troff(' '.join(command.words))}\\fR {troff(command.usage[len(' '.join(command.words)) :].strip())}"
        if command.usage.startswith(" ".join(command.words))
        else f"\\fB{troff(command.usage)}\\fR",
        ".SH DESCRIPTION",
        *paragraphs(command.about),
    ]
    for section in command.sections:
        out.append(f".SH {troff(section.title.upper())}")
        for entry in section.entries:
            out += [".TP", bold_flags(entry.name), troff(entry.about)]
    if command.footer:
        out += [".SH NOTES", *paragraphs(command.footer)]
    also = [page_name(each.words) for each in ([parent] if parent else []) + command.commands]
    also += [program for program in PROGRAMS if program != root.words[0] and parent is None]
    out += [
        ".SH SEE ALSO",
        ",\n".join(f".BR {troff(each)} ({number_of(each)})" for each in also).replace(",\n", " ,\n"),
    ]
    return "\n".join(out) + "\n"


def number_of(page: str) -> int:
    return next(number for program, number in PROGRAMS.items() if page == program or page.startswith(f"{program}-"))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def paths(root: Command) -> list[str]:
    return [" ".join(command.words[1:]) for command in root.everything()]


def valued_options(root: Command) -> Iterator[tuple[str, Entry]]:
    """Each option that takes a value, behind its pattern for a shell: its place, as ``command/--option``."""
    for command in root.everything():
        path = " ".join(command.words[1:])
        for option in command.options():
            if option.takes_value():
                yield "|".join(quoted(f"{path}/{flag}") for flag in option.flags()), option


def bash_completion(root: Command) -> str:
    program = root.words[0]
    function = "_" + program.replace("-", "_")
    known = "|".join(quoted(path) for path in paths(root) if path)
    out = [f"# bash completion of {program}; written by deploy/make_pages.py from its --help", f"{function}() {{"]
    out += [
        "  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} at='' next='' word words='' i",
        "  for ((i = 1; i < COMP_CWORD; ++i)); do",
        "    word=${COMP_WORDS[i]}",
        "    next=${at:+$at }$word",
        f"    case $next in {known}) at=$next ;; esac" if known else "    :",
        "  done",
        "  COMPREPLY=()",
        "  case $at/$before in",
    ]
    for pattern, option in valued_options(root):
        if option.choices():
            answer = f'mapfile -t COMPREPLY < <(compgen -W {quoted(" ".join(option.choices()))} -- "$current")'
        elif option.is_file():
            answer = 'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$current")'
        else:
            answer = ":"
        out.append(f"    {pattern}) {answer}; return ;;")
    out += ["  esac", "  case $at in"]
    for command in root.everything():
        words = [each.words[-1] for each in command.commands] + [
            flag for option in command.options() for flag in option.flags()
        ]
        out.append(f"    {quoted(' '.join(command.words[1:]))}) words={quoted(' '.join(words))} ;;")
    out += [
        "  esac",
        '  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
        "}",
        f"complete -o default -F {function} {program}",
    ]
    return "\n".join(out) + "\n"


def zsh_item(name: str, about: str) -> str:
    return quoted(f"{name.replace(':', chr(92) + ':')}:{about}")


def zsh_completion(root: Command) -> str:
    program = root.words[0]
    known = "|".join(quoted(path) for path in paths(root) if path)
    out = [
        f"#compdef {program}",
        f"# zsh completion of {program}; written by deploy/make_pages.py from its --help",
        "local -a commands options",
        "local at='' next='' word",
        "for word in ${words[2,CURRENT-1]}; do",
        '  next="${at:+$at }$word"',
        f"  case $next in ({known}) at=$next ;; esac" if known else "  :",
        "done",
        'case "$at/${words[CURRENT-1]}" in',
    ]
    for pattern, option in valued_options(root):
        if option.choices():
            answer = f"compadd -- {' '.join(quoted(choice) for choice in option.choices())}"
        elif option.is_file():
            answer = "_files"
        else:
            answer = f"_message {quoted(option.name)}"
        out.append(f"  ({pattern}) {answer}; return ;;")
    out += ["esac", "case $at in"]
    for command in root.everything():
        commands = [zsh_item(each.words[-1], one_line(each.about)) for each in command.commands]
        options = [zsh_item(flag, option.about) for option in command.options() for flag in option.flags()]
        out.append(f"  ({quoted(' '.join(command.words[1:]))})")
        out += [f"    commands=({' '.join(commands)})", f"    options=({' '.join(options)}) ;;"]
    out += ["esac", "_describe -t commands command commands", "_describe -o -t options option options", "_files"]
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True, metavar="DIR", help="where the programs are")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--version", default="", help="of kvstore, for the pages' last line")
    parser.add_argument("--date", default="", help="for the pages' last line; none: no date")
    given = parser.parse_args()
    for folder in ("man", "bash", "zsh"):
        (given.out / folder).mkdir(parents=True, exist_ok=True)
    count = 0
    for program, number in PROGRAMS.items():
        root = read_command(given.bin, [program])
        (given.out / "bash" / program).write_text(bash_completion(root))
        (given.out / "zsh" / f"_{program}").write_text(zsh_completion(root))
        parents = {id(below): command for command in root.everything() for below in command.commands}
        for command in root.everything():
            page = man_page(command, parents.get(id(command)), root, given.version, given.date or '""')
            (given.out / "man" / f"{page_name(command.words)}.{number}").write_text(page)
            count += 1
    print(f"{count} man pages, {2 * len(PROGRAMS)} completions in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
