"""Options that several commands share, and how commands speak."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from spec.rules import RULES
from spec.trace import TraceError
from tailproof.cli import documents
from tailproof.targets.cache import write
from tailproof.targets.opening import DEFAULT, line_of

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
# Steps of the content check that can be left out; the second kind belongs to the store tier.
CONTENT_STEPS, STORE_STEPS = "abcdefg", "hi"


def content_steps(context: click.Context, option: click.Parameter, value: str) -> str:
    """Letters of steps of the content check, checked."""
    if strange := "".join(sorted(set(value) - set(CONTENT_STEPS + STORE_STEPS))):
        raise click.BadParameter(f"{strange!r}: steps of the content check are the letters a to i")
    return value


def _line(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    return None if value is None else line_of(value)


def file_option(name: str, *names: str, help: str) -> Decorator:
    """A file to write."""
    path = click.Path(dir_okay=False, path_type=Path)
    return click.option(name, *names, type=path, metavar="F", help=help)


def number_option(name: str, kind: click.ParamType[Any], default: object, help: str) -> Decorator:
    """A number with a default that is shown."""
    return click.option(name, type=kind, default=default, show_default=True, help=help)


def folder_option(name: str, *, help: str, **more: Any) -> Decorator:
    """A folder."""
    return click.option(name, type=click.Path(file_okay=False, path_type=Path), help=help, **more)


SECONDS, COUNT = click.FloatRange(min=0.1), click.IntRange(1, 64)
targets_option = click.option(
    "--target", "targets", multiple=True, metavar="T", help=f"System under test (default {DEFAULT})."
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=None, help="Seed (default: random, shown)."
)
json_file_option = file_option("--json", "json_file", help="Write one JSON document.")
json_flag = click.option("--json", "as_json", is_flag=True, help="Print the JSON document alone.")
out_option = folder_option(
    "--out", default=Path("divergences"), show_default=True, help="Folder for replay files."
)
baseline_option = folder_option(
    "--baseline", metavar="DIR", help="Known faults, one TOML file each (default: the shipped ones)."
)
line_option = click.option(
    "--as",
    "line",
    default=None,
    metavar="L",
    callback=_line,
    help="Release line whose known faults count, as vllm==0.33.0 or 0.33 (default: the target's).",
)
against_option = click.option(
    "--against",
    default=None,
    metavar="T",
    help="Run the same cases on this target too, and count only what it does not show.",
)


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


def show(as_json: bool, document: Callable[[], object], lines: Callable[[], Iterable[str]]) -> None:
    """Print a report as its JSON document or as lines."""
    if as_json:
        click.echo(documents.text(document()))
    else:
        say(lines())


def keep(path: Path | None, text: Callable[[], str]) -> None:
    """Write a file that was asked for, as a whole or not at all."""
    if path is not None:
        write(path, f"{text()}\n".encode())
