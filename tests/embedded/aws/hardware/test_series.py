"""Spot markets of the account that follow a measured series."""

from pathlib import Path

import pytest
from tests.embedded.aws.conftest import BEGAN, Aws
from tests.embedded.aws.making import activity_messages, make_group, members, mixed

from gpuscaler.embedded.aws.hardware.series import series_of
from gpuscaler.embedded.aws.wire.models import MissingExtraError, Models
from gpuscaler.model.offerings import OfferingKey

DATA = Path(__file__).parents[5] / "shared" / "data" / "spot_availability_changes.csv.gz"


@pytest.mark.skipif(not DATA.exists(), reason="../shared/data/spot_availability_changes.csv.gz is not there")
def test_a_spot_market_loses_capacity_when_its_series_says_so() -> None:
    series = series_of(DATA, regions=["us-east-1"], zones=3, seed=1, began=BEGAN)
    aws = Aws(series=series)
    scaling = make_group(aws, MaxSize=500, MixedInstancesPolicy=mixed("g5.xlarge"))
    scaling.set_desired_capacity(AutoScalingGroupName="gpus", DesiredCapacity=500)
    aws.later(2)
    key = OfferingKey("ec2", "spot", "g5.xlarge", "us-east-1a")
    there = series.capacity(key, aws.time)
    assert there < 500
    assert len(members(scaling)) == there
    assert activity_messages(scaling)[0][0] == "Failed"
    change = series.next_change(key, aws.time)
    assert change is not None
    aws.later(change - aws.time + 400.0)
    assert len(members(scaling)) <= max(there, series.capacity(key, aws.time))


def test_without_botocore_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[aws\]' in a clone"):
        Models()
