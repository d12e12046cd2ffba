"""The command line: reads options, calls the one function that does the work, shows its report."""

from __future__ import annotations

import sys
import traceback
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NoReturn

import click

from proofs.catalogue import spec_theorems
from spec.geometry import GeometryError
from spec.trace import TraceError
from tailproof.cli import documents, pages, rules, text
from tailproof.cli.bank import bank_command
from tailproof.cli.options import (
    COUNT,
    SECONDS,
    STORE_STEPS,
    against_option,
    baseline_option,
    content_steps,
    drawn_seed,
    file_option,
    folder_option,
    json_file_option,
    json_flag,
    keep,
    known_rules,
    line_option,
    number_option,
    out_option,
    progress_line,
    say,
    seed_option,
    show,
    targets_option,
)
from tailproof.explain import resend as explain
from tailproof.jobs import prove
from tailproof.jobs.bank.cases import BankError
from tailproof.jobs.check import check, open_base
from tailproof.jobs.fuzz import GENERATORS, fuzz
from tailproof.jobs.replay import read_named, replay
from tailproof.jobs.seeds import seed_matrix
from tailproof.judge.findings import IncompleteError
from tailproof.known.explain import Known, checked
from tailproof.known.model import BaselineError
from tailproof.targets.listed import add_target, known_but_not_listed, listed_targets, remove_target
from tailproof.targets.opening import (
    DEFAULT,
    TIERS,
    Target,
    TargetNameError,
    must_run,
    open_target,
    release_line,
    tier_states,
)
from tailproof.targets.problems import TargetProblem
from tailproof.targets.sources import source_of

OK, BROKEN, USAGE, UNABLE, INTERRUPTED = 0, 1, 2, 3, 130
_WRONG_INPUT = (TargetNameError, TraceError, GeometryError, BankError, BaselineError, prove.RuleNameError)
_UNABLE = (TargetProblem, IncompleteError)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tailproof")
def cli() -> None:
    """Checks the prefix cache of hybrid models against an executable specification."""


@cli.command("check")
@targets_option
@number_option("--seconds", SECONDS, 60.0, "Per target.")
@seed_option
@baseline_option
@line_option
@against_option
@json_file_option
@file_option("--junit", help="JUnit XML.")
@file_option("--html", help="HTML page.")
@click.option("--strict", is_flag=True, help="Also fail when a rule was unobserved or not run.")
@click.option(
    "--proofs/--no-proofs", default=True, show_default=True, help="Prove the theorems about the spec first."
)
@out_option
def check_command(
    targets: tuple[str, ...],
    seconds: float,
    seed: int | None,
    baseline: Path | None,
    line: str | None,
    against: str | None,
    json_file: Path | None,
    junit: Path | None,
    html: Path | None,
    strict: bool,
    proofs: bool,
    out: Path,
) -> None:
    """The main job: theorems, seed table, known traces and fuzzing; one verdict per rule."""
    names = targets or (DEFAULT,)
    for name in (*names, *([against] if against else [])):
        Target.parse(name)
    found = check(
        names,
        seconds=seconds,
        seed=drawn_seed(seed),
        baseline=checked(baseline),
        line=line,
        against=against,
        folder=out,
        progress=progress_line(),
        proofs=proofs,
    )
    say(text.check_lines(found, strict))
    keep(json_file, lambda: documents.text(documents.check(found)))
    keep(junit, lambda: pages.junit(found))
    keep(html, lambda: pages.html(found, strict))
    sys.exit(found.exit_code(strict))


