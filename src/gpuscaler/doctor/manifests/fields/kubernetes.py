"""The fields of the objects of Kubernetes that people write most, with what they hold.

Source: the models of the Python client 37.0.2, which are made from the OpenAPI description of Kubernetes 1.37, read in November 2026.
Fields of the alpha, and volumes that few use, are free. The language is that of :mod:`gpuscaler.doctor.manifests.fields.shapes`.
"""

from collections.abc import Mapping
from typing import Final

TEXT: Final[Mapping[str, str]] = {
    "Affinity": "nodeAffinity:NodeAffinity podAffinity:PodAffinity podAntiAffinity:PodAntiAffinity",
    "AppArmorProfile": "localhostProfile:text type:text",
    "Capabilities": "add:texts drop:texts",
    "ConfigMapEnvSource": "name:text optional:bool",
    "ConfigMapKeySelector": "key:text name:text optional:bool",
    "ConfigMapVolumeSource": "defaultMode:int defaultUser:int items:KeyToPath* name:text optional:bool",
    "Container": """args:texts command:texts env:EnvVar* envFrom:EnvFromSource* image:text imagePullPolicy:=Always|IfNotPresent|Never
        lifecycle:Lifecycle livenessProbe:Probe name:text ports:ContainerPort* readinessProbe:Probe resizePolicy:ContainerResizePolicy*
        resources:ResourceRequirements restartPolicy:text restartPolicyRules:ContainerRestartRule* securityContext:SecurityContext
        startupProbe:Probe stdin:bool stdinOnce:bool terminationMessagePath:text terminationMessagePolicy:=File|FallbackToLogsOnError
        tty:bool volumeDevices:VolumeDevice* volumeMounts:VolumeMount* workingDir:text""",
    "ContainerPort": "containerPort:int hostIP:text hostPort:int name:text protocol:=TCP|UDP|SCTP",
    "ContainerResizePolicy": "resourceName:text restartPolicy:text",
    "ContainerResourceMetricSource": "container:text name:text target:MetricTarget",
    "ContainerRestartRule": "action:text exitCodes:ContainerRestartRuleOnExitCodes",
    "ContainerRestartRuleOnExitCodes": "operator:text values:int*",
    "CronJobSpec": """concurrencyPolicy:=Allow|Forbid|Replace failedJobsHistoryLimit:int jobTemplate:JobTemplateSpec schedule:text
        startingDeadlineSeconds:int successfulJobsHistoryLimit:int suspend:bool timeZone:text""",
    "CrossVersionObjectReference": "apiVersion:text kind:text name:text",
    "DaemonSetSpec": """minReadySeconds:int revisionHistoryLimit:int selector:LabelSelector template:PodTemplateSpec
        updateStrategy:DaemonSetUpdateStrategy""",
    "DaemonSetUpdateStrategy": "rollingUpdate:RollingUpdateDaemonSet type:=RollingUpdate|OnDelete",
    "DeploymentSpec": """minReadySeconds:int paused:bool progressDeadlineSeconds:int replicas:int revisionHistoryLimit:int
        selector:LabelSelector strategy:DeploymentStrategy template:PodTemplateSpec""",
    "DeploymentStrategy": "rollingUpdate:RollingUpdateDeployment type:=RollingUpdate|Recreate",
    "EmptyDirVolumeSource": "medium:=Memory|HugePages|HugePages-2Mi|HugePages-1Gi mode:int sizeLimit:quantity",
    "EnvFromSource": "configMapRef:ConfigMapEnvSource prefix:text secretRef:SecretEnvSource",
    "EnvVar": "name:text value:text valueFrom:EnvVarSource",
    "EnvVarSource": """configMapKeyRef:ConfigMapKeySelector fieldRef:ObjectFieldSelector fileKeyRef:FileKeySelector
        resourceFieldRef:ResourceFieldSelector secretKeyRef:SecretKeySelector""",
    "EphemeralContainer": """args:texts command:texts env:EnvVar* envFrom:EnvFromSource* image:text imagePullPolicy:text
        lifecycle:Lifecycle livenessProbe:Probe name:text ports:ContainerPort* readinessProbe:Probe
        resizePolicy:ContainerResizePolicy* resources:ResourceRequirements restartPolicy:text
        restartPolicyRules:ContainerRestartRule* securityContext:SecurityContext startupProbe:Probe stdin:bool
        stdinOnce:bool targetContainerName:text terminationMessagePath:text terminationMessagePolicy:text tty:bool
        volumeDevices:VolumeDevice* volumeMounts:VolumeMount* workingDir:text""",
    "ExecAction": "command:texts",
    "ExternalMetricSource": "metric:MetricIdentifier target:MetricTarget",
    "FileKeySelector": "key:text optional:bool path:text volumeName:text",
    "GRPCAction": "mode:text port:int service:text",
    "HPAScalingPolicy": "periodSeconds:int type:=Pods|Percent value:int",
    "HPAScalingRules": "policies:HPAScalingPolicy* selectPolicy:=Max|Min|Disabled stabilizationWindowSeconds:int tolerance:quantity",
    "HTTPGetAction": "host:text httpHeaders:HTTPHeader* path:text port protocol:text scheme:text",
    "HTTPHeader": "name:text value:text",
    "HorizontalPodAutoscalerBehavior": "scaleDown:HPAScalingRules scaleUp:HPAScalingRules",
    "HorizontalPodAutoscalerSpec": """behavior:HorizontalPodAutoscalerBehavior maxReplicas:int metrics:MetricSpec* minReplicas:int
        scaleTargetRef:CrossVersionObjectReference""",
    "HostAlias": "hostnames:texts ip:text",
    "HostPathVolumeSource": "path:text type:=DirectoryOrCreate|Directory|FileOrCreate|File|Socket|CharDevice|BlockDevice",
    "JobSpec": """activeDeadlineSeconds:int backoffLimit:int backoffLimitPerIndex:int completionMode:=NonIndexed|Indexed completions:int
        managedBy:text manualSelector:bool maxFailedIndexes:int parallelism:int podFailurePolicy:PodFailurePolicy
        podReplacementPolicy:text scheduling selector:LabelSelector successPolicy:SuccessPolicy suspend:bool template:PodTemplateSpec
        ttlSecondsAfterFinished:int""",
    "KeyToPath": "key:text mode:int path:text user:int",
    "LabelSelector": "matchExpressions:LabelSelectorRequirement* matchLabels:pairs",
    "LabelSelectorRequirement": "key:text operator:=In|NotIn|Exists|DoesNotExist values:texts",
    "Lifecycle": "postStart:LifecycleHandler preStop:LifecycleHandler stopSignal:text",
    "LifecycleHandler": "exec:ExecAction httpGet:HTTPGetAction sleep:SleepAction tcpSocket:TCPSocketAction",
    "LocalObjectReference": "name:text",
    "MetricIdentifier": "name:text selector:LabelSelector",
    "MetricSpec": """containerResource:ContainerResourceMetricSource external:ExternalMetricSource object:ObjectMetricSource
        pods:PodsMetricSource resource:ResourceMetricSource type:=Resource|Pods|Object|External|ContainerResource""",
    "MetricTarget": "averageUtilization:int averageValue:quantity type:=Utilization|Value|AverageValue value:quantity",
    "NodeAffinity": """preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm*
        requiredDuringSchedulingIgnoredDuringExecution:NodeSelector""",
    "NodeSelector": "nodeSelectorTerms:NodeSelectorTerm*",
    "NodeSelectorRequirement": "key:text operator:=In|NotIn|Exists|DoesNotExist|Gt|Lt values:texts",
    "NodeSelectorTerm": "matchExpressions:NodeSelectorRequirement* matchFields:NodeSelectorRequirement*",
    "ObjectFieldSelector": "apiVersion:text fieldPath:text",
    "ObjectMetricSource": "describedObject:CrossVersionObjectReference metric:MetricIdentifier target:MetricTarget",
    "PersistentVolumeClaimSpec": """accessModes:texts dataSource:TypedLocalObjectReference dataSourceRef:TypedObjectReference
        resources:VolumeResourceRequirements selector:LabelSelector storageClassName:text
        volumeAttributesClassName:text volumeMode:text volumeName:text""",
    "PersistentVolumeClaimVolumeSource": "claimName:text readOnly:bool",
    "PodAffinity": """preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm*
        requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm*""",
    "PodAffinityTerm": """labelSelector:LabelSelector matchLabelKeys:texts mismatchLabelKeys:texts namespaceSelector:LabelSelector
        namespaces:texts topologyKey:text""",
    "PodAntiAffinity": """preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm*
        requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm*""",
    "PodDNSConfig": "nameservers:texts options:PodDNSConfigOption* searches:texts",
    "PodDNSConfigOption": "name:text value:text",
    "PodDisruptionBudgetSpec": "maxUnavailable minAvailable selector:LabelSelector unhealthyPodEvictionPolicy:=IfHealthyBudget|AlwaysAllow",
    "PodFailurePolicy": "rules:PodFailurePolicyRule*",
    "PodFailurePolicyOnExitCodesRequirement": "containerName:text operator:text values:int*",
    "PodFailurePolicyOnPodConditionsPattern": "status:text type:text",
    "PodFailurePolicyRule": """action:text onExitCodes:PodFailurePolicyOnExitCodesRequirement
        onPodConditions:PodFailurePolicyOnPodConditionsPattern*""",
    "PodOS": "name:text",
    "PodReadinessGate": "conditionType:text",
    "PodResourceClaim": "name:text resourceClaimName:text resourceClaimTemplateName:text",
    "PodSchedulingGate": "name:text",
    "PodSecurityContext": """appArmorProfile:AppArmorProfile fsGroup:int fsGroupChangePolicy:text runAsGroup:int runAsNonRoot:bool
        runAsUser:int seLinuxChangePolicy:text seLinuxOptions seccompProfile:SeccompProfile supplementalGroups:int*
        supplementalGroupsPolicy:text sysctls:Sysctl* windowsOptions""",
    "PodSpec": """activeDeadlineSeconds:int affinity:Affinity automountServiceAccountToken:bool containers:Container*
        dnsConfig:PodDNSConfig dnsPolicy:=ClusterFirst|ClusterFirstWithHostNet|Default|None enableServiceLinks:bool
        ephemeralContainers:EphemeralContainer* evictionResponders hostAliases:HostAlias* hostIPC:bool
        hostNetwork:bool hostPID:bool hostUsers:bool hostname:text hostnameOverride:text
        imagePullSecrets:LocalObjectReference* initContainers:Container* nodeName:text nodeSelector:pairs os:PodOS
        overhead:quantities preemptionPolicy:=PreemptLowerPriority|Never priority:int priorityClassName:text
        readinessGates:PodReadinessGate* resourceClaims:PodResourceClaim* resources:ResourceRequirements
        restartPolicy:=Always|OnFailure|Never runtimeClassName:text schedulerName:text
        schedulingGates:PodSchedulingGate* schedulingGroup securityContext:PodSecurityContext serviceAccount:text
        serviceAccountName:text setHostnameAsFQDN:bool shareProcessNamespace:bool subdomain:text
        terminationGracePeriodSeconds:int tolerations:Toleration* topologySpreadConstraints:TopologySpreadConstraint*
        volumes:Volume*""",
    "PodsMetricSource": "metric:MetricIdentifier target:MetricTarget",
    "PreferredSchedulingTerm": "preference:NodeSelectorTerm weight:int",
    "Probe": """exec:ExecAction failureThreshold:int grpc:GRPCAction httpGet:HTTPGetAction initialDelaySeconds:int periodSeconds:int
        successThreshold:int tcpSocket:TCPSocketAction terminationGracePeriodSeconds:int timeoutSeconds:int""",
    "ReplicaSetSpec": "minReadySeconds:int replicas:int selector:LabelSelector template:PodTemplateSpec",
    "ReplicationControllerSpec": "minReadySeconds:int replicas:int selector:pairs template:PodTemplateSpec",
    "ResourceClaim": "name:text request:text",
    "ResourceFieldSelector": "containerName:text divisor:quantity resource:text",
    "ResourceMetricSource": "name:text target:MetricTarget",
    "ResourceRequirements": "claims:ResourceClaim* limits:quantities requests:quantities",
    "RollingUpdateDaemonSet": "maxSurge maxUnavailable",
    "RollingUpdateDeployment": "maxSurge maxUnavailable",
    "RollingUpdateStatefulSetStrategy": "maxUnavailable partition:int",
    "SeccompProfile": "localhostProfile:text type:text",
    "SecretEnvSource": "name:text optional:bool",
    "SecretKeySelector": "key:text name:text optional:bool",
    "SecretVolumeSource": "defaultMode:int defaultUser:int items:KeyToPath* optional:bool secretName:text",
    "SecurityContext": """allowPrivilegeEscalation:bool appArmorProfile:AppArmorProfile capabilities:Capabilities privileged:bool
        procMount:text readOnlyRootFilesystem:bool runAsGroup:int runAsNonRoot:bool runAsUser:int seLinuxOptions
        seccompProfile:SeccompProfile windowsOptions""",
    "SleepAction": "seconds:int",
    "StatefulSetOrdinals": "start:int",
    "StatefulSetPersistentVolumeClaimRetentionPolicy": "whenDeleted:text whenScaled:text",
    "StatefulSetSpec": """minReadySeconds:int ordinals:StatefulSetOrdinals
        persistentVolumeClaimRetentionPolicy:StatefulSetPersistentVolumeClaimRetentionPolicy podManagementPolicy:=OrderedReady|Parallel
        replicas:int revisionHistoryLimit:int selector:LabelSelector serviceName:text template:PodTemplateSpec
        updateStrategy:StatefulSetUpdateStrategy volumeClaimTemplates:PersistentVolumeClaim*""",
    "StatefulSetUpdateStrategy": "rollingUpdate:RollingUpdateStatefulSetStrategy type:=RollingUpdate|OnDelete",
    "SuccessPolicy": "rules:SuccessPolicyRule*",
    "SuccessPolicyRule": "succeededCount:int succeededIndexes:text",
    "Sysctl": "name:text value:text",
    "TCPSocketAction": "host:text port",
    "Toleration": "effect:=NoSchedule|PreferNoSchedule|NoExecute key:text operator:=Exists|Equal|Lt|Gt tolerationSeconds:int value:text",
    "TopologySpreadConstraint": """labelSelector:LabelSelector matchLabelKeys:texts maxSkew:int minDomains:int
        nodeAffinityPolicy:=Honor|Ignore nodeTaintsPolicy:=Honor|Ignore topologyKey:text whenUnsatisfiable:=DoNotSchedule|ScheduleAnyway""",
    "TypedLocalObjectReference": "apiGroup:text kind:text name:text",
    "TypedObjectReference": "apiGroup:text kind:text name:text namespace:text",
    "Volume": """awsElasticBlockStore azureDisk azureFile cephfs cinder configMap:ConfigMapVolumeSource csi downwardAPI
        emptyDir:EmptyDirVolumeSource ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath:HostPathVolumeSource
        image iscsi name:text nfs persistentVolumeClaim:PersistentVolumeClaimVolumeSource photonPersistentDisk portworxVolume projected
        quobyte rbd scaleIO secret:SecretVolumeSource storageos vsphereVolume""",
    "VolumeDevice": "devicePath:text name:text",
    "VolumeMount": """bindMountOptions:texts mountPath:text mountPropagation:text name:text readOnly:bool recursiveReadOnly:text
        subPath:text subPathExpr:text""",
    "VolumeResourceRequirements": "limits:quantities requests:quantities",
    "WeightedPodAffinityTerm": "podAffinityTerm:PodAffinityTerm weight:int",
    "JobTemplateSpec": "metadata spec:JobSpec",
    "PersistentVolumeClaim": "apiVersion:text kind:text metadata spec:PersistentVolumeClaimSpec status",
    "PodTemplateSpec": "metadata spec:PodSpec",
    "HorizontalPodAutoscalerV1": """maxReplicas:int minReplicas:int scaleTargetRef:CrossVersionObjectReference
        targetCPUUtilizationPercentage:int""",
}
