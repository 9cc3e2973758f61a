"""What a container engine would set up, with the system's own tools: a read-only root, no rights.

A new mount namespace gets a root of its own. In it are this machine's programs and libraries, read
only, an empty ``/tmp``, and what is mounted; the command runs as a user without a name, without
capabilities and without a way to new ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.documents import ROOT

USER = 10001

_SETUP = """
set -eu
root=$1; shift
mount -t tmpfs -o mode=0755 tmpfs "$root"
for name in bin lib lib64 sbin; do
    if [ -L "/$name" ]; then cp -P "/$name" "$root/$name"; fi
done
mkdir "$root/proc" "$root/dev" "$root/etc" "$root/tmp"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777,noexec,nosuid,nodev,size=256m tmpfs "$root/tmp"
cp /etc/hosts /etc/nsswitch.conf /etc/ld.so.cache "$root/etc/"
while [ "$1" != -- ]; do
    mode=$1 from=$2 to=$root$3; shift 3
    if [ -d "$from" ]; then mkdir -p "$to"; else mkdir -p "$(dirname "$to")"; touch "$to"; fi
    mount --bind "$from" "$to"
    mount -o "remount,bind,$mode" "$to"
done
shift
cwd=$1; shift
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid=USER --regid=USER --clear-groups --no-new-privs \
    --bounding-set=-all --inh-caps=-all sh -c 'cd "$0" && exec "$@"' "$cwd" "$@"
""".replace("USER", str(USER))


@dataclass(frozen=True)
class Sandbox:
    """Runs commands as a container would."""

    root: Path  # an empty folder, where the new root is mounted
    mounts: Mapping[str, tuple[Path, bool]]  # to the path outside, and whether it may be written
    cwd: str

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs another one in the sandbox."""
        needed = (Path("/usr"), ROOT, Path(sys.base_prefix), Path(sys.prefix))
        places = dict.fromkeys(str(path.resolve()) for path in needed)
        words = [word for path in places for word in ("ro", path, path)]
        for to, (path, writable) in self.mounts.items():
            words += ["rw" if writable else "ro", str(path), to]
        setup = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SETUP, "sh"]
        return [*setup, str(self.root), *words, "--", self.cwd, *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        """Return the command's environment: little, and nothing of this process's own."""
        path = os.environ["PATH"]
        return {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": "/tmp", **more}

    def refusal(self) -> str:
        """Return why the system does not allow sandboxes; nothing if it does."""
        try:
            done = self.run("true")
        except OSError as error:
            return str(error)
        return done.stderr.strip() if done.returncode else ""

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments), env=self.environment(**more), capture_output=True, text=True
        )
