"""What draws or charges, attacked as its user may: forks, pools, copies, threads, callbacks."""

from __future__ import annotations

import ast
import copy
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

import cloudpickle
import joblib
import numpy as np
import pytest

from labelveil.common import noncopyable
from labelveil.common.engine.task import Secrets
from labelveil.common.entropy import Entropy, seeded_entropy, system_entropy
from labelveil.common.errors import BudgetError, PrivacyError
from labelveil.common.guarantees import Filter, Odometer, PureDP
from labelveil.common.mechanisms.continual import RunningSums, TreeNoise
from labelveil.common.mechanisms.interactive import (
    ChangeStream,
    HeldOutcome,
    IndividualSparseVector,
    NotPrior,
    Session,
    Terms,
)
from labelveil.common.mechanisms.interactive.targets import not_prior
from labelveil.common.mechanisms.thresholdout import ReusableHoldout, Thresholdout
from labelveil.common.noncopyable import NonCopyable, ProcessLock
from labelveil.common.randomizers import build_randomizer
from tests.effort import one_in
from tests.imports import import_name, modules, parsed

EPSILON = Fraction(1, 2)
TAU = 20
THREADS = 8


def session() -> Session[Any]:
    return Session(None, Terms(not_prior(2 * EPSILON), TAU), system_entropy())


def holdout(most: int = 40) -> ReusableHoldout:
    return ReusableHoldout(Thresholdout(Fraction(1), most, Fraction(0)), system_entropy())


MAKERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "entropy": (system_entropy, lambda it: it.words("labels", 0, 4)),
    "its key": (system_entropy, lambda it: it.key),
    "its coins": (system_entropy, lambda it: it.coins("rounding", 0, 4)),
    "source": (lambda: system_entropy().source("any"), lambda it: it.take(4)),
    "session": (session, lambda it: it.run(NotPrior(lambda d, r: 1, EPSILON, 0))),
    "held outcome": (
        lambda: HeldOutcome(session(), lambda d, r: 5, EPSILON),
        lambda it: it.ask(lambda value: True),
    ),
    "change stream": (
        lambda: ChangeStream(session(), EPSILON, 0),
        lambda it: it.step(lambda d, r: 1),
    ),
    "sparse vector": (
        lambda: IndividualSparseVector(9, EPSILON, 3, system_entropy()),
        lambda it: it.ask([np.arange(9)], 0),
    ),
    "holdout": (holdout, lambda it: it.ask([0.5] * 100, 0.9)),
    "sums": (
        lambda: RunningSums(TreeNoise(8, 1, Fraction(1)), 2, system_entropy()),
        lambda it: it.add(np.array([1, 2])),
    ),
    "filter": (lambda: Filter(PureDP.of(1)), lambda it: it.spend(PureDP.of(Fraction(1, 8)))),
    "odometer": (lambda: Odometer(0.01), lambda it: it.record(PureDP.of(Fraction(1, 8)))),
}
"""How to make one of each, and what it does that must be done once."""


