"""Versions as targets: their names and states, adding and removing them, the seed table over several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.protocol import Description
from spec.observation import Outcome
from spec.trace import Trace, TraceError
from tailproof.cli import documents
from tailproof.cli import text as shown
from tailproof.jobs import seeds
from tailproof.targets import listed as registry
from tailproof.targets import opening as targets
from tailproof.targets import versions as wheels
from tailproof.targets.environments import Environment, EnvironmentProblem
from tailproof.targets.opening import (
    DEFAULT,
    OVERLAYS,
    ReferenceTarget,
    Target,
    TargetNameError,
    open_target,
    tier_states,
)
from tailproof.targets.worker import TargetProblem, Worker


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TAILPROOF_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the default target is there; versions are fetched from nowhere."""
    found = Environment(DEFAULT, Path("/nowhere/python"), True)
    monkeypatch.setattr(targets, "locate", lambda name: found)
    monkeypatch.setattr(targets, "ensure", lambda name, progress: found)
    monkeypatch.setattr(targets, "store_problem", lambda python: "no servers here")

    def fetched(version: str, progress: Callable[[str], None]) -> Path:
        package = wheels.folder_of(version) / "vllm"
        package.mkdir(parents=True, exist_ok=True)
        return package

    monkeypatch.setattr(targets, "fetched", fetched)


def quiet(line: str) -> None:
    """Progress that nobody reads."""


def test_known_versions_are_those_with_an_environment_and_those_that_run_over_it() -> None:
    assert targets.known_versions() == tuple(sorted([DEFAULT, *(f"vllm=={one}" for one in OVERLAYS)]))


@pytest.mark.usefixtures("built")
def test_a_version_goes_from_not_fetched_to_ready_and_back() -> None:
    target = Target.parse("vllm==0.31.0")
    assert tier_states(target)["core"] == "not fetched: tailproof targets add vllm==0.31.0"
    opened = open_target(target, quiet)
    assert isinstance(opened, Worker)
    assert opened._overlay == (wheels.folder_of("0.31.0"),)
    assert tier_states(target)["core"] == "ready"
    assert tier_states(target)["store"] != targets.OTHER_STORE
    assert registry.remove_target("vllm==0.31.0")
    assert not registry.remove_target("vllm==0.31.0")
    assert tier_states(target)["core"] == "not fetched: tailproof targets add vllm==0.31.0"


def test_an_unknown_version_is_refused_in_one_line() -> None:
    with pytest.raises(TargetProblem, match=r"vllm==0\.1: no environment is known .*vllm==0\.33\.0\); use"):
        open_target(Target.parse("vllm==0.1"), quiet)
    assert tier_states(Target.parse("vllm==0.1"))["core"] == "no lock ships for it"


@pytest.mark.usefixtures("built")
def test_a_version_that_cannot_be_fetched_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(version: str, progress: Callable[[str], None]) -> Path:
        raise wheels.SourceProblem(f"vllm=={version}: its wheel cannot be fetched: no network")

    monkeypatch.setattr(targets, "fetched", fetched)
    with pytest.raises(TargetProblem, match=r"^vllm==0\.31\.0: its wheel cannot be fetched: no network$"):
        open_target(Target.parse("vllm==0.31.0"), quiet)


@pytest.mark.usefixtures("built")
def test_the_list_tells_what_can_be_added() -> None:
    registry.add_target("reference+no-drop", quiet)
    names = registry.listed_targets()
    assert names == [DEFAULT, "reference", "reference+no-drop"]
    assert registry.known_but_not_listed() == [f"vllm=={one}" for one in OVERLAYS]
    lines = list(shown.target_lines(names, registry.known_but_not_listed()))
    assert f"can be added: {', '.join(f'vllm=={one}' for one in OVERLAYS)}" in lines
    assert not any(line.startswith("can be added") for line in shown.target_lines(names))


@pytest.mark.parametrize("text", ["vllm==0.32.0", "0.32.0", "0.32", "vllm==0.32"])
def test_a_line_is_named_by_a_version_or_by_itself(text: str) -> None:
    assert targets.line_of(text) == "0.32"


@pytest.mark.parametrize("text", ["", "newest", "0.1", "vllm@0.32", "0.32.1.dev5", "vllm==0.34.0"])
def test_what_is_no_known_line_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(TargetNameError) as refused:
        targets.line_of(text)
    assert str(refused.value) == (
        f"{text!r} is no known release line; known are 0.28, 0.29, 0.30, 0.31, 0.32, 0.33"
    )


class Saying(ReferenceTarget):
    """A target that says a version and has the marks of a line."""

    def __init__(self, version: str, line: str) -> None:
        super().__init__(Target.parse("reference"))
        self._said = Description("vllm", version, {"core": "ready"}, line=line)

    def describe(self) -> Description:
        return self._said


