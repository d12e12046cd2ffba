"""The operator's question: numbers from the reference, arguments that hold, pictures that stay readable."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from reference.engine import SlowEngine
from spec.geometry import GeometryError
from spec.rules import RULES
from tailproof.explain.axis import Mark, Span, draw
from tailproof.explain.axis import svg as axis_svg
from tailproof.explain.resend import Explanation, document, explain, svg, text
from tailproof.planted.reference import OldCheckpoint, RegistersOldCheckpoint, ScanCapped, StopsEarly

ALIGN = 7168

SEEDS = [
    # P, U, B, L, profile -> hit; "before" of the seed table where the profile alone determines it.
    (7296, 128, 896, None, "drop", 7168),
    (7296, 128, 896, None, "old", 7040),
    (7296, 128, 896, ALIGN, "drop", 7168),
    (7296, 128, 896, ALIGN, "old", 7040),
    (7040, 128, 896, None, "drop", 6912),
    (7040, 128, 896, ALIGN, "drop", 6912),
    (7040, 128, 896, ALIGN, "old", 0),
    (7449, 128, 896, ALIGN, "drop", 7296),
    (16000, 16, 560, None, "drop", 15984),
    (16000, 16, 560, None, "old", 15120),
    (16001, 16, 560, None, "drop", 15984),
    (7296, 128, 896, None, "lookahead", 7168),
    (7449, 128, 896, ALIGN, "lookahead", 7424),
    (16000, 16, 560, None, "lookahead", 15984),
    (16001, 16, 560, None, "lookahead", 16000),
]

CASES = [
    (prompt, unit, unit * blocks, align, eagle)
    for prompt in range(1, 81)
    for unit in (1, 2, 4)
    for blocks in (1, 2, 3)
    for align in (1, 2)
    for eagle in (False, True)
    if not (eagle and unit * blocks == 1)
]


def broken(explanation: Explanation) -> set[str]:
    """The properties that an explanation breaks; each is stated without the spec's own functions."""
    prompt, unit, hit, grid = explanation.prompt, explanation.unit, explanation.hit, explanation.grid
    margin = grid if explanation.eagle and explanation.profile != "lookahead" else 0
    possible = [h for h in range(0, prompt, grid) if h == 0 or h + margin <= prompt // unit * unit]
    names = {
        "hit within the limit": hit <= prompt - 1 == explanation.limit,
        "hit on the grid": hit % grid == 0,
        "something recomputed": explanation.recomputed == prompt - hit >= 1,
        "checkpoint is maximal": explanation.checkpoint == max(possible),
        "resend reaches the checkpoint": not explanation.fine or hit == explanation.checkpoint,
        "proof is the margin": explanation.proof_end == (max(possible) + margin if max(possible) else 0),
        "proof is there": not hit or hit + margin <= explanation.extent <= explanation.scan_end,
        "state is there": not hit or hit in explanation.states,
        "scan needs a hash": explanation.scan_end <= explanation.hashed,
        "no gap between chunks": [0, *(end for _, end in explanation.chunks)]
        == [*(start for start, _ in explanation.chunks), prompt],
        "nothing served above the hit": not any("served by every" in why for _, why in explanation.reasons),
    }
    return {name for name, holds in names.items() if not holds}


@pytest.mark.parametrize(("prompt", "unit", "block", "align", "profile", "hit"), SEEDS)
def test_the_seed_numbers_come_out(
    prompt: int, unit: int, block: int, align: int | None, profile: str, hit: int
) -> None:
    explanation = explain(prompt, unit, block, align=align, eagle=True, profile=profile)
    assert explanation.hit == hit
    assert explanation.recomputed == prompt - hit


def test_the_old_profile_hides_the_proof_of_7040() -> None:
    old = explain(7040, 128, 896, align=ALIGN, eagle=True, profile="old")
    assert (old.checkpoint, old.proof_end, old.scan_end, old.extent) == (6784, 6912, 6912, 0)
    assert old.reasons[0] == (
        "PM1",
        "6784 is not served: attention proof is needed through 6912 and reaches only 0; the next entry is at "
        "7040, and the scan stops at 6912",
    )


def test_the_text_of_7296() -> None:
    assert text(explain(7296, 128, 896, eagle=True)) == GOLDEN.strip("\n").split("\n")


GOLDEN = """
prompt 7296, unit 128, block 896, EAGLE, profile drop
checkpoint 7168 (CP4)
proof through 7296 (PM1)
hit 7168 (LK1)
128 tokens recomputed (CP2)

0╱╱████████████████████████│▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                           └7168 checkpoint, hit  7296 proof end, scan end, P┘
█ reused   ▒ proof, recomputed too

first run, budget above the prompt: chunks end at 6272, 7168, 7296 (CH1)
states kept: 6272, 7168 (RT1)
- 7168 is served: a Mamba state is kept there, and attention proof, needed
  through 7296, reaches 7296 (LK1)
- 7296 is not possible: with EAGLE the draft needs the unit after it as proof,
  tokens 7296 to 7424, and only 7296 tokens are hashed (CP3)
- 7296 is not possible: the limit is P − 1 = 7295, since the last token must
  be computed (PM2)
"""


def test_without_eagle_the_limit_stops_it() -> None:
    explanation = explain(7300, 128, 896)
    assert (explanation.checkpoint, explanation.proof_end, explanation.hit) == (7296, 7296, 7296)
    assert explanation.reasons[-1] == (
        "PM2",
        "7424 is not possible: the limit is P − 1 = 7299, since the last token must be computed",
    )


def test_a_coarse_layout_says_where_hits_land() -> None:
    explanation = explain(5000, 896, 896, eagle=True)
    assert not explanation.fine
    assert (explanation.hit, explanation.proof_end) == (3584, 4480)
    rule, sentence = explanation.reasons[0]
    assert rule == "EL1"
    assert "multiples of L = 896 only" in sentence


def test_a_missing_state_is_named() -> None:
    explanation = explain(16000, 16, 560, eagle=True, profile="old")
    assert (
        "CH3",
        "15136 is not served: no Mamba state there, no chunk ended at it (states at 15120, 15968)",
    ) in explanation.reasons


@pytest.mark.parametrize("eagle", [False, True])
@pytest.mark.parametrize("prompt", [1, 2, 127, 128])
def test_a_prompt_of_one_unit_hits_nothing(prompt: int, eagle: bool) -> None:
    explanation = explain(prompt, 128, 896, eagle=eagle)
    assert (explanation.checkpoint, explanation.proof_end, explanation.hit) == (0, 0, 0)
    assert "no proof needed (PM1)" in text(explanation)


def test_one_token_is_singular() -> None:
    assert "1 token recomputed (CP2)" in text(explain(1, 1, 1))


@pytest.mark.parametrize("retention", [None, 896, 1792])
def test_denser_retention_keeps_the_hit(retention: int | None) -> None:
    explanation = explain(7296, 128, 896, eagle=True, retention=retention)
    assert broken(explanation) == set()
    assert "retention" in text(explanation)[0]


@pytest.mark.parametrize("profile", ["drop", "lookahead"])
def test_properties_for_all_small_prompts(profile: str) -> None:
    for prompt, unit, block, align, eagle in CASES:
        explanation = explain(prompt, unit, block, align=align * block, eagle=eagle, profile=profile)
        assert broken(explanation) == set(), (prompt, unit, block, align, eagle)
        assert {*explanation.rules.values(), *(rule for rule, _ in explanation.reasons)} <= RULES.keys()
        assert explanation.rules.keys() <= document(explanation).keys()


@pytest.mark.parametrize(
    ("engine", "property_"),
    [
        (OldCheckpoint, "checkpoint is maximal"),
        (RegistersOldCheckpoint, "resend reaches the checkpoint"),
        (ScanCapped, "resend reaches the checkpoint"),
        (StopsEarly, "nothing served above the hit"),
    ],
)
def test_a_wrong_reference_is_caught(engine: type[SlowEngine], property_: str) -> None:
    assert property_ in broken(explain(7296, 128, 896, eagle=True, retention=None, engine=engine))


def test_pictures_fit_and_name_every_mark() -> None:
    for prompt, unit, block, align, eagle in CASES[::7]:
        for profile in ("old", "drop"):
            explanation = explain(prompt, unit, block, align=align * block, eagle=eagle, profile=profile)
            for width in (40, 56, 78, 120):
                lines = text(explanation, width)
                assert max(map(len, lines)) <= width
                first = lines.index("") + 1
                picture = lines[first : lines.index("", first)]
                for label in ("checkpoint", "hit", "scan end", "P"):
                    assert any(label in line for line in picture)
            assert ElementTree.fromstring(svg(explanation)).tag.endswith("svg")


def test_the_document_is_json() -> None:
    read = json.loads(json.dumps(document(explain(7296, 128, 896, eagle=True))))
    wanted = {"format": 1, "checkpoint": 7168, "proof_end": 7296, "hit": 7168, "recomputed": 128}
    assert {**read, **wanted, "limit": 7295} == read
    assert read["rules"]["checkpoint"] == "CP4"
    assert read["chunks"][-1] == [7168, 7296]
    assert read["reasons"][-1]["rule"] == "PM2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": 0}, "prompt must be 1 token or more, got 0"),
        ({"unit": -1}, "unit must be 1 token or more, got -1"),
        ({"block": 0}, "block must be 1 token or more, got 0"),
        ({"align": 0}, "align must be 1 token or more, got 0"),
        ({"unit": 100}, "unit 100 does not divide block 896: use 64 or 112"),
        ({"unit": 1000}, "unit 1000 does not divide block 896: use 896"),
        ({"align": 1000}, "align 1000 is not a multiple of block 896: use 896 or 1792"),
        ({"align": 100}, "align 100 is not a multiple of block 896: use 896"),
        ({"profile": "new"}, "profile 'new' is not known: use one of old, drop, lookahead"),
        (
            {"unit": 1, "block": 1},
            "EAGLE drafts at least one token, which needs a larger block than 1: use 2 or more",
        ),
    ],
)
def test_each_error_is_one_line(arguments: dict[str, int], message: str) -> None:
    usual: dict[str, int] = {"prompt": 7296, "unit": 128, "block": 896}
    with pytest.raises(GeometryError) as caught:
        explain(**{**usual, **arguments}, eagle=True)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_bad_retention_is_one_line() -> None:
    with pytest.raises(GeometryError, match="positive multiple of the alignment 896") as caught:
        explain(7296, 128, 896, retention=5)
    assert "\n" not in str(caught.value)