@cli.command("fuzz")
@click.option("--target", default=DEFAULT, show_default=True, metavar="T", help="System under test.")
@click.option("--tier", type=click.Choice(TIERS), default="core", show_default=True)
@click.option("--rule", "rules", multiple=True, metavar="R", help="Count only these rules.")
@click.option("--seconds", type=SECONDS, default=None, help="How long (default 60).")
@click.option("--cases", type=click.IntRange(1), default=None, help="How many cases instead.")
@seed_option
@number_option("--workers", COUNT, 1, "Worker processes.")
@click.option("--reach", is_flag=True, help="Show how often each phase was met under each feature.")
@baseline_option
@line_option
@against_option
@json_file_option
@click.option(
    "--omit",
    default="",
    metavar="LETTERS",
    callback=content_steps,
    help="Leave out these steps of the content check (a to g; in the store tier also h, the bytes of a load, "
    "and i, those of a save); they must then be found.",
)
@out_option
def fuzz_command(
    target: str,
    tier: str,
    rules: tuple[str, ...],
    seconds: float | None,
    cases: int | None,
    seed: int | None,
    workers: int,
    reach: bool,
    omit: str,
    baseline: Path | None,
    line: str | None,
    against: str | None,
    json_file: Path | None,
    out: Path,
) -> None:
    """Lockstep fuzzing of one target; exit 1 when it finds what no known fault explains, or, with --against,
    what the other target does not do on the same cases."""
    parsed = Target.parse(target)
    if against is not None:
        Target.parse(against)
    rules = known_rules(rules)
    if tier not in GENERATORS:
        raise TargetProblem(f"tier {tier} cannot run: {tier_states(parsed)[tier]}")
    if tier != "store" and set(omit) & set(STORE_STEPS):
        raise click.BadParameter(f"{omit!r}: h and i are steps of the store tier", param_hint="--omit")
    faults = checked(baseline)
    if seconds is None and cases is None:
        seconds = 60.0
    progress = progress_line()
    with ExitStack() as stack:
        opened = []
        for _ in range(workers):
            opened.append(stack.enter_context(closing(open_target(parsed, progress))))
            opened[-1].describe()
            must_run(parsed, tier)
        ours = release_line(parsed, opened[0], line)
        progress(ours.why)
        base = None
        if against is not None:
            base = open_base(stack, against, faults, workers, progress)
            must_run(Target.parse(against), tier)
        found = fuzz(
            opened,
            target,
            tier=tier,
            seed=drawn_seed(seed),
            seconds=seconds,
            cases=cases,
            rules=frozenset(rules),
            known=Known(faults, ours.line),
            base=base,
            folder=None if omit else out,
            omit=omit,
            progress=progress,
        )
    say(text.fuzz_lines(found, reach=reach))
    keep(json_file, lambda: documents.text(documents.fuzz(found)))
    ended = INTERRUPTED if found.interrupted else UNABLE if found.lost else OK
    sys.exit(BROKEN if found.broken else ended)


@cli.command("prove")
@click.argument("rules", nargs=-1)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="T",
    help="Prove the functions in the source of this target instead of the spec's; nothing of it is imported.",
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice(prove.ENGINES),
    help="Only these engines (default: all).",
)
@number_option(
    "--seconds",
    SECONDS,
    prove.SECONDS,
    "Last net: wall time of an engine for one theorem. Its questions are limited in units of work.",
)
@number_option("--workers", COUNT, 2, "Processes.")
@folder_option("--smt2", metavar="DIR", help="Write the solver's questions as SMT-LIB 2 files.")
@json_file_option
def prove_command(
    rules: tuple[str, ...],
    sources: tuple[str, ...],
    engines: tuple[str, ...],
    seconds: float,
    workers: int,
    smt2: Path | None,
    json_file: Path | None,
) -> None:
    """Prove theorems for all sizes, about the spec or about a target's source.

    Exit 1 when one is refuted that is not known to be, 3 when one stays open or its function has moved.
    """
    if sources:
        if set(engines) - {"z3"} or smt2 is not None:
            raise click.UsageError("theorems about a source are Z3's alone: leave out --engine and --smt2")
        _prove_sources(rules, sources, seconds, workers, json_file)
    prove.check_rules(rules)
    found = prove.prove(
        spec_theorems(rules),
        engines=engines or prove.ENGINES,
        seconds=seconds,
        workers=workers,
        smtlib=smt2,
        progress=progress_line(),
    )
    say(prove.lines(found))
    keep(json_file, lambda: documents.text(prove.document(found)))
    sys.exit(found.exit_code)


def _prove_sources(
    rules: tuple[str, ...], names: tuple[str, ...], seconds: float, workers: int, json_file: Path | None
) -> NoReturn:
    prove.check_source_rules(rules)
    roots = {name: source_of(Target.parse(name), progress_line()) for name in names}
    found = []
    for name, root in roots.items():
        one = prove.prove_source(
            name, root, rules, seconds=seconds, workers=workers, progress=progress_line()
        )
        found.append(one)
        say(prove.lines(one))
        say(prove.function_table(one))
    keep(json_file, lambda: documents.text(prove.document(*found)))
    codes = {one.exit_code for one in found}
    sys.exit(BROKEN if BROKEN in codes else UNABLE if UNABLE in codes else OK)


