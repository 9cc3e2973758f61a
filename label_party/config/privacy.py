"""The section of label_party.toml that says what may be spent."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from labelveil.common.config import Section, setting
from labelveil.common.config.names import Name
from labelveil.common.errors import ConfigError
from labelveil.common.exact.rational import decimal_value
from labelveil.common.exact.rounding import float_below
from labelveil.common.guarantees import ApproximateDP, PureDP, Unit
from labelveil.common.randomizers.base import MAX_EPSILON
from labelveil.common.release.facts import check_digits

NOT_IN_REQUEST = {
    "total_epsilon", "total_delta", "epochs", "account", "separate", "separate_reason", "division"
}  # fmt: skip
"""Settings that say what may be spent, and so do not change what a release is; and the division,
which says nothing where there is one label, and is asked beside the labels where there are more."""


class PrivacySection(Section):
    """What one release spends, whose labels it protects, and what the account may spend."""

    epsilon: float = setting(
        ...,
        "What this release may reveal about the labels of one privacy unit. Useful values lie"
        " between 0.1 and 8; smaller is more private.",
        gt=0,
        le=MAX_EPSILON,
        example=1.0,
    )
    total_epsilon: float | None = setting(
        None,
        "What all releases of the account together may spend. The first release records it in"
        " the ledger as the account's cap. A lower one holds at once, a higher one takes"
        " `label-party budget raise`. Default: the cap, and for a first release epsilon.",
        gt=0,
        example=1.0,
    )
    total_delta: float = setting(
        0.0,
        "Failure probability that all releases together may have, far below 1 / number of"
        " events. At 0 only pure epsilon fits (labels, top-k); `top-k --stable` needs more. Half"
        " pays for the releases' own delta, half for adding up different kinds of guarantees.",
        ge=0,
        lt=1,
    )
    unit: Literal["record", "user"] = setting(
        "record",
        'Whose labels are protected. A "record" is one event, a "user" all events of one user.',
    )
    user: str | None = setting(
        None,
        'For unit = "user": column with the user of each event. It stands in `population` if there'
        " is one, else in `labels`.",
        example="user_id",
    )
    max_records_per_user: int | None = setting(
        None,
        'For unit = "user": how many events of one user keep their label. The others get'
        " `missing`.",
        ge=1,
        example=5,
    )
    epochs: Literal["additive", "disjoint"] = setting(
        "additive",
        'How epochs add up. "additive": against total_epsilon and total_delta. "disjoint": no event'
        " occurs in two epochs, and each epoch may spend the whole total. Per user it is"
        ' "additive".',
    )
    account: Name | None = setting(
        None,
        "Whose budget pays. Data sets that are about the same events name the same account."
        " Default: one of the data set's own.",
        example="shop",
    )
    separate: bool = setting(
        False,
        "Whether this account pays by itself although some of its events have paid from another."
        " Say so only where a label here tells nothing about the label there.",
    )
    separate_reason: str | None = setting(
        None,
        "Why that is so. The ledger keeps the reason and `label-party budget` shows it.",
        example="installs and purchases of one click, agreed on 2024-06-01",
    )
    prior_share: float | None = setting(
        None,
        "The largest share of epsilon spent on the noisy histogram of all labels. Default: an"
        " eighth, or of few events at a small epsilon up to a half, as only events, grid points and"
        " epsilon say.",
        gt=0,
        lt=1,
        example=0.25,
    )

    division: Literal["auto", "split", "joint"] = setting(
        "auto",
        'How epsilon is divided among several labels. "split": each label has a histogram and'
        ' codes of its own. "joint": one histogram and one code for all. "auto": one histogram,'
        " and the codes that it predicts to be better.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_digits({"epsilon": self.epsilon, "prior_share": self.prior_share})
        if self.separate != bool((self.separate_reason or "").strip()):
            raise ConfigError(
                "separate=true needs a reason for the ledger to keep, and a reason needs"
                " separate=true; set [privacy] separate and separate_reason"
            )
        if self.unit == "user":
            if not self.user or self.max_records_per_user is None:
                raise ConfigError(
                    "unit='user' needs to know whose event is whose and how many one may have;"
                    " set [privacy] user and max_records_per_user"
                )
            if self.epochs == "disjoint":
                raise ConfigError(
                    "epochs='disjoint' must be 'additive' when unit='user': one user has events"
                    " in many epochs; set [privacy] epochs"
                )
        elif self.user is not None or self.max_records_per_user is not None:
            raise ConfigError(
                "user and max_records_per_user have no effect when unit='record'; remove them or"
                ' set [privacy] unit = "user"'
            )
        return self

    @property
    def privacy_unit(self) -> Unit:
        return Unit(self.unit)

    @property
    def group(self) -> int:
        """The most records that one privacy unit may have."""
        return self.max_records_per_user or 1

    @property
    def charge(self) -> PureDP:
        """What one release is charged: ε as written, in decimals, not the float's binary value.

        Three releases at 0.1 then fit a total of 0.3 exactly.
        """
        return PureDP.of(decimal_value(self.epsilon), unit=self.privacy_unit)

    @property
    def message_epsilon(self) -> float:
        """ε as written, as the largest float that is not above it."""
        return float_below(decimal_value(self.epsilon))

    @property
    def limit_is_stated(self) -> bool:
        """Whether the file says what the account may spend."""
        return self.total_epsilon is not None or self.total_delta > 0

    @property
    def limit(self) -> PureDP | ApproximateDP:
        """What the account may spend as configured; by default one release, and no δ."""
        total = decimal_value(self.epsilon if self.total_epsilon is None else self.total_epsilon)
        if not self.total_delta:
            return PureDP.of(total, unit=self.privacy_unit)
        return ApproximateDP.of(total, decimal_value(self.total_delta), unit=self.privacy_unit)
