"""Fields of objects of Karpenter, KEDA, eksctl and kOps, and of values of Cluster Autoscaler's chart.

The language is that of :mod:`gpuscaler.doctor.manifests.fields.shapes`. Sources, read in November 2026: the CRDs
karpenter.sh_nodepools.yaml, karpenter.k8s.aws_ec2nodeclasses.yaml and keda.sh_scaledobjects.yaml, eksctl's schema.json, and
kops.k8s.io/v1alpha2.
"""

from collections.abc import Mapping
from typing import Final

_SIZES: Final = "... minSize:int desiredCapacity:int maxSize:int"

TEXT: Final[Mapping[str, str]] = {
    "NodePoolSpec": "... disruption:NodePoolDisruption limits:quantities template:NodeClaimTemplate weight:int",
    "NodePoolDisruption": "budgets:NodePoolBudget* consolidateAfter:text consolidationPolicy:=WhenEmpty|WhenEmptyOrUnderutilized",
    "NodePoolBudget": "duration:text nodes:text reasons:texts schedule:text",
    "NodeClaimTemplate": "metadata spec:NodeClaimSpec",
    "NodeClaimSpec": """expireAfter:text nodeClassRef:NodeClassRef requirements:NodeRequirement* startupTaints:Taint* taints:Taint*
        terminationGracePeriod:text""",
    "NodeClassRef": "group!:text kind!:text name!:text",
    "NodeRequirement": "key:text minValues:int operator:=In|NotIn|Exists|DoesNotExist|Gt|Lt|Gte|Lte values:texts",
    "Taint": "effect:=NoSchedule|PreferNoSchedule|NoExecute key:text timeAdded value:text",
    "EC2NodeClassSpec": "... amiFamily:=AL2|AL2023|Bottlerocket|Custom|Windows2019|Windows2022|Windows2025",
    "ScaledObjectSpec": """... cooldownPeriod:int idleReplicaCount:int initialCooldownPeriod:int maxReplicaCount:int minReplicaCount:int
        pollingInterval:int scaleTargetRef:ScaleTarget triggers:ScaleTrigger*""",
    "Metadata": "... annotations:pairs labels:pairs name:text namespace:text",
    "ScaleTarget": "apiVersion:text envSourceContainerName:text kind:text name:text",
    "ScaleTrigger": """... metadata:pairs metricType:=AverageValue|Value|Utilization name:text type:text useCachedMetrics:bool""",
    "ClusterConfig": "... managedNodeGroups:NodeGroup* nodeGroups:NodeGroup*",
    "NodeGroup": f"""{_SIZES} instanceName:text maxPodsPerNode:int taints:Taint* volumeIOPS:int volumeSize:int volumeThroughput:int""",
    "InstanceGroup": f"""{_SIZES} role:=Node|ControlPlane|Master|APIServer|Bastion rootVolumeIops:int rootVolumeIOPS:int rootVolumeSize:int
        rootVolumeThroughput:int""",
    "Chart": "... autoscalingGroups:ChartGroup*",
    "ChartGroup": _SIZES,
}
#: Former names of fields: what takes their place, which is a name or a text with spaces.
FORMER: Final[Mapping[tuple[str, str], str]] = {
    ("ResourceMetricSource", "targetAverageUtilization"): "target: {type: Utilization, averageUtilization: …}",
    ("ResourceMetricSource", "targetAverageValue"): "target: {type: AverageValue, averageValue: …}",
    ("ScaleTarget", "deploymentName"): "name",
    ("ScaleTarget", "containerName"): "envSourceContainerName",
    ("NodePoolDisruption", "expireAfter"): "expireAfter in spec.template.spec",
    ("NodeClaimSpec", "kubelet"): "spec.kubelet of the EC2NodeClass",
    ("Container", "limits"): "limits in resources",
    ("Container", "requests"): "requests in resources",
}
#: Values that other releases took, and those of today.
FORMER_VALUES: Final[Mapping[str, str]] = {"WhenUnderutilized": "WhenEmptyOrUnderutilized"}
#: Numbers of an object that go from small to large.
ORDERS: Final[Mapping[str, tuple[str, ...]]] = {
    "HorizontalPodAutoscalerSpec": ("minReplicas", "maxReplicas"),
    "HorizontalPodAutoscalerV1": ("minReplicas", "maxReplicas"),
    "ScaledObjectSpec": ("idleReplicaCount", "minReplicaCount", "maxReplicaCount"),
    "NodeGroup": ("minSize", "desiredCapacity", "maxSize"),
    "InstanceGroup": ("minSize", "desiredCapacity", "maxSize"),
    "ChartGroup": ("minSize", "desiredCapacity", "maxSize"),
}
