"""What each party says of its software to the other, and how far that is listened to.

It is not proved, and decides nothing: a format that cannot be read is refused by what its own bytes
say. It makes the refusal say who must update, and to what.
"""

from __future__ import annotations

from itertools import islice

from labelveil.common.formats import EXCHANGED, RELEASE, known_software
from labelveil.common.version import software
from labelveil.common.wire import label_release_pb2 as wire

MOST_FORMATS = MOST_CHARACTERS = 64


def own_software() -> wire.Software:
    """What this party says."""
    formats = [stated for each in EXCHANGED for stated in each.read]
    return wire.Software(version=software(), formats=formats)


def is_bounded(said: wire.Software) -> bool:
    """Whether it is as short as the contract says."""
    texts = (said.version, *islice(said.formats, MOST_FORMATS))
    short = all(len(text) <= MOST_CHARACTERS for text in texts)
    return short and len(said.formats) <= MOST_FORMATS


def version_of(said: wire.Software) -> str:
    """The version that somebody says, if it is one of ours; else nothing."""
    return known_software(said.version)


def writes_ours(said: wire.Software) -> bool:
    """Whether releases that somebody makes now are, by their word, of a format read here."""
    numbers = map(RELEASE.number_of, islice(said.formats, MOST_FORMATS))
    newest = max((number for number in numbers if number is not None), default=0)
    return RELEASE.oldest <= newest <= RELEASE.number and newest > 1
