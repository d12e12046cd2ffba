"""Options that several commands share, and how commands speak."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from spec.rules import RULES
from spec.trace import TraceError
from tailproof.targets.opening import DEFAULT, line_of

# Steps of the content check that can be left out; the second kind belongs to the store tier.
CONTENT_STEPS, STORE_STEPS = "abcdefg", "hi"


def targets_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--target`, as often as wanted, as `targets`."""
    return click.option(
        "--target", "targets", multiple=True, metavar="T", help=f"System under test (default {DEFAULT})."
    )(function)


def seed_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--seed`, as `seed`."""
    return click.option(
        "--seed", type=click.IntRange(0), default=None, help="Seed (default: random, shown)."
    )(function)


def json_file_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--json F`, as `json_file`."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option("--json", "json_file", type=path, metavar="F", help="Write one JSON document.")(
        function
    )


def json_flag(function: Callable[..., None]) -> Callable[..., None]:
    """`--json` alone, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the JSON document alone.")(function)


def content_steps(context: click.Context, option: click.Parameter, value: str) -> str:
    """Letters of steps of the content check, checked."""
    if strange := "".join(sorted(set(value) - set(CONTENT_STEPS + STORE_STEPS))):
        raise click.BadParameter(f"{strange!r}: steps of the content check are the letters a to i")
    return value


def baseline_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--baseline`, as `baseline`."""
    return click.option(
        "--baseline",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        help="Known faults, one TOML file each (default: the shipped ones).",
    )(function)


def _line(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return None if value is None else line_of(value)


def line_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--as`, as `line`: a known release line, or None."""
    return click.option(
        "--as",
        "line",
        default=None,
        metavar="L",
        callback=_line,
        help="Release line whose known faults count, as vllm==0.33.0 or 0.33 (default: the target's).",
    )(function)


def against_option(function: Callable[..., None]) -> Callable[..., None]:
    """`--against`, as `against`: the name of a base, or None."""
    return click.option(
        "--against",
        default=None,
        metavar="T",
        help="Run the same cases on this target too, and count only what it does not show.",
    )(function)


def known_rules(ids: Iterable[str]) -> tuple[str, ...]:
    """The ids of rules as the registry writes them, each once, in the order given; any case will do.

    Raises:
        TraceError: where there is no such rule, with what is near.
    """
    found = []
    for rule in ids:
        if rule.upper() not in RULES:
            near = [name for name in RULES if name[:2] == rule[:2].upper()] or list(RULES)
            raise TraceError(f"there is no rule {rule!r}; near are {', '.join(near[:8])}")
        found.append(rule.upper())
    return tuple(dict.fromkeys(found))


def drawn_seed(seed: int | None) -> int:
    """A seed, drawn when none is given."""
    return int(time.time()) % 1_000_000 if seed is None else seed


def progress_line() -> Callable[[str], None]:
    """Says lines on standard error, with the time since now."""
    began = time.monotonic()

    def line_said(line: str) -> None:
        click.echo(f"[{time.monotonic() - began:6.1f} s] {line}", err=True)

    return line_said


def say(lines: Iterable[str]) -> None:
    """Print lines."""
    for line in lines:
        click.echo(line)