@contextmanager
def forked(work: Callable[[], Any]) -> Iterator[Any]:
    """What ``work`` gives or raises in a child process."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: pytest has threads
        child = os.fork()
    if not child:
        try:
            try:
                said = pickle.dumps(work())
            except BaseException as error:
                said = pickle.dumps(error)
            os.write(writing, said)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    yield pickle.loads(said)


def test_a_fork_of_a_fork_is_another_process_even_of_the_same_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noncopyable, "_forks", 1)
    entropy = system_entropy()
    noncopyable._forked()
    with pytest.raises(PrivacyError, match="was made before a fork"):
        entropy.words("labels", 0, 1)


@pytest.mark.parametrize("name", MAKERS)
def test_a_fork_draws_and_charges_nothing(name: str) -> None:
    make, use = MAKERS[name]
    it = make()
    with forked(lambda: use(it)) as said:
        assert isinstance(said, PrivacyError), said
        assert "before a fork" in str(said)
    use(it)  # who made it goes on
    with forked(lambda: use(make()) is not None or True) as said:
        assert said is True  # and a child makes its own


def test_a_buffer_is_not_drawn_by_two_processes() -> None:
    """The words of a source lie ready: its entropy is not asked for them."""
    source = system_entropy().source("any")
    source.take(1)
    with forked(lambda: source.take(3).tolist()) as said:
        assert isinstance(said, PrivacyError)


def test_the_seeded_twin_repeats_its_words_on_both_sides_of_a_fork() -> None:
    entropy = seeded_entropy(5)
    source = entropy.source("any")
    source.take(1)
    with forked(lambda: (source.take(3).tolist(), entropy.key)) as said:
        assert said == (source.take(3).tolist(), entropy.key)


def test_labels_randomized_on_both_sides_of_a_fork_do_not_share_their_noise() -> None:
    randomizer = build_randomizer("randomized-response", labels=[0, 1], prior=[1, 1], epsilon=0.1)
    entropy, labels = system_entropy(), np.zeros(500, dtype=np.int64)
    with forked(lambda: randomizer.randomize_indices(labels, entropy)) as said:
        assert isinstance(said, PrivacyError)
    twin = seeded_entropy(3)
    with forked(lambda: randomizer.randomize_indices(labels, twin)) as said:
        assert np.array_equal(said, randomizer.randomize_indices(labels, twin))
    with forked(lambda: randomizer.randomize_indices(labels, system_entropy())) as said:
        assert not np.array_equal(said, randomizer.randomize_indices(labels, entropy))


def test_a_process_with_the_number_of_one_before_it_is_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entropy, number = system_entropy(), os.getpid()

    def with_our_number() -> Any:
        monkeypatch.setattr("os.getpid", lambda: number)
        return entropy.words("labels", 0, 4)

    with forked(with_our_number) as said:
        assert isinstance(said, PrivacyError)


def test_a_fork_in_the_midst_of_a_call_does_not_hang() -> None:
    """A child has a copy of the lock that a thread held, and nobody who gives it back."""
    entropy, inside, done = system_entropy(), threading.Event(), threading.Event()

    def hold() -> None:
        with entropy._lock:
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert inside.wait(60)
        with forked(lambda: entropy.words("labels", 0, 4)) as said:
            assert isinstance(said, PrivacyError)
        with forked(lambda: system_entropy().words("labels", 0, 4).size) as said:
            assert said == 4
    finally:
        done.set()
        thread.join(60)


ENTROPY = system_entropy()


def drawn_from_the_modules(start: int) -> list[int]:
    return ENTROPY.words("pool", start, 4).tolist()


def drawn_from_a_key(secrets: Secrets, start: int) -> list[int]:
    return secrets.entropy().words("pool", start, 4).tolist()


@pytest.mark.parametrize("kind", one_in(2, ["fork", "spawn"]))
def test_a_pool_draws_what_its_tasks_have_the_key_of(kind: str) -> None:
    """Rows of their own; and a task that is tried again draws the same."""
    entropy = system_entropy()
    secrets, starts = Secrets(b"", entropy.key), [0, 4, 8, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context = multiprocessing.get_context(kind)
        with ProcessPoolExecutor(2, context) as pool:
            drawn = [pool.submit(drawn_from_a_key, secrets, start) for start in starts]
            parts = [future.result(60) for future in drawn]
            shared = pool.submit(drawn_from_the_modules, 0)
            if kind == "fork":
                with pytest.raises(PrivacyError, match="before a fork"):
                    shared.result(60)
            handed = pool.submit(Entropy.words, entropy, "pool", 0, 4)
            with pytest.raises(PrivacyError, match="copied"):
                handed.result(60)
    assert parts[3] == parts[0]
    assert [word for part in parts[:3] for word in part] == entropy.words("pool", 0, 12).tolist()


DUPLICATES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "first pickle": lambda it: pickle.dumps(it, 0),
    "cloudpickle": cloudpickle.dumps,
    "joblib": joblib.hash,
    "in a closure": lambda it: cloudpickle.dumps(lambda: it),
    "in a list": lambda it: copy.deepcopy([it]),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("duplicate", DUPLICATES)
def test_nothing_that_draws_or_charges_is_copied(name: str, duplicate: str) -> None:
    it = MAKERS[name][0]()
    with pytest.raises(Exception, match="not copied or pickled") as caught:
        DUPLICATES[duplicate](it)
    assert "PrivacyError" in repr(caught.value) or isinstance(caught.value.__cause__, PrivacyError)


def in_threads(work: Callable[[], Any]) -> list[Any]:
    """What each of 8 threads gives, which all start at once."""
    start = threading.Barrier(THREADS)

    def begin() -> Any:
        start.wait(60)
        return work()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            return [future.result(60) for future in [pool.submit(begin) for _ in range(THREADS)]]
    finally:
        sys.setswitchinterval(before)


def yielding(data: Any, source: Any) -> int:
    """An algorithm in the midst of which others get their turn."""
    os.sched_yield()
    return 1


class Yielding(float):
    """An estimate in the midst of whose reading others get their turn."""

    def __lt__(self, other: object) -> bool:
        os.sched_yield()
        return float(self) < float(other)  # type: ignore[arg-type]

    def __gt__(self, other: object) -> bool:
        os.sched_yield()
        return float(self) > float(other)  # type: ignore[arg-type]


def until_refused(ask: Callable[[], Any]) -> list[Any]:
    answers = []
    while True:
        try:
            answers.append(ask())
        except BudgetError:
            return answers


class Unlocked(ProcessLock):
    """The twin: everybody's turn."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def published(it: NonCopyable, ask: Callable[[], Any], *, locked: bool) -> int:
    """How many answers 8 threads get until all of them are refused."""
    if not locked:
        it._lock = Unlocked("twin")
    return sum(map(len, in_threads(lambda: until_refused(ask))))


