from tests.clouds.aws.accounts import Aws, pool, reasons


def test_a_named_group_with_a_launch_template_is_a_pool() -> None:
    aws = Aws()
    aws.group("gpus", {}, instance_type="g5.xlarge")
    aws.group("others", {}, instance_type="g5.xlarge")

    found = aws.look(groups=("gpus",))

    one = pool(found, "gpus")
    assert (one.source, one.pool.min, one.pool.max, one.launch) == ("named", 0, 5, "launch-instances")
    (offering,) = one.pool.offerings
    assert offering.key == ("gpus", "on-demand", "g5.xlarge", "us-east-1a")
    assert offering.price == 1.006
    assert offering.allocatable["nvidia.com/gpu"] == 1
    assert "others" not in reasons(found)
