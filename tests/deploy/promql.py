"""What rules of Prometheus say about series, for a machine without ``promtool``.

As much of PromQL as our rules use, from the language's documentation: vectors at a time look back
five minutes, ``increase`` extrapolates to its window, operators match label sets. What is not known
raises, so that a new rule is not passed over.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import promql_parser as promql

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = list[tuple[float, float]]

_LOOK_BACK = 300.0
_NAME = "__name__"
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "-": operator.sub,
    "+": operator.add,
    "*": operator.mul,
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def labels_of(**labels: str) -> Labels:
    return frozenset(labels.items())


class Series:
    """Samples of every series of a test, at times in seconds."""

    def __init__(self, inputs: Iterable[Mapping[str, str]], interval: float) -> None:
        self._samples: dict[Labels, Samples] = {}
        for given in inputs:
            selector = promql.parse(given["series"])
            found = {each.name: each.value for each in selector.matchers.matchers}
            labels = labels_of(**found, **{_NAME: selector.name})
            values = enumerate(expanded(given["values"]))
            self._samples[labels] = [(i * interval, v) for i, v in values if v is not None]

    def at(
        self, selector: promql.VectorSelector, now: float, window: float
    ) -> Iterator[tuple[Labels, Samples]]:
        now -= selector.offset.total_seconds() if selector.offset else 0.0
        for labels, samples in self._samples.items():
            known = dict(labels)
            if known[_NAME] == selector.name and all(
                _matches(known.get(each.name, ""), each) for each in selector.matchers.matchers
            ):
                inside = [(at, value) for at, value in samples if now - window <= at <= now]
                if inside:
                    yield labels_of(**{k: v for k, v in known.items() if k != _NAME}), inside


def expanded(text: str) -> Iterator[float | None]:
    """Yield the values of a series, as ``promtool`` writes them: ``1x3 _x2 0+5x2``."""
    for part in text.split():
        gap = re.fullmatch(r"_(?:x(\d+))?", part)
        if gap:
            yield from [None] * int(gap[1] or 1)
            continue
        found = re.fullmatch(r"(-?[\d.]+(?:e\d+)?)(?:([+-][\d.]+))?(?:x(\d+))?", part)
        assert found, part
        start, step, times = float(found[1]), float(found[2] or 0), int(found[3] or 0)
        yield from (start + step * number for number in range(times + 1))


def _matches(value: str, matcher: promql.Matcher) -> bool:
    kinds = promql.MatchOp
    if matcher.op == kinds.Equal:
        return value == matcher.value
    if matcher.op == kinds.Re:
        return re.fullmatch(matcher.value, value) is not None
    raise NotImplementedError(matcher.op)


def evaluate(expression: promql.Expr, series: Series, now: float) -> Vector | float:
    """Return what an expression gives at a time: a vector, or a number."""
    if isinstance(expression, promql.ParenExpr):
        return evaluate(expression.expr, series, now)
    if isinstance(expression, promql.NumberLiteral):
        return float(expression.val)
    if isinstance(expression, promql.VectorSelector):
        found = series.at(expression, now, _LOOK_BACK)
        return {labels: samples[-1][1] for labels, samples in found}
    if isinstance(expression, promql.Call):
        return _call(expression, series, now)
    if isinstance(expression, promql.AggregateExpr):
        return _aggregated(expression, evaluate(expression.expr, series, now))
    if isinstance(expression, promql.BinaryExpr):
        left = evaluate(expression.lhs, series, now)
        right = evaluate(expression.rhs, series, now)
        return _combined(expression, left, right)
    raise NotImplementedError(type(expression))


def _call(call: promql.Call, series: Series, now: float) -> Vector | float:
    name = call.func.name
    if name == "time":
        return now
    (argument,) = call.args
    if name == "absent":
        assert isinstance(argument, promql.VectorSelector)
        if evaluate(argument, series, now):
            return {}
        equal = [m for m in argument.matchers.matchers if m.op == promql.MatchOp.Equal]
        return {labels_of(**{each.name: each.value for each in equal}): 1.0}
    assert isinstance(argument, promql.MatrixSelector)
    window = argument.range.total_seconds()
    found = series.at(argument.vector_selector, now, window)
    if name == "max_over_time":
        return {labels: max(value for _, value in samples) for labels, samples in found}
    if name == "increase":
        grown = {labels: _increase(samples, now, window) for labels, samples in found}
        return {labels: value for labels, value in grown.items() if value is not None}
    raise NotImplementedError(name)


def _increase(samples: Samples, now: float, window: float) -> float | None:
    if len(samples) < 2:
        return None
    (first, begun), (last, _) = samples[0], samples[-1]
    values = [value for _, value in samples]
    grown = sum(b - a if b >= a else b for a, b in pairwise(values))
    between = (last - first) / (len(samples) - 1)
    before, after = first - (now - window), now - last
    if grown > 0 and begun >= 0:
        before = min(before, (last - first) * begun / grown)
    reach = last - first
    reach += before if before < 1.1 * between else between / 2
    reach += after if after < 1.1 * between else between / 2
    return grown * reach / (last - first)


def _aggregated(expression: promql.AggregateExpr, vector: Vector | float) -> Vector:
    assert isinstance(vector, dict)
    reduce: Callable[[list[float]], float] = {"max": max, "sum": math.fsum}[str(expression.op)]
    groups: dict[Labels, list[float]] = {}
    by = set(expression.modifier.labels) if expression.modifier else set()
    for labels, value in vector.items():
        key = frozenset((name, text) for name, text in labels if name in by)
        groups.setdefault(key, []).append(value)
    return {labels: reduce(values) for labels, values in groups.items()}


def _combined(
    expression: promql.BinaryExpr, left: Vector | float, right: Vector | float
) -> Vector | float:
    kind, on = str(expression.op), _matching(expression)
    if kind in ("and", "or", "unless"):
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        there, here = {on(labels) for labels in right}, {on(labels) for labels in left}
        if kind == "or":
            return left | {labels: v for labels, v in right.items() if on(labels) not in here}
        return {labels: v for labels, v in left.items() if (on(labels) in there) == (kind == "and")}
    if not isinstance(left, dict) and not isinstance(right, dict):
        return _ARITHMETIC[kind](left, right)
    pairs: Iterable[tuple[Labels, float, float]]
    if not isinstance(right, dict):
        assert isinstance(left, dict)
        pairs = [(labels, value, right) for labels, value in left.items()]
    elif not isinstance(left, dict):
        pairs = [(labels, left, value) for labels, value in right.items()]
    else:
        others = {on(labels): value for labels, value in right.items()}
        pairs = [(k, v, others[on(k)]) for k, v in left.items() if on(k) in others]
    if kind in _ARITHMETIC:
        return {labels: _ARITHMETIC[kind](a, b) for labels, a, b in pairs}
    return {labels: a for labels, a, b in pairs if _COMPARISONS[kind](a, b)}


def _matching(expression: promql.BinaryExpr) -> Callable[[Labels], Labels]:
    modifier = expression.modifier
    if modifier is None or modifier.matching is None:
        return lambda labels: labels
    kept = set(modifier.matching.labels)
    return lambda labels: frozenset(each for each in labels if each[0] in kept)


def firing(
    rules: Iterable[Mapping[str, Any]], series: Series, until: float, interval: float
) -> dict[str, int]:
    """Count the alerts that fire at a time, by name: true since ``for`` at every evaluation."""
    counts: dict[str, int] = {}
    for rule in rules:
        expression = promql.parse(rule["expr"])
        since: dict[Labels, float] = {}
        lasting = seconds(rule.get("for", "0s"))
        begin = max(0.0, until - lasting - 2 * interval)
        for step in range(round(begin / interval), round(until / interval) + 1):
            now = step * interval
            true = evaluate(expression, series, now)
            assert isinstance(true, dict)
            since = {labels: since.get(labels, now) for labels in true}
        if number := sum(until - begun >= lasting for begun in since.values()):
            counts[rule["alert"]] = number
    return counts


def seconds(text: str) -> float:
    """A duration as Prometheus writes it, such as 5m."""
    return int(text[:-1]) * {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}[text[-1]]
