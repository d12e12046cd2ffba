"""Every rule has all its places, and `tailproof rules` leads to them."""

from __future__ import annotations

import ast
import inspect
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proofs.catalogue import spec_theorems
from proofs.wrong import WRONG
from spec.rules import ORDER, RULES, Rule, read
from spec.trace import TraceError
from tailproof.cli.options import known_rules
from tailproof.cli.rules import Place, Places, places, rule_lines, rules_document
from tailproof.judge import step
from tailproof.judge.step import Step, exercises, judges
from tailproof.known import model

ROOT = Path(__file__).resolve().parents[2]
KNOWN = model.load()
PLANTED = Rule(
    "ZZ1",
    "A rule that is there for a test.",
    "To be seen missing.",
    "nowhere",
    ("spec.tail.tail_span",),
    tiers=("core",),
    faults=("leaks-block",),
)


def missing(rule: Rule, found: Places) -> list[str]:
    """What a rule must have and has not: what defines it; each theorem a wrong variant; where a tier observes
    it, a comparison, what counts it as exercised, and a fault planted for that tier."""
    lacks = [] if found.definition else ["definition"]
    if not rule.theorems and not rule.tiers:
        lacks.append("theorem or comparison")
    lacks.extend(f"wrong variant of {theorem.name}" for theorem in found.theorems if not theorem.wrong)
    if rule.tiers and not found.comparisons:
        lacks.append("comparison")
    if rule.tiers and not found.exercised:
        lacks.append("exercised")
    lacks.extend(f"planted fault of tier {tier}" for tier in rule.tiers if not found.planted[tier])
    return lacks


def shown(*ids: str) -> list[str]:
    """The lines for rules, asked for as a user may write them."""
    return list(rule_lines(known_rules(ids)))


# Nothing is missing.


@pytest.mark.parametrize("rule", RULES)
def test_no_place_of_a_rule_is_missing(rule: str) -> None:
    assert missing(RULES[rule], places(RULES[rule], KNOWN)) == []


@pytest.mark.parametrize("rule", RULES)
def test_places_say_where_a_name_stands(rule: str) -> None:
    found = places(RULES[rule], KNOWN)
    named = [*found.definition, *found.theorems, *found.comparisons, *found.exercised]
    assert [place.name for place in found.theorems] == list(RULES[rule].theorems)
    for place in named:
        name = place.name.rsplit(".", 1)[-1]
        lines = (ROOT / place.file).read_text(encoding="utf-8").splitlines()
        # The place of a comparison is that of the decorator that carries its rule.
        at = next(line for line in lines[place.line - 1 :] if not line.startswith(("@", " " * 8)))
        assert f"def {name}(" in at or f"class {name}" in at, place
    for place in (*found.comparisons, *found.exercised):
        assert rule in (ROOT / place.file).read_text(encoding="utf-8").splitlines()[place.line - 1], place
    for tier, planted in found.planted.items():
        faults = {"core": RULES[rule].faults, "store": RULES[rule].store_faults}[tier]
        assert [place.name for place in planted] == list(faults)
        for place in planted:
            assert (ROOT / place.file).read_text().splitlines()[place.line - 1].startswith("class "), place


@pytest.mark.parametrize("rule", [rule for rule in RULES if RULES[rule].theorems])
def test_theorems_are_about_what_defines_their_rule(rule: str) -> None:
    about = {name for theorem in spec_theorems((rule,)) for name in theorem.about}
    assert about & set(RULES[rule].definition), f"{rule}: {sorted(about)}"


def test_a_definition_is_the_specs_own_or_says_what_content_is() -> None:
    for rule in RULES.values():
        assert len(set(rule.definition)) == len(rule.definition), rule.id
        for name in rule.definition:
            assert name.startswith("spec."), f"{rule.id}: {name}"
            assert pkgutil.resolve_name(name) is not None


