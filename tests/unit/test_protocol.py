"""The protocol: traces survive a round trip, bad input is refused in one line, jobs end as they should."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.codec import parse_trace, parse_trace_text, trace_document
from adapters.protocol import (
    AdapterError,
    Description,
    Hello,
    Job,
    MovedError,
    Reply,
    read_message,
    write_message,
)
from adapters.worker import load_system, run_job
from spec import observation as seen
from spec import trace as t
from spec.geometry import Geometry, GeometryError
from spec.observation import Entry, Failure, Observation, Outcome
from spec.trace import (
    STEPS,
    Configuration,
    Gate,
    Group,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
    TraceError,
    validate,
)

PLAIN = Trace(
    Configuration(groups=(Group("full", 8), Group("mamba", 8)), unit=4), (Submit("a", (("p", 9),)), Settle())
)
GROUPS = (
    Group("full", 8, draft=True, replicated=True),
    Group("mamba", 8, checkpoint_alignment=4),
    Group("full", 16),
    Group("window", 4, window=9),
)
SETTINGS: dict[str, Any] = (
    {"unit": 4, "eagle": True, "speculative": 3, "multi_module": True, "dcp": 2, "retention": None}
    | {"junctions": True, "blocks": 99, "budget": 17, "long_prefill": 5, "live": 3, "policy": "priority"}
    | {"asynchronous": True, "events": True, "encoder": 64, "profile": "old"}
)
RICH = Trace(
    Configuration(groups=GROUPS, **SETTINGS),
    (
        Submit("a", (("p", 9), ("q", 3)), outputs=4, priority=-2, salt="s"),
        Submit("b", (("p", 9),), adapter="x", media=(("i", 2, 3), ("j", 5, 4))),
        *(Run(3, accept=2), t.Abort("a"), t.ResetLocal(), t.ResetLocal(running=True), Settle(accept=1)),
    ),
    note="two lines\nof text",
)
STORE = {
    "second": "both",
    "lookup_async": True,
    "decode_saves": True,
    "receivers": 2,
    "load_failures": "fail",
}
# What cannot be had together with the above.
STORED = Trace(
    replace(PLAIN.configuration, store="producer", **STORE),  # type: ignore[arg-type]
    (
        *(Submit("a", (("p", 9),), engine=1), Gate("lookup", "newest", 1), Run(2, engine=1), t.DropKeys(3)),
        *(t.ResetStore(1), t.ResetLocal(engine=1), t.KillMaster(), t.RestartMaster(), Settle(engine=1)),
    ),
    note="a store",
)


def document(**changes: object) -> dict[str, Any]:
    """The plain trace as a document, with some top-level fields replaced."""
    return {**copy.deepcopy(trace_document(PLAIN)), **changes}


def configured(**changes: object) -> dict[str, Any]:
    """The plain trace with some fields of the configuration replaced."""
    return document(configuration={**trace_document(PLAIN)["configuration"], **changes})


def stepped(*steps: object) -> dict[str, Any]:
    """The plain trace with other steps."""
    return document(steps=list(steps))


def with_store(*steps: object) -> dict[str, Any]:
    """The plain trace on a store, with other steps."""
    return {**configured(store="both"), "steps": list(steps)}


SUBMIT = {"do": "submit", "id": "a", "prompt": [["p", 9]]}


# Round trips.


@pytest.mark.parametrize("trace", [PLAIN, RICH, STORED], ids=["plain", "rich", "stored"])
def test_a_trace_survives_the_round_trip(trace: Trace) -> None:
    plain = trace_document(trace)
    assert parse_trace(plain) == trace
    assert parse_trace_text(json.dumps(plain)) == trace
    assert parse_trace_text(json.dumps(plain).encode()) == trace
    assert trace_document(parse_trace(plain)) == plain


def test_a_document_leaves_defaults_out() -> None:
    assert trace_document(PLAIN) == {
        "format": 1,
        "configuration": {"groups": [{"kind": "full", "block": 8}, {"kind": "mamba", "block": 8}], "unit": 4},
        "steps": [{"do": "submit", "id": "a", "prompt": [["p", 9]]}, {"do": "settle"}],
    }


def test_a_document_keeps_a_value_that_only_looks_like_a_default() -> None:
    """Retention None is not the default, although falsy like the default 0."""
    assert trace_document(RICH)["configuration"]["retention"] is None
    assert parse_trace(configured(retention=None)).configuration.retention is None
    assert parse_trace(configured()).configuration.retention == 0


def test_the_rich_traces_and_the_observation_leave_no_field_at_its_default() -> None:
    """So that the round trips above and below cover every field."""
    view = OBSERVATION.store
    assert view is not None
    for values in (
        (RICH, STORED),
        (RICH.configuration, STORED.configuration),
        (OBSERVATION,),
        (view,),
        view.transfers,
        view.answers,
        view.pins,
    ):
        for field in dataclasses.fields(values[0]):
            if field.default is not dataclasses.MISSING and field.name != "format":
                assert any(getattr(value, field.name) != field.default for value in values), field.name
    for field in dataclasses.fields(Group):
        assert any(getattr(group, field.name) != field.default for group in RICH.configuration.groups)


def test_every_step_survives_the_round_trip() -> None:
    values: dict[str, Any] = {"id": "a", "prompt": (("p", 9),), "kind": "put", "action": "hold", "count": 2}
    for name, kind in STEPS.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        step = kind(**{field: value for field, value in values.items() if field in fields})
        plain = trace_document(replace(PLAIN, steps=(step,)))["steps"][0]
        assert plain.pop("do") == name
        assert msgspec.convert(plain, kind) == step


# Refusals.


OBJECT = "a trace is a JSON object with format, configuration and steps"
READS = "this version reads format 1"
BAD: list[tuple[object, str]] = [
    ([], OBJECT),
    (None, OBJECT),
    (document(format=2), f"format: found 2, {READS}"),
    ({"steps": []}, f"format: found None, {READS}"),
    (document(format="1"), f"format: found '1', {READS}"),
    (document(format=True), f"format: found True, {READS}"),
    (document(format=1.0), f"format: found 1.0, {READS}"),
    (document(comment="x"), "unknown field 'comment', known are configuration, steps, format, note"),
    ({"format": 1, "steps": []}, "configuration: must be a JSON object"),
    (document(configuration=[]), "configuration: must be a JSON object"),
    ({"format": 1, "configuration": {"groups": [], "unit": 4}}, "steps: must be a list"),
    (document(steps={}), "steps: must be a list"),
    (stepped(), "steps: a trace needs at least one step"),
    (document(note=3), "note: expected `str`, got `int`"),
    (document(note=None), "note: expected `str`, got `null`"),
    (document(configuration={"groups": []}), "configuration: object missing required field `unit`"),
    (configured(units=4), "configuration: unknown field 'units', known are "),
]
NEEDS_SECOND = "second: a second engine needs configuration."
GROUP_FIELDS = "groups[0]: unknown field 'size', known are kind, block, draft, checkpoint_alignment"
NO_WINDOWS = "groups: sliding windows are not followed together with a store"
TWO = trace_document(PLAIN)["configuration"]["groups"]
BAD_CONFIGURATIONS: list[tuple[dict[str, object], str]] = [
    ({"groups": [{"kind": "full", "block": 8, "size": 8}]}, GROUP_FIELDS),
    ({"groups": [8]}, "groups[0]: must be a JSON object"),
    ({"groups": None}, "groups: expected `array`, got `null`"),
    ({"groups": {}}, "groups: expected `array`, got `object`"),
    ({"groups": [{"kind": "full"}]}, "groups[0]: object missing required field `block`"),
    ({"unit": "4"}, "unit: expected `int`, got `str`"),
    ({"unit": True}, "unit: expected `int`, got `bool`"),
    ({"unit": 4.5}, "unit: expected `int`, got `float`"),
    ({"eagle": 1}, "eagle: expected `bool`, got `int`"),
    ({"retention": "none"}, "retention: expected `int | null`"),
    ({"blocks": 1}, "blocks: must be 2 or more, got 1"),
    ({"budget": 0}, "budget: must be 1 or more, got 0"),
    ({"live": 0}, "live: must be 1 or more, got 0"),
    ({"long_prefill": -1}, "long_prefill: must be 0 or more, got -1"),
    ({"speculative": -1}, "speculative: must be 0 or more, got -1"),
    ({"policy": "lifo"}, "policy: 'lifo' is none of fcfs, priority"),
    ({"store": "mooncake"}, "store: 'mooncake' is none of off, producer, consumer, both"),
    ({"second": "both"}, NEEDS_SECOND),
    ({"store": "both", "load_failures": "hang"}, "load_failures: 'hang' is none of recompute, fail"),
    ({"store": "both", "receivers": 0}, "receivers: must be 1 or more, got 0"),
    *(({"store": "both", name: True}, f"{name}: ") for name in ("asynchronous", "events", "multi_module")),
    ({"store": "both", "groups": [*TWO, {"kind": "window", "block": 4, "window": 9}]}, NO_WINDOWS),
]
NOT_THERE = "never submitted before this step"
ACCEPT = "accept must lie in 0..0 (configuration.speculative)"
LENGTH = "it must lie in 1..1000000"
BAD_STEPS: list[tuple[list[object], str]] = [
    ([{**SUBMIT, "engine": 1}], "steps[0] (submit): engine must lie in 0..0, got 1"),
    (["settle"], "steps[0]: a step is a JSON object with a 'do'"),
    ([{"id": "a"}], "steps[0]: unknown step None, use one of submit, run, "),
    ([SUBMIT, {"do": "jump"}], "steps[1]: unknown step 'jump', use one of submit, run, "),
    ([{"do": []}], "steps[0]: unknown step [], use one of submit, run, "),
    ([{"do": {"a": 1}}], "steps[0]: unknown step {'a': 1}, use one of submit, run, "),
    ([{"do": "a\nb"}], "steps[0]: unknown step 'a\\nb', use one of "),
    (
        [{**SUBMIT, "heat": 1}],
        "steps[0] (submit): unknown field 'heat', known are id, prompt, outputs, priority, salt",
    ),
    ([{"do": "settle", "steps": 3}], "steps[0] (settle): unknown field 'steps', known are accept"),
    ([{"do": "run", "a\nb": 3}], "steps[0] (run): unknown field 'a\\nb', known are steps, accept"),
    ([{"do": "submit", "prompt": [["p", 9]]}], "steps[0] (submit): object missing required field `id`"),
    ([{**SUBMIT, "id": ""}], "steps[0] (submit): id must not be empty"),
    ([{**SUBMIT, "id": None}], "steps[0] (submit).id: expected `str`, got `null`"),
    ([SUBMIT, SUBMIT], "steps[1] (submit): request 'a' was submitted before"),
    (
        [{**SUBMIT, "prompt": [["p", 9], ["q", -3]]}],
        f"steps[0] (submit): segment 'q' has length -3, {LENGTH}",
    ),
    ([{**SUBMIT, "prompt": [["p", 0]]}], f"steps[0] (submit): segment 'p' has length 0, {LENGTH}"),
    ([{**SUBMIT, "prompt": [["p", "9"]]}], "steps[0] (submit).prompt[0][1]: expected `int`, got `str`"),
    (
        [{**SUBMIT, "prompt": [["p", 9, 1]]}],
        "steps[0] (submit).prompt[0]: expected `array` of length 2, got 3",
    ),
    ([{**SUBMIT, "prompt": "p"}], "steps[0] (submit).prompt: expected `array`, got `str`"),
    ([{**SUBMIT, "prompt": []}], "steps[0] (submit): prompt needs at least one segment"),
    (
        [{**SUBMIT, "prompt": [["@z", 4]]}],
        "steps[0] (submit): segment '@z' continues a request that was not submitted before",
    ),
    (
        [SUBMIT, {**SUBMIT, "id": "next", "prompt": [["@a", 999]]}],
        "steps[1] (submit): segment '@a' has length 999, that request has",
    ),
    ([{**SUBMIT, "outputs": 0}], "steps[0] (submit): outputs must be 1 or more, got 0"),
    ([SUBMIT, {"do": "abort", "id": "b"}], f"steps[1] (abort): request 'b' was {NOT_THERE}"),
    ([{"do": "abort", "id": "a"}, SUBMIT], f"steps[0] (abort): request 'a' was {NOT_THERE}"),
    ([{"do": "run", "steps": 0}], "steps[0] (run): steps must be 1 or more, got 0"),
    ([{"do": "run", "accept": 1}], f"steps[0] (run): {ACCEPT}, got 1"),
    ([{"do": "settle", "accept": -1}], f"steps[0] (settle): {ACCEPT}, got -1"),
    *(
        ([step], f"steps[0] ({step['do']}): needs a store, but configuration.store is 'off'")
        for step in (
            {"do": "gate", "kind": "put", "action": "hold"},
            {"do": "drop_keys", "count": 1},
            *({"do": name} for name in ("reset_store", "kill_master", "restart_master")),
        )
    ),
]
UNHELD = "a lookup within the schedule cannot be held"
KINDS = "kinds are put, get, lookup"
BAD_GATES = [
    ("pull", "hold", f"no gate pull hold, {KINDS}"),
    ("put", "stop", f"no gate put stop, {KINDS}"),
    ("get", "full", "only a put can lack room"),
    ("lookup", "part", "a lookup fails whole, use fail or raise"),
    ("lookup", "hold", UNHELD),
    ("lookup", "newest", UNHELD),
]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        *BAD,
        *((configured(**changes), f"configuration.{message}") for changes, message in BAD_CONFIGURATIONS),
        *((stepped(*steps), message) for steps, message in BAD_STEPS),
        *(
            (with_store({"do": "gate", "kind": kind, "action": action}), f"steps[0] (gate): {message}")
            for kind, action, message in BAD_GATES
        ),
        (with_store({"do": "drop_keys", "count": 0}), "steps[0] (drop_keys): count must be 1 or more, got 0"),
    ],
)
def test_bad_traces_are_refused_in_one_line(bad: object, message: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_trace(bad)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value).splitlines()) == 1


def test_accept_within_the_drafts_is_taken() -> None:
    plain = trace_document(RICH)
    for accept in range(4):
        plain["steps"] = [SUBMIT, {"do": "run", "accept": accept}]
        assert parse_trace(plain).steps[1] == Run(1, accept)
    plain["steps"] = [SUBMIT, {"do": "run", "accept": 4}]
    with pytest.raises(TraceError, match=r"^steps\[1\] \(run\): accept must lie in 0\.\.3"):
        parse_trace(plain)


@pytest.mark.parametrize(
    "text",
    [
        *(b"{", b'{"format": 1, "steps": [', b'{"format": 1} {}', b'{"format": NaN}'),
        *(b'{"note": "\xff\xfe"}', b"\xff\xfe{}", '{"note": "\ud800"}', '{"note": "\\ud800"}'),
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_broken_json_is_refused_in_one_line(text: bytes | str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_trace_text(text)
    assert str(refused.value).startswith("not valid JSON: ")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", "3", "[1]"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match=r"^a trace is a JSON object with format, configuration and steps$"):
        parse_trace_text(text)


def test_validate_refuses_another_format() -> None:
    with pytest.raises(TraceError, match=r"^format 7 is not supported, this version reads format 1$"):
        validate(replace(PLAIN, format=7))


def test_validate_refuses_a_store_step_of_a_trace_made_in_python() -> None:
    with pytest.raises(TraceError, match=r"^steps\[0\] \(gate\): needs a store"):
        validate(replace(PLAIN, steps=(Gate("put", "hold"),)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unit": 3}, "the unit 3 does not divide the block size 8"),
        ({"unit": 0}, "must be 1 or more, got 0"),
        ({"dcp": -1}, "must be 1 or more, got -1"),
        ({"groups": []}, "needs at least one full attention group"),
        ({"groups": [{"kind": "full", "block": 8}]}, "needs at least one full attention group"),
        ({"groups": [{"kind": "tree", "block": 8}]}, "group kind 'tree' is not known"),
        ({"retention": 4}, "a positive multiple of the alignment 8, got 4"),
        ({"eagle": True}, "EAGLE needs at least one speculative token"),
        ({"profile": "none"}, "'none' is none of old, drop, lookahead"),
    ],
)
def test_geometry_is_refused_after_the_trace_has_been_read(changes: dict[str, Any], message: str) -> None:
    trace = parse_trace(configured(**changes))
    with pytest.raises(GeometryError) as refused:
        Geometry.of(trace.configuration)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


# Messages.


HERE, NEXT, STATE = Entry(0, 8, "a"), Entry(0, 4, "a"), Entry(1, 4, "c")
ITEMS: dict[str, Any] = {
    "preempted": ("c",),
    "published": (HERE,),
    "withdrawn": (STATE,),
    "running": ("a",),
    "waiting": ("c",),
} | {"free": 17, "reset": True, "evicted": 5, "wasted": 2, "verified": 33, "seconds": 0.25, "engine": 1}
STORE_ITEMS: dict[str, Any] = {
    "loaded": ("e",),
    "failed": ("f",),
    "stored": (HERE,),
    "dropped": (STATE,),
    "reported": (1, 2),
} | {"miscounted": 1, "held_puts": 1, "held_gets": 2, "held_lookups": 3, "alive": False}
OBSERVATION = Observation(
    at=1,
    do="run",
    scheduled=(seen.Scheduled("a", 0, 9), seen.Scheduled("b", 9, 13, 3)),
    admitted=(seen.Admitted("a", 4, 0, 8),),
    finished=(seen.Finished("b", "length", (3, 4), None),),
    failed_reads=(seen.FailedRead("a", 1, 4, "state"),),
    events=(
        seen.Event("stored", (NEXT, HERE), 0, 8, False),
        seen.Event("removed", (STATE,)),
        seen.Event("cleared"),
    ),
    counters=seen.Counters(1, 9, 4, 2, 20, 16),
    failure=Failure("hang", "no answer", "stack"),
    store=seen.StoreView(
        loading=(seen.Admitted("d", 0, 8, 4, (Entry(0, 4, "d"),), (Entry(1, 4, "d"),)),),
        answers=(seen.Answer("d", known=False),),
        transfers=(
            seen.Transfer("put", (HERE,), (HERE,), (), (HERE,), "OSError"),
            seen.Transfer("get", (Entry(0, 8, "d"),), (), (Entry(0, 8, "d"),)),
        ),
        pins=(seen.Pin(3, "a", 2, told=False),),
        **STORE_ITEMS,
    ),
    **ITEMS,
)


@pytest.mark.parametrize(
    "message",
    [
        Job(trace_document(RICH), omit="ag"),
        Reply(Outcome((OBSERVATION, Observation(at=2, do="settle", events=())), 1.5, 1.25, (4, 8))),
        Reply(kind="adapter", message="line", detail="a\nb"),
        Hello(Description("vllm", "0.32.0", {"core": "ready"}, ("runner",))),
        Hello(kind="moved", message="x"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_survive_the_stream(message: object) -> None:
    stream = io.BytesIO()
    write_message(stream, message)
    write_message(stream, message)
    stream.seek(0)
    assert read_message(stream, type(message)) == message
    assert read_message(stream, type(message)) == message
    assert read_message(stream, type(message)) is None


def test_a_stream_cut_anywhere_is_an_end_of_file() -> None:
    stream = io.BytesIO()
    write_message(stream, Reply(kind="trace", message="x"))
    whole = stream.getvalue()
    assert read_message(io.BytesIO(b""), Reply) is None
    for cut in (*(whole[:length] for length in range(1, len(whole))), b"\xff\xff\xff\x7f{}"):
        with pytest.raises(EOFError, match="inside a message"):
            read_message(io.BytesIO(cut), Reply)


def test_a_body_of_another_kind_is_refused() -> None:
    stream = io.BytesIO()
    write_message(stream, ["no", "reply"])
    stream.seek(0)
    with pytest.raises(msgspec.ValidationError):
        read_message(stream, Reply)
    with pytest.raises(msgspec.DecodeError):
        read_message(io.BytesIO(b"\x02\x00\x00\x00{]"), Reply)


# Jobs.


def raiser(module: str, problem: str) -> Callable[[], None]:
    """A function of a module of that name that raises."""
    errors = {error.__name__: error for error in (AdapterError, MovedError, TraceError)}
    space: dict[str, Any] = {"__name__": module, **errors}
    exec(f"def broken():\n    raise {problem}\n", space)
    function: Callable[[], None] = space["broken"]
    return function


class Fake:
    """A system and its only session: answers every step with two observations, acts between those of step 1,
    or refuses to open."""

    def __init__(
        self, act: Callable[[], None] = lambda: None, *, opening: Callable[[], None] = lambda: None
    ) -> None:
        self.act, self.opening = act, opening
        self.seen: list[int] = []
        self.opened: list[tuple[Configuration, str]] = []
        self.closed = False

    def describe(self) -> Description:
        return Description("fake", "1", {"core": "ready"})

    def open(self, configuration: Configuration, omit: str) -> Fake:
        self.opening()
        Geometry.of(configuration)
        self.opened.append((configuration, omit))
        return self

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        self.seen.append(at)
        yield Observation(at=at, do="run")
        if at == 1:
            self.act()
        yield Observation(at=at, do="run", free=1)

    def target_seconds(self) -> float:
        return 0.125

    def units(self) -> tuple[int, int] | None:
        return 4, 8

    def close(self) -> None:
        self.closed = True


THREE = Job(trace_document(replace(PLAIN, steps=(Submit("a", (("p", 9),)), Run(), Settle()))), omit="b")


def test_a_job_runs_all_steps(tmp_path: Path) -> None:
    system = Fake()
    with (tmp_path / "progress").open("w+b") as progress:
        reply = run_job(system, THREE, progress.fileno())
        progress.seek(0)
        assert int.from_bytes(progress.read(), "little") == 2
    assert reply.kind is None
    assert reply.outcome is not None
    assert [item.at for item in reply.outcome.observations] == [0, 0, 1, 1, 2, 2]
    assert (reply.outcome.target_seconds, reply.outcome.units) == (0.125, (4, 8))
    assert reply.outcome.seconds > 0
    assert system.opened == [(PLAIN.configuration, "b")]
    assert system.closed


@pytest.mark.rule("LV1")
@pytest.mark.parametrize(
    ("problem", "message", "detail"),
    [
        ("ValueError('first line\\nsecond')", "ValueError: first line", "second"),
        ("AssertionError()", "AssertionError", "broken"),
    ],
)
def test_an_exception_in_target_code_is_a_failure_observation(
    problem: str, message: str, detail: str
) -> None:
    system = Fake(raiser("vllm.v1.core.sched.scheduler", problem))
    reply = run_job(system, THREE)
    assert reply.kind is None
    assert reply.outcome is not None
    *before, last = reply.outcome.observations
    assert [(item.at, item.failure) for item in before] == [(0, None), (0, None), (1, None)]
    assert last.failure is not None
    assert (last.at, last.do, last.failure.kind) == (1, "run", "exception")
    assert last.failure.message.startswith(message)
    assert len(last.failure.message.splitlines()) == 1
    assert detail in last.failure.detail
    assert system.seen == [0, 1]


ADAPTERS = "adapters.vllm.engine"


@pytest.mark.parametrize(
    ("module", "problem", "kind", "message"),
    [
        *(
            (module, "KeyError('x')", "adapter", "KeyError: 'x'")
            for module in (ADAPTERS, "spec.exact_model", "spec.geometry")
        ),
        (ADAPTERS, "KeyError()", "adapter", "KeyError"),
        (ADAPTERS, "ValueError('a\\nb')", "adapter", "ValueError: a"),
        (
            ADAPTERS,
            "TraceError('steps[1] (submit): exceeds 100 tokens')",
            "trace",
            "steps[1] (submit): exceeds 100 tokens",
        ),
        ("vllm.hook", "AdapterError('a key maps to nothing')", "adapter", "a key maps to nothing"),
        (
            "vllm.hook",
            "MovedError('9.9', ['x.y', 'z'])",
            "moved",
            "vLLM 9.9 has moved private names that the adapter needs: x.y, z",
        ),
    ],
)
def test_an_error_of_ours_is_named_wherever_it_is_raised(
    module: str, problem: str, kind: str, message: str
) -> None:
    reply = run_job(Fake(raiser(module, problem)), THREE)
    assert (reply.outcome, reply.kind) == (None, kind)
    assert reply.message.startswith(message)
    assert len(reply.message.splitlines()) == 1
    assert "broken" in reply.detail or kind != "adapter" or "AdapterError" in problem


def test_a_failure_observation_ends_the_run() -> None:
    class Stuck(Fake):
        def step(self, at: int, step: Step) -> Iterator[Observation]:
            self.seen.append(at)
            yield Observation(at=at, do="settle", failure=Failure("stuck", "3 steps scheduled nothing"))

    system = Stuck()
    reply = run_job(system, THREE)
    assert reply.outcome is not None
    assert len(reply.outcome.observations) == 1
    assert system.seen == [0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (configured(unit=3), "configuration.groups[0]: the unit 3 does not divide the block size 8"),
        (stepped({"do": "jump"}), "steps[0]: unknown step 'jump'"),
        (stepped({"do": []}), "steps[0]: unknown step []"),
        ({}, "format: found None, this version reads format 1"),
    ],
)
def test_a_trace_that_cannot_run_is_an_error_of_the_trace(bad: dict[str, Any], message: str) -> None:
    system = Fake()
    reply = run_job(system, Job(bad))
    assert (reply.outcome, reply.kind, system.opened) == (None, "trace", [])
    assert reply.message.startswith(message)


def test_an_error_at_the_start_ends_the_job_and_not_the_worker() -> None:
    reply = run_job(
        Fake(opening=raiser("adapters.x", "AdapterError('the target resolves other sizes')")), THREE
    )
    assert (reply.kind, reply.message) == ("adapter", "the target resolves other sizes")
    reply = run_job(Fake(opening=raiser("vllm.config", "ValueError('no such configuration')")), THREE)
    assert reply.outcome is not None or reply.kind is not None


def test_an_unknown_system_is_refused_by_name() -> None:
    with pytest.raises(AdapterError, match=r"^no adapter is called 'sglang'$"):
        load_system("sglang")
