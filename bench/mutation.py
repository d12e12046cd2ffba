"""How many planted faults of the real vLLM are seen, and how fast: `.venv/bin/python bench/mutation.py`.

Each mutant of `tailproof.planted.vllm` runs by itself, in a worker of its own, with what is known of
the real vLLM in force: a divergence that a known fault explains does not count. `--write` puts the table into
docs/mutation.md; an interrupt ends the run with what it has. With `--json FILE` each result is kept, and a
run with the same file, seed and seconds goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import sys
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tailproof.jobs.search import Hunted, hunt
from tailproof.judge.findings import Finding
from tailproof.known.explain import Known
from tailproof.known.model import line_of, load
from tailproof.planted.vllm.catalogue import FAMILIES
from tailproof.planted.vllm.mutant import SystemMutant
from tailproof.targets.environments import ensure
from tailproof.targets.overlay import control_overlay, mutant_overlay
from tailproof.targets.worker import Worker

TARGET = "vllm==0.32.0"
LINE = line_of(TARGET.removeprefix("vllm=="))
DOCUMENT = Path(__file__).parent.parent / "docs" / "mutation.md"
# A target that takes longer for a case of milliseconds hangs.
CASE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant, its family, and what came of it (None: not run)."""

    family: str
    mutant: SystemMutant
    hunted: Hunted | None


def main(arguments: list[str]) -> int:
    """Run the mutants asked for, print a line each, and the score."""
    options = _options(arguments)
    python = ensure(TARGET, _say).python
    known = Known(load(), LINE)
    chosen = list(_chosen(options.only, options.equivalent))
    if not chosen:
        _say(f"no mutant is called like {', '.join(options.only)}")
        return 2
    kept = _kept(options)
    rows = [Row(family, mutant, kept[mutant.name]) for family, mutant in chosen if mutant.name in kept]
    chosen = [(family, mutant) for family, mutant in chosen if mutant.name not in kept]
    if rows:
        _say(f"{len(rows)} results are kept in {options.json}")
    began = time.monotonic()
    try:
        if chosen and not options.only:
            _control(python, known, options)
        for number, (family, mutant) in enumerate(chosen, 1):
            overlay = mutant_overlay(mutant.name, python)
            worker = Worker(
                f"{TARGET}+{mutant.name}",
                python,
                "vllm",
                (overlay,),
                first_case_seconds=6 * CASE_SECONDS,
                case_seconds=CASE_SECONDS,
            )
            with closing(worker):
                hunted = hunt(worker, known, seed=options.seed, seconds=options.seconds)
            rows.append(Row(family, mutant, hunted))
            print(f"{number}/{len(chosen)} {time.monotonic() - began:.0f} s  {_line(rows[-1])}", flush=True)
            if options.json:
                with options.json.open("a", encoding="utf-8") as sink:
                    sink.write(json.dumps(_record(rows[-1], options)) + "\n")
    except KeyboardInterrupt:
        _say("interrupted")
    print(_score(rows))
    seen, counted = _counts(rows)
    if options.write:
        run = {row.mutant.name for row in rows}
        left_out = [(family, one) for family, one in _all() if one.equivalent or one.tier != "core"]
        rows += [Row(family, one, None) for family, one in left_out if one.name not in run]
        DOCUMENT.write_text(_document(rows, options), encoding="utf-8")
        print(f"written: {DOCUMENT}")
    return 0 if seen == counted else 1


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="only mutants of this name (* allowed)")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit for each mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--equivalent", action="store_true", help="run those that count as equivalent, too")
    parser.add_argument("--json", type=Path, help="keep a line of JSON for each mutant")
    parser.add_argument("--write", action="store_true", help="write docs/mutation.md")
    return parser.parse_args(arguments)


def _all() -> Iterable[tuple[str, SystemMutant]]:
    for family, mutants in FAMILIES.items():
        for mutant in mutants:
            yield family, mutant


def _chosen(only: list[str], equivalent: bool) -> Iterable[tuple[str, SystemMutant]]:
    for family, mutant in _all():
        named = not only or any(fnmatch.fnmatch(mutant.name, pattern) for pattern in only)
        if named and mutant.tier == "core" and (equivalent or not mutant.equivalent):
            yield family, mutant


