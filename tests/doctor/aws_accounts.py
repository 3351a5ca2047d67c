"""AWS accounts that the doctor looks at: the simulated one, and beside it the few services that it does not have."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from botocore.exceptions import ClientError
from tests.clouds.aws.accounts import CA, CLUSTER, DISCOVERED, Aws, Session
from tests.clouds.aws.command_line import aws as run_words

from gpuscaler.cli.doctor.aws import inspected
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.embedded.aws.autoscaling import activities
from gpuscaler.settings.clouds.aws import AwsSettings

REGION = "us-east-1"
GROUP = f"AutoScalingGroup {REGION}/gpus"
SUBNETS = "subnet-useast1a,subnet-useast1b"
TEMPLATE = {"LaunchTemplateName": "gpus", "Version": "$Latest"}
#: The distribution of a group of spot machines.
SPOT: dict[str, Any] = {"OnDemandPercentageAboveBaseCapacity": 0}
FOREIGN = "gpuscaler-doctor-foreign"


class Beside:
    """Quotas, rights, rules of events and grants of keys, as the services describe them; ``denied`` are operations without permission."""

    def __init__(self) -> None:
        self.quotas: dict[str, float] = {}
        #: The names of further quotas, by code.
        self.named_quotas: dict[str, str] = {}
        self.missing: set[str] = set()
        self.unconditional = False
        self.rules: dict[tuple[str, str], dict[str, Any]] = {}
        self.targets: dict[tuple[str, str], set[str]] = {}
        self.grants: list[dict[str, Any]] = []
        #: Keys by ARN, as DescribeKey has them, and their policies; a key that is not here does not exist.
        self.keys: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, Any] = {}
        self.denied: set[str] = set()
        self.calls: list[dict[str, Any]] = []
        #: Trust policies of roles, by name, and the roles whose rights were asked for.
        self.trusts: dict[str, dict[str, Any]] = {}
        self.asked: set[str] = set()

    def answer(self, service: str, region: str, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        if operation in self.denied:
            text = f"User: someone is not authorized to perform: {service.replace('-', '')}:{operation}"
            raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": text}}, operation)
        act = getattr(self, f"_{operation}", None)
        assert act is not None, f"{service} {operation} is not there"
        answer: dict[str, Any] = act(region, given)
        return answer

    def _GetServiceQuota(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        code = given["QuotaCode"]
        return {"Quota": {"QuotaCode": code, "QuotaName": f"Quota {code}", "Value": self.quotas.get(code, 1_000.0)}}

    def _ListServiceQuotas(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        assert given["ServiceCode"] == "ec2"
        named = {"L-1216C47A": "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", **self.named_quotas}
        return {"Quotas": [{"QuotaCode": code, "QuotaName": name, "Value": self.quotas.get(code, 1_000.0)} for code, name in named.items()]}

    def _RequestServiceQuotaIncrease(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        assert given["ServiceCode"] == "ec2"
        self.quotas[given["QuotaCode"]] = given["DesiredValue"]
        return {}

    def _SimulatePrincipalPolicy(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.asked.add(given["PolicySourceArn"])
        foreign = any(FOREIGN in arn for arn in given["ResourceArns"]) and any(FOREIGN in str(item) for item in given["ContextEntries"])
        denied = set(given["ActionNames"]) if foreign and not self.unconditional else self.missing
        return {
            "EvaluationResults": [
                {"EvalActionName": name, "EvalDecision": "implicitDeny" if name in denied else "allowed"} for name in given["ActionNames"]
            ]
        }

    def _PutRolePolicy(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        assert given["RoleName"] == "gpuscaler"
        for statement in json.loads(given["PolicyDocument"])["Statement"]:
            self.missing -= set(statement["Action"])
        return {}

    def _ListRuleNamesByTarget(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"RuleNames": [name for (place, name), arns in self.targets.items() if place == region and given["TargetArn"] in arns]}

    def _DescribeRule(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return self.rules[region, given["Name"]]

    def _PutRule(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.rules[region, given["Name"]] = {"State": "ENABLED", **given}
        return {}

    def _EnableRule(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.rules[region, given["Name"]]["State"] = "ENABLED"
        return {}

    def _PutTargets(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.targets.setdefault((region, given["Rule"]), set()).update(target["Arn"] for target in given["Targets"])
        return {}

    def _LookupEvents(self, region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        (wanted,) = given["LookupAttributes"]
        assert wanted["AttributeKey"] == "EventName"
        since = given["StartTime"].timestamp()
        shown = [
            {"EventName": call["eventName"], "EventTime": datetime.fromtimestamp(call["time"], UTC), "CloudTrailEvent": json.dumps(call)}
            for call in self.calls
            if call["eventName"] == wanted["AttributeValue"] and call["awsRegion"] == region and call["time"] >= since
        ]
        return {"Events": shown}

    def add_key(self, arn: str, *statements: dict[str, Any], **metadata: Any) -> None:
        """A key of the account with the policy that KMS gives it, and ``statements``."""
        root = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::123456789012:root"}, "Action": "kms:*", "Resource": "*"}
        fields = {"KeyManager": "CUSTOMER", "KeyState": "Enabled", "KeySpec": "SYMMETRIC_DEFAULT", "AWSAccountId": arn.split(":")[4]}
        self.keys[arn] = {"Arn": arn, "KeyId": arn.rpartition("/")[2], **fields, **metadata}
        self.policies[arn] = {"Version": "2012-10-17", "Statement": [root, *statements]}

    def _DescribeKey(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        if given["KeyId"] not in self.keys:
            raise ClientError({"Error": {"Code": "NotFoundException", "Message": f"Key '{given['KeyId']}' does not exist"}}, "DescribeKey")
        return {"KeyMetadata": self.keys[given["KeyId"]]}

    def _GetKeyPolicy(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        return {"Policy": json.dumps(self.policies[given["KeyId"]]), "PolicyName": given["PolicyName"]}

    def _ListGrants(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        wanted = (given["KeyId"], given["GranteePrincipal"])
        return {"Grants": [grant for grant in self.grants if (grant["KeyId"], grant["GranteePrincipal"]) == wanted], "Truncated": False}

    def _CreateGrant(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.grants.append(given)
        return {}

    def _EnableKey(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.keys[given["KeyId"]]["KeyState"] = "Enabled"
        return {}

    def _GetRole(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        name = given["RoleName"]
        arn = f"arn:aws:iam::123456789012:role/{name}"
        return {"Role": {"RoleName": name, "Arn": arn, "AssumeRolePolicyDocument": self.trusts[name]}}

    def _UpdateAssumeRolePolicy(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.trusts[given["RoleName"]] = json.loads(given["PolicyDocument"])
        return {}

    def _CancelKeyDeletion(self, _region: str, given: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        self.keys[given["KeyId"]]["KeyState"] = "Disabled"
        return {}


class _Client:
    """A client of a service that is beside the simulated account; its parameters are checked by botocore's model."""

    def __init__(self, beside: Beside, service: str, region: str, meta: Any) -> None:
        self._beside, self._service, self._region = beside, service, region
        self.meta = meta

    def __getattr__(self, name: str) -> Any:
        from botocore.validate import validate_parameters

        operation = self.meta.method_to_api_mapping[name]

        def call(**given: Any) -> dict[str, Any]:
            validate_parameters(given, self.meta.service_model.operation_model(operation).input_shape)
            return self._beside.answer(self._service, self._region, operation, given)

        return call


