"""Actions for XID errors, and recovery actions of the driver."""

import pytest

from gpuscaler.exporter.xids import CRITICAL, RECOVERY_ACTIONS, REMEDIES, UNKNOWN, action, catalogue, recovery_name, severity


@pytest.mark.parametrize(
    ("codes", "wanted"),
    [
        # Faults in well-known lists, but not in the catalogue: a row was remapped, an error was contained, the link to the CPU.
        ((63, 92, 121), ("none", "other")),
        ((43,), ("none", "other")),
        ((13, 31, 68, 94), ("restart_program", "application")),
        ((62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), ("reset", "critical")),
        ((48, 74, 144, 150), ("examine", "critical")),
        ((79,), ("power_cycle", "critical")),
        ((151, 167, 169, 173), ("reboot", "critical")),
        ((54, 142), ("repair", "critical")),
        ((45, 154, 159), ("depends", "other")),
        ((1, 168, 9999), ("unknown", "other")),
    ],
)
def test_an_xid_error_has_the_action_of_the_catalogue(codes: tuple[int, ...], wanted: tuple[str, str]) -> None:
    assert {(action(code), severity(code)) for code in codes} == {wanted}


def test_every_recovery_action_has_a_description() -> None:
    assert REMEDIES.keys() >= (CRITICAL | set(RECOVERY_ACTIONS) | {UNKNOWN}) - {"none"}
    assert {xid.action for xid in catalogue().errors.values()} <= CRITICAL | {"none", "restart_program", "depends"}


def test_an_action_of_a_newer_driver_is_shown_as_unknown() -> None:
    assert [recovery_name(number) for number in (0, 1, 7, 8, 255)] == ["none", "reset", "system_reboot", "unknown", "unknown"]