def _control(python: Path, known: Known, options: argparse.Namespace) -> None:
    worker = Worker(f"{TARGET}+none", python, "vllm", (control_overlay(python),))
    with closing(worker):
        hunted = hunt(worker, known, seed=options.seed, seconds=options.seconds)
    if hunted.seen:
        raise SystemExit(f"the unmutated overlay diverges: {hunted.trouble or hunted.finding}")
    print(f"control: nothing seen in {hunted.cases} cases, {hunted.seconds:.0f} s", flush=True)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _line(row: Row) -> str:
    hunted = row.hunted
    assert hunted is not None
    text = f"{row.mutant.name}: "
    if hunted.finding is not None:
        expected = "" if hunted.finding.rule in row.mutant.rules else "  (another rule was expected)"
        text += f"killed by {hunted.finding.rule} {hunted.finding.kind}{expected}"
    elif hunted.trouble:
        text += f"gave up: {hunted.trouble}"
    else:
        text += "SURVIVED"
    return f"{text}, {hunted.cases} cases, {hunted.seconds:.1f} s"


def _record(row: Row, options: argparse.Namespace) -> dict[str, object]:
    hunted = row.hunted
    assert hunted is not None
    finding = hunted.finding
    return {
        "name": row.mutant.name,
        "seed": options.seed,
        "limit": options.seconds,
        "rule": finding.rule if finding else "",
        "kind": finding.kind if finding else "",
        "message": finding.message if finding else "",
        "trouble": hunted.trouble,
        "cases": hunted.cases,
        "seconds": round(hunted.seconds, 2),
    }


def _kept(options: argparse.Namespace) -> dict[str, Hunted]:
    """Results of earlier runs, by mutant."""
    if options.json is None or not options.json.exists():
        return {}
    kept = {}
    for line in options.json.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if (one["seed"], one["limit"]) == (options.seed, options.seconds):
            finding = Finding(one["rule"], one["kind"], one["message"]) if one["rule"] else None
            kept[one["name"]] = Hunted(finding, one["trouble"], one["cases"], one["seconds"])
    return kept


def _counts(rows: list[Row]) -> tuple[int, int]:
    counted = [row for row in rows if row.hunted is not None and not row.mutant.equivalent]
    return sum(row.hunted.seen for row in counted if row.hunted), len(counted)


def _score(rows: list[Row]) -> str:
    seen, all_ = _counts(rows)
    return f"mutation score: {seen} of {all_} seen ({seen / all_:.1%})" if all_ else "no mutant was run"


def _document(rows: list[Row], options: argparse.Namespace) -> str:
    times = sorted(row.hunted.seconds for row in rows if row.hunted and row.hunted.seen)
    middle = f"{times[len(times) // 2]:.1f} s" if times else "none"
    skipped = [row for row in rows if row.hunted is None and row.mutant.tier != "core"]
    lines = [
        "# Mutants of the real vLLM",
        "",
        "Written by `bench/mutation.py --write`. Each line is one single-place change to a copy of vLLM",
        "0.32.0, made on the fly (`tailproof/planted/vllm`) and fuzzed like any target with one worker and",
        "the known faults of 0.32 in force, so that what one of them explains does not count.",
        "",
        f"{_score(rows).capitalize()} within {options.seconds:.0f} s each (seed {options.seed}, "
        f"{platform.machine()}, Python {platform.python_version()}); half of them within {middle}.",
        "The start of a worker is not counted. *Gave up*: the run stopped and says why (exit code 3),",
        "but no rule is named.",
        "",
    ]
    for family, members in FAMILIES.items():
        shown = [row for row in rows if row.family == family and row.mutant.tier == "core"]
        if not shown:
            continue
        reason = sys.modules[f"tailproof.planted.vllm.{family}"].__doc__ or ""
        lines += [f"## {family}", "", reason.splitlines()[0], ""]
        lines += ["| mutant | what changes | in | seen by | cases | s |", "|---|---|---|---|---|---|"]
        order = {one.name: at for at, one in enumerate(members)}
        for row in sorted(shown, key=lambda one: order[one.mutant.name]):
            lines.append(_table_line(row))
        lines.append("")
    if skipped:
        lines += ["## Not run here", ""]
        lines += [f"- {row.mutant.name} ({row.mutant.tier} tier): {row.mutant.text}" for row in skipped]
        lines.append("")
    return "\n".join(lines)


def _table_line(row: Row) -> str:
    mutant, hunted = row.mutant, row.hunted
    seen, cases, seconds = f"equivalent: {mutant.equivalent}", "", ""
    if hunted is not None:
        cases, seconds = str(hunted.cases), f"{hunted.seconds:.1f}"
        if hunted.finding is not None:
            seen = f"{hunted.finding.rule} {hunted.finding.kind}"
        else:
            seen = "*gave up*" if hunted.trouble else f"**survived** {mutant.hole}".rstrip()
    return f"| {mutant.name} | {mutant.text} | `{mutant.function}` | {seen} | {cases} | {seconds} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
