"""A Kafka broker that asks for a login or a certificate, and lets a user do only what a rule allows."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka_broker import Broker
from kafka_operations import TIMEOUT, Operations, wait_for_all
from processes import eventually

ADMIN = "admin"  # may do everything
RESTRICTED = "restricted"  # may do what `allow` allows
PASSWORDS = {ADMIN: "admin-secret", RESTRICTED: "restricted-secret"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER")


class SecuredBroker:
    """A broker with three listeners.

    `broker` is its plain listener without a login, over which a test prepares topics and reads results. Clients under
    test use `sasl_address` with the options of `sasl()`, or `ssl_address` with those of `ssl()`. The users are `ADMIN`
    and `RESTRICTED`; the latter may do nothing until `allow` is called.
    """

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self._folder = folder

    @property
    def sasl_address(self) -> str:
        return f"127.0.0.1:{self.broker.ports['SASL_PLAINTEXT']}"

    @property
    def ssl_address(self) -> str:
        return f"127.0.0.1:{self.broker.ports['SSL']}"

    def sasl(self, user: str = ADMIN, mechanism: str = "PLAIN", password: str | None = None) -> dict[str, Any]:
        """Options of a client for a login; `password` replaces the right one."""
        options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            token = {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": f"principal={user}"}
            return {**options, **token}
        return {**options, "sasl.username": user, "sasl.password": password or PASSWORDS[user]}

    def ssl(self, user: str | None = ADMIN) -> dict[str, Any]:
        """Options of a client for a connection with certificates; with None, the client shows none and is refused."""
        options = {"security.protocol": "SSL", "ssl.ca.location": str(self._folder / "ca.pem")}
        if user is None:
            return options
        files = {"ssl.certificate.location": f"{user}.pem", "ssl.key.location": f"{user}.key"}
        return {**options, **{name: str(self._folder / file) for name, file in files.items()}}

    def as_user(self, address: str, options: dict[str, Any]) -> Operations:
        """The operations of tests, done by a client with these options."""
        return UserOperations(address, options)

    def allow(self, user: str, topic: str, *operations: str, kind: str = "TOPIC") -> None:
        """Allow a user operations such as "READ", "WRITE", "DESCRIBE" on a topic.

        `kind`: what `topic` is the name of, if it is another thing: "GROUP" or "TRANSACTIONAL_ID".
        """
        rules = [
            AclBinding(
                ResourceType[kind],
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation[operation],
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        wait_for_all(self.broker.admin.create_acls(rules, request_timeout=TIMEOUT))
        every = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
        )

        def have_effect() -> bool:
            return set(rules) <= set(self.broker.admin.describe_acls(every, request_timeout=TIMEOUT).result(TIMEOUT))

        eventually(have_effect, "rules in the broker's authorizer")


class UserOperations(Operations):
    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = address
        self.client_settings = options

    @property
    def address(self) -> str:
        return self._address


@contextlib.contextmanager
def secured_broker() -> Iterator[SecuredBroker]:
    """Start one; it ends with the block."""
    with tempfile.TemporaryDirectory(prefix="millpond-kafka-") as name:
        folder = Path(name)
        make_certificates(folder, "broker", *PASSWORDS)
        with Broker(settings=security_settings(folder), listeners=("SASL_PLAINTEXT", "SSL")) as broker:
            changes: list[UserScramCredentialAlteration] = [
                UserScramCredentialUpsertion(
                    user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), password.encode()
                )
                for user, password in PASSWORDS.items()
            ]
            wait_for_all(broker.admin.alter_user_scram_credentials(changes, request_timeout=TIMEOUT))
            yield SecuredBroker(broker, folder)


def security_settings(folder: Path) -> dict[str, object]:
    """The lines of server.properties for logins, certificates and rules."""
    modules = "org.apache.kafka.common.security"
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    sasl = "listener.name.sasl_plaintext"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMIN};User:ANONYMOUS",  # ANONYMOUS: the plain listener, of tests and the controller
        f"{sasl}.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{sasl}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {users};",
        f"{sasl}.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        f"{sasl}.oauthbearer.sasl.jaas.config": f"{modules}.oauthbearer.OAuthBearerLoginModule required "
        f'unsecuredLoginStringClaim_sub="{ADMIN}";',
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": folder / "broker.both",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": folder / "ca.pem",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
    }


def make_certificates(folder: Path, *names: str) -> None:
    """Write a certificate authority, `ca.pem`, and per name `<name>.pem`, `<name>.key` and both in `<name>.both`."""
    today = datetime.datetime.now(datetime.UTC)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Tests")])
    signing_key = ec.generate_private_key(ec.SECP256R1())

    def certificate(subject: x509.Name, public_key: ec.EllipticCurvePublicKey, is_authority: bool) -> bytes:
        addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(today - datetime.timedelta(days=1))
            .not_valid_after(today + datetime.timedelta(days=7))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
            .sign(signing_key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )

    (folder / "ca.pem").write_bytes(certificate(authority, signing_key.public_key(), True))
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        shown = certificate(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key.public_key(), is_authority=False
        )
        (folder / f"{name}.pem").write_bytes(shown)
        (folder / f"{name}.key").write_bytes(secret)
        (folder / f"{name}.both").write_bytes(secret + shown)
