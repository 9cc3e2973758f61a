"""Keep a sample of each format whose present number has none."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.formats.make import SAMPLED, kept, make, pack

with TemporaryDirectory() as folder:
    places = make(Path(folder))
    for each in SAMPLED:
        if not kept(each).exists():
            pack(places[each.name], kept(each))
            print(f"wrote {kept(each)}")
