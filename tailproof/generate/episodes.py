"""What happens in a store trace, in pieces: saves, loads and lookups held back, failing and lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spec.trace import (
    Abort,
    Configuration,
    DropKeys,
    Gate,
    KillMaster,
    Prompt,
    ResetLocal,
    ResetStore,
    RestartMaster,
    Run,
    Settle,
    Step,
    first_tokens,
    prompt_length,
)
from tailproof.generate.drawing import (
    Draft,
    accepted,
    akin,
    new_prompt,
    next_prompt,
    submit,
)

FAILING = ("fail", "raise", "part", "full")


@dataclass(slots=True)
class StoreDraft:
    """A store trace in the making: `engines` is where each request of the draft arrived, `gates` what is not
    open, `busy` the engines with something left to do, `kills` whether the master may still be killed."""

    draft: Draft
    kills: bool
    engines: list[int] = field(default_factory=list)
    gates: dict[tuple[int, str], str] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)

    @property
    def rng(self) -> random.Random:
        """Where everything is drawn from."""
        return self.draft.rng

    @property
    def configuration(self) -> Configuration:
        """The setting, its pool not sized yet."""
        return self.draft.configuration

    def add(self, step: Step) -> None:
        """One more step."""
        self.draft.steps.append(step)

    def engine(self) -> int:
        """Any engine."""
        return self.rng.randrange(len(self.configuration.roles))

    def saver(self) -> int:
        """An engine that saves, if there is one."""
        roles = self.configuration.roles
        return self.rng.choice([at for at, role in enumerate(roles) if role != "consumer"] or [0])

    def arrive(self, engine: int, prompt: Prompt, salt: str | None, *, lasting: bool = False) -> None:
        """A request, its prompt cut to what a case has time for; a `lasting` one decodes for some steps."""
        prompt = first_tokens(prompt, self.draft.longest + 2 * self.configuration.unit)
        outputs = self._outputs(prompt_length(prompt)) + (self.rng.randint(4, 9) if lasting else 0)
        submit(self.draft, prompt, salt, outputs, engine)
        self.engines.append(engine)
        self.busy.add(engine)

    def arrive_new(self, engine: int) -> None:
        """A prompt that shares nothing."""
        self.arrive(engine, *new_prompt(self.draft))

    def arrive_again(self, engine: int) -> None:
        """An earlier prompt once more, as it was or with something changed; rather a late one."""
        draft, rng = self.draft, self.rng
        if not draft.prompts:
            self.arrive_new(engine)
            return
        index = max(rng.randrange(len(draft.prompts)), rng.randrange(len(draft.prompts)))
        same = rng.random() < 0.5
        self.arrive(engine, *((draft.prompts[index], draft.salts[index]) if same else akin(draft, index)))

    def _outputs(self, prompt: int) -> int:
        """One or a few, or enough to decode across a block end."""
        rng = self.rng
        block = rng.choice(self.configuration.groups).block
        across = min(block - prompt % block + rng.randint(1, 3), 20)
        return rng.choice((1, 1, 1, 2, 3, across, rng.randint(1, 8)))

    def run(self, engine: int, *counts: int) -> None:
        """One of these numbers of engine steps."""
        self.add(Run(self.rng.choice(counts), accepted(self.draft), engine))

    def settle(self, engine: int) -> None:
        """An engine comes to rest; what its gates hold goes through. Loads that fail may be tried again and
        again, so they seldom go on failing then."""
        anew = self.configuration.load_failures == "recompute"
        if anew and self.gates.get((engine, "get")) in FAILING and self.rng.random() < 0.96:
            self.gate(engine, "get", "release")
        self.add(Settle(accepted(self.draft), engine))
        self.busy.discard(engine)
        self.draft.live = [name for name in self.draft.live if self.engine_of(name) != engine]
        for key in [key for key, action in self.gates.items() if key[0] == engine and action == "hold"]:
            del self.gates[key]

    def engine_of(self, name: str) -> int:
        """Where a request arrived."""
        return self.engines[int(name.removeprefix("r"))]

    def rest(self, engine: int) -> None:
        """The engine at rest, its local cache emptied as a rule."""
        if engine in self.busy:
            self.settle(engine)
        if self.rng.random() < 0.9:
            self.add(ResetLocal(engine=engine))

    def gate(self, engine: int, kind: str, action: str) -> None:
        """A gate is set; remembered until it opens."""
        self.add(Gate(kind, action, engine))
        if action == "release":
            self.gates.pop((engine, kind), None)
        elif action != "newest":
            self.gates[engine, kind] = action

    def abort(self, engine: int) -> None:
        """The client of a request that may still run goes away."""
        if mine := [name for name in self.draft.live if self.engine_of(name) == engine]:
            name = self.rng.choice(mine)
            self.draft.live.remove(name)
            self.add(Abort(name))

    def reset_store(self, engine: int) -> None:
        """The store is emptied by way of an engine."""
        self.add(ResetStore(engine))
        for kind in ("put", "lookup"):
            if self.gates.get((engine, kind)) == "hold":
                del self.gates[engine, kind]

    def drop(self) -> None:
        """The store loses some of its latest keys, or nearly all."""
        self.add(DropKeys(self.rng.choice((1, 1, 2, 3, self.rng.randint(1, 12), 60))))


# Episodes: what happens, in the order in which it may go wrong.


def produce(case: StoreDraft) -> None:
    """Prompts are computed and saved."""
    engine = case.saver()
    for _ in range(case.rng.choice((1, 1, 2))):
        case.arrive(engine, *next_prompt(case.draft))
    if case.rng.random() < 0.7:
        case.settle(engine)
    else:
        case.run(engine, 1, 2, 4)


def _reload(case: StoreDraft) -> None:
    """A resend, an extension, a sibling or a next turn, of which an engine has nothing left itself."""
    engine = case.engine()
    case.rest(engine)
    for _ in range(case.rng.choice((1, 1, 2))):
        case.arrive_again(engine)
    if case.rng.random() < 0.3:
        case.run(engine, 1, 2, 3)
        case.rng.choice((case.abort, case.settle))(engine)
    else:
        case.settle(engine)


def _begun(case: StoreDraft) -> None:
    """The beginning of an earlier prompt comes back to an engine, then all of it: the store has the rest."""
    rng, draft = case.rng, case.draft
    index = max(range(len(draft.prompts)), key=lambda at: prompt_length(draft.prompts[at]))
    engine, align = case.engine(), draft.grids[-1]
    prompt, salt = draft.prompts[index], draft.salts[index]
    case.rest(engine)
    most = max((prompt_length(prompt) - 1) // align, 1)
    case.arrive(
        engine, first_tokens(prompt, align * rng.randint(1, most) + rng.choice((0, 1, 1, align // 2))), salt
    )
    case.settle(engine)
    case.arrive(engine, prompt, salt)
    case.settle(engine)


def _held_puts(case: StoreDraft) -> None:
    """Saves are held back while their requests end, are aborted or are preempted, and while others come."""
    rng, engine = case.rng, case.saver()
    case.gate(engine, "put", "hold")
    for _ in range(rng.choice((1, 1, 2))):
        case.arrive(engine, *next_prompt(case.draft), lasting=rng.random() < 0.6)
    case.run(engine, 1, 2, 3, 5)
    for _ in range(rng.choice((1, 2, 3))):
        choice = rng.randrange(8)
        if choice == 0:
            case.abort(engine)
        elif choice <= 2:
            case.add(ResetLocal(running=rng.random() < 0.5, engine=engine))
        elif choice == 3:
            case.arrive_again(engine)
        elif choice == 4:
            other = case.engine()
            case.arrive_again(other)
            case.run(other, 1, 2)
        elif choice == 5:
            case.reset_store(engine)
        elif choice == 6:
            case.gate(engine, "put", rng.choice(FAILING))
        case.run(engine, 1, 2, 3)
    _let_go(case, engine, "put")


def _held_gets(case: StoreDraft) -> None:
    """Loads are held back while their keys vanish, their requests are aborted, or a later one overtakes."""
    rng, engine = case.rng, case.engine()
    case.rest(engine)
    case.gate(engine, "get", "hold")
    for _ in range(rng.choice((1, 2, 2, 3) if case.configuration.receivers > 1 else (1, 1, 2))):
        case.arrive_again(engine)
    case.run(engine, 1, 2, 3)
    for _ in range(rng.choice((1, 1, 2))):
        choice = rng.randrange(9)
        if choice <= 1:
            case.drop()
        elif choice == 2:
            case.abort(engine)
        elif choice == 3 or (choice == 4 and case.configuration.receivers > 1):
            case.gate(engine, "get", "newest")
        elif choice == 5:
            case.add(ResetLocal(running=rng.random() < 0.6, engine=engine))
        elif choice == 6:
            case.gate(engine, "get", rng.choice(("fail", "raise", "part")))
        elif choice == 7:
            case.reset_store(engine)
        elif case.kills:
            killed(case, engine)
        if rng.random() < 0.7:
            case.run(engine, 1, 2)
    _let_go(case, engine, "get")


def _held_lookups(case: StoreDraft) -> None:
    """Answers come late, while the keys asked for vanish; the load then finds other keys than the lookup."""
    rng, engine = case.rng, case.engine()
    case.rest(engine)
    held = case.configuration.lookup_async and rng.random() < 0.75
    if held:
        case.gate(engine, "lookup", "hold")
    elif not case.configuration.lookup_async:
        case.gate(engine, "get", "hold")
    for _ in range(rng.choice((1, 2))):
        case.arrive_again(engine)
    case.run(engine, 1)
    choice = rng.randrange(6)
    if choice <= 2:
        case.drop()
    elif choice == 3:
        case.abort(engine)
    elif choice == 4 and held:
        case.gate(engine, "lookup", rng.choice(("newest", "newest", "fail", "raise")))
    else:
        case.arrive_again(engine)
    case.run(engine, 1, 2)
    _let_go(case, engine, "lookup" if held else "get")


def _failing(case: StoreDraft) -> None:
    """Calls of one kind fail for a while; then the same is asked for again."""
    rng = case.rng
    kind = rng.choice(("put", "put", "get", "get", "lookup"))
    action = rng.choice(FAILING if kind == "put" else FAILING[:3] if kind == "get" else FAILING[:2])
    engine = case.saver() if kind == "put" else case.engine()
    if kind != "put":
        case.rest(engine)
    case.gate(engine, kind, action)
    for _ in range(rng.choice((1, 1, 2))):
        if kind == "put":
            case.arrive(engine, *next_prompt(case.draft))
        else:
            case.arrive_again(engine)
    if kind != "get" and rng.random() < 0.5:
        case.settle(engine)
    else:
        case.run(engine, 2, 3, 5)
    if rng.random() < 0.9:
        case.gate(engine, kind, "release")
    if rng.random() < 0.6:
        _reload(case)


def _dropped(case: StoreDraft) -> None:
    """The store loses keys or everything, at rest or not, before a resend."""
    engine = case.engine()
    if case.rng.random() < 0.7:
        case.rest(engine)
    if case.rng.random() < 0.7:
        case.drop()
    else:
        case.reset_store(engine)
    case.arrive_again(engine)
    if case.rng.random() < 0.7:
        case.settle(engine)
    else:
        case.run(engine, 1, 2, 4)


def _crowd(case: StoreDraft) -> None:
    """Several requests at once, so that small pools run out while blocks are pinned."""
    rng = case.rng
    engines = [case.engine() for _ in range(rng.choice((2, 3, 4)))]
    if rng.random() < 0.5:
        case.gate(case.saver(), "put", "hold")
    for engine in engines:
        case.arrive(engine, *next_prompt(case.draft), lasting=rng.random() < 0.4)
    for engine in dict.fromkeys(engines):
        case.run(engine, 2, 3, 5, 8)
    engine = rng.choice(engines)
    choice = rng.randrange(4)
    if choice == 0:
        case.abort(engine)
    elif choice == 1:
        case.add(ResetLocal(running=True, engine=engine))
    for engine in dict.fromkeys(engines):
        case.run(engine, 1, 2, 3)


EPISODES: tuple[Callable[[StoreDraft], None], ...] = (
    produce,
    *[_reload] * 4,
    _begun,
    _begun,
    *[_held_puts] * 3,
    *[_held_gets] * 3,
    *[_held_lookups] * 2,
    *[_failing] * 3,
    _dropped,
    _crowd,
    _crowd,
)


def _let_go(case: StoreDraft, engine: int, kind: str) -> None:
    """A gate opens by itself or with a settle, or stays as it is for now."""
    choice = case.rng.random()
    if choice < 0.45:
        if (engine, kind) in case.gates:
            case.gate(engine, kind, "release")
        case.run(engine, 1, 2, 3)
    elif choice < 0.85:
        case.settle(engine)


def killed(case: StoreDraft, engine: int) -> None:
    """The master dies and comes back, empty; few calls are made to it meanwhile, each costs seconds."""
    rng = case.rng
    case.kills = False
    case.add(KillMaster())
    if rng.random() < 0.7:
        if not any(case.engine_of(name) == engine for name in case.draft.live):
            case.arrive_again(engine)
        case.run(engine, 1, 2)
    case.add(RestartMaster())
    case.run(engine, 1)
