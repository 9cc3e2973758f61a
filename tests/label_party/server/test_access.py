"""Who may fetch: one exact name in the certificate, of the right type."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from labelveil.common.security.pilot_certificates import Authority, Role, issue
from labelveil.label_party.server.access import AccessPolicy, certificate_of

POLICY = AccessPolicy({"partner.example": ["d"], "spiffe://example/client": ["e"]})


def context(pem: bytes, security: bytes = b"ssl") -> dict[str, list[bytes]]:
    return {"transport_security_type": [security], "x509_pem_cert": [pem]}


def identify_context(given: dict[str, list[bytes]]) -> str | None:
    return POLICY.identify(certificate_of(given))


def identify(authority: Authority, *names: str) -> str | None:
    return identify_context(context(issue(authority, Role.CLIENT, list(names)).certificate_pem))


def with_names(authority: Authority, common_name: str, *names: x509.GeneralName) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(authority.certificate.not_valid_before_utc)
        .not_valid_after(authority.certificate.not_valid_after_utc)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(names)), critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)


def test_the_named_certificate_is_recognised(authority: Authority) -> None:
    assert identify(authority, "partner.example") == "partner.example"
    assert identify(authority, "Partner.Example") == "partner.example"
    assert identify(authority, "other.example", "partner.example") == "partner.example"


def test_a_uri_is_recognised_as_a_uri_only(authority: Authority) -> None:
    uri = "spiffe://example/client"
    assert identify_context(
        context(with_names(authority, "x", x509.UniformResourceIdentifier(uri)))
    ) == uri  # fmt: skip
    as_dns = with_names(authority, "x", x509.DNSName("spiffe-example-client"))
    assert identify_context(context(as_dns)) is None
    other_type = with_names(authority, "x", x509.UniformResourceIdentifier("partner.example"))
    assert identify_context(context(other_type)) is None


def test_everything_else_is_unknown(authority: Authority) -> None:
    for name in ("partner.example.evil.org", "xpartner.example", "example"):
        assert identify(authority, name) is None, name
    wildcard = with_names(authority, "x", x509.DNSName("*.example"))
    assert identify_context(context(wildcard)) is None


def test_a_common_name_is_no_identity(authority: Authority) -> None:
    assert identify_context(context(with_names(authority, "partner.example"))) is None
    other = with_names(authority, "partner.example", x509.DNSName("other.example"))
    assert identify_context(context(other)) is None
    email = with_names(authority, "x", x509.RFC822Name("partner.example"))
    assert identify_context(context(email)) is None


def test_a_certificate_of_two_clients_is_none_of_them(authority: Authority) -> None:
    both = with_names(
        authority, "x", x509.DNSName("partner.example"),
        x509.UniformResourceIdentifier("spiffe://example/client"),
    )  # fmt: skip
    assert identify_context(context(both)) is None


def test_no_transport_security_and_nonsense_are_unknown(authority: Authority) -> None:
    pem = issue(authority, Role.CLIENT, ["partner.example"]).certificate_pem
    assert identify_context(context(pem, b"local")) is None
    assert identify_context({"x509_pem_cert": [pem]}) is None
    assert identify_context({"transport_security_type": [b"ssl"]}) is None
    assert identify_context(context(b"nonsense")) is None
    assert identify_context({**context(pem), "x509_pem_cert": [pem, pem]}) is None


def test_each_client_has_its_own_data_sets() -> None:
    assert POLICY.allows("partner.example", "d")
    assert not POLICY.allows("partner.example", "e")
    assert not POLICY.allows("nobody", "d")
