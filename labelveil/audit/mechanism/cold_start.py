"""Cold starts: load a subject from nothing, randomize, and show a digest; again and again.

1. Processes forked before the subject was loaded, each with a process id of its own.
2. In this process, which forgets the subject's modules and imports them anew, so that thousands of
   starts cost seconds. Libraries that it uses stay loaded. (A randomizer by name keeps no noise
   between calls: each call is a start.)
3. Processes forked after it was loaded and has randomized, as a server's workers are, or the copies
   of a running machine that is restored from one snapshot. One that refuses to draw there, as all
   noise of ours does that was made before the fork, shares nothing.

If every start draws one of N seeds, n starts show two alike with probability above
1 - exp(-n(n-1) / 2N). Starts that draw 256 bits never do.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from labelveil.audit.mechanism.subject import Subject, starts_anew
from labelveil.audit.power import birthday_starts, largest_seed_space, least
from labelveil.audit.verdict import Check, Power, verdict_of
from labelveil.children import child_command, child_environment
from labelveil.common.arrays import Floats
from labelveil.common.errors import ConfigError, PrivacyError

SEED_SPACE = 1 << 22  # a seed space so large is still found with 95%

STARTS = birthday_starts(SEED_SPACE)

DIGEST_BYTES = 16  # of a digest of one start's outputs


def cold_digests(
    subject: Subject, labels: Floats, rows: int, starts: int, forks: int
) -> list[list[bytes]]:
    """Digests of the outputs of first starts, for each of (k,) labels in ``rows`` rows of a call.

    ``starts`` are in one process that loads the subject anew, ``forks`` in processes forked
    before it was loaded, and as many in those forked after it has randomized. ``ConfigError`` if
    one of the starts fails.
    """
    # a copy holds nothing that was loaded here
    spec = pickle.dumps((replace(subject), np.repeat(labels[:, None], rows, axis=1)))
    command = child_command(__name__, str(starts), str(forks))
    environment = child_environment(OMP_NUM_THREADS="1")
    done = subprocess.run(command, input=spec, capture_output=True, env=environment, check=False)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ConfigError(f"a second process could not run it: {lines[-1] if lines else '?'}")
    sent = range(0, len(done.stdout), DIGEST_BYTES)
    digests = [done.stdout[at : at + DIGEST_BYTES] for at in sent]
    return [digests[at :: labels.size] for at in range(labels.size)]


def main(starts: str, forks: str) -> None:
    """Write a digest for each start and label: of the outputs of its rows."""
    subject, labels = pickle.load(sys.stdin.buffer)
    loaded = set(sys.modules)
    _fork(subject, labels, int(forks))
    for _ in range(int(starts)):
        if not starts_anew(subject):
            # unload what came with it: the modules that share its top-level package
            top = subject.target.partition(":")[0].partition(".")[0]
            for name in set(sys.modules) - loaded:
                if name.partition(".")[0] == top:
                    del sys.modules[name]
            subject = replace(subject)
        os.write(1, _digest(subject, labels))
    subject.mechanism(labels.ravel())
    _fork(subject, labels, int(forks))


def _fork(subject: Subject, labels: np.ndarray, forks: int) -> None:
    for _ in range(forks):
        child = os.fork()
        if not child:
            try:
                try:
                    shown = _digest(subject, labels)
                except PrivacyError:  # it works in this process's parent, or that fails
                    shown = os.urandom(DIGEST_BYTES * len(labels))
                os.write(1, shown)
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            raise SystemExit(f"a process that was forked ended with status {status}")


def _digest(subject: Subject, labels: np.ndarray) -> bytes:
    outputs = np.ascontiguousarray(subject.mechanism(labels.ravel())).reshape(len(labels), -1)
    digests = (hashlib.sha256(part.tobytes()).digest()[:DIGEST_BYTES] for part in outputs)
    return b"".join(digests)


def seeds_check(digests: Sequence[bytes], rows: int, kinds: str) -> Check:
    """No two starts drew the same noise.

    Each start gives one digest, of the outputs of ``rows`` labels: enough not to agree by chance
    (:func:`rows_apart.window_rows`). ``kinds`` says in words what sorts of starts they were.
    """
    most = Counter(digests).most_common(1)[0][1]
    repeated = len(digests) - len(set(digests))
    starts = len(digests)

    def enough(seeds: float) -> bool:
        """Whether N seeds show no more repeats of n starts: n - N (1 - (1 - 1/N)ⁿ)."""
        return starts + seeds * math.expm1(starts * math.log1p(-1 / seeds)) <= repeated

    seeds = least(enough, 1.0, starts**2.0) if repeated else math.inf
    # whole bits of the largest seed space that is found with 95%
    bits = math.floor(math.log2(max(largest_seed_space(starts), 1)))
    return Check(
        verdict=verdict_of(repeated == 0),
        tried=f"{starts:,} starts ({kinds}) randomized the same {rows:,} labels, and their"
        " outputs were compared with each other.",
        found="No two drew the same noise."
        if not repeated
        else f"{repeated:,} of them repeat another's noise, one up to {most:,} times: as if it had"
        f" been drawn from about {seeds:,.0f} seeds.",
        bound=math.inf if repeated else 0.0,
        details={"starts": starts, "repeated": repeated},
        power=(Power("bits of a seed that is found", float(bits)),),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
