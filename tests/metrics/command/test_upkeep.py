"""Checks of the certificate and of rights that are too wide."""

from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.metrics.api.scene import HPA, ReviewServer

from gpuscaler.kube.client import Client
from gpuscaler.metrics.api.paths import VERSIONS
from gpuscaler.metrics.command.upkeep import SelfCheck
from gpuscaler.model.certificates import certificate_problems
from gpuscaler.serving.certificates import CertificateAuthority
from gpuscaler.serving.tls import LiveTls

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
DAY = 86_400.0
HOST = "metrics.gpu.svc"
EXPECTED = f"expected {HOST}, the name that the API server uses; reissue it for that name"


def issued(*hosts: str, at: float = NOW) -> bytes:
    return CertificateAuthority("test", now=at).issue("server", hosts=hosts).certificate


def nameless() -> bytes:
    """An old-style certificate: the name is only in the subject."""
    return CertificateAuthority("test", now=NOW).issue(HOST).certificate


@pytest.mark.parametrize(
    ("pem", "now", "problems"),
    [
        (issued(HOST), NOW, ()),
        (issued("other", "*.gpu.svc"), NOW, ()),
        (issued("METRICS.gpu.svc."), NOW, ()),
        (issued(HOST), NOW + 366 * DAY, ("it expired on 2026-12-31 23:00 UTC: the API server does not trust it any more; renew it",)),
        (issued(HOST), NOW + 360 * DAY, ("it expires on 2026-12-31 23:00 UTC, in 4 days; renew it",)),
        (issued(HOST), NOW - DAY, ("it is not valid until 2025-12-31 23:00 UTC; check the clocks, or reissue it",)),
        (
            issued("metrics.monitoring.svc", "*.svc", "*.metrics.gpu.svc", "127.0.0.1"),
            None,
            (f"saw a certificate for metrics.monitoring.svc, *.svc, *.metrics.gpu.svc, {EXPECTED}",),
        ),
        (
            nameless(),
            NOW,
            (f"saw a certificate for no name (a common name does not count), {EXPECTED}",),
        ),
        (b"nothing", NOW, ("saw no certificate, expected one in PEM",)),
    ],
)
def test_a_certificate_that_the_api_server_will_not_trust_is_reported(pem: bytes, now: float | None, problems: tuple[str, ...]) -> None:
    assert certificate_problems(pem, host=HOST, now=now) == problems


def served(folder: Path, *hosts: str) -> LiveTls:
    CertificateAuthority("test", now=NOW).issue("server", hosts=hosts).write(folder, "server")
    return LiveTls(folder / "server.crt", folder / "server.key")


def make_self_check(tls: LiveTls, reviewing: ReviewServer, clock: list[float], *, own: bool = True) -> SelfCheck:
    client = Client(reviewing)
    return SelfCheck(tls, HOST, client if own else None, client, tuple(VERSIONS), lambda: clock[0])


async def test_an_expiring_certificate_is_logged_once_and_its_renewal_is_logged(tmp_path: Path) -> None:
    tls, clock = served(tmp_path, HOST), [NOW]
    self_check = make_self_check(tls, ReviewServer(allows=lambda _: False), clock)
    with structlog.testing.capture_logs() as logs:
        for days in (0, 366, 366, 366):
            clock[0] = NOW + days * DAY
            await self_check.check()
        assert [(log["event"], log["about"]) for log in logs] == [("needs to be fixed", "certificate")]
        assert logs[0]["problem"].startswith(f"{tmp_path}/server.crt: it expired on 2026-12-31")
        tls.certificate.write_bytes(issued(HOST, at=clock[0]))
        await self_check.check()
    assert [log["event"] for log in logs] == ["needs to be fixed", "fixed"]


async def test_excessive_rights_are_named_and_findings_stay_while_rights_cannot_be_checked(tmp_path: Path) -> None:
    def wide(spec: dict[str, Any]) -> bool:
        asked = spec["resourceAttributes"]
        return bool(asked["verb"] == "*" and (spec.get("user") == HPA) == (asked["group"] == "custom.metrics.k8s.io"))

    reviewing = ReviewServer(allows=wide)
    self_check = make_self_check(served(tmp_path, HOST), reviewing, [NOW])
    await self_check.check()
    expected = {"own rights", "rights of autoscalers to custom.metrics.k8s.io"}
    assert self_check.findings.keys() == expected
    assert "may do everything in the cluster" in self_check.findings["own rights"]
    reviewing.away = True
    await self_check.check()
    assert self_check.findings.keys() == expected
    reviewing.away, reviewing.allows = False, lambda _: False
    await self_check.check()
    assert self_check.findings == {}


async def test_rights_of_human_users_are_not_checked(tmp_path: Path) -> None:
    reviewing = ReviewServer(allows=lambda spec: "user" not in spec)
    self_check = make_self_check(served(tmp_path, HOST), reviewing, [NOW], own=False)
    await self_check.check()
    assert self_check.findings == {}
    assert all(spec["user"] == HPA for spec in reviewing.specs)
