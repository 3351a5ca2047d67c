{{/*
Nodes with GPUs, by labels: a scheduler does not consider resources of nodes for pods that do not request them. Instance types are from the
catalogue (files/gpu-instance-types.json); EKS, for example, sets no other label on machines of its node groups.
*/}}
{{- define "gpuscaler.gpuTypes" -}}
{{ .Files.Get "files/gpu-instance-types.json" }}
{{- end }}

{{/* Each of these indicates that a node has, or may have, NVIDIA GPUs. */}}
{{- define "gpuscaler.nvidiaNodes" -}}
- {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
{{- range list "pci-10de" "pci-0300_10de" "pci-0302_10de" }}
- {key: feature.node.kubernetes.io/{{ . }}.present, operator: In, values: ["true"]}
{{- end }}
- {key: cloud.google.com/gke-accelerator, operator: Exists}
- {key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}
- {key: accelerator, operator: In, values: [nvidia]}
{{- range list "karpenter.k8s.aws/instance-gpu-manufacturer" "eks.amazonaws.com/instance-gpu-manufacturer" "karpenter.azure.com/sku-gpu-manufacturer" }}
- {key: {{ . }}, operator: In, values: [nvidia]}
{{- end }}
{{- range list "k8s.amazonaws.com/accelerator" "kops.k8s.io/gpu" "aliyun.accelerator/nvidia_name" "gpuscaler.io/pool" }}
- {key: {{ . }}, operator: Exists}
{{- end }}
- {key: node.kubernetes.io/instance-type, operator: In, values: {{ (include "gpuscaler.gpuTypes" . | fromJson).nvidia | toJson }}}
{{- end }}

{{/* All of these hold for nodes that have no GPUs according to their labels, and that gpuscaler does not buy. */}}
{{- define "gpuscaler.plainNodes" -}}
{{- $types := include "gpuscaler.gpuTypes" . | fromJson -}}
{{- range list "nvidia.com/gpu.present" "feature.node.kubernetes.io/pci-10de.present" "feature.node.kubernetes.io/pci-0300_10de.present" "feature.node.kubernetes.io/pci-0302_10de.present" "feature.node.kubernetes.io/amd-gpu" }}
- {key: {{ . }}, operator: NotIn, values: ["true"]}
{{- end }}
{{- range list "accelerator" "karpenter.azure.com/sku-gpu-manufacturer" }}
- {key: {{ . }}, operator: NotIn, values: [nvidia, amd]}
{{- end }}
{{- range list "gpuscaler.io/pool" "amd.com/gpu.product-name" "cloud.google.com/gke-accelerator" "kubernetes.azure.com/accelerator" "karpenter.k8s.aws/instance-gpu-count" "eks.amazonaws.com/instance-gpu-count" "k8s.amazonaws.com/accelerator" "kops.k8s.io/gpu" "aliyun.accelerator/nvidia_name" }}
- {key: {{ . }}, operator: DoesNotExist}
{{- end }}
- {key: node.kubernetes.io/instance-type, operator: NotIn, values: {{ concat $types.nvidia $types.amd | toJson }}}
{{- end }}

{{/* The controller's affinity as given; it avoids nodes with GPUs unless required node affinity is given. */}}
{{- define "gpuscaler.controller.affinity" -}}
{{- $terms := list (dict "matchExpressions" (include "gpuscaler.plainNodes" . | fromYamlArray)) -}}
{{- include "gpuscaler.affinity" (dict "given" .Values.controller.affinity "terms" $terms) -}}
{{- end }}

{{/*
The exporter's affinity: not on nodes where the GPU operator changes the driver or MIG devices, which requires that no process has the driver
open. The operator sets a label for this from its release 26.7 on.
*/}}
{{- define "gpuscaler.exporter.affinity" -}}
{{- $free := dict "key" "nvidia.com/gpu.deploy.client" "operator" "NotIn" "values" (list "paused-for-driver-upgrade" "paused-for-mig-change") -}}
{{- $terms := list -}}
{{- range include "gpuscaler.nvidiaNodes" . | fromYamlArray -}}
{{- $terms = append $terms (dict "matchExpressions" (list . $free)) -}}
{{- end -}}
{{- if .Values.exporter.scheduledEvents.enabled -}}
{{- /* Spot machines without GPUs are taken away as well. */ -}}
{{- $terms = append $terms (dict "matchExpressions" (list (dict "key" "kubernetes.azure.com/scalesetpriority" "operator" "In" "values" (list "spot")))) -}}
{{- end -}}
{{- include "gpuscaler.affinity" (dict "given" .Values.exporter.affinity "terms" $terms) -}}
{{- end }}

{{- define "gpuscaler.affinity" -}}
{{- $own := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" .terms)) -}}
{{- toYaml (merge (deepCopy .given) $own) -}}
{{- end }}
