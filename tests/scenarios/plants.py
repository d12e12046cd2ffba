"""Changes of what a run has shown, as scenarios write them: where in an observation, and what stands there.

    plant 5 free 3                         a field of observation 5
    plant 5 scheduled.0.end 20             inside a field
    plant 5 published + 1 12 B             one more; `- 1 12 B` one less, alone: none
    plant 5 withdrawn 1 18 A, 0 4 A        these and no others
    plant 4 finished @6.finished           what observations have there, joined
    plant end 5                            the run ends behind observation 5
    plant copy 4 5                         observations 4 and 5 as they were, once more
    plant add 3 settle                     an empty observation, of step 3 of the trace
    plant fails stuck "nothing moves"      it breaks off behind that; a place may follow

A value is its fields in order, those with a default by name.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import types
import typing
from collections.abc import Sequence
from typing import Any

from spec.observation import Failure, Observation, StoreView


def planted(seen: Sequence[Observation], plants: Sequence[str]) -> list[Observation]:
    """A run with all changes made, one after the other."""
    run = list(seen)
    for plant in plants:
        first, *rest = shlex.split(plant.replace(",", " , "))
        if first == "end":
            del run[int(rest[0]) + 1 :]
        elif first == "copy":
            run += seen[int(rest[0]) : int(rest[-1]) + 1]
        elif first == "add":
            run.append(Observation(int(rest[0]), rest[1]))
        elif first == "fails":
            run.append(_broken_off(run[-1], Failure(rest[0], rest[1], place="".join(rest[2:3]))))
        else:
            at = len(run) - 1 if first == "last" else int(first)
            taken = [_at(run, one[1:].split(".")) for one in rest[1:] if re.match(r"@\d+\.", one)]
            if len(taken) > 1:
                taken = [tuple(one for part in taken for one in part)]
            changed = _changed(run[at], Observation, rest[0].split("."), taken or rest[1:])
            assert changed != run[at], f"plant {plant} changes nothing"
            run[at] = changed
    return run


def _at(value: Any, path: Sequence[str]) -> Any:
    """What a path leads to."""
    for name in path:
        value = value[int(name)] if name.isdigit() else getattr(value, name)
    return value


def _broken_off(last: Observation, failure: Failure) -> Observation:
    store = None if last.store is None else StoreView()
    kept = {
        name: getattr(last, name) for name in ("at", "do", "running", "waiting", "free", "counters", "engine")
    }
    return Observation(**kept, store=store, failure=failure)


def _changed(value: Any, kind: Any, path: Sequence[str], tokens: list[Any]) -> Any:
    """A value with that changed which a path leads to."""
    kind = _there(kind)
    if not path:
        return _new(value, kind, tokens)
    name, *rest = path
    if isinstance(value, tuple):
        one = _changed(value[int(name)], typing.get_args(kind)[0], rest, tokens)
        return (*value[: int(name)], one, *value[int(name) + 1 :])
    inner = typing.get_type_hints(kind)[name]
    return dataclasses.replace(value, **{name: _changed(getattr(value, name), inner, rest, tokens)})


def _there(kind: Any) -> Any:
    """The type of a value that is there, of one that may be None."""
    if isinstance(kind, types.UnionType):
        return next(one for one in typing.get_args(kind) if one is not types.NoneType)
    return kind


def _new(value: Any, kind: Any, tokens: list[Any]) -> Any:
    if tokens == ["none"]:
        return None
    if tokens and not isinstance(tokens[0], str):
        return tokens[0]
    if typing.get_origin(kind) is not tuple:
        return _value(kind, tokens)
    inner = typing.get_args(kind)[0]
    if tokens[:1] == ["+"]:
        return (*value, _value(inner, tokens[1:]))
    if tokens[:1] == ["-"]:
        gone = _list(inner, tokens[1:])
        assert set(gone) <= set(value), f"{gone} is not there, but {value}"
        return tuple(one for one in value if one not in gone)
    return _list(inner, tokens)


def _list(inner: Any, tokens: list[str]) -> tuple[Any, ...]:
    if not dataclasses.is_dataclass(inner):
        return tuple(inner(token) for token in tokens)
    text = " ".join(map(shlex.quote, tokens))
    return tuple(_value(inner, shlex.split(part)) for part in text.split(" , ") if part)


def _value(kind: Any, tokens: list[str]) -> Any:
    """One value of a type."""
    kind = _there(kind)
    if typing.get_origin(kind) is tuple:
        return _list(typing.get_args(kind)[0], tokens)
    if not dataclasses.is_dataclass(kind):
        (token,) = tokens
        return {"yes": True, "no": False}[token] if kind is bool else kind(token)
    fields = dataclasses.fields(kind)
    hints, rest, values = typing.get_type_hints(kind), list(tokens), {}
    for field in fields:
        if field.default is dataclasses.MISSING:
            many = typing.get_origin(hints[field.name]) is tuple
            end = next((i for i, one in enumerate(rest) if one in hints), len(rest)) if many else 1
            values[field.name] = _value(hints[field.name], rest[:end])
            rest = rest[end:]
    while rest:
        name = rest.pop(0)
        end = next((i for i, one in enumerate(rest) if one in hints), len(rest))
        values[name] = _value(hints[name], rest[:end])
        rest = rest[end:]
    return kind(**values)


def shown(value: Any) -> str:
    """A value as a plant would write it."""
    if isinstance(value, tuple):
        return ", ".join(map(shown, value)) or "nothing"
    if not dataclasses.is_dataclass(value):
        return str(value)
    parts = []
    for field in dataclasses.fields(value):
        found = getattr(value, field.name)
        if field.default is dataclasses.MISSING:
            parts.append(shown(found))
        elif found != field.default:
            parts.append(f"{field.name} {shown(found)}")
    return " ".join(parts)