def test_each_known_fault_is_a_place_of_each_rule_that_it_breaks() -> None:
    listed = {(rule, fault.id) for rule in RULES for fault in places(RULES[rule], KNOWN).known}
    assert listed == {(rule, fault.id) for fault in KNOWN.faults for rule in fault.rules}


def test_what_is_marked_as_exercising_rules_tells_of_exactly_these() -> None:
    for function in step.EXERCISES:
        (tree,) = ast.parse(inspect.getsource(function)).body
        assert isinstance(tree, ast.FunctionDef)
        assert _rules_in(*tree.decorator_list) == _rules_in(*tree.body), function.__qualname__


def _rules_in(*nodes: ast.AST) -> set[object]:
    inside = [inner for node in nodes for inner in ast.walk(node)]
    return {node.value for node in inside if isinstance(node, ast.Constant) and node.value in RULES}


# What is wrong or missing is seen.

WHOLE = 'statement = "s"\nreason = "r"\nsource = "x"\ndefinition = ["d"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[ZZ1]\n" + WHOLE + 'pending = "a"', "ZZ1: unknown field 'pending', known are statement, reason, "),
        ("[ZZ1]\n" + WHOLE.replace("reason", "faults"), "ZZ1: reason is missing"),
        ("[ZZ1]\n" + WHOLE.replace('"s"', "3"), "ZZ1: statement must be text"),
        ("[ZZ1]\n" + WHOLE + 'faults = "stale-kv"', "ZZ1: faults must be a list of text"),
        ("[ZZ1]\n" + WHOLE + "tiers = [1]", "ZZ1: tiers must be a list of text"),
        ("ZZ1 = 3", "ZZ1: must be a table"),
    ],
)
def test_a_registry_that_is_wrong_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        read(text)


