"""How many planted faults of the real vLLM are seen, and how fast: `.venv/bin/python bench/mutation.py`.

Each mutant of `tailproof.planted.vllm` runs by itself, in a worker of its own, with what is known of the real
vLLM in force: a divergence that a known fault explains does not count. Mutants that operators made and those
of the table are counted apart. With `--json FILE` each result is kept, and a run with the same file, seed and
seconds goes on where the last one stopped; `--show FILE` prints such a file as a table. The exit code is 1
when one of the table was not seen and no record says why; operators also change what nothing depends on.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tailproof.jobs.search import Hunted, hunt
from tailproof.judge.findings import Finding
from tailproof.known.explain import Known
from tailproof.known.model import line_of, load
from tailproof.planted.vllm.catalogue import Mutant, MutantError, all_mutants, by_hash, moved, mutant, records
from tailproof.targets.environments import ensure
from tailproof.targets.overlay import control_overlay, installed_package, mutant_overlay
from tailproof.targets.worker import Worker

TARGET = "vllm==0.32.0"
TIERS = ("core", "store")
# A target that takes longer for a case of milliseconds hangs; with a store a case takes a second.
CASE_SECONDS = {"core": 10.0, "store": 60.0}


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant and what came of it."""

    mutant: Mutant
    hunted: Hunted


def main(arguments: list[str]) -> int:
    """Run the mutants asked for, print a line each, and the scores."""
    options = _options(arguments)
    python = ensure(TARGET, _say).python
    package = installed_package(python)
    for problem in moved(package, [*records().equivalent, *records().hole]):
        _say(problem)
    if options.show:
        print("\n".join(_table(_kept(options.show, package))))
        return 0
    chosen = _chosen(list(all_mutants(package)), options)
    if not chosen:
        _say("no mutant is like that")
        return 2
    rows = [] if options.json is None else _kept(options.json, package, (options.seed, options.seconds))
    kept = {row.mutant.key: row for row in rows}
    rows = [kept[one.key] for one in chosen if one.key in kept]
    chosen = [one for one in chosen if one.key not in kept]
    if rows:
        _say(f"{len(rows)} results are kept in {options.json}")
    known = Known(load(), line_of(TARGET.removeprefix("vllm==")))
    began = time.monotonic()
    try:
        for tier in TIERS if chosen and not options.only else ():
            if any(one.tier == tier for one in chosen):
                _control(python, known, tier, options)
        for number, one in enumerate(chosen, 1):
            if options.total and time.monotonic() - began > options.total:
                _say(f"{options.total:.0f} s are over; {len(chosen) - number + 1} mutants are left")
                break
            rows.append(Row(one, _hunted(python, one.name, known, one.tier, options)))
            print(f"{number}/{len(chosen)} {time.monotonic() - began:.0f} s  {_line(rows[-1])}", flush=True)
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                with options.json.open("a", encoding="utf-8") as sink:
                    sink.write(json.dumps(_record(rows[-1], options), separators=(",", ":")) + "\n")
    except KeyboardInterrupt:
        _say("interrupted")
    print("\n".join(_scores(rows)))
    explained = records().equivalent.keys() | records().hole.keys()
    unseen = [row.mutant for row in rows if not row.hunted.seen and row.mutant.key not in explained]
    return int(any(not one.generated for one in unseen))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="only mutants of this name (* allowed)")
    parser.add_argument("--sample", type=int, help="so many, chosen by chance, but always the same ones")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--generated", action="store_true", help="only those that operators make")
    kinds.add_argument("--semantic", action="store_true", help="only those of the table")
    parser.add_argument("--tier", choices=TIERS, help="only those of this tier")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each mutant")
    parser.add_argument("--total", type=float, help="begin no mutant after so many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--equivalent", action="store_true", help="run those that count as equivalent, too")
    parser.add_argument("--json", type=Path, help="keep a line of JSON for each mutant, and go on from there")
    parser.add_argument("--show", type=Path, help="run nothing: print such a file as a table")
    return parser.parse_args(arguments)


def _chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """Those asked for, in the order of chance."""
    found = [
        one
        for one in by_hash(mutants)
        if (not options.only or any(fnmatch.fnmatch(one.name, pattern) for pattern in options.only))
        and not (options.generated and not one.generated)
        and not (options.semantic and one.generated)
        and options.tier in (None, one.tier)
        and (options.equivalent or one.key not in records().equivalent)
    ]
    return found[: options.sample]