@pytest.mark.parametrize(
    ("name", "version", "marks", "line", "why"),
    [
        ("reference", "0", "", "", "the reference has no known faults"),
        ("reference+no-drop", "0", "", "", "the reference has no known faults"),
        (
            "vllm==0.32.0",
            "0.32.0",
            "0.32",
            "0.32",
            "vllm==0.32.0 is of the line 0.32: its known faults are used",
        ),
        # A version that we installed is what it is called, whatever is planted in it.
        (
            f"{DEFAULT}+copy-backwards",
            "0.32.0",
            "0.31",
            "0.32",
            "vllm==0.32.0+copy-backwards is of the line 0.32: its known faults are used",
        ),
        (
            "vllm@/there",
            "0.32.1.dev5+gabc",
            "0.32",
            "0.32",
            "the checkout says version 0.32.1.dev5+gabc and has the marks of 0.32: "
            "the known faults of 0.32 are used",
        ),
        (
            "python:/there",
            "dev",
            "0.33",
            "0.33",
            "the interpreter says version dev and has the marks of 0.33: the known faults of 0.33 are used",
        ),
        (
            "vllm@/there",
            "0.40.0",
            "0.33",
            "0.33",
            "the checkout says version 0.40.0 and has the marks of 0.33, and 0.33 is the newest line that is "
            "known: the known faults of 0.33 are used",
        ),
    ],
)
def test_known_faults_are_those_of_the_line_that_a_target_is_of(
    name: str, version: str, marks: str, line: str, why: str
) -> None:
    found = targets.release_line(Target.parse(name), Saying(version, marks))
    assert found == targets.Line(line, why)
    asked = targets.release_line(Target.parse(name), Saying(version, marks), "vllm==0.31.0")
    assert asked == targets.Line("0.31", "as asked for, the known faults of 0.31 are used")


class Without(ReferenceTarget):
    """The reference under a name, which refuses exports as an old version does."""

    def __init__(self, name: str) -> None:
        super().__init__(Target.parse("reference"))
        self.name = name

    def describe(self) -> Description:
        return Description("vllm", "0.29.0", {"core": "ready"}, lacks=("exports",))

    def run(self, trace: Trace, omit: str = "") -> Outcome:
        if trace.configuration.groups[1].checkpoint_alignment is not None:
            raise TraceError("configuration: vLLM 0.29.0 has no states exported inside a chunk")
        return super().run(trace, omit)


def matrix(monkeypatch: pytest.MonkeyPatch, *names: str) -> seeds.SeedMatrix:
    """The seed table where 0.30.0 cannot run and 0.29.0 has no exports."""

    def opened(target: Target, progress: Callable[[str], None]) -> targets.OpenTarget:
        if target.argument == "0.30.0":
            raise EnvironmentProblem("vllm==0.30.0 needs a newer Python")
        if target.argument == "0.29.0":
            return Without(target.name)
        return open_target(target, progress)

    monkeypatch.setattr(seeds, "open_target", opened)
    return seeds.seed_matrix(names, quiet)


def test_one_target_that_cannot_run_leaves_the_others_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    found = matrix(monkeypatch, "reference", "vllm==0.30.0", "vllm==0.29.0")
    assert found.problems == {"vllm==0.30.0": "vllm==0.30.0 needs a newer Python"}
    assert found.exit_code == 3
    lines = list(shown.seed_lines(found.results, found.problems))
    head = lines[0].split()
    assert head == ["case", "U", "B", "P", "EAGLE", "spec", "reference", "vllm==0.29.0"]
    assert "could not run: vllm==0.30.0 needs a newer Python" in lines
    assert "- configuration: vLLM 0.29.0 has no states exported inside a chunk" in lines
    cells = {line.split()[0]: line.split()[-1] for line in lines[1:10]}
    assert cells["lookup-capped-below-proof"] == "6912"
    assert cells["lookup-capped-below-proof-exports"] == "-"
    document = documents.seeds(found.results, found.problems)
    assert list(document["problems"]) == ["vllm==0.30.0"]
    exports = next(one for one in document["cases"] if one["id"] == "cap-applied-twice-exports")
    assert exports["observed"] == {"reference": 7168, "vllm==0.29.0": None}
    assert list(exports["lacking"]) == ["vllm==0.29.0"]


def test_a_wrong_hit_wins_over_a_target_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = matrix(monkeypatch, "reference+scan-capped", "vllm==0.30.0")
    assert found.exit_code == 1
    lines = list(shown.seed_lines(found.results, found.problems))
    assert any(line.endswith("!") for line in lines)
    assert "! is not what is due" in lines


def test_all_well_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert matrix(monkeypatch, "reference").exit_code == 0


def test_a_target_is_judged_by_the_profile_that_it_runs_under() -> None:
    class Ahead(ReferenceTarget):
        def describe(self) -> Description:
            return Description("vllm", "0.33.0", {"core": "ready"}, profiles=("lookahead", "drop"))

    results = seeds.run_seeds({"reference": Ahead(Target.parse("reference"))})
    found = {result.case.id: result for result in results}
    assert found["proof-scan-unaligned-prompt"].observed == {"reference": 16_000}
    assert found["proof-scan-unaligned-prompt"].spec == 15_984
    assert not any(result.is_wrong("reference") for result in results)
    assert next(iter(shown.seed_lines(results))).split()[5:9] == ["spec", "drop", "spec", "lookahead"]
