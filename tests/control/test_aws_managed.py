"""EKS updates a managed node group while gpuscaler drives it: pods keep running, and no machine stays closed or unused."""

from pathlib import Path

import pytest
from tests.clouds.aws.accounts import CLUSTER, DISCOVERED
from tests.control.aws_stage import Stage, aws_stage

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

NAMES = {"clusterName": CLUSTER, "nodegroupName": "gpus"}
TAGS = {**DISCOVERED, "eks:cluster-name": CLUSTER, "eks:nodegroup-name": "gpus"}
ARRIVING = [{"key": "gpuscaler.io/arriving", "effect": "NO_SCHEDULE"}]


async def all_bound(here: Stage) -> bool:
    bound_pods = await here.bound()
    return bool(bound_pods) and all(bound_pods.values())


async def test_after_an_eks_update_every_pod_runs_and_no_unneeded_machine_remains(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        role = "arn:aws:iam::123456789012:role/nodes"
        here.client("eks").create_nodegroup(**NAMES, subnets=["subnet-useast1a"], nodeRole=role, taints=ARRIVING)
        here.group("gpus", tags=TAGS, user_data="#!/bin/bash\n", NewInstancesProtectedFromScaleIn=False)
        here.start(here.settings(more="pools:\n  - {name: gpus, idle_after: 2m}\n"))
        await here.deploy("serve", 2)
        await here.until(lambda: all_bound(here), 180)
        before = set(here.machines())

        update = here.client("eks").update_nodegroup_version(**NAMES)["update"]["id"]
        await here.sleep(1200)

        description = here.client("eks").describe_update(name=CLUSTER, updateId=update)["update"]
        assert description["status"] == "Successful"
        assert await all_bound(here)
        members = here.region.groups["gpus"].members
        assert not before & set(members)
        assert (len(members), here.desired("gpus")) == (2, 2)
        closed = [node["metadata"]["name"] for node in await here.nodes() if "gpuscaler.io/arriving" in str(node["spec"].get("taints"))]
        assert closed == []