@cache
def _meta(service: str, region: str) -> Any:
    """What boto3's client of a service knows about it. Making one takes 10 ms."""
    from tests.clouds.aws.accounts import _session

    return _session().client(service, region_name=region).meta


class SessionBeside(Session):
    def __init__(self, session: Session, beside: Beside) -> None:
        super().__init__(session.endpoint)
        self._beside = beside

    def client(self, service: str, *, region_name: str, endpoint_url: str | None = None, **options: Any) -> Any:
        if service in ("service-quotas", "iam", "events", "kms", "cloudtrail"):
            return _Client(self._beside, service, region_name, _meta(service, region_name))
        return super().client(service, region_name=region_name, endpoint_url=endpoint_url, **options)


class Ward:
    """An account with a queue, and what the doctor says about it; ``objects`` are those of the cluster."""

    def __init__(self, *regions: str) -> None:
        from random import Random

        from gpuscaler.clouds.aws.api.calls import Calls

        self.aws = Aws(regions=regions or (REGION,))
        self.beside = Beside()
        self.aws.session = SessionBeside(self.aws.session, self.beside)
        self._waits: list[float] = []
        self.aws.calls = Calls(sleep=self._waits.append, random=Random(0), session=self.aws.session)
        role = {"eks.amazonaws.com/role-arn": f"arn:aws:iam::{self.aws.account.id}:role/gpuscaler"}
        labels = {"app.kubernetes.io/name": "gpuscaler"}
        metadata = {"name": "gpuscaler", "namespace": "gpuscaler", "labels": labels, "annotations": role}
        self.objects: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}]
        self.cluster = CLUSTER
        #: The namespaces that the run file names.
        self.named = frozenset({"gpuscaler"})
        self.queue_url = self._make_queue()

    def _make_queue(self) -> str:
        sqs = self.aws.client("sqs")
        url: str = sqs.create_queue(QueueName="notices")["QueueUrl"]
        self.arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        statement = {"Effect": "Allow", "Principal": {"Service": ["events.amazonaws.com"]}, "Action": "sqs:SendMessage"}
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Version": "2012-10-17", "Statement": [statement]})})
        pattern = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}
        self.rule(REGION, "spot", pattern, self.arn)
        return url

    def rule(self, region: str, name: str, pattern: dict[str, Any], target: str) -> None:
        self.beside.rules[region, name] = {"Name": name, "State": "ENABLED", "EventPattern": json.dumps(pattern)}
        self.beside.targets[region, name] = {target}

    def settings(self) -> AwsSettings:
        return AwsSettings(cluster=self.cluster, regions=self.aws.regions, queue_url=self.queue_url)

    def look(self) -> Report:
        evidence = replace(evidence_of_objects(self.objects, now=self.aws.time), named=self.named)
        evidence = inspected(evidence, self.settings(), self.aws.calls)
        return run_checks(evidence, CHECKS)

    def found(self) -> set[tuple[str, str]]:
        return {(finding.check, finding.object) for finding in self.look().findings}

    def resize(self, size: int, *, hours_ago: float, principal: str, agent: str = "aws-cli/2.31.0", **details: Any) -> None:
        """A call of SetDesiredCapacity for the group gpus, in the group's activities and in CloudTrail, that long before now."""
        now = self.aws.time
        kind = "IAMUser" if ":user/" in principal else "AssumedRole"
        issuer = {"sessionContext": {"sessionIssuer": {"type": "Role", "arn": principal}}} if kind == "AssumedRole" else {}
        session = principal.replace(":iam:", ":sts:").replace(":role/", ":assumed-role/") + "/session"
        identity = {"type": kind, "arn": principal if kind == "IAMUser" else session, **issuer}
        call = {
            "eventName": "SetDesiredCapacity",
            "awsRegion": REGION,
            "time": now - hours_ago * 3_600,
            "userAgent": agent,
            "userIdentity": identity,
            "requestParameters": {"autoScalingGroupName": "gpus", "desiredCapacity": size, "honorCooldown": False},
        }
        self.beside.calls.append({**call, **details})
        self.record(f"a user request explicitly set group desired capacity changing the desired capacity from 0 to {size}.", hours_ago)

    def record(self, cause: str, hours_ago: float) -> None:
        """An activity of the group gpus with ``cause``, that long before now."""
        region = self.aws.account.region(REGION)
        group = region.groups["gpus"]
        activity = activities.add(region, group, "Launching a new EC2 instance: i-0", cause, status="Successful", ended=True)
        activity.started_at = activity.visible_at = self.aws.time - hours_ago * 3_600

    def apply(self, command: str) -> None:
        """Run a command of the AWS CLI that a finding prints."""
        words = shlex.split(command)
        region = words[words.index("--region") + 1] if "--region" in words else REGION
        run_words(words, lambda service: self.aws.calls.client(service, region))

    def launch(self, group: str, count: int = 1) -> list[str]:
        """The ids of ``count`` new machines of a group, in service."""
        scaling = self.aws.client("autoscaling")
        scaling.set_desired_capacity(AutoScalingGroupName=group, DesiredCapacity=count)
        for _ in range(30):
            self.aws.time += 10.0
            self.aws.account.advance()
        (found,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
        return [instance["InstanceId"] for instance in found["Instances"]]

    def add_node(self, ident: str, **spec: Any) -> None:
        """A node of the cluster on the machine ``ident``."""
        labels = {"node.kubernetes.io/instance-type": "g5.xlarge", "k8s.amazonaws.com/accelerator": "nvidia-a10g"}
        metadata = {"name": ident, "labels": labels}
        resources = {"cpu": "4", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": "1"}
        self.objects.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": metadata,
                "spec": {"providerID": f"aws:///us-east-1a/{ident}", **spec},
                "status": {"capacity": resources, "allocatable": resources},
            }
        )


