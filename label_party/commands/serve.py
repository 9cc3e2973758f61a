"""``label-party serve``."""

from __future__ import annotations

from pathlib import Path

from common.config import Section, setting
from label_party.commands.options import options
from label_party.config.sections import LabelPartyConfig


class ServeOptions(Section):
    port_file: Path | None = setting(None, "Write the port here once requests are answered.")


@options(
    *("store.directory", "data.data_set", "server.listen", "server.certificate"),
    *("server.private_key", "server.client_ca", "server.client_san"),
)
def serve(config: LabelPartyConfig, wanted: ServeOptions) -> None:
    """Serve committed releases over mutual TLS until SIGTERM or ^C."""
    from common.allocator import keep_freed_memory
    from label_party.monitoring import logs
    from label_party.monitoring import native_stderr as native_log
    from label_party.server import run as server
    from label_party.server.handshakes import Handshakes

    keep_freed_memory()
    handshakes = Handshakes()
    with native_log.captured(handshakes.read):
        logs.configure(config.server.log_level, config.server.log_format)
        server.serve(
            config,
            port_file=wanted.port_file,
            announce=lambda line: print(line, flush=True),
            handshakes=handshakes,
        )
