"""The fields of eksctl's ClusterConfig. eksctl refuses a file with any other.

Source: https://github.com/eksctl-io/eksctl, pkg/apis/eksctl.io/v1alpha5/assets/schema.json at commit 009491b21c67, read on 2026-11-26.
``name:Type`` is an object of another entry, ``name:Type*`` a list of them or, where the schema has that, a mapping to them. What has no
type is a value, a list of values or free.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

#: The month of the schema.
DATE: Final = "2026-11"

_TEXT: Final[Mapping[str, str]] = {
    "ClusterConfig": """accessConfig:AccessConfig addons:Addon* addonsConfig:AddonsConfig apiVersion autoModeConfig:AutoModeConfig
        availabilityZones capabilities:Capability* cloudWatch:ClusterCloudWatch controlPlaneScalingConfig:ControlPlaneScalingConfig
        fargateProfiles:FargateProfile* gitops:GitOps iam:ClusterIAM iamIdentityMappings:IAMIdentityMapping* identityProviders
        karpenter:Karpenter kind kubernetesNetworkConfig:KubernetesNetworkConfig localZones managedNodeGroups:ManagedNodeGroup*
        metadata:ClusterMeta nodeGroups:NodeGroup* outpost:Outpost privateCluster:PrivateCluster remoteNetworkConfig:RemoteNetworkConfig
        secretsEncryption:SecretsEncryption upgradePolicy:UpgradePolicy vpc:ClusterVPC zonalShiftConfig:ZonalShiftConfig""",
    "AZSubnetSpec": "az cidr id",
    "AccessConfig": "accessEntries:AccessEntry* authenticationMode bootstrapClusterCreatorAdminPermissions",
    "AccessEntry": "accessPolicies:AccessPolicy* kubernetesGroups kubernetesUsername principalARN type",
    "AccessPolicy": "accessScope:AccessScope policyARN",
    "AccessScope": "namespaces type",
    "Addon": """attachPolicy attachPolicyARNs configurationValues name namespaceConfig:AddonNamespaceConfig owners permissionsBoundary
        podIdentityAssociations:PodIdentityAssociation* publishers resolveConflicts serviceAccountRoleARN tags types
        useDefaultPodIdentityAssociations version wellKnownPolicies:WellKnownPolicies""",
    "AddonNamespaceConfig": "namespace",
    "AddonsConfig": "autoApplyPodIdentityAssociations disableDefaultAddons",
    "ArgoCDAWSIDC": "idcInstanceArn idcRegion",
    "ArgoCDConfiguration": "awsIdc:ArgoCDAWSIDC namespace networkAccess:ArgoCDNetworkAccess rbacRoleMappings:ArgoCDRoleMapping*",
    "ArgoCDNetworkAccess": "vpceIds",
    "ArgoCDRoleMapping": "identities:SSOIdentity* role",
    "AutoModeConfig": "enabled nodePools nodeRoleARN permissionsBoundaryARN",
    "Capability": """accessPolicies:AccessPolicy* attachPolicy attachPolicyARNs configuration:CapabilityConfiguration
        deletePropagationPolicy name permissionsBoundary roleArn tags type""",
    "CapabilityConfiguration": "argocd:ArgoCDConfiguration",
    "CapacityReservation": "capacityReservationPreference capacityReservationTarget:CapacityReservationTarget",
    "CapacityReservationTarget": "capacityReservationID capacityReservationResourceGroupARN",
    "ClusterCloudWatch": "clusterLogging:ClusterCloudWatchLogging",
    "ClusterCloudWatchLogging": "enableTypes logRetentionInDays",
    "ClusterEndpoints": "privateAccess publicAccess",
    "ClusterIAM": """fargatePodExecutionRoleARN fargatePodExecutionRolePermissionsBoundary podIdentityAssociations:PodIdentityAssociation*
        serviceAccounts:ClusterIAMServiceAccount* serviceRoleARN serviceRolePermissionsBoundary vpcResourceControllerPolicy withOIDC""",
    "ClusterIAMMeta": "annotations labels name namespace",
    "ClusterIAMServiceAccount": """attachPolicy attachPolicyARNs attachRoleARN metadata:ClusterIAMMeta permissionsBoundary roleName roleOnly
        status:ClusterIAMServiceAccountStatus subjectPattern tags wellKnownPolicies:WellKnownPolicies""",
    "ClusterIAMServiceAccountStatus": "capabilities roleARN stackName tags",
    "ClusterMeta": "annotations forceUpdateVersion name region rollbackConfig:RollbackConfig tags version",
    "ClusterNAT": "gateway",
    "ClusterSubnets": "private:AZSubnetSpec* public:AZSubnetSpec*",
    "ClusterVPC": """autoAllocateIPv6 cidr clusterEndpoints:ClusterEndpoints controlPlaneEgressMode controlPlaneOnPrivateSubnets
        controlPlaneSecurityGroupIDs controlPlaneSubnetIDs extraCIDRs extraIPv6CIDRs hostnameType id ipv6Cidr ipv6Pool
        manageSharedNodeSecurityGroupRules nat:ClusterNAT publicAccessCIDRs securityGroup sharedNodeSecurityGroup subnets:ClusterSubnets""",
    "ControlPlaneScalingConfig": "tier",
    "FargateProfile": "name podExecutionRoleARN selectors:FargateProfileSelector* status subnets tags",
    "FargateProfileSelector": "labels namespace",
    "Flux": "flags gitProvider",
    "GitOps": "flux:Flux",
    "IAMIdentityMapping": "account arn groups namespace noDuplicateARNs serviceName username",
    "InstanceMarketOptions": "marketType",
    "InstanceSelector": "allow cpuArchitecture deny gpus memory neuron_devices vCPUs",
    "Karpenter": "createServiceAccount defaultInstanceProfile version withSpotInterruptionQueue",
    "KubernetesNetworkConfig": "ipFamily serviceIPv4CIDR serviceIPv6CIDR",
    "LaunchTemplate": "id version",
    "ManagedNodeGroup": """additionalVolumes:VolumeMapping* ami amiFamily asgSuspendProcesses availabilityZones
        bottlerocket:NodeGroupBottlerocket capacityReservation:CapacityReservation desiredCapacity disableIMDSv1 disablePodIMDS ebsOptimized
        efaEnabled enableDetailedMonitoring iam:NodeGroupIAM instanceMarketOptions:InstanceMarketOptions instanceName instancePrefix
        instanceSelector:InstanceSelector instanceType instanceTypes labels launchTemplate:LaunchTemplate maxPodsPerNode maxSize minSize
        name nodeRepairConfig:NodeGroupNodeRepairConfig outpostARN overrideBootstrapCommand placement:Placement preBootstrapCommands
        privateNetworking propagateASGTags releaseVersion securityGroups:NodeGroupSGs spot ssh:NodeGroupSSH subnets tags
        taints:NodeGroupTaint* updateConfig:NodeGroupUpdateConfig volumeEncrypted volumeIOPS volumeKmsKeyID volumeName volumeSize
        volumeThroughput volumeType""",
    "MetricsCollection": "granularity metrics",
    "NodeGroup": """additionalVolumes:VolumeMapping* ami amiFamily asgMetricsCollection:MetricsCollection* asgSuspendProcesses
        availabilityZones bottlerocket:NodeGroupBottlerocket capacityReservation:CapacityReservation classicLoadBalancerNames clusterDNS
        containerRuntime cpuCredits desiredCapacity disableIMDSv1 disablePodIMDS ebsOptimized efaEnabled enableDetailedMonitoring
        enclaveEnabled iam:NodeGroupIAM instanceMarketOptions:InstanceMarketOptions instanceName instancePrefix
        instanceSelector:InstanceSelector instanceType instancesDistribution:NodeGroupInstancesDistribution kubeletExtraConfig labels
        localZones maxInstanceLifetime maxPodsPerNode maxSize minSize name outpostARN overrideBootstrapCommand placement:Placement
        preBootstrapCommands privateNetworking propagateASGTags securityGroups:NodeGroupSGs ssh:NodeGroupSSH subnets tags taints
        targetGroupARNs updateConfig:NodeGroupUpdateConfig volumeEncrypted volumeIOPS volumeKmsKeyID volumeName volumeSize
        volumeThroughput volumeType""",
    "NodeGroupBottlerocket": "enableAdminContainer settings",
    "NodeGroupIAM": """attachPolicy attachPolicyARNs instanceProfileARN instanceRoleARN instanceRoleName instanceRolePermissionsBoundary
        withAddonPolicies:NodeGroupIAMAddonPolicies""",
    "NodeGroupIAMAddonPolicies": """albIngress appMesh appMeshPreview autoScaler awsLoadBalancerController certManager cloudWatch ebs efs
        externalDNS fsx imageBuilder xRay""",
    "NodeGroupInstancesDistribution": """capacityRebalance instanceTypes maxPrice onDemandBaseCapacity onDemandPercentageAboveBaseCapacity
        spotAllocationStrategy spotInstancePools""",
    "NodeGroupNodeRepairConfig": """enabled maxParallelNodesRepairedCount maxParallelNodesRepairedPercentage maxUnhealthyNodeThresholdCount
        maxUnhealthyNodeThresholdPercentage nodeRepairConfigOverrides:NodeRepairConfigOverride*""",
    "NodeGroupSGs": "attachIDs withLocal withShared",
    "NodeGroupSSH": "allow enableSsm publicKey publicKeyName publicKeyPath sourceSecurityGroupIds",
    "NodeGroupTaint": "effect key value",
    "NodeGroupUpdateConfig": "maxUnavailable maxUnavailablePercentage",
    "NodeRepairConfigOverride": "minRepairWaitTimeMins nodeMonitoringCondition nodeUnhealthyReason repairAction",
    "Outpost": """controlPlaneInstanceType controlPlaneOutpostARN controlPlanePlacement:Placement etcdInstanceType
        etcdPlacement:Placement""",
    "Placement": "groupName spreadLevel",
    "PodIdentityAssociation": """createServiceAccount disableSessionTags namespace permissionPolicy permissionPolicyARNs
        permissionPolicyName permissionsBoundaryARN policy roleARN roleName serviceAccountName tags targetRoleARN
        wellKnownPolicies:WellKnownPolicies""",
    "PrivateCluster": "additionalEndpointServices enabled skipEndpointCreation",
    "RemoteNetwork": "cidrs",
    "RemoteNetworkConfig": "iam:RemoteNodesIAM remoteNodeNetworks:RemoteNetwork* remotePodNetworks:RemoteNetwork* vpcGatewayID",
    "RemoteNodesIAM": "caBundleCert provider roleARN",
    "RollbackConfig": "timeoutMinutes",
    "SSOIdentity": "id type",
    "SecretsEncryption": "keyARN",
    "UpgradePolicy": "supportType",
    "VolumeMapping": "snapshotID volumeEncrypted volumeIOPS volumeKmsKeyID volumeName volumeSize volumeThroughput volumeType",
    "WellKnownPolicies": """autoScaler awsLoadBalancerController certManager ebsCSIController efsCSIController externalDNS imageBuilder""",
    "ZonalShiftConfig": "enabled",
}


class Field(NamedTuple):
    """A field: the entry of :data:`TYPES` that describes its value, empty for plain values, and whether it holds several of them."""

    type: str
    several: bool


def _fields(text: str) -> dict[str, Field]:
    parts = (word.partition(":") for word in text.split())
    return {name: Field(kind.removesuffix("*"), kind.endswith("*")) for name, _, kind in parts}


#: The fields of each type of object.
TYPES: Final[Mapping[str, Mapping[str, Field]]] = {name: _fields(text) for name, text in _TEXT.items()}