def test_the_registry_is_read_whole_and_no_worker_needs_it() -> None:
    """A worker is given Python files only, without `rules.toml`."""
    assert read("[ZZ1]\n" + WHOLE)["ZZ1"] == Rule("ZZ1", "s", "r", "x", ("d",))
    for folder in ("spec", "adapters"):
        assert not [file for file in (ROOT / folder).rglob("*.py") if "spec.rules" in file.read_text()]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test plant comparisons; the register is afterwards as before."""
    monkeypatch.setitem(ORDER, PLANTED.id, len(ORDER))
    for name in ("_JUDGES", "_EXERCISED"):
        monkeypatch.setattr(step, name, dict(getattr(step, name)))
    for name in ("COMPARISONS", "EXERCISES"):
        monkeypatch.setattr(step, name, list(getattr(step, name)))


@pytest.mark.usefixtures("register")
def test_a_rule_that_is_nowhere_counted_as_exercised_is_seen() -> None:
    @judges(PLANTED.id)
    def compared(step: Step) -> Iterator[Any]:
        yield from ()

    found = places(PLANTED, KNOWN)
    assert [place.name for place in found.comparisons] == [compared.__qualname__]
    assert missing(PLANTED, found) == ["exercised"]


@pytest.mark.usefixtures("register")
def test_a_rule_that_nothing_compares_is_seen() -> None:
    @exercises(PLANTED.id)
    def counted(step: Step) -> Iterator[str]:
        yield PLANTED.id

    assert missing(PLANTED, places(PLANTED, KNOWN)) == ["comparison"]


def test_everything_else_that_a_rule_lacks_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES["TS1"]
    found = places(rule, KNOWN)
    assert missing(rule, replace(found, planted={"core": (), "store": ()})) == ["planted fault of tier store"]
    assert missing(rule, replace(found, definition=())) == ["definition"]
    bare = replace(rule, theorems=(), tiers=())
    assert missing(bare, places(bare, KNOWN)) == ["theorem or comparison"]
    monkeypatch.delitem(WRONG, "ts1_every_proof_key_is_saved")
    assert missing(rule, places(rule, KNOWN)) == ["wrong variant of ts1_every_proof_key_is_saved"]
    strange = replace(rule, definition=("spec.tail.no_such_span",))
    with pytest.raises(AttributeError, match="no_such_span"):
        places(strange, KNOWN)


# What a reader sees.


@pytest.mark.parametrize("rule", ["TS1", "LV2"])
def test_a_rule_is_shown_with_all_its_places(rule: str) -> None:
    found = places(RULES[rule], KNOWN)
    text = "\n".join(shown(rule))
    named = (
        *found.definition,
        *found.theorems,
        *found.comparisons,
        *found.exercised,
        *found.planted["store"],
    )
    assert all(f" {place}" in text for place in named)
    assert all(f"  {fault.id}, " in text for fault in found.known)
    assert all(f"  tailproof/known/faults/{fault.id}.toml\n" in text for fault in found.known)
    variants = {variant for theorem in found.theorems for variant in theorem.wrong}
    assert variants <= set(text.replace(",", " ").split())
    assert f"tailproof fuzz --target reference+NAME --tier store --rule {rule} \\\n" in text
    assert text.startswith(f"{rule}  {RULES[rule].statement[:40]}")


def test_ids_are_read_in_any_case_and_shown_in_the_order_asked() -> None:
    assert shown("ts1") == shown("TS1")
    both = [line[:3] for line in shown("ts1", "Cp4", "TS1") if line[:1].strip()]
    assert both == ["TS1", "CP4"]
    assert [rule["id"] for rule in rules_document(known_rules(("lv2", "AC1")))["rules"]] == ["LV2", "AC1"]
    with pytest.raises(TraceError, match="there is no rule 'ts9'; near are TS1, TS2"):
        known_rules(("TS1", "ts9"))


def test_without_ids_every_rule_is_shown_in_short() -> None:
    lines = shown()
    assert [line.split(" ", 1)[0] for line in lines if line[:3] in RULES] == list(RULES)
    text = " ".join(" ".join(lines).split())
    assert all(rule.statement in text for rule in RULES.values())
    assert len(lines) < 2 * len(RULES)


def test_nothing_is_wider_than_a_terminal() -> None:
    for line in (*shown(), *shown(*RULES)):
        assert len(line) <= 80, line


def test_shown_commands_can_be_copied() -> None:
    text = "\n".join(shown(*RULES)).replace("\\\n", " ")
    commands = {" ".join(line.split()) for line in text.splitlines() if line.strip().startswith("tailproof ")}
    for rule in RULES.values():
        assert (f"tailproof prove {rule.id}" in commands) == bool(rule.theorems)
        assert (f"tailproof fuzz --rule {rule.id}" in commands) == ("core" in rule.tiers)
        assert (f"tailproof fuzz --tier store --rule {rule.id}" in commands) == ("store" in rule.tiers)


def test_the_document_holds_the_places() -> None:
    document = {rule["id"]: rule for rule in rules_document()["rules"]}
    assert list(document) == list(RULES)
    for rule in RULES.values():
        found, held = places(rule, KNOWN), document[rule.id]["places"]
        assert document[rule.id]["definition"] == list(rule.definition)
        assert list(held) == ["definition", "theorems", "comparisons", "exercised", "planted", "known"]
        for kind in ("definition", "theorems", "comparisons", "exercised"):
            assert [Place(one["file"], one["line"], one["name"]) for one in held[kind]] == [
                replace(place, wrong=()) for place in getattr(found, kind)
            ]
        assert [one["name"] for one in held["planted"]] == [*rule.faults, *rule.store_faults]
        assert [one["id"] for one in held["known"]] == [fault.id for fault in found.known]
    command = "tailproof fuzz --target reference+stale-kv --rule SF1 --seconds 10"
    assert document["SF1"]["places"]["planted"][0]["command"] == command
    command = "tailproof fuzz --target reference+failed-load-used --tier store --rule SF1 --seconds 10"
    assert document["SF1"]["places"]["planted"][2]["command"] == command
