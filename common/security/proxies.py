"""Proxies of the environment that gRPC takes, so that a failure names them."""

from __future__ import annotations

import os
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def through_proxy(address: str) -> str:
    """Say which proxy calls to an address go through, as gRPC decides; empty if through none.

    Its name and password, which an address in the environment may have, are not shown.
    """
    named = "grpc_proxy", "https_proxy", "http_proxy"
    variable = next((name for name in named if os.environ.get(name)), None)
    host = address.rpartition(":")[0].strip("[]")
    if variable is None or any(_excepts(entry, host) for entry in _no_proxy()):
        return ""
    try:
        proxy = urlsplit(os.environ[variable])
        place = f"{proxy.hostname}:{proxy.port or 80}" if proxy.scheme == "http" else ""
    except ValueError:
        place = ""
    if not place:  # gRPC speaks to proxies of this scheme alone
        return ""
    return (
        f"; {variable} in the environment sends it through the proxy {place}: where that is not"
        f" meant, add {host} to no_proxy"
    )


def proxies(address: str = "") -> str:
    """Say which proxies the environment has, and whether calls to an address go through one."""
    kinds = "grpc_proxy", "https_proxy", "http_proxy", "all_proxy"
    names = sorted(name for name in os.environ if name.lower() in kinds and os.environ[name])
    through = through_proxy(address) if address else ""
    return f"{', '.join(names) or 'none'} in the environment{through}"


def _no_proxy() -> list[str]:
    """What the environment excepts from its proxies."""
    names = "no_grpc_proxy", "no_proxy"
    entries = next(filter(None, map(os.environ.get, names)), "")
    return [entry.strip() for entry in entries.split(",") if entry.strip()]


def _excepts(entry: str, host: str) -> bool:
    """Whether it is the host's name, a domain that the host is in, or a network."""
    if f".{host}".lower().endswith(f".{entry.lower().removeprefix('.')}"):
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False