def simple(**settings: Any) -> Callable[[Ward], None]:
    """One group of g5.xlarge with ``settings``."""
    return lambda ward: ward.aws.group("gpus", settings.pop("tags", DISCOVERED), instance_type="g5.xlarge", **settings)


def mixed(*types: str, launch: dict[str, Any] | None = None, zones: str = SUBNETS, **distribution: Any) -> Callable[[Ward], None]:
    """One group of ``types`` with a mixed-instances policy, whose AZRebalance is suspended."""

    def make(ward: Ward) -> None:
        ward.aws.template("gpus", InstanceType=types[0], **(launch or {}))
        overrides = [{"InstanceType": name} for name in types]
        policy = {
            "LaunchTemplate": {"LaunchTemplateSpecification": TEMPLATE, "Overrides": overrides},
            "InstancesDistribution": {"SpotAllocationStrategy": "price-capacity-optimized", **distribution},
        }
        ward.aws.group("gpus", AvailabilityZones=[], VPCZoneIdentifier=zones, MixedInstancesPolicy=policy)
        ward.aws.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=["AZRebalance"])

    return make


KMS_KEY = "arn:aws:kms:us-east-1:123456789012:key/0000"
KMS_ROLE = "arn:aws:iam::123456789012:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"


def keyed(*statements: dict[str, Any], key: str = KMS_KEY, **metadata: Any) -> Callable[[Ward], None]:
    """One group whose disk has a key with the policy ``statements``."""

    def make(ward: Ward) -> None:
        ward.beside.add_key(key, *statements, **metadata)
        ebs = {"VolumeSize": 100, "Encrypted": True, "KmsKeyId": key, "DeleteOnTermination": True}
        ward.aws.template("gpus", InstanceType="g5.xlarge", BlockDeviceMappings=[{"DeviceName": "/dev/xvda", "Ebs": ebs}])
        ward.aws.group("gpus", LaunchTemplate=TEMPLATE)

    return make