@cli.command("replay")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--target", default=None, metavar="T", help="Run on this target, not on the recorded one.")
@click.option("--steps", is_flag=True, help="Also tell what each step did.")
def replay_command(files: tuple[Path, ...], target: str | None, steps: bool) -> None:
    """Run kept traces again, or traces in the notation: FIXED, FAILED or ERROR each."""
    kept = [(file, read_named(file)) for file in files]
    names = {target or item.target or DEFAULT for _, item in kept}
    parsed = {name: Target.parse(name) for name in names}
    worst, faults = OK, checked()
    with ExitStack() as stack:
        opened = {}
        for file, item in kept:
            name = target or item.target or DEFAULT
            try:
                if name not in opened:
                    opened[name] = stack.enter_context(closing(open_target(parsed[name], progress_line())))
                must_run(parsed[name], item.tier)
                ours = release_line(parsed[name], opened[name])
                result = replay(opened[name], item, Known(faults, ours.line).explainer())
                verdict, detail = result.verdict, result.detail
                told = [*(result.story(item) if steps else ()), *result.explanation(item)]
            except (*_UNABLE, TraceError, GeometryError) as problem:
                verdict, detail, told = "ERROR", str(problem), []
            click.echo(f"{verdict}  {file} on {name}: {detail}")
            say(f"       {line}" for line in told)
            code = {"FIXED": OK, "FAILED": BROKEN, "ERROR": UNABLE}[verdict]
            worst = BROKEN if BROKEN in (worst, code) else max(worst, code)
    sys.exit(worst)


@cli.command("seeds")
@targets_option
@json_flag
def seeds_command(targets: tuple[str, ...], as_json: bool) -> None:
    """The seed table: the spec's value, and the value observed on each target."""
    matrix = seed_matrix(list(dict.fromkeys(targets or (DEFAULT,))), progress_line())
    results, problems = matrix.results, matrix.problems
    show(as_json, lambda: documents.seeds(results, problems), lambda: text.seed_lines(results, problems))
    sys.exit(matrix.exit_code)


@cli.command("explain")
@click.option("--prompt", type=int, required=True, help="P, tokens.")
@click.option("--unit", type=int, required=True, help="U, the hash unit, tokens.")
@click.option("--block", type=int, required=True, help="B, the Mamba block, tokens.")
@click.option("--align", type=int, default=None, help="L, the attention block, tokens (default: B).")
@click.option("--eagle", is_flag=True, help="EAGLE, MTP or the like drafts.")
@click.option("--profile", default="drop", show_default=True, help="Rule set: old, drop or lookahead.")
@file_option("--svg", help="Write a picture.")
@json_flag
def explain_command(
    prompt: int,
    unit: int,
    block: int,
    align: int | None,
    eagle: bool,
    profile: str,
    svg: Path | None,
    as_json: bool,
) -> None:
    """What a resend of a prompt hits, and why not more."""
    found = explain.explain(prompt, unit, block, align=align, eagle=eagle, profile=profile)
    keep(svg, lambda: explain.svg(found))
    show(as_json, lambda: explain.document(found), lambda: explain.text(found))


@cli.command("rules")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@json_flag
def rules_command(ids: tuple[str, ...], as_json: bool) -> None:
    """All rules in short; with ids, where each is defined, proved, compared and broken on purpose."""
    wanted = known_rules(ids)
    show(as_json, lambda: rules.rules_document(wanted), lambda: rules.rule_lines(wanted))


@cli.group("targets", invoke_without_command=True)
@json_flag
@click.pass_context
def targets_command(context: click.Context, as_json: bool) -> None:
    """Systems under test: list, add, remove."""
    if context.invoked_subcommand is not None:
        return
    names = listed_targets()
    show(
        as_json,
        lambda: documents.targets(names),
        lambda: text.target_lines(names, known_but_not_listed()),
    )


@targets_command.command("add")
@click.argument("names", nargs=-1, required=True, metavar="T...")
def targets_add(names: tuple[str, ...]) -> None:
    """Make targets ready, and list them from now on."""
    for name in names:
        Target.parse(name)
    for name in names:
        add_target(name, progress_line())
        click.echo(f"{name} is ready")


@targets_command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="T...")
def targets_remove(names: tuple[str, ...]) -> None:
    """Drop targets and what was built or fetched for them."""
    for name in names:
        Target.parse(name)
    for name in names:
        click.echo(f"{name} removed" if remove_target(name) else f"{name} was not there")


cli.add_command(bank_command)


def main() -> None:
    """Run the command line; exit codes as in the command line contract."""
    try:
        cli.main(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(USAGE)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except _WRONG_INPUT as problem:
        click.echo(f"tailproof: {problem}", err=True)
        sys.exit(USAGE)
    except (*_UNABLE, OSError) as problem:
        click.echo(f"tailproof: {problem}", err=True)
        sys.exit(UNABLE)
    except Exception:
        # Python would exit with 1 here, which means that a rule is broken.
        traceback.print_exc()
        click.echo("tailproof: this is a fault of tailproof itself, please report the lines above", err=True)
        sys.exit(UNABLE)