@pytest.mark.parametrize("kind", ["session", "holdout"])
def test_threads_get_no_more_than_one_does(kind: str) -> None:
    def play(locked: bool) -> int:
        if kind == "session":
            s = session()
            call = NotPrior(yielding, EPSILON, 0)
            return published(s, lambda: s.run(call), locked=locked)
        h = holdout(TAU)
        # far from the holdout's mean, so that every answer is the holdout's
        return published(h, lambda: h.ask([0.0] * 10_000, Yielding(1.0)), locked=locked)

    assert play(locked=True) == TAU
    assert any(play(locked=False) > TAU for _ in range(20))


def test_threads_get_words_of_their_own() -> None:
    source = system_entropy().source("any")
    words = [w for part in in_threads(lambda: [source.take(3) for _ in range(400)]) for w in part]
    assert len(set(np.concatenate(words).tolist())) == THREADS * 400 * 3


def test_a_filter_is_not_passed_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def yielding_restated(item: Any, limit: Any) -> Any:
        os.sched_yield()
        return item

    monkeypatch.setattr("labelveil.common.guarantees.accountant._restated", yielding_restated)

    def play(locked: bool) -> int:
        limit = Filter(PureDP.of(TAU))
        return published(limit, lambda: limit.spend(PureDP.of(1)), locked=locked)

    assert play(locked=True) == TAU
    assert any(play(locked=False) > TAU for _ in range(20))


def test_nobody_is_let_in_from_within() -> None:
    """A callback could ask what depends on an outcome that is not paid for."""
    s = session()

    def nested(data: Any, source: Any) -> int:
        return s.run(NotPrior(lambda d, r: 0, EPSILON, 0))

    with pytest.raises(PrivacyError, match="at work"):
        s.run(NotPrior(nested, EPSILON, 0))
    assert s.hits == 1
    assert s.run(NotPrior(lambda d, r: 0, EPSILON, 0)) == 0  # and it goes on


# ---- which classes are meant: found by what they keep

DRAWING = {"source", "words", "take", "key"}
"""Attributes of entropy and of sources that lead to words."""
MAKING = {"system_entropy", "seeded_entropy", "urandom", "token_bytes"}


@cache
def _parts(node: ast.AST) -> tuple[ast.AST, ...]:
    """An expression's nodes: the search passes over all classes until nothing new is found."""
    return (*ast.walk(node),)


@cache
def _names(node: ast.AST) -> frozenset[str]:
    """Every name, attribute and quoted annotation in an expression."""
    names: set[str] = set()
    for part in _parts(node):
        if isinstance(part, ast.Name):
            names.add(part.id)
        elif isinstance(part, ast.Attribute):
            names.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            names |= {*part.value.replace("[", " ").replace("]", " ").split()}
    return frozenset(names)


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [part for part in node.body if isinstance(part, ast.FunctionDef)]


@cache
def _kept(method: ast.FunctionDef) -> tuple[ast.expr, ...]:
    return (*_assigned(method),)


