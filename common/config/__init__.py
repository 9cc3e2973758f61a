"""Configuration: an option is declared once, as a field; all that is said of it comes from there.

A file is a :class:`Section` of sections, and an option is a field made by :func:`setting`::

    class PrivacySection(Section):
        \"\"\"What one release spends.\"\"\"

        epsilon: float = setting(
            ..., "What this release may reveal. Smaller is more private.",
            gt=0, le=40, example=1.0,
        )
        wait: float | None = setting(None, "How long a fetch waits.", unit="seconds", example=60.0)
        pieces: Annotated[int, Field(ge=1)] | Literal["auto"] = setting("auto", "Pieces.")

    class File(Section):
        privacy: PrivacySection = setting(PrivacySection)

From these fields come the check and its line (`epsilon=-1 must be a number above 0 and at most 40;
set [privacy] epsilon in file.toml`), the commented file that `init` writes
(:mod:`labelveil.common.config.template`), command-line flags with their help
(:mod:`labelveil.common.config.options`) and the reference page (``docs/write_configuration.py``).
The first sentence of a description is the flag's help. Say units with `unit` and bounds with `gt`,
`ge`, `lt` and `le`, not in the text.
"""

from labelveil.common.config.declare import Section, Sections, setting
from labelveil.common.config.load import checked, load_config, parse_settings
from labelveil.common.config.wording import Words, one_of

__all__ = [
    "Section",
    "Sections",
    "Words",
    "checked",
    "load_config",
    "one_of",
    "parse_settings",
    "setting",
]
