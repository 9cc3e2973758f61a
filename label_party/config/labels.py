"""Sections of label_party.toml for the labels: a [[label]] each, or [domain] for the only one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, ValidationInfo, field_validator, model_validator

from labelveil.common.config import Section, one_of, setting
from labelveil.common.errors import ConfigError
from labelveil.common.randomizers.grid import Grid
from labelveil.common.randomizers.losses import LOSS_NAMES
from labelveil.common.release.facts import check_digits


class DomainSection(Section):
    """The public bounds of the labels and the grid between them.

    Labels outside are clipped to the bounds. Choose them from what everybody knows about the
    labels, never by looking at the labels.
    """

    TABLE: ClassVar = "[domain]"

    lower: float = setting(
        ..., "Public lower bound of the labels.", unit="label units", example=0.0
    )
    upper: float = setting(
        ..., "Public upper bound of the labels.", unit="label units", example=100.0
    )
    grid: Literal["auto", "whole", "step", "edges", "log", "values"] = setting(
        "auto",
        'Points on which labels are placed. "auto" chooses them from bounds, number of events and'
        ' epsilon alone, for labels that may lie anywhere. "whole": labels are whole numbers, as'
        ' counts and yes (1) or no (0) are. "values": they are the few numbers listed and nothing'
        " in between, as the numbers of classes are.",
    )
    step: float | None = setting(
        None, 'For grid = "step": distance between points.', unit="label units", gt=0, example=1.0
    )
    edges: list[float] | None = setting(
        None,
        'For grid = "edges": all points, ascending, from lower to upper.',
        unit="label units",
        example=[0.0, 1.0, 10.0],
    )
    values: list[float] | None = setting(
        None,
        'For grid = "values": all labels there are, ascending, from lower to upper.',
        example=[0.0, 1.0, 2.0],
    )
    points: int | None = setting(
        None, 'For grid = "log": number of points, dense near lower.', ge=2, example=200
    )
    scale: float | None = setting(
        None,
        'For grid = "log": distance from lower up to which points are nearly even.',
        unit="label units",
        gt=0,
        example=1.0,
    )

    @model_validator(mode="after")
    def _check_domain(self) -> Self:
        if self.lower >= self.upper:
            raise ConfigError(
                f"lower={self.lower:g} must be below upper={self.upper:g}, the label domain is"
                f" empty; set {self.TABLE} lower and upper"
            )
        needed = {"log": ["points", "scale"], "auto": [], "whole": []}
        for key in needed.get(self.grid, [self.grid]):
            if getattr(self, key) is None:
                raise ConfigError(f"grid={self.grid!r} needs {key}; set {self.TABLE} {key}")
        if self.whole and (self.lower % 1 or self.upper % 1):
            raise ConfigError(
                f"labels that are whole numbers have whole bounds, not {self.lower:g} …"
                f" {self.upper:g}; set {self.TABLE} lower and upper"
            )
        grid = self.fixed
        if grid is not None and (grid.lower, grid.upper) != (self.lower, self.upper):
            raise ConfigError(
                f"{self.grid} run from {grid.lower:g} to {grid.upper:g} but must run from"
                f" lower={self.lower:g} to upper={self.upper:g}; set {self.TABLE} {self.grid}"
            )
        return self

    @property
    def fixed(self) -> Grid | None:
        """The grid that is asked for; None if it is left to us."""
        if self.grid == "step" and self.step is not None:
            return Grid.from_step(self.lower, self.upper, self.step)
        if self.grid == "edges" and self.edges is not None:
            return Grid.from_edges(self.edges)
        if self.grid == "values" and self.values is not None:
            return Grid.from_edges(self.values)
        if self.grid == "log" and self.points is not None and self.scale is not None:
            return Grid.from_log(self.lower, self.upper, self.points, self.scale)
        return None

    @property
    def bounds(self) -> tuple[float, float]:
        return self.lower, self.upper

    @property
    def whole(self) -> bool:
        return self.grid == "whole"


class LabelTable(DomainSection):
    """One of the labels that each event has: its column, bounds and what it is worth.

    [domain] with [data] label, missing and [randomizer] loss is short for a single table, and is
    left out where there are any. Each bound is public: chosen from what everybody knows, never by
    looking at the labels.
    """

    TABLE: ClassVar = "[[label]]"
    model_config = ConfigDict(validate_default=True)

    name: str = setting(..., "What the label is called.", example="amount")
    column: str = setting(
        None, "Column with the label, a number. Default: its name.", example="amount"
    )
    kind: Literal["amount", "count", "binary", "category"] = setting(
        "amount",
        'What the label is. "binary": 0 or 1, which needs no bounds; "category": one of `values`,'
        ' which are its bounds; "count": whole numbers between the bounds.',
    )
    missing: float = setting(
        None,
        "Label of an event without one, within the bounds. Default: 0, or `lower` if 0 lies"
        " outside.",
        unit="label units",
        example=0.0,
    )
    loss: Annotated[str, one_of(LOSS_NAMES)] = setting("squared", "Loss of its regression.")
    weight: float = setting(
        1.0, "What its error counts for beside the other labels' when epsilon is divided.", gt=0
    )

    @model_validator(mode="before")
    @classmethod
    def _of_kind(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        kind = table.get("kind")
        if kind == "binary":
            table = {"values": [0.0, 1.0], **table}
        if kind in ("binary", "category") and table.get("values"):
            if (grid := table.get("grid", "auto")) not in ("auto", "values"):
                raise ConfigError(
                    f"grid={grid!r} is not for kind={kind!r}, whose points are its values;"
                    " remove [[label]] grid"
                )
            ends = {"lower": min(table["values"]), "upper": max(table["values"])}
            table = {**ends, **table, "grid": "values"}
        return table

    @field_validator("column", mode="before")
    @classmethod
    def _called_as_the_label(cls, column: Any, info: ValidationInfo) -> Any:
        return info.data.get("name") if column is None else column

    @field_validator("missing", mode="before")
    @classmethod
    def _zero_or_lower(cls, missing: Any, info: ValidationInfo) -> Any:
        lower, upper = info.data.get("lower", 0.0), info.data.get("upper", 0.0)
        default = 0.0 if lower <= 0.0 <= upper else lower
        return default if missing is None else missing

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        check_digits({"weight": self.weight})
        if self.kind == "category" and self.values is None:
            raise ConfigError("kind='category' needs all values; set [[label]] values")
        if self.kind == "binary" and self.values != [0.0, 1.0]:
            raise ConfigError("kind='binary' is 0 or 1; remove values, or set [[label]] kind")
        return self

    @property
    def whole(self) -> bool:
        return self.grid == "whole" or self.kind == "count"
