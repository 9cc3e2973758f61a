"""Checks of one labels party's answers."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from common.release.limits import CHUNK_BYTES
from common.release.manifest import Manifest
from common.release.table import write_release
from common.security.pilot_certificates import write_certificates
from labelveil.audit.attacks.one_run import draw_secrets
from labelveil.audit.certificate.run import certify
from labelveil.audit.party.endpoint import REQUESTS, Endpoint, Fetched, Refusal, Wrong, connected
from labelveil.audit.settings import Connection
from labelveil.audit.verdict import Audit, Check, Verdict, verdict_of


def resume_check(endpoint: Endpoint, whole: Fetched) -> Check:
    rows = Manifest.parse(whole.manifest).population.rows
    small = endpoint.fetch(chunk=4096)
    middle = rows // 2
    rest = endpoint.fetch(start_row=middle)
    same = (small.keys, small.codes) == (whole.keys, whole.codes)
    tail = rest.codes == whole.codes[middle * (len(whole.codes) // rows) :]
    return Check(
        name="resumed and cut fetches",
        question="Has each row one output, however it is fetched?",
        verdict=verdict_of(same and tail),
        claim="However a fetch is cut or resumed, each row has one output forever.",
        tried=f"The release was fetched in messages of 4 KB, and again from row {middle:,}.",
        found=f"The rows {'agree' if same else 'differ'}, the resumed ones"
        f" {'agree' if tail else 'differ'}.",
    )


def sizes_check(endpoint: Endpoint, whole: Fetched) -> Check:
    """Sizes are a function of the number of rows and of what was asked for: computed here."""
    manifest = Manifest.parse(whole.manifest)
    rows, content = manifest.population.rows, manifest.content
    asked = [0, 4096, *draw_secrets(2, 100_000).tolist()]
    wrong = []
    for chunk in asked:
        step = max((chunk or CHUNK_BYTES) // (content.key_bytes + content.code_bytes), 1)
        cuts = [min(step, rows - start) for start in range(0, rows, step)]
        sizes = [(content.key_bytes * n, content.code_bytes * n) for n in cuts]
        answer = endpoint.fetch(chunk=chunk) if chunk else whole
        sent = [(len(part.keys), len(part.codes)) for part in answer.parts]
        if sent != sizes or len(answer.digest) != hashlib.sha256().digest_size:
            wrong.append(chunk)
    return Check(
        name="message sizes",
        question="Do sizes of messages say anything about labels?",
        verdict=verdict_of(not wrong),
        claim="The number and size of messages follow from the number of rows and the request.",
        tried=f"The release was fetched in messages of at most {', '.join(map(str, asked))} bytes"
        " (0: as many as it likes), and the size of each compared with the one computed.",
        found=f"Others came for {wrong}." if wrong else "All are as computed.",
    )


def refusals_check(endpoint: Endpoint) -> Check:
    refusals, again = (
        {name: endpoint.refuse(wrong) for name, wrong in REQUESTS.items()} for _ in range(2)
    )
    wrong = {name: r.status for name, r in refusals.items() if r.status != REQUESTS[name].status}
    return Check(
        name="refusals",
        question="Does the server refuse what it must, in constant words?",
        verdict=verdict_of(not wrong and refusals == again),
        claim="Errors depend on the request alone.",
        tried=f"{len(REQUESTS)} wrong requests were made twice: {', '.join(REQUESTS)}.",
        found=f"{len(wrong)} of them did not get the status that the contract names"
        + (f" ({wrong})" if wrong else "")
        + f"; the texts are {'constant' if refusals == again else 'not constant'}.",
        details={name: [refusal.status, refusal.text] for name, refusal in refusals.items()},
    )


def unknown_clients_check(connection: Connection) -> Check:
    with tempfile.TemporaryDirectory() as folder:
        foreign = write_certificates(Path(folder) / "foreign", days=1)
        stranger = foreign.feature_party_certificate, foreign.feature_party_key
        clients = {"no certificate": (None, None), "a certificate of another authority": stranger}
        refusals = {}
        for name, (certificate, key) in clients.items():
            own = {"certificate": certificate, "private_key": key}
            with connected(connection.model_copy(update=own), timeout=10.0) as endpoint:
                refusals[name] = endpoint.refuse(Wrong("UNAUTHENTICATED"))
    admitted = sum(refusal == Refusal("OK", "") for refusal in refusals.values())
    return Check(
        name="unknown clients are refused",
        question="Is anybody answered who should not be?",
        verdict=verdict_of(not admitted),
        claim="Only a client with the configured certificate is answered.",
        tried=f"A describe request was made with {' and with '.join(refusals)}.",
        found=f"{admitted} of them were answered.",
        details={name: [refusal.status, refusal.text] for name, refusal in refusals.items()},
    )


def fetched_certificate(answer: Fetched) -> Audit:
    """The certificate of exactly what was fetched."""
    with tempfile.TemporaryDirectory() as folder:
        write_release(Path(folder), answer.manifest, answer.keys, answer.codes)
        return certify(Path(folder))


def beyond_an_endpoint() -> list[Check]:
    """What nobody can see who only asks a running party, and what would show it."""
    tried = "Not over the wire, without labels of the auditor's own."
    return [
        Check(name, Verdict.NOT_CHECKABLE, claim, tried, how, question=question)
        for name, question, claim, how in (
            (
                "cold starts differ",
                "Does a server that starts again draw the same noise?",
                "Every release has fresh randomness.",
                "Plant the same canaries in two epochs, or run `labelveil audit party` without"
                " --address on the software.",
            ),
            (
                "latency and refusals do not depend on labels",
                "Do times, sizes or errors change with a label?",
                "What the server does depends on requests and the public population alone.",
                "It takes two data sets that differ in one label: run the software, without"
                " --address.",
            ),
            (
                "labels that change later",
                "What happens when a label is changed after its release?",
                "A release is frozen, or charged again.",
                "Plant canaries, have labels changed, and fetch again.",
            ),
            (
                "logs and backups",
                "Do logs or backups hold labels or keys of noise?",
                "Nothing that leaves the machine holds them.",
                "Look at the labels party's machine.",
            ),
        )
    ]
