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
from spec.geometry import Geometry, GeometryError
from spec.observation import (
    Admitted,
    Answer,
    Counters,
    Entry,
    Event,
    FailedRead,
    Failure,
    Finished,
    Observation,
    Outcome,
    Pin,
    Scheduled,
    StoreView,
    Transfer,
)
from spec.trace import (
    STEPS,
    Abort,
    Configuration,
    DropKeys,
    Gate,
    Group,
    KillMaster,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    Submit,
    Trace,
    TraceError,
    validate,
)

PLAIN = Trace(
    Configuration(groups=(Group("full", 8), Group("mamba", 8)), unit=4),
    (Submit("a", (("p", 9),)), Settle()),
)
RICH = Trace(
    Configuration(
        groups=(
            Group("full", 8, draft=True, replicated=True),
            Group("mamba", 8, checkpoint_alignment=4),
            Group("full", 16),
            Group("window", 4, window=9),
        ),
        unit=4,
        eagle=True,
        speculative=3,
        multi_module=True,
        dcp=2,
        retention=None,
        junctions=True,
        blocks=99,
        budget=17,
        long_prefill=5,
        live=3,
        policy="priority",
        asynchronous=True,
        events=True,
        encoder=64,
        profile="old",
    ),
    (
        Submit("a", (("p", 9), ("q", 3)), outputs=4, priority=-2, salt="s"),
        Submit("b", (("p", 9),), adapter="x", media=(("i", 2, 3), ("j", 5, 4))),
        Run(3, accept=2),
        Abort("a"),
        ResetLocal(),
        ResetLocal(running=True),
        Settle(accept=1),
    ),
    note="two lines\nof text",
)
# What cannot be had together with the above.
STORED = Trace(
    Configuration(
        groups=PLAIN.configuration.groups,
        unit=4,
        store="producer",
        second="both",
        lookup_async=True,
        decode_saves=True,
        receivers=2,
        load_failures="fail",
    ),
    (
        Submit("a", (("p", 9),), engine=1),
        Gate("lookup", "newest", 1),
        Run(2, engine=1),
        DropKeys(3),
        ResetStore(1),
        ResetLocal(engine=1),
        KillMaster(),
        RestartMaster(),
        Settle(engine=1),
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
WINDOW = {"kind": "window", "block": 4, "window": 9}


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


BAD: list[tuple[str, object, str]] = [
    ("not an object", [], "a trace is a JSON object with format, configuration and steps"),
    ("null", None, "a trace is a JSON object with format, configuration and steps"),
    ("wrong version", document(format=2), "format: found 2, this version reads format 1"),
    ("missing format", {"steps": []}, "format: found None, this version reads format 1"),
    ("text as format", document(format="1"), "format: found '1', this version reads format 1"),
    ("true as format", document(format=True), "format: found True, this version reads format 1"),
    ("float as format", document(format=1.0), "format: found 1.0, this version reads format 1"),
    (
        "unknown field at top",
        document(comment="x"),
        "unknown field 'comment', known are configuration, steps, format, note",
    ),
    ("no configuration", {"format": 1, "steps": []}, "configuration: must be a JSON object"),
    ("list as configuration", document(configuration=[]), "configuration: must be a JSON object"),
    ("no steps", {"format": 1, "configuration": {"groups": [], "unit": 4}}, "steps: must be a list"),
    ("object as steps", document(steps={}), "steps: must be a list"),
    ("empty steps", stepped(), "steps: a trace needs at least one step"),
    ("number as note", document(note=3), "note: expected `str`, got `int`"),
    ("null as note", document(note=None), "note: expected `str`, got `null`"),
    (
        "unknown field in configuration",
        configured(units=4),
        "configuration: unknown field 'units', known are ",
    ),
    (
        "unknown field in group",
        configured(groups=[{"kind": "full", "block": 8, "size": 8}]),
        "configuration.groups[0]: unknown field 'size', known are kind, block, draft, checkpoint_alignment",
    ),
    ("number as group", configured(groups=[8]), "configuration.groups[0]: must be a JSON object"),
    ("null as groups", configured(groups=None), "configuration.groups: expected `array`, got `null`"),
    ("object as groups", configured(groups={}), "configuration.groups: expected `array`, got `object`"),
    (
        "group without block",
        configured(groups=[{"kind": "full"}]),
        "configuration.groups[0]: object missing required field `block`",
    ),
    (
        "no unit",
        document(configuration={"groups": []}),
        "configuration: object missing required field `unit`",
    ),
    ("text as unit", configured(unit="4"), "configuration.unit: expected `int`, got `str`"),
    ("true as unit", configured(unit=True), "configuration.unit: expected `int`, got `bool`"),
    ("fraction as unit", configured(unit=4.5), "configuration.unit: expected `int`, got `float`"),
    ("number as eagle", configured(eagle=1), "configuration.eagle: expected `bool`, got `int`"),
    ("text as retention", configured(retention="none"), "configuration.retention: expected `int | null`"),
    ("no blocks", configured(blocks=1), "configuration.blocks: must be 2 or more, got 1"),
    ("no budget", configured(budget=0), "configuration.budget: must be 1 or more, got 0"),
    ("none live", configured(live=0), "configuration.live: must be 1 or more, got 0"),
    (
        "negative threshold",
        configured(long_prefill=-1),
        "configuration.long_prefill: must be 0 or more, got -1",
    ),
    ("negative drafts", configured(speculative=-1), "configuration.speculative: must be 0 or more, got -1"),
    ("unknown policy", configured(policy="lifo"), "configuration.policy: 'lifo' is none of fcfs, priority"),
    (
        "unknown store",
        configured(store="mooncake"),
        "configuration.store: 'mooncake' is none of off, producer, consumer, both",
    ),
    ("second alone", configured(second="both"), "configuration.second: a second engine needs configuration."),
    (
        "unknown load_failures",
        configured(store="both", load_failures="hang"),
        "configuration.load_failures: 'hang' is none of recompute, fail",
    ),
    (
        "no receivers",
        configured(store="both", receivers=0),
        "configuration.receivers: must be 1 or more, got 0",
    ),
    *(
        (f"{name} with a store", configured(store="both", **{name: True}), f"configuration.{name}: ")
        for name in ("asynchronous", "events", "multi_module")
    ),
    (
        "window with a store",
        configured(store="both", groups=[*trace_document(PLAIN)["configuration"]["groups"], WINDOW]),
        "configuration.groups: sliding windows are not followed together with a store",
    ),
    (
        "engine that is not there",
        stepped({**SUBMIT, "engine": 1}),
        "steps[0] (submit): engine must lie in 0..0, got 1",
    ),
    *(
        (
            f"gate {kind} {action}",
            with_store({"do": "gate", "kind": kind, "action": action}),
            f"steps[0] (gate): {message}",
        )
        for kind, action, message in (
            ("pull", "hold", "no gate pull hold, kinds are put, get, lookup"),
            ("put", "stop", "no gate put stop, kinds are put, get, lookup"),
            ("get", "full", "only a put can lack room"),
            ("lookup", "part", "a lookup fails whole, use fail or raise"),
            ("lookup", "hold", "a lookup within the schedule cannot be held"),
            ("lookup", "newest", "a lookup within the schedule cannot be held"),
        )
    ),
    (
        "no keys to drop",
        with_store({"do": "drop_keys", "count": 0}),
        "steps[0] (drop_keys): count must be 1 or more, got 0",
    ),
    ("text as step", stepped("settle"), "steps[0]: a step is a JSON object with a 'do'"),
    ("step without do", stepped({"id": "a"}), "steps[0]: unknown step None, use one of submit, run, "),
    (
        "unknown step",
        stepped(SUBMIT, {"do": "jump"}),
        "steps[1]: unknown step 'jump', use one of submit, run, ",
    ),
    ("list as do", stepped({"do": []}), "steps[0]: unknown step [], use one of submit, run, "),
    ("object as do", stepped({"do": {"a": 1}}), "steps[0]: unknown step {'a': 1}, use one of submit, run, "),
    ("step with newline", stepped({"do": "a\nb"}), "steps[0]: unknown step 'a\\nb', use one of "),
    (
        "unknown field in step",
        stepped({**SUBMIT, "temperature": 1}),
        "steps[0] (submit): unknown field 'temperature', known are id, prompt, outputs, priority, salt",
    ),
    (
        "field of another step",
        stepped({"do": "settle", "steps": 3}),
        "steps[0] (settle): unknown field 'steps', known are accept",
    ),
    (
        "field with newline",
        stepped({"do": "run", "a\nb": 3}),
        "steps[0] (run): unknown field 'a\\nb', known are steps, accept",
    ),
    (
        "submit without id",
        stepped({"do": "submit", "prompt": [["p", 9]]}),
        "steps[0] (submit): object missing required field `id`",
    ),
    ("empty id", stepped({**SUBMIT, "id": ""}), "steps[0] (submit): id must not be empty"),
    ("null as id", stepped({**SUBMIT, "id": None}), "steps[0] (submit).id: expected `str`, got `null`"),
    ("duplicate id", stepped(SUBMIT, SUBMIT), "steps[1] (submit): request 'a' was submitted before"),
    (
        "negative length",
        stepped({**SUBMIT, "prompt": [["p", 9], ["q", -3]]}),
        "steps[0] (submit): segment 'q' has length -3, it must lie in 1..1000000",
    ),
    (
        "zero length",
        stepped({**SUBMIT, "prompt": [["p", 0]]}),
        "steps[0] (submit): segment 'p' has length 0, it must lie in 1..1000000",
    ),
    (
        "text as length",
        stepped({**SUBMIT, "prompt": [["p", "9"]]}),
        "steps[0] (submit).prompt[0][1]: expected `int`, got `str`",
    ),
    (
        "segment of three",
        stepped({**SUBMIT, "prompt": [["p", 9, 1]]}),
        "steps[0] (submit).prompt[0]: expected `array` of length 2, got 3",
    ),
    (
        "text as prompt",
        stepped({**SUBMIT, "prompt": "p"}),
        "steps[0] (submit).prompt: expected `array`, got `str`",
    ),
    (
        "empty prompt",
        stepped({**SUBMIT, "prompt": []}),
        "steps[0] (submit): prompt needs at least one segment",
    ),
    (
        "turn of nobody",
        stepped({"do": "submit", "id": "a", "prompt": [["@z", 4]]}),
        "steps[0] (submit): segment '@z' continues a request that was not submitted before",
    ),
    (
        "turn longer than its request",
        stepped(SUBMIT, {"do": "submit", "id": "next", "prompt": [["@" + str(SUBMIT["id"]), 999]]}),
        f"steps[1] (submit): segment '@{SUBMIT['id']}' has length 999, that request has",
    ),
    ("no outputs", stepped({**SUBMIT, "outputs": 0}), "steps[0] (submit): outputs must be 1 or more, got 0"),
    (
        "abort of an unknown id",
        stepped(SUBMIT, {"do": "abort", "id": "b"}),
        "steps[1] (abort): request 'b' was never submitted before this step",
    ),
    (
        "abort before its submit",
        stepped({"do": "abort", "id": "a"}, SUBMIT),
        "steps[0] (abort): request 'a' was never submitted before this step",
    ),
    ("no steps to run", stepped({"do": "run", "steps": 0}), "steps[0] (run): steps must be 1 or more, got 0"),
    (
        "accept without drafts",
        stepped({"do": "run", "accept": 1}),
        "steps[0] (run): accept must lie in 0..0 (configuration.speculative), got 1",
    ),
    (
        "negative accept",
        stepped({"do": "settle", "accept": -1}),
        "steps[0] (settle): accept must lie in 0..0 (configuration.speculative), got -1",
    ),
    *(
        (
            f"{step['do']} without a store",
            stepped(step),
            f"steps[0] ({step['do']}): needs a store, but configuration.store is 'off'",
        )
        for step in (
            {"do": "reset_store"},
            {"do": "gate", "kind": "put", "action": "hold"},
            {"do": "drop_keys", "count": 1},
            {"do": "kill_master"},
            {"do": "restart_master"},
        )
    ),
]


@pytest.mark.parametrize(("bad", "message"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_bad_traces_are_refused_in_one_line(bad: object, message: str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_trace(bad)
    text = str(refused.value)
    assert text.startswith(message)
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("accept", [0, 1, 2, 3])
def test_accept_within_the_drafts_is_taken(accept: int) -> None:
    plain = trace_document(RICH)
    plain["steps"] = [SUBMIT, {"do": "run", "accept": accept}]
    assert parse_trace(plain).steps[1] == Run(1, accept)
    plain["steps"] = [SUBMIT, {"do": "run", "accept": 4}]
    with pytest.raises(TraceError, match=r"^steps\[1\] \(run\): accept must lie in 0\.\.3"):
        parse_trace(plain)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b'{"format": 1, "steps": [',
        b"not json",
        b'{"format": 1} {}',
        b'{"format": NaN}',
        b'{"note": "\xff\xfe"}',
        b"\xff\xfe{}",
        "\ud800",
        '{"note": "\ud800"}',
        '{"note": "\\ud800"}',
        "[" * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_broken_json_is_refused_in_one_line(text: bytes | str) -> None:
    with pytest.raises(TraceError) as refused:
        parse_trace_text(text)
    assert str(refused.value).startswith("not valid JSON: ")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["[]", "3", '"trace"', "null", "true"])
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


OBSERVATION = Observation(
    at=1,
    do="run",
    scheduled=(Scheduled("a", 0, 9), Scheduled("b", 9, 13, 3)),
    admitted=(Admitted("a", 4, 0, 8),),
    preempted=("c",),
    finished=(Finished("b", "length", (3, 4), None),),
    published=(Entry(0, 8, "a"),),
    withdrawn=(Entry(1, 4, "c"),),
    failed_reads=(FailedRead("a", 1, 4, "state"),),
    running=("a",),
    waiting=("c",),
    free=17,
    reset=True,
    evicted=5,
    wasted=2,
    events=(
        Event("stored", (Entry(0, 4, "a"), Entry(0, 8, "a")), 0, 8, False),
        Event("removed", (Entry(1, 4, "c"),)),
        Event("cleared"),
    ),
    counters=Counters(1, 9, 4, 2, 20, 16),
    verified=33,
    failure=Failure("hang", "no answer", "stack"),
    seconds=0.25,
    engine=1,
    store=StoreView(
        loading=(Admitted("d", 0, 8, 4, (Entry(0, 4, "d"),), (Entry(1, 4, "d"),)),),
        loaded=("e",),
        failed=("f",),
        answers=(Answer("d", known=False),),
        transfers=(
            Transfer("put", (Entry(0, 8, "a"),), (Entry(0, 8, "a"),), (), (Entry(0, 8, "a"),), "OSError"),
            Transfer("get", (Entry(0, 8, "d"),), (), (Entry(0, 8, "d"),)),
        ),
        stored=(Entry(0, 8, "a"),),
        dropped=(Entry(1, 8, "a"),),
        pins=(Pin(3, "a", 2, told=False),),
        reported=(1, 2),
        miscounted=1,
        held_puts=1,
        held_gets=2,
        held_lookups=3,
        alive=False,
    ),
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
    for length in range(1, len(whole)):
        with pytest.raises(EOFError, match="inside a message"):
            read_message(io.BytesIO(whole[:length]), Reply)


def test_a_header_that_promises_more_than_there_is() -> None:
    with pytest.raises(EOFError, match="inside a message"):
        read_message(io.BytesIO(b"\xff\xff\xff\x7f{}"), Reply)


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
    space: dict[str, Any] = {"__name__": module, "AdapterError": AdapterError, "MovedError": MovedError}
    exec(f"def broken():\n    raise {problem}\n", space)
    function: Callable[[], None] = space["broken"]
    return function


class FakeSession:
    """Answers every step with two observations, then does what `act` says at step `act_at`."""

    def __init__(self, act: Callable[[], None] | None, act_at: int) -> None:
        self.act, self.act_at = act, act_at
        self.seen: list[int] = []
        self.closed = False

    def step(self, at: int, step: Step) -> Iterator[Observation]:
        self.seen.append(at)
        yield Observation(at=at, do="run")
        if self.act is not None and at == self.act_at:
            self.act()
        yield Observation(at=at, do="run", free=1)

    def target_seconds(self) -> float:
        return 0.125

    def units(self) -> tuple[int, int] | None:
        return 4, 8

    def close(self) -> None:
        self.closed = True


class FakeSystem:
    """A system whose sessions are fakes."""

    def __init__(self, act: Callable[[], None] | None = None, act_at: int = 1) -> None:
        self.session = FakeSession(act, act_at)
        self.opened: list[tuple[Configuration, str]] = []

    def describe(self) -> Description:
        return Description("fake", "1", {"core": "ready"})

    def open(self, configuration: Configuration, omit: str) -> FakeSession:
        Geometry.of(configuration)
        self.opened.append((configuration, omit))
        return self.session


THREE = Job(trace_document(replace(PLAIN, steps=(Submit("a", (("p", 9),)), Run(), Settle()))), omit="b")


def test_a_job_runs_all_steps(tmp_path: Path) -> None:
    system = FakeSystem()
    with (tmp_path / "progress").open("w+b") as progress:
        reply = run_job(system, THREE, progress.fileno())
        progress.seek(0)
        assert int.from_bytes(progress.read(), "little") == 2
    assert reply.kind is None
    assert reply.outcome is not None
    assert [item.at for item in reply.outcome.observations] == [0, 0, 1, 1, 2, 2]
    assert reply.outcome.target_seconds == 0.125
    assert reply.outcome.units == (4, 8)
    assert reply.outcome.seconds > 0
    assert system.opened == [(PLAIN.configuration, "b")]
    assert system.session.closed


@pytest.mark.rule("LV1")
def test_an_exception_in_target_code_is_a_failure_observation() -> None:
    system = FakeSystem(raiser("vllm.v1.core.sched.scheduler", "ValueError('first line\\nsecond')"))
    reply = run_job(system, THREE)
    assert reply.kind is None
    assert reply.outcome is not None
    kinds = [item.failure.kind if item.failure else None for item in reply.outcome.observations]
    assert kinds == [None, None, None, "exception"]
    last = reply.outcome.observations[-1]
    assert last.failure is not None
    assert (last.at, last.do) == (1, "run")
    assert last.failure.message.startswith("ValueError: first line")
    assert len(last.failure.message.splitlines()) == 1
    assert "second" in last.failure.detail
    assert system.session.seen == [0, 1]


def test_an_exception_without_text_in_target_code() -> None:
    reply = run_job(FakeSystem(raiser("vllm.x", "AssertionError()")), THREE)
    assert reply.outcome is not None
    failure = reply.outcome.observations[-1].failure
    assert failure is not None
    assert failure.message.startswith("AssertionError")


@pytest.mark.parametrize("module", ["adapters.vllm.engine", "spec.exact_model", "spec.geometry"])
def test_an_exception_in_our_code_is_an_adapter_error(module: str) -> None:
    reply = run_job(FakeSystem(raiser(module, "KeyError('x')")), THREE)
    assert (reply.outcome, reply.kind, reply.message) == (None, "adapter", "KeyError: 'x'")
    assert "broken" in reply.detail


@pytest.mark.parametrize(
    ("problem", "kind", "message"),
    [
        ("AdapterError('a key maps to nothing')", "adapter", "a key maps to nothing"),
        (
            "MovedError('9.9', ['x.y', 'z'])",
            "moved",
            "vLLM 9.9 has moved private names that the adapter needs: x.y, z",
        ),
    ],
)
def test_an_adapter_error_is_one_wherever_it_is_raised(problem: str, kind: str, message: str) -> None:
    reply = run_job(FakeSystem(raiser("vllm.hook", problem)), THREE)
    assert (reply.outcome, reply.kind, reply.message) == (None, kind, message)


def test_a_failure_observation_ends_the_run() -> None:
    system = FakeSystem()

    def step(at: int, step: Step) -> Iterator[Observation]:
        system.session.seen.append(at)
        yield Observation(at=at, do="settle", failure=Failure("stuck", "3 steps scheduled nothing"))

    system.session.step = step  # type: ignore[method-assign]
    reply = run_job(system, THREE)
    assert reply.outcome is not None
    assert len(reply.outcome.observations) == 1
    assert system.session.seen == [0]


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
    system = FakeSystem()
    reply = run_job(system, Job(bad))
    assert reply.outcome is None
    assert reply.kind == "trace"
    assert reply.message.startswith(message)
    assert system.opened == []


def test_a_trace_error_found_by_a_session_is_an_error_of_the_trace() -> None:
    space: dict[str, Any] = {"__name__": "adapters.vllm.engine", "TraceError": TraceError}
    exec("def broken():\n    raise TraceError('steps[1] (submit): exceeds 100 tokens')\n", space)
    reply = run_job(FakeSystem(space["broken"]), THREE)
    assert (reply.kind, reply.message) == ("trace", "steps[1] (submit): exceeds 100 tokens")


def test_an_adapter_error_at_the_start_is_an_adapter_error() -> None:
    system = FakeSystem()

    def refuse(configuration: Configuration, omit: str) -> FakeSession:
        raise AdapterError("the target resolves other sizes")

    system.open = refuse  # type: ignore[method-assign]
    reply = run_job(system, THREE)
    assert (reply.kind, reply.message) == ("adapter", "the target resolves other sizes")


def test_an_exception_of_the_target_at_the_start_does_not_end_the_worker() -> None:
    system = FakeSystem()

    def refuse(configuration: Configuration, omit: str) -> FakeSession:
        raiser("vllm.config", "ValueError('no such configuration')")()
        return system.session

    system.open = refuse  # type: ignore[method-assign]
    reply = run_job(system, THREE)
    assert reply.outcome is not None or reply.kind is not None


def test_messages_of_errors_are_one_line() -> None:
    reply = run_job(FakeSystem(raiser("adapters.x", "KeyError()")), THREE)
    assert reply.message.startswith("KeyError")
    reply = run_job(FakeSystem(raiser("adapters.x", "ValueError('a\\nb')")), THREE)
    assert len(reply.message.splitlines()) == 1


def test_an_unknown_system_is_refused_by_name() -> None:
    with pytest.raises(AdapterError, match=r"^no adapter is called 'sglang'$"):
        load_system("sglang")