def test_a_long_prompt() -> None:
    assert explain(100_000, 16, 560, eagle=True).hit == 99984


# The axis on its own.


def test_crowded_labels_get_rows_of_their_own() -> None:
    marks = [Mark(7168, "checkpoint"), Mark(7169, "junction of 'b'"), Mark(7170, "scan end"), Mark(7296, "P")]
    lines = draw(marks, 40)
    assert max(map(len, lines)) <= 40
    assert all(any(mark.label in line for line in lines) for mark in marks)
    assert lines[0].count("│") == 4


def test_a_wide_spread_is_not_broken() -> None:
    marks = [Mark(0, "hit"), Mark(10, "junction"), Mark(100, "P")]
    assert draw(marks, 40, [Span(0, 10, "reused"), Span(10, 100, "recomputed")]) == [
        "│██│░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│",
        "│  └10 junction                   100 P┘",
        "└0 hit",
        "█ reused   ░ recomputed",
    ]


def test_every_distance_of_two_marks_is_drawn() -> None:
    for last in range(2, 200):
        for first in range(1, last):
            lines = draw([Mark(first, "hit"), Mark(last, "P")], 30, [Span(first, last, "proof")])
            assert max(map(len, lines)) <= 30
            assert lines[0].count("│") == 2
            assert "▒" in lines[0]
            assert f"{first} hit" in "".join(lines)
            assert f"{last} P" in "".join(lines)


@pytest.mark.parametrize(
    ("marks", "spans", "message"),
    [
        ([], [], "at least one mark"),
        ([Mark(-1, "hit")], [], "0 or more"),
        ([Mark(3, "hit")], [Span(2, 1, "proof")], "must not end before it starts"),
        ([Mark(3, "hit")], [Span(0, 1, "blue")], "fill 'blue' is not known: use reused, proof, recomputed"),
        ([Mark(3, "a label that is too long")], [], "width 20 is too small for this picture: use 26 or more"),
    ],
)
def test_an_axis_that_cannot_be_drawn_says_why(marks: list[Mark], spans: list[Span], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(marks, 20, spans)


def test_svg_text_is_escaped() -> None:
    document = axis_svg([Mark(3, '<hit> & "more"'), Mark(9, "P")], "a < b")
    assert "<hit>" not in document
    assert ElementTree.fromstring(document).find("{http://www.w3.org/2000/svg}title").text == "a < b"  # type: ignore[union-attr]
