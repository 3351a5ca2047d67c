"""A small driver that makes in a simulated AWS account what eksctl, kOps and CloudFormation make of the generated files.

It does no more than these tools: what a file leaves out is not there afterwards. Sources of what the tools add: eksctl's nodebootstrap and
managed_nodegroup.go; kOps' autoscalinggroup.go and its kops-controller; the EKS user guide, "Managed node groups" (names and tags of the
Auto Scaling groups, launch templates).
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import yaml
from tests.clouds.aws.user_data import encoded
from tests.control.aws_stage import Stage

from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.kube.resources import DAEMON_SETS

EFFECTS: Final = {"NoSchedule": "NO_SCHEDULE", "PreferNoSchedule": "PREFER_NO_SCHEDULE", "NoExecute": "NO_EXECUTE"}
NODE_ROLE: Final = "arn:aws:iam::123456789012:role/nodes"
_HINTS: Final = "k8s.io/cluster-autoscaler/node-template"
LOCAL: Final = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}


class Stack:
    """The values of a CloudFormation template, in the long form of its functions."""

    def __init__(self, resources: Mapping[str, Any], region: str, account: str) -> None:
        self._resources, self._region, self._account = resources, region, account

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "Fn::GetAtt" in value:
            name, attribute = value["Fn::GetAtt"]
            assert attribute == "Arn"
            return self._arn(self._resources[name])
        if "Fn::Sub" in value:
            text: str = value["Fn::Sub"]
            for key, known in (("Partition", "aws"), ("AccountId", self._account), ("Region", self._region)):
                text = text.replace(f"${{AWS::{key}}}", known)
            return text
        if "Ref" in value:
            # Of a queue, its URL, of which the account needs the name only; everything else here is not asked for.
            return self._resources[value["Ref"]]["Properties"].get("QueueName", value["Ref"])
        return {key: self.resolve(item) for key, item in value.items()}

    def _arn(self, resource: Mapping[str, Any]) -> str:
        properties = resource["Properties"]
        match resource["Type"]:
            case "AWS::SQS::Queue":
                return f"arn:aws:sqs:{self._region}:{self._account}:{properties['QueueName']}"
            case "AWS::Events::Rule":
                return f"arn:aws:events:{self._region}:{self._account}:rule/{properties['Name']}"
        return f"arn:aws:iam::{self._account}:role/{properties['RoleName']}"


class AwsDriver:
    """Makes groups, queues and rules in the account of ``stage``. ``rules`` are EventBridge's by name: pattern and targets."""

    def __init__(self, stage: Stage, cluster: str) -> None:
        self.stage, self.cluster = stage, cluster
        self.rules: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, dict[str, Any]] = {}
        #: Names of add-ons of EKS.
        self.addons: set[str] = set()

    # What services do

    def template(self, name: str, **data: Any) -> dict[str, str]:
        data = {key: value for key, value in {"ImageId": "ami-0123", **data}.items() if value is not None}
        self.stage.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        return {"LaunchTemplateName": name, "Version": "$Latest"}

    def scaling_group(
        self,
        name: str,
        *,
        zones: Iterable[str],
        tags: Mapping[str, str],
        of_group_only: Collection[str] = (),
        suspended: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        """An Auto Scaling group. Its machines get its ``tags``, but for those ``of_group_only``."""
        client = self.stage.client("autoscaling")
        listed = [{"Key": key, "Value": value, "PropagateAtLaunch": key not in of_group_only} for key, value in tags.items()]
        subnets = ",".join(subnet_id(zone) for zone in zones)
        client.create_auto_scaling_group(AutoScalingGroupName=name, VPCZoneIdentifier=subnets, Tags=listed, **settings)
        if processes := list(suspended):
            client.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=processes)

    def managed_group(
        self,
        name: str,
        *,
        zones: Iterable[str],
        types: Iterable[str],
        spot: bool,
        sizes: tuple[int, int],
        labels: Mapping[str, str],
        taints: Iterable[Mapping[str, str]],
        template: Mapping[str, Any],
        tags: Mapping[str, str],
    ) -> None:
        """A managed node group as EKS makes it: with an Auto Scaling group, whose name and tags it chooses, of a mixed policy."""
        zones, types = list(zones), list(types)
        minimum, maximum = sizes
        launch = self.template(f"eks-{name}", **template)
        taints_of_eks = [
            {"key": taint["key"], **({"value": value} if (value := taint.get("value")) else {}), "effect": EFFECTS[taint["effect"]]}
            for taint in taints
        ]
        self.stage.client("eks").create_nodegroup(
            clusterName=self.cluster,
            nodegroupName=name,
            subnets=[subnet_id(zone) for zone in zones],
            nodeRole=NODE_ROLE,
            instanceTypes=types,
            capacityType="SPOT" if spot else "ON_DEMAND",
            scalingConfig={"minSize": minimum, "maxSize": maximum, "desiredSize": minimum},
            labels=dict(labels),
            taints=taints_of_eks,
            tags=dict(tags),
        )
        eks_tags = {
            "eks:cluster-name": self.cluster,
            "eks:nodegroup-name": name,
            f"kubernetes.io/cluster/{self.cluster}": "owned",
            "k8s.io/cluster-autoscaler/enabled": "true",
            f"k8s.io/cluster-autoscaler/{self.cluster}": "owned",
        }
        # EKS writes labels and taints into its own user data; what it makes of them is in the account's nodes.
        self.scaling_group(
            f"eks-{name}",
            zones=zones,
            tags=eks_tags,
            MinSize=minimum,
            MaxSize=maximum,
            DesiredCapacity=minimum,
            MixedInstancesPolicy=self._policy(launch, types, spot=spot),
            CapacityRebalance=spot,
        )

    def add_tags(self, group: str, tags: Mapping[str, str], *, at_launch: bool = True) -> None:
        listed = [
            {"ResourceId": group, "ResourceType": "auto-scaling-group", "Key": key, "Value": value, "PropagateAtLaunch": at_launch}
            for key, value in tags.items()
        ]
        self.stage.client("autoscaling").create_or_update_tags(Tags=listed)

    def associate(self, namespace: str, service_account: str, role: str) -> None:
        """An association of EKS Pod Identity."""
        self.stage.client("eks").create_pod_identity_association(
            clusterName=self.cluster, namespace=namespace, serviceAccount=service_account, roleArn=role
        )

    async def start_addons(self) -> None:
        """Of the add-ons, the agent of Pod Identity shows in the cluster: the doctor looks for it."""
        if (name := "eks-pod-identity-agent") in self.addons:
            container = {"name": name, "image": f"{name}:1"}
            pod = {"metadata": {"labels": {"app": name}}, "spec": {"tolerations": [{"operator": "Exists"}], "containers": [container]}}
            spec = {"selector": {"matchLabels": {"app": name}}, "template": pod}
            await self.stage.user.create(DAEMON_SETS, {"metadata": {"name": name}, "spec": spec}, namespace="kube-system")

    def queue(self, name: str, *, seconds: int, encrypted: bool) -> None:
        attributes = {"MessageRetentionPeriod": str(seconds), "SqsManagedSseEnabled": str(encrypted).lower()}
        self.stage.client("sqs").create_queue(QueueName=name, Attributes=attributes)

    def queue_policy(self, name: str, policy: str) -> None:
        sqs = self.stage.client("sqs")
        sqs.set_queue_attributes(QueueUrl=sqs.get_queue_url(QueueName=name)["QueueUrl"], Attributes={"Policy": policy})

    def deliver_events(self) -> None:
        """EventBridge delivers to the queues that rules with a pattern for interruptions name."""
        for properties in self.rules.values():
            pattern = properties["EventPattern"]
            if "EC2 Spot Instance Interruption Warning" in pattern["detail-type"]:
                for target in properties["Targets"]:
                    self.stage.region.queues[target["Arn"].rpartition(":")[2]].receives_notices = True

    @staticmethod
    def _policy(launch: Mapping[str, str], types: Iterable[str], *, spot: bool) -> dict[str, Any]:
        distribution: dict[str, Any] = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0 if spot else 100}
        if spot:
            distribution["SpotAllocationStrategy"] = "price-capacity-optimized"
        overrides = [{"InstanceType": name} for name in types]
        return {
            "LaunchTemplate": {"LaunchTemplateSpecification": dict(launch), "Overrides": overrides},
            "InstancesDistribution": distribution,
        }

    # eksctl

    def eksctl(self, text: str) -> None:
        """``eksctl create cluster``, ``create nodegroup`` or ``create podidentityassociation``."""
        (config,) = yaml.safe_load_all(text)
        assert (config["apiVersion"], config["kind"]) == ("eksctl.io/v1alpha5", "ClusterConfig")
        self.addons |= {addon["name"] for addon in config.get("addons", ())}
        for group in config.get("managedNodeGroups", ()):
            self._managed_of_eksctl(config, group)
        for group in config.get("nodeGroups", ()):
            self._own_of_eksctl(config, group)
        for association in config.get("iam", {}).get("podIdentityAssociations", ()):
            self.associate(association["namespace"], association["serviceAccountName"], association["roleARN"])

    def _managed_of_eksctl(self, config: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        name = group["name"]
        labels = {
            "alpha.eksctl.io/cluster-name": config["metadata"]["name"],
            "alpha.eksctl.io/nodegroup-name": name,
            **group.get("labels", {}),
        }
        self.managed_group(
            name,
            zones=group["availabilityZones"],
            types=group["instanceTypes"],
            spot=group.get("spot", False),
            sizes=(group["minSize"], group["maxSize"]),
            labels=labels,
            taints=group.get("taints", ()),
            template=self._template_of_eksctl(group),
            tags=group.get("tags", {}),
        )
        if group.get("propagateASGTags"):
            # Labels and taints as eksctl writes them: taints without their effect. Tags of the file take precedence.
            taints = {f"{_HINTS}/taint/{taint['key']}": taint.get("value", "") for taint in group.get("taints", ())}
            self.add_tags(
                f"eks-{name}", {**{f"{_HINTS}/label/{key}": value for key, value in labels.items()}, **taints, **group.get("tags", {})}
            )

    @staticmethod
    def _template_of_eksctl(group: Mapping[str, Any]) -> dict[str, Any]:
        ebs = {"VolumeSize": group["volumeSize"], "VolumeType": group["volumeType"], "Encrypted": group["volumeEncrypted"]}
        hops = 1 if group.get("disablePodIMDS") else 2
        return {
            "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {**ebs, "DeleteOnTermination": True}}],
            "MetadataOptions": {"HttpTokens": "required" if group.get("disableIMDSv1") else "optional", "HttpPutResponseHopLimit": hops},
        }

    def _own_of_eksctl(self, config: Mapping[str, Any], group: Mapping[str, Any]) -> None:
        cluster, name = config["metadata"]["name"], f"eksctl-{config['metadata']['name']}-nodegroup-{group['name']}-NodeGroup-1ABC"
        labels = {"alpha.eksctl.io/cluster-name": cluster, "alpha.eksctl.io/nodegroup-name": group["name"], **group.get("labels", {})}
        # As eksctl writes nodeadm's configuration.
        kubelet = {
            "config": {"registerWithTaints": [{"value": "", **taint} for taint in group.get("taints", ())]},
            "flags": [f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}"],
        }
        node_config = yaml.safe_dump({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": {"kubelet": kubelet}})
        shares = group.get("instancesDistribution")
        template = {**self._template_of_eksctl(group), "UserData": encoded(node_config), "InstanceType": group.get("instanceType")}
        launch = self.template(name, **template)
        settings: dict[str, Any] = {"LaunchTemplate": launch}
        if shares is not None:
            distribution = {
                "OnDemandBaseCapacity": shares["onDemandBaseCapacity"],
                "OnDemandPercentageAboveBaseCapacity": shares["onDemandPercentageAboveBaseCapacity"],
                **({"SpotAllocationStrategy": strategy} if (strategy := shares.get("spotAllocationStrategy")) else {}),
            }
            overrides = [{"InstanceType": type_} for type_ in shares["instanceTypes"]]
            policy = {
                "LaunchTemplate": {"LaunchTemplateSpecification": launch, "Overrides": overrides},
                "InstancesDistribution": distribution,
            }
            settings = {"MixedInstancesPolicy": policy}
        tags = {
            "alpha.eksctl.io/cluster-name": cluster,
            f"kubernetes.io/cluster/{cluster}": "owned",
            "Name": f"{cluster}-{group['name']}-Node",
            **group.get("tags", {}),
        }
        self.scaling_group(
            name,
            zones=group["availabilityZones"],
            tags=tags,
            suspended=group.get("asgSuspendProcesses", ()),
            MinSize=group["minSize"],
            MaxSize=group["maxSize"],
            DesiredCapacity=group["desiredCapacity"],
            **settings,
        )

    def protect_new_machines(self) -> None:
        """The README's command for eksctl and Terraform: new machines of the GPU groups are protected from scale-in."""
        client = self.stage.client("autoscaling")
        hint = f"{_HINTS}/label/gpuscaler.io/pool"
        filters = [{"Name": f"tag:k8s.io/cluster-autoscaler/{self.cluster}", "Values": ["owned"]}, {"Name": "tag-key", "Values": [hint]}]
        for group in client.describe_auto_scaling_groups(Filters=filters)["AutoScalingGroups"]:
            name = group["AutoScalingGroupName"]
            client.update_auto_scaling_group(AutoScalingGroupName=name, NewInstancesProtectedFromScaleIn=True)

    # kOps

    def kops(self, text: str) -> None:
        """``kops replace`` and ``kops update cluster``."""
        for group in yaml.safe_load_all(text):
            assert (group["apiVersion"], group["kind"]) == ("kops.k8s.io/v1alpha2", "InstanceGroup")
            self._instance_group(group["metadata"]["name"], group["metadata"]["labels"]["kops.k8s.io/cluster"], group["spec"])

    def _instance_group(self, name: str, cluster: str, spec: Mapping[str, Any]) -> None:
        labels = {"node-role.kubernetes.io/node": "", "kops.k8s.io/instancegroup": name, **spec.get("nodeLabels", {})}
        policy = spec.get("mixedInstancesPolicy")
        metadata = spec["instanceMetadata"]
        ebs = {"VolumeSize": spec["rootVolumeSize"], "VolumeType": spec["rootVolumeType"], "Encrypted": spec["rootVolumeEncryption"]}
        launch = self.template(
            f"{name}.{cluster}",
            InstanceType=spec["machineType"],
            # nodeup reads the taints from kOps' store and gives them to the kubelet; kops-controller labels the nodes by their tags.
            UserData=encoded(f"#!/bin/bash\nkubelet --register-with-taints={','.join(spec.get('taints', ()))}\n"),
            BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": {**ebs, "DeleteOnTermination": True}}],
            MetadataOptions={"HttpTokens": metadata["httpTokens"], "HttpPutResponseHopLimit": metadata["httpPutResponseHopLimit"]},
        )
        settings: dict[str, Any] = {"LaunchTemplate": launch}
        if policy is not None:
            overrides = [{"InstanceType": type_} for type_ in policy["instances"]]
            distribution = {
                "OnDemandBaseCapacity": policy["onDemandBase"],
                "OnDemandPercentageAboveBaseCapacity": policy["onDemandAboveBase"],
                "SpotAllocationStrategy": policy["spotAllocationStrategy"],
            }
            mixed = {
                "LaunchTemplate": {"LaunchTemplateSpecification": launch, "Overrides": overrides},
                "InstancesDistribution": distribution,
            }
            settings = {"MixedInstancesPolicy": mixed}
        tags = {
            "KubernetesCluster": cluster,
            f"kubernetes.io/cluster/{cluster}": "owned",
            "Name": f"{name}.{cluster}",
            "k8s.io/role/node": "1",
            "kops.k8s.io/instancegroup": name,
            **{f"{_HINTS}/label/{key}": value for key, value in labels.items()},
            **{f"{_HINTS}/taint/{taint.partition('=')[0]}": taint.partition("=")[2] for taint in spec.get("taints", ())},
            **spec.get("cloudLabels", {}),
        }
        self.scaling_group(
            f"{name}.{cluster}",
            zones=spec["subnets"],
            tags=tags,
            suspended=spec.get("suspendProcesses", ()),
            MinSize=spec["minSize"],
            MaxSize=spec["maxSize"],
            DesiredCapacity=spec["minSize"],
            NewInstancesProtectedFromScaleIn=spec.get("instanceProtection", False),
            **settings,
        )

    # CloudFormation

    def cloudformation(self, text: str) -> None:
        """``aws cloudformation deploy``: queues, their policies, rules and roles."""
        resources = yaml.safe_load(text)["Resources"]
        stack = Stack(resources, self.stage.region.name, self.stage.account.id)
        make = {
            "AWS::SQS::Queue": self._make_queue,
            "AWS::Events::Rule": lambda properties: self.rules.update({properties["Name"]: properties}),
            "AWS::IAM::Role": lambda properties: self.roles.update({properties["RoleName"]: properties}),
            "AWS::SQS::QueuePolicy": self._set_queue_policy,
        }
        for resource in sorted(resources.values(), key=lambda resource: resource["Type"] == "AWS::SQS::QueuePolicy"):
            if resource["Type"] in make:
                make[resource["Type"]](stack.resolve(resource.get("Properties", {})))
        self.deliver_events()

    def _make_queue(self, properties: Mapping[str, Any]) -> None:
        self.queue(properties["QueueName"], seconds=properties["MessageRetentionPeriod"], encrypted=properties["SqsManagedSseEnabled"])

    def _set_queue_policy(self, properties: Mapping[str, Any]) -> None:
        for name in properties["Queues"]:
            self.queue_policy(name, json.dumps(properties["PolicyDocument"]))
