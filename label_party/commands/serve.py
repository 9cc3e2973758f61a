"""``label-party serve``."""

from __future__ import annotations

from pathlib import Path

from labelveil.common.config import Section, setting
from labelveil.common.errors import ConfigError
from labelveil.common.files import PUBLIC, appearing, file_errors
from labelveil.label_party.commands.options import options
from labelveil.label_party.config.sections import LabelPartyConfig


class ServeOptions(Section):
    port_file: Path | None = setting(None, "Write the port here once requests are answered.")


@options(
    *("store.directory", "data.data_set", "server.listen", "server.certificate"),
    *("server.private_key", "server.client_ca", "server.client_san"),
)
def serve(config: LabelPartyConfig, wanted: ServeOptions) -> None:
    from labelveil.common.allocator import keep_freed_memory
    from labelveil.common.signals import stopped_by_signals
    from labelveil.label_party.monitoring import logs
    from labelveil.label_party.server.handshakes import Handshakes
    from labelveil.label_party.server.run import open_server

    keep_freed_memory()
    handshakes = Handshakes()
    with logs.captured(handshakes.read):
        logs.configure(config.server.log_level, config.server.log_format)
        with stopped_by_signals(hangups=True) as stop, open_server(config, handshakes) as server:
            print(f"serving on {server.address}", flush=True)
            if server.observed_at is not None:
                print(f"probes and metrics on http://{server.observed_at}", flush=True)
            if server.question is not None:
                print(
                    f"the first question about data set {config.data.data_set}, epoch"
                    f" {config.data.epoch}, will charge account {config.account} {server.question}",
                    flush=True,
                )
            if (path := wanted.port_file) is not None:
                with (
                    file_errors(ConfigError, f"port file {path} cannot be written"),
                    appearing(path, mode=PUBLIC) as file,
                ):
                    file.write(f"{server.address.rpartition(':')[2]}\n".encode())
            stop.wait(on_hangup=server.reload)
