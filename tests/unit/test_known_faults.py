"""The files of the known faults: what the loader takes, and that each wrong file is refused in one line."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from tailproof.known.model import Baseline, BaselineError, line_of, load

TEXT = """
id = "some-fault"
title = "Something is wrong."
effect = "lost hit"
where = ["a/b.py: C.d"]
first = "0.32"
last = "0.33"
rules = ["CH3", "SF2"]
quirks = ["some.thing"]
reach = "default flags"
expires = 2027-05-31
happens = "It happens."

[upstream]
state = "open"
references = ["a/b#1"]
read = 2026-09-22

[[traces]]
file = "one.json"
rule = "CH3"

[[traces]]
file = "two.json"
rule = "SF2"
note = "reused"
lines = ["0.33"]
"""


def folder(tmp_path: Path, text: str = TEXT, name: str = "some-fault") -> Path:
    """A folder of one fault, with its traces beside it."""
    faults = tmp_path / "faults"
    faults.mkdir()
    (faults / f"{name}.toml").write_text(text, encoding="utf-8")
    (tmp_path / "traces").mkdir()
    for file in ("one.json", "two.json"):
        (tmp_path / "traces" / file).write_text("{}", encoding="utf-8")
    return faults


def refusal(faults: Path) -> str:
    """What the loader says of a folder that it refuses; one line that begins with a path."""
    with pytest.raises(BaselineError) as problem:
        load(faults)
    text = str(problem.value)
    assert "\n" not in text
    assert text.startswith(str(faults))
    return text


def test_a_file_is_read(tmp_path: Path) -> None:
    baseline = load(folder(tmp_path))
    assert baseline.folder == tmp_path / "traces"
    (fault,) = baseline.faults
    assert (fault.id, fault.tier, fault.exact, fault.mended) == ("some-fault", "core", True, False)
    assert fault.expires == datetime.date(2027, 5, 31)
    assert fault.upstream.references == ("a/b#1",)
    assert [trace.file for trace in fault.of_line("0.32")] == ["one.json"]
    assert [trace.file for trace in fault.of_line("0.33")] == ["one.json", "two.json"]
    assert fault.of_line("0.34") == fault.of_line("") == ()


def test_the_shipped_ones_are_read() -> None:
    baseline = load()
    assert len(baseline.faults) == 29
    assert {fault.id for fault in baseline.mended("0.33")} == {"items-side-by-side"}
    only = {fault.id for fault in baseline.of("0.33")} - {fault.id for fault in baseline.of("0.32")}
    assert only == {"tail-past-hashes", "boundaries-past-hashes"}
    assert all(len(rules) == len(set(rules)) for rules in (fault.rules for fault in baseline.faults))


def test_an_empty_folder_knows_nothing(tmp_path: Path) -> None:
    assert load(tmp_path).faults == ()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("id = ", "id", "not valid TOML: "),
        ('title = "Something is wrong."\n', "", "Object missing required field `title`"),
        ('first = "0.32"', "first = 0.32", "Expected `str`, got `float` - at `$.first`"),
        ("2027-05-31", '"some day"', "Invalid RFC3339 encoded date - at `$.expires`"),
        ('state = "open"\n', "", "Object missing required field `state` - at `$.upstream`"),
        ('title = "', 'colour = "red"\ntitle = "', "unknown field 'colour'"),
        ('state = "', 'colour = "red"\nstate = "', "unknown field 'colour'"),
        ('note = "', 'colour = "red"\nnote = "', "unknown field 'colour'"),
        ('"CH3", "SF2"', '"CH3", "SF2", "CH33"', "there is no rule 'CH33'"),
        ('["CH3", "SF2"]', '["SF2"]', "trace 'one.json' breaks 'CH3', which is not among the rules"),
        ('first = "0.32"', 'first = "0.32.0"', "'0.32.0' is no release line, write it as 0.32"),
        ('last = "0.33"', 'last = "newest"', "'newest' is no release line, write it as 0.32"),
        ('lines = ["0.33"]', 'lines = ["vllm 0.33"]', "'vllm 0.33' is no release line, write it as 0.32"),
        ('lines = ["0.33"]', 'lines = ["0.9"]', "trace 'two.json' is of 0.9, the fault of 0.32 to 0.33"),
        ('last = "0.33"', 'last = "0.9"', "the first release line is 0.32, the last 0.9"),
        ("expires =", 'tier = "gpu"\nexpires =', "there is no tier 'gpu', only core and store"),
        ('file = "two.json"', 'file = "three.json"', "there is no trace 'three.json' in "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    faults = folder(tmp_path, TEXT.replace(old, new, 1))
    assert refusal(faults).startswith(f"{faults / 'some-fault.toml'}: {said}")


def test_the_id_is_the_name_of_the_file(tmp_path: Path) -> None:
    text = refusal(folder(tmp_path, name="other-fault"))
    assert text.endswith("other-fault.toml: the id is 'some-fault', the file says 'other-fault'")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    faults = folder(tmp_path)
    (faults / "some-fault.toml").write_bytes(b"id = '\xff'")
    assert "not valid TOML: " in refusal(faults)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    faults = folder(tmp_path)
    (faults / "a-folder.toml").mkdir()
    assert refusal(faults).endswith("a-folder.toml: cannot read: Is a directory")


def test_a_folder_is_needed(tmp_path: Path) -> None:
    file = folder(tmp_path) / "some-fault.toml"
    assert refusal(file).endswith("not a folder of known faults (one TOML file each)")
    assert refusal(tmp_path / "nothing").endswith("not a folder of known faults (one TOML file each)")


def test_a_fault_expires(tmp_path: Path) -> None:
    (fault,) = load(folder(tmp_path)).faults
    on_the_day = Baseline((fault,), today=fault.expires)
    after = Baseline((fault,), today=fault.expires + datetime.timedelta(days=1))
    assert (on_the_day.in_force("0.32"), on_the_day.expired("0.32")) == ((fault,), ())
    assert (after.in_force("0.32"), after.expired("0.32")) == ((), (fault,))
    assert after.in_force("0.34") == after.expired("0.34") == after.of("") == ()


def test_lines_are_ordered_as_numbers(tmp_path: Path) -> None:
    (fault,) = load(folder(tmp_path)).faults
    mended = Baseline((replace(fault, mended=True),))
    assert not fault.is_in("0.4")
    assert mended.mended("0.33") == mended.mended("0.4") == mended.mended("") == ()
    assert mended.mended("0.100") == mended.faults
    assert Baseline((fault,)).mended("0.100") == ()


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.32.0", "0.32"),
        ("0.33.1.dev5+gabc", "0.33"),
        ("0.33", "0.33"),
        ("1.0rc1", "1.0"),
        ("dev", ""),
        ("", ""),
    ],
)
def test_the_line_of_a_version(version: str, line: str) -> None:
    assert line_of(version) == line
