"""What must be known of a manifest to serve its release: where its rows lie, and whose they are.

Nothing after that is parsed. Channels and histograms are most of a manifest, and as objects they
take a hundred times the memory of their bytes. Nor does it matter what else a section says: a
release is served as it was built, by whichever version.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

from labelveil.common.errors import ReleaseError
from labelveil.common.release.claims import Name
from labelveil.common.release.sections import ContentSection, ManifestSection, PopulationSection


class Heading(ManifestSection):
    """The members that say which release it is, of which events, in which rows."""

    data_set: Name
    epoch: Name
    population: PopulationSection
    content: ContentSection

    @property
    def rows(self) -> int:
        """Rows that are sent: a code for each event, or a sum for each group."""
        return self.content.rows or self.population.rows


def read_heading(manifest: bytes) -> Heading:
    """Read them from a manifest that was committed: sorted keys have them at its beginning."""
    members: dict[str, Any] = {}
    try:
        text, place, decoder = manifest.decode(), 1, json.JSONDecoder()
        while not Heading.model_fields.keys() <= members.keys():
            name, place = decoder.raw_decode(text, place)
            members[name], place = decoder.raw_decode(text, place + 1)
            place += 1
        for name, section in (("population", PopulationSection), ("content", ContentSection)):
            known = section.model_fields.keys() & members[name].keys()
            members[name] = {each: members[name][each] for each in known}
        return Heading.model_validate({name: members[name] for name in Heading.model_fields})
    except (AttributeError, ValueError, TypeError, RecursionError, ValidationError) as error:
        raise ReleaseError("the manifest cannot be read; restore it from a backup") from error
