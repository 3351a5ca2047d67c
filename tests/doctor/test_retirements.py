"""Types that clouds take out of service, and their neighbours that they sell."""

from datetime import UTC, datetime

import pytest
from tests.doctor.corpus import NOW

from gpuscaler.doctor.retirements import retirement_of


@pytest.mark.parametrize(
    "name",
    "p2.xlarge g2.2xlarge g3.16xlarge g3s.xlarge p3.2xlarge Standard_NC6 standard_nc24r_promo Standard_NC6s_v2 Standard_ND24rs "
    "Standard_NV12 Standard_NC6s_v3 Standard_NC24rs_v3 Standard_ND40rs_v2 Standard_NV12s_v3 Standard_NV24ms_v3 "
    "Standard_NV12hs_v3 Standard_NV4as_v4 Standard_NV8ahs_v4".split(),
)
def test_a_type_that_is_out_of_service_is_known(name: str) -> None:
    retirement = retirement_of(name, NOW)

    assert retirement is not None
    assert retirement.over


@pytest.mark.parametrize(
    "name",
    "g4dn.xlarge g5.xlarge g5g.xlarge g6e.xlarge p3dn.24xlarge p4d.24xlarge p5.48xlarge m3.large Standard_NC4as_T4_v3 "
    "Standard_NC24ads_A100_v4 Standard_NC40ads_H100_v5 Standard_ND96asr_v4 Standard_NV36ads_A10_v5 Standard_D8s_v3".split(),
)
def test_a_type_that_is_sold_is_none(name: str) -> None:
    assert retirement_of(name, NOW) is None


@pytest.mark.parametrize(("day", "over", "text"), [(29, False, "Azure retires on 2026-09-30"), (30, True, "Azure retired on 2026-09-30")])
def test_it_is_over_from_its_day_on(day: int, text: str, *, over: bool) -> None:
    retirement = retirement_of("Standard_NV12s_v3", datetime(2026, 9, day, tzinfo=UTC).timestamp())

    assert retirement == (over, text)