def _assigned(method: ast.FunctionDef) -> Iterator[ast.expr]:
    """What a method puts into attributes of its object, or into parts of them; None forgets it."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            if isinstance(node.value, ast.Constant) and node.value.value is None:
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                for part in ast.walk(target):
                    if (
                        isinstance(part, ast.Attribute)
                        and isinstance(part.value, ast.Name)
                        and part.value.id == "self"
                    ):
                        yield node.value


def _keeps(node: ast.ClassDef, found: set[str]) -> bool:
    """Whether a class keeps a stream, drawn words, a key, one of these classes, or a budget."""
    if any(_names(base) & found for base in node.bases):
        return True
    for method in _methods(node):
        arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
        typed = {a.arg: _names(a.annotation) for a in arguments if a.annotation is not None}
        holders = {name for name, types in typed.items() if types & {*found, "Entropy"}}
        for value in _kept(method):
            for part in _parts(value):
                # entropy itself refuses all by itself; what is made from it must as well
                if isinstance(part, ast.Attribute) and part.attr in DRAWING:
                    owner = part.value
                    if isinstance(owner, ast.Name) and owner.id in holders:
                        return True
                    if isinstance(owner, ast.Attribute) and "entropy" in owner.attr:
                        return True
                if isinstance(part, ast.Call):
                    given = {*part.args, *(keyword.value for keyword in part.keywords)}
                    if any(isinstance(one, ast.Name) and one.id in holders for one in given):
                        return True
                    if _names(part.func) & MAKING:
                        return True
            if isinstance(value, ast.Name) and typed.get(value.id, set()) & found:
                return True
            if isinstance(value, ast.Tuple) and any(
                isinstance(one, ast.Name) and typed.get(one.id, set()) & found for one in value.elts
            ):
                return True
        changed = method.name not in ("__init__", "__post_init__")
        if changed and any("compose" in _names(value) for value in _kept(method)):
            return True
    later = [m for m in _methods(node) if m.name not in ("__init__", "__post_init__")]
    return any(map(_kept, later)) and any(
        isinstance(part, ast.Raise) and part.exc is not None and "BudgetError" in _names(part.exc)
        for part in _parts(node)
    )


def found_in(trees: dict[str, ast.Module]) -> dict[tuple[str, str], ast.ClassDef]:
    """Every class that draws or charges, by module and name."""
    classes = {
        (module, node.name): node
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found: dict[tuple[str, str], ast.ClassDef] = {}
    names = {"WordSource", "NonCopyable"}
    while True:
        more = {key: n for key, n in classes.items() if key not in found and _keeps(n, names)}
        if not more:
            return found
        found |= more
        names |= {name for _, name in more}


def unguarded(node: ast.ClassDef) -> list[str]:
    """Public methods that change their object while others may do so, too."""
    loose = []
    for method in _methods(node):
        turns = [
            part
            for part in ast.walk(method)
            if isinstance(part, ast.With)
            and any("_lock" in _names(item.context_expr) for item in part.items)
        ]
        within = sum(len(_kept(_as_method(turn))) for turn in turns)
        if not method.name.startswith("_") and within < len(_kept(method)):
            loose.append(method.name)
    return loose


def _as_method(turn: ast.With) -> ast.FunctionDef:
    arguments = ast.arguments([], [], None, [], [], None, [])
    return ast.FunctionDef("within", arguments, turn.body, [], None)


def test_whatever_draws_or_charges_is_one_processs_own() -> None:
    trees = {name: parsed(path) for name, path in modules().items() if ".wire." not in name}
    found = found_in(trees)
    assert {"Session", "ReusableHoldout", "Filter", "Ledger"} <= {name for _, name in found}
    for (module, name), node in found.items():
        cls = getattr(import_module(import_name(module)), name)
        assert issubclass(cls, NonCopyable), (module, name)
        assert cls.__reduce_ex__ is NonCopyable.__reduce_ex__ or issubclass(cls, Entropy), (
            module,
            name,
        )
        if not name.startswith("_"):  # which one function holds, and hands to nobody
            assert unguarded(node) == [], (module, name)


@pytest.mark.parametrize(
    "body",
    [
        "class Kept:\n def __init__(self, entropy: Entropy):\n  self.s = entropy.source('a')",
        "class Kept:\n def __init__(self, entropy: Entropy):\n  self.k = entropy.key[:]",
        "class Kept:\n def __init__(self):\n  self._key = os.urandom(32)",
        "class Kept:\n def __init__(self, source: WordSource):\n  self.s = source",
        "class Kept:\n def __init__(self, entropy: 'Entropy'):\n  self.n = noise(3, entropy)",
        "class Kept:\n def __init__(self, one, s: Session):\n  self.one, self.s = one, s",
        "class Kept(Session): pass",
        "class Kept:\n def add(self, g):\n  self.spent = self.spent.compose(g)",
        "class Kept:\n def ask(self):\n  self.n += 1\n  raise BudgetError('none left')",
    ],
)
def test_a_class_that_keeps_noise_or_a_budget_is_found(body: str) -> None:
    session_class = (
        "class Session(NonCopyable):\n def run(self):\n  with self._lock:\n   self.n = 1"
    )
    found = found_in({"m": ast.parse(f"{session_class}\n{body}")})
    assert {name for _, name in found} == {"Session", "Kept"}
    assert unguarded(found["m", "Session"]) == []


@pytest.mark.parametrize(
    "body",
    [
        "class Loose(NonCopyable):\n def run(self):\n  self.n += 1",
        "class Loose(NonCopyable):\n def run(self):\n  self.n[3] = 1\n"
        "  with self._lock:\n   self.n = 1",
    ],
)
def test_a_change_outside_of_the_lock_is_found(body: str) -> None:
    assert unguarded(found_in({"m": ast.parse(body)})["m", "Loose"]) == ["run"]


def test_what_keeps_nothing_is_not_found() -> None:
    body = (
        "class Fine:\n def __init__(self, entropy: Entropy | None = None):\n"
        "  self.entropy = entropy\n def draw(self, source: WordSource):\n"
        "  words = source.take(3)\n  return words"
    )
    assert found_in({"m": ast.parse(body)}) == {}