def _hunted(python: Path, name: str, known: Known, tier: str, options: argparse.Namespace) -> Hunted:
    folder = mutant_overlay(name, python) if name else control_overlay(python)
    seconds = CASE_SECONDS[tier]
    worker = Worker(
        f"{TARGET}+{name or 'none'}",
        python,
        "vllm",
        (folder,),
        first_case_seconds=6 * seconds,
        case_seconds=seconds,
    )
    with closing(worker):
        return hunt(worker, known, seed=options.seed, seconds=options.seconds, tier=tier)


def _control(python: Path, known: Known, tier: str, options: argparse.Namespace) -> None:
    hunted = _hunted(python, "", known, tier, options)
    if hunted.seen:
        raise SystemExit(f"the unmutated overlay diverges: {hunted.trouble or hunted.finding}")
    print(f"control, {tier}: nothing seen in {hunted.cases} cases, {hunted.seconds:.0f} s", flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(row: Row) -> str:
    one, hunted = row.mutant, row.hunted
    text = f"{one.name}: "
    if hunted.finding is not None:
        foreseen = one.generated or hunted.finding.rule in one.rules
        text += f"killed by {hunted.finding.rule} {hunted.finding.kind}"
        text += "" if foreseen else "  (another rule was expected)"
    elif hunted.trouble:
        text += f"gave up: {hunted.trouble}"
    else:
        text += "SURVIVED"
    return f"{text}, {hunted.cases} cases, {hunted.seconds:.1f} s"


def _record(row: Row, options: argparse.Namespace) -> dict[str, object]:
    hunted = row.hunted
    record = {
        "key": row.mutant.key,
        "seed": options.seed,
        "limit": options.seconds,
        "rule": hunted.finding.rule if hunted.finding else "",
        "kind": hunted.finding.kind if hunted.finding else "",
        "trouble": hunted.trouble,
        "cases": hunted.cases,
        "seconds": round(hunted.seconds, 1),
    }
    return {name: value for name, value in record.items() if value != ""}


def _kept(file: Path, package: Path, like: tuple[int, float] | None = None) -> list[Row]:
    """The results in a file, of one seed and limit or of all; one of another source is told and left out."""
    if not file.exists():
        return []
    kept = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if like is None or like == (one["seed"], one["limit"]):
            finding = Finding(one["rule"], one["kind"], "") if "rule" in one else None
            kept[one["key"]] = Hunted(finding, one.get("trouble", ""), one["cases"], one["seconds"])
    rows = []
    for key, hunted in kept.items():
        try:
            rows.append(Row(mutant(package, key), hunted))
        except MutantError as problem:
            _say(str(problem))
    return rows


def _scores(rows: list[Row]) -> list[str]:
    lines = []
    for tier in TIERS:
        for generated, kind in ((True, "generated"), (False, "semantic")):
            some = [
                row
                for row in rows
                if (row.mutant.tier, row.mutant.generated) == (tier, generated)
                and row.mutant.key not in records().equivalent
            ]
            seen = [row.hunted for row in some if row.hunted.seen]
            raised = sum(bool(one.finding and one.finding.kind.startswith("exception")) for one in seen)
            if some:
                share = f"{len(seen)} of {len(some)} seen ({len(seen) / len(some):.1%})"
                lines.append(f"{tier}, {kind}: {share}, {raised} of them because vLLM raised")
    return lines or ["no mutant was run"]


def _table(rows: list[Row]) -> list[str]:
    """A table in Markdown, what survived first; what stands in vLLM is read from its source."""
    lines = [*_scores(rows), "", "| mutant | seen by | cases | s | what changes |", "|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row.hunted.seen, row.mutant.tier, row.mutant.name)):
        one, hunted = row.mutant, row.hunted
        seen = "*gave up*" if hunted.trouble else "**survived**"
        if hunted.finding is not None:
            seen = f"{hunted.finding.rule} {hunted.finding.kind}"
        if not hunted.seen:
            seen += " " + {**records().equivalent, **records().hole}.get(one.key, "")
        change = one.breaks or f"`{_short(one.before)}` → `{_short(one.after)}`"
        lines.append(f"| {one.name} | {seen} | {hunted.cases} | {hunted.seconds:.1f} | {change} |")
    return lines


def _short(text: str) -> str:
    first = " ".join(text.split()).replace("|", "\\|")
    return first if len(first) <= 70 else first[:67] + "..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
