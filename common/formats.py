"""What is written to be read by others, or by later versions, and the numbers that change with it.

Whatever is at rest or on its way says what it is as ``NAME/NUMBER``: a document in its member
``format``, other bytes in a first line, the ledger as SQLite's ``user_version``. A number stands
for exactly these fields: when one is added, taken away, or comes to mean something else, the number
grows. Two things do not change it. What stands in a document's member ``optional`` may be skipped
by a reader that does not know it. And what a document names, such as a randomizer, is refused by
that name.

``fields`` beside a number is a digest of what it stands for; ``tests/formats`` compares it with the
code, and keeps what each number looked like when it was new. docs/formats.md is for readers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labelveil.common.errors import LabelveilError, printable
from labelveil.common.version import software

_NUMBER = r"/([1-9][0-9]{0,8})"
"""From 1 on, in one spelling, and never so long that it could be taken for anything else."""

_SOFTWARE = re.compile(r"labelveil/[0-9A-Za-z.+-]{1,40}")


@dataclass(frozen=True)
class Format:
    """A format: its name, and which of its numbers are written and read here."""

    name: str
    number: int  # that is written, and the newest that is read
    oldest: int  # that is still read
    fields: str  # digest of what the number stands for

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    @property
    def read(self) -> tuple[str, ...]:
        """What is read, oldest first."""
        return tuple(f"{self.name}/{number}" for number in range(self.oldest, self.number + 1))

    @property
    def known(self) -> str:
        """What is read, for a message."""
        return str(self) if self.oldest == self.number else f"{self.name}/{self.oldest} to {self}"

    def number_of(self, stated: object) -> int | None:
        """The number in what is stated as a format; None if it is another, or none."""
        found = re.fullmatch(re.escape(self.name) + _NUMBER, stated if type(stated) is str else "")
        return int(found[1]) if found else None

    def check(
        self,
        stated: object,
        what: str,
        error: type[LabelveilError],
        *,
        update: str = "update labelveil here",
        made_by: object = None,
        older: str = "use the version that made it",
    ) -> int:
        """Return the number that is stated; an error in one line if it is not read here.

        Parameters
        ----------
        stated
            What says ``NAME/NUMBER``, whoever wrote it.
        what
            What it is the format of, as the line's subject.
        error
            What is raised.
        update
            Who must do what where the number is newer.
        made_by
            What the writer calls its software, which is believed no more than is needed to name it.
        older
            What to do where the number is older than what is read.
        """
        number = self.number_of(stated)
        if number is None:
            shown = printable(f"{stated!r:.60}")
            raise error(f"{what} has format {shown}, and must have {self}")
        maker = known_software(made_by)
        if number > self.number:
            to = f" to {maker} or newer" if maker else " to a version that reads it"
            raise error(
                f"{what} has format {self.name}/{number}, which is newer than {software()} reads"
                f" ({self.known}): {update}{to}"
            )
        if number < self.oldest:
            by = f", made by {maker}" if maker else ""
            raise error(
                f"{what} has format {self.name}/{number}{by}, which {software()} reads no more"
                f" ({self.known}): {older}"
            )
        return number


def known_software(stated: object) -> str:
    """What somebody calls their software, if it is a name and a version of ours; else nothing."""
    return stated if type(stated) is str and _SOFTWARE.fullmatch(stated) else ""


RELEASE = Format("labelveil-release", 3, 1, "d1c776cc06ba9c12")
"""The manifest of a release, with the rows that it describes."""

QUESTION = Format("labelveil-question", 2, 1, "1a45218df5e021c5")
"""What is asked of a submitted population."""

GROUPS = Format("labelveil-groups", 1, 1, "be3290f9ca36fed9")
"""The same, where sums over groups of its events are asked for."""

STORE = Format("labelveil-store", 2, 1, "22b81c9f831694fe")
"""The ledger, and what lies beside it in the store, but for releases."""

TERMS = Format("labelveil-terms", 3, 1, "3c1ef9021ae07432")
"""The terms of a purchase, which the ledger keeps."""

BACKUP = Format("labelveil-backup", 2, 2, "584ff655f6df7e33")
"""The index of a backup."""

MODEL = Format("labelveil-model", 3, 2, "726a606a0528e498")
"""The model of one label."""

MODELS = Format("labelveil-models", 1, 1, "b4101f5e9bc9504e")
"""The models of all labels."""

SUMS_MODEL = Format("labelveil-sums-model", 3, 1, "eb9de11ab7d67366")
"""A model of sums over groups."""

EXPORT = Format("labelveil-export", 2, 2, "32a08747a02984cb")
"""What stands in an exported model, or beside it."""

JOIN = Format("labelveil-join", 3, 3, "848a4916ee63f28d")
"""The folder of a join, which is made again where it is older."""

FORMATS = (RELEASE, QUESTION, GROUPS, STORE, TERMS, BACKUP, MODEL, MODELS, SUMS_MODEL, EXPORT, JOIN)

EXCHANGED = (RELEASE, QUESTION, GROUPS)
"""Those that cross between the parties."""