PODS: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": {"Service": "pods.eks.amazonaws.com"},
    "Action": ["sts:AssumeRole", "sts:TagSession"],
}


def pod_identity(*statements: dict[str, Any], agent: bool = True) -> Callable[[Ward], None]:
    """gpuscaler's ServiceAccount without an annotation, with the role ``scaler``, which trusts ``statements``, by EKS Pod Identity."""

    def make(ward: Ward) -> None:
        simple()(ward)
        del ward.objects[0]["metadata"]["annotations"]
        role = "arn:aws:iam::123456789012:role/scaler"
        ward.aws.client("eks").create_pod_identity_association(
            clusterName=CLUSTER, namespace="gpuscaler", serviceAccount="gpuscaler", roleArn=role
        )
        ward.beside.trusts["scaler"] = {"Version": "2012-10-17", "Statement": list(statements)}
        node = {"metadata": {"name": "system", "labels": {"eks.amazonaws.com/nodegroup": "system"}}, "spec": {}, "status": {}}
        ward.objects.append({"apiVersion": "v1", "kind": "Node", **node})
        if agent:
            metadata = {"name": "eks-pod-identity-agent", "namespace": "kube-system"}
            ward.objects.append({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "spec": {}})

    return make


def suspended(process: str) -> Callable[[Ward], None]:
    def make(ward: Ward) -> None:
        simple()(ward)
        ward.aws.client("autoscaling").suspend_processes(AutoScalingGroupName="gpus", ScalingProcesses=[process])

    return make


def two_autoscalers(ward: Ward) -> None:
    simple()(ward)
    flags = ["./cluster-autoscaler", f"--node-group-auto-discovery=asg:tag={CA}/enabled,{CA}/{CLUSTER}"]
    container = {"name": "cluster-autoscaler", "image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.0", "command": flags}
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    metadata = {"name": "cluster-autoscaler", "namespace": "kube-system"}
    ward.objects.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
