{{/*
The prefix of all names. Short enough that a pod's name fits its host name, which Kubernetes limits to 63 characters: 35, and
"-controller", "-", ten of the ReplicaSet, "-", five of the pod. A pod learns its own name from its host name.
*/}}
{{- define "gpuscaler.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 35 | trimSuffix "-" -}}
{{- end }}

{{/* Labels for selectors; they never change. Takes (dict "root" $ "component" NAME), like all that follow. */}}
{{- define "gpuscaler.selectorLabels" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "gpuscaler.labels" -}}
{{ include "gpuscaler.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpuscaler.metadata" -}}
name: {{ include "gpuscaler.fullname" .root }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "gpuscaler.labels" . | nindent 2 }}
{{- end }}

{{/* For objects without a namespace: names of two releases must differ. */}}
{{- define "gpuscaler.clusterMetadata" -}}
name: {{ include "gpuscaler.clusterName" . }}
labels:
  {{- include "gpuscaler.labels" . | nindent 2 }}
{{- end }}

{{- define "gpuscaler.clusterName" -}}
{{ .root.Release.Namespace }}:{{ include "gpuscaler.fullname" .root }}-{{ .component }}
{{- end }}

{{/* Annotations of temporary objects that helm creates after the release is deleted. Takes the hook's weight. */}}
{{- define "gpuscaler.uninstall" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{- define "gpuscaler.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The service account of a component. */}}
{{- define "gpuscaler.account" -}}
{{- $own := (index .root.Values .component).serviceAccount -}}
{{- if $own.name }}{{ $own.name }}{{ else if $own.create }}{{ include "gpuscaler.fullname" .root }}-{{ .component }}{{ else }}default{{ end -}}
{{- end }}

{{- define "gpuscaler.accountObject" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "gpuscaler.account" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "gpuscaler.labels" . | nindent 4 }}
  {{- with (index .root.Values .component).serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
# Only pods that request it get its token.
automountServiceAccountToken: false
{{- end }}

{{/* Checks that the schema cannot express, because values depend on each other. */}}
{{- define "gpuscaler.check" -}}
{{- $config := .Values.config -}}
{{- if not (or $config.pools (has (toString $config.cloud) (list "aws" "azure"))) }}{{ fail "config.pools: saw none, expected the pools to buy machines in; see docs/reference/pools-file.md" }}{{ end -}}
{{- if not $config.cloud }}{{ fail "config.cloud: saw none, expected aws, azure or simulated; see docs/reference/run-file.md" }}{{ end -}}
{{- with $config.namespace -}}
{{- if ne . $.Release.Namespace }}{{ fail (printf "config.namespace: saw %s, expected %s: its permissions are in the namespace of the release; omit it" . $.Release.Namespace) }}{{ end -}}
{{- end -}}
{{- $http := $config.http | default dict -}}
{{- if and (ne (toString $http.enabled) "false") (regexMatch "^(127[.]|localhost:|\\[::1\\])|:0+$" (default ":8080" $http.address)) -}}
{{- fail (printf "config.http.address: saw %s, expected an address that the kubelet and the Service can reach, and a port other than 0; omit it" $http.address) -}}
{{- end -}}
{{- $pages := $config.pages | default dict -}}
{{- if not (regexMatch "^(127[.]|localhost:|\\[::1\\])" (default "127.0.0.1:8081" $pages.address)) -}}
{{- fail (printf "config.pages.address: saw %s, expected a loopback address, because all clients that reach it can read names and annotations of all pods; set config.pages.authenticated for another address" $pages.address) -}}
{{- end -}}
{{- with ($pages.authenticated | default dict).address -}}
{{- if regexMatch "^(127[.]|localhost:|\\[::1\\])|:0+$" . }}{{ fail (printf "config.pages.authenticated.address: saw %s, expected an address that is reachable from other machines, and a port other than 0" .) }}{{ end -}}
{{- end -}}
{{- $alone := eq (toString ($config.leader_election | default dict).enabled) "false" -}}
{{- if and $alone (gt (int .Values.controller.replicas) 1) (not .Values.controller.dryRun) -}}
{{- fail (printf "controller.replicas: saw %v with config.leader_election.enabled false, expected 1: without leader election, two replicas buy everything twice" .Values.controller.replicas) -}}
{{- end -}}
{{- end }}

{{/* The run file as given, with a writable folder for the history. */}}
{{- define "gpuscaler.runFile" -}}
{{- $config := deepCopy .Values.config -}}
{{- $_ := set $config "history" (merge ($config.history | default dict) (dict "folder" "/var/lib/gpuscaler")) -}}
{{- toYaml $config -}}
{{- end }}

{{/* Settings of the run file that take effect only at a start: a change restarts the pods. Other changes are applied without a restart. */}}
{{- define "gpuscaler.startSettings" -}}
{{- $start := pick .Values.config "cloud" "simulated" "aws" "azure" "namespace" "leader_election" "rate_limit" "http" "pages" "exporters" "history" -}}
{{- if eq (toString .Values.config.cloud) "aws" }}{{ $_ := set $start "region" .Values.config.region }}{{ end -}}
{{- toJson $start -}}
{{- end }}

{{/* Namespace and name of the Service in the endpoint_url (http) of the cloud's settings; empty for any other address. */}}
{{- define "gpuscaler.controller.endpoint" -}}
{{- $cloud := toString .Values.config.cloud -}}
{{- $host := (urlParse (default "" (get .Values.config $cloud | default dict).endpoint_url)) -}}
{{- $parts := splitList "." (regexReplaceAll ":[0-9]+$" $host.host "") -}}
{{- if and (has $cloud (list "aws" "azure")) (eq $host.scheme "http") (gt (len $parts) 2) -}}
{{- if eq (index $parts 2) "svc" }}{{ dict "namespace" (index $parts 1) "name" (index $parts 0) | toYaml }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Port of metrics and health; empty if nothing is served. */}}
{{- define "gpuscaler.controller.port" -}}
{{- $http := .Values.config.http | default dict -}}
{{- if and .Values.controller.enabled (ne (toString $http.enabled) "false") -}}
{{- regexFind "[0-9]+$" (default ":8080" $http.address) -}}
{{- end -}}
{{- end }}

{{/* Whether status, explanations and decisions are served; empty if they are not. */}}
{{- define "gpuscaler.controller.pages" -}}
{{- $enabled := ($.Values.config.pages | default dict).enabled -}}
{{- if kindIs "invalid" $enabled }}{{ $enabled = ($.Values.config.http | default dict).enabled }}{{ end -}}
{{- if and .Values.controller.enabled (ne (toString $enabled) "false") }}served{{ end -}}
{{- end }}

{{/* Port of the authenticated pages; empty if there is none. */}}
{{- define "gpuscaler.controller.pagesPort" -}}
{{- if include "gpuscaler.controller.pages" . -}}
{{- with ((.Values.config.pages | default dict).authenticated | default dict).address }}{{ regexFind "[0-9]+$" . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Sources that the network policy admits to metrics. */}}
{{- define "gpuscaler.scrapers" -}}
- podSelector: {}
{{- with .Values.networkPolicy.scrapers }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpuscaler.controller.scheme" -}}
{{- ternary "HTTPS" "HTTP" (not (empty (.Values.config.http | default dict).certificate)) -}}
{{- end }}

{{/*
The settings of the metrics API as given, with its Service. Exporters of this release are in its own namespace: in other namespaces, users
who may create pods could create fake exporters with false values for any GPU.
*/}}
{{- define "gpuscaler.metrics.settings" -}}
{{- $near := ternary (dict "exporters" (dict "namespace" .Release.Namespace)) dict (and .Values.exporter.enabled (eq .Values.metrics.source "exporters")) -}}
{{- $service := dict "name" (printf "%s-metrics" (include "gpuscaler.fullname" .)) "namespace" .Release.Namespace -}}
{{- toYaml (merge (dict "service" $service "apis" (include "gpuscaler.metrics.served" . | fromYamlArray)) (deepCopy .Values.metrics.settings) $near) -}}
{{- end }}

{{- define "gpuscaler.metrics.served" -}}
{{- range $api := list "custom" "external" -}}
{{- if ne (toString (get $.Values.metrics.apis $api)) "false" }}
- {{ $api }}
{{- end }}
{{- end -}}
{{- end }}

{{/*
Whether templates see the cluster: not with `helm template`, which Argo CD uses, nor with `--dry-run=client`. Every cluster has this namespace.
*/}}
{{- define "gpuscaler.metrics.seesCluster" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}yes{{ end -}}
{{- end }}

{{/* The APIs that are left out because it is unknown here whether another program serves them. */}}
{{- define "gpuscaler.metrics.unknown" -}}
{{- range $api := list "custom" "external" -}}
{{- if not (or (has (toString (get $.Values.metrics.apis $api)) (list "true" "false")) (include "gpuscaler.metrics.seesCluster" $)) }}
- {{ $api }}
{{- end }}
{{- end -}}
{{- end }}

{{/*
The APIs to register: the requested ones, except those that another program serves, or may serve. A cluster has one server for each API;
KEDA, for example, serves external.metrics.k8s.io.
*/}}
{{- define "gpuscaler.metrics.apis" -}}
{{- $own := printf "%s/%s-metrics" .Release.Namespace (include "gpuscaler.fullname" .) -}}
{{- $served := include "gpuscaler.metrics.served" . | fromYamlArray -}}
{{- $unknown := include "gpuscaler.metrics.unknown" . | fromYamlArray -}}
{{- $custom := dict "group" "custom.metrics.k8s.io" "asked" (and (has "custom" $served) (not (has "custom" $unknown))) -}}
{{- $external := dict "group" "external.metrics.k8s.io" "asked" (and (has "external" $served) (not (has "external" $unknown))) -}}
{{- range list (merge (dict "version" "v1beta1" "priority" 100) $custom) (merge (dict "version" "v1beta2" "priority" 200) $custom) (merge (dict "version" "v1beta1" "priority" 100) $external) -}}
{{- $there := lookup "apiregistration.k8s.io/v1" "APIService" "" (printf "%s.%s" .version .group) -}}
{{- $other := false -}}
{{- with (($there | default dict).spec | default dict).service -}}
{{- $other = ne (printf "%s/%s" .namespace .name) $own -}}
{{- end -}}
{{- if and .asked (not $other) }}
- {group: {{ .group }}, version: {{ .version }}, priority: {{ .priority }}}
{{- end }}
{{- end -}}
{{- end }}

{{/*
How Prometheus reads the metrics API's own metrics: "token" if it can verify the server, "network" if a network policy limits access to the
port, and otherwise not at all: its token could go to a wrong server, or the metrics would be readable by all.
*/}}
{{- define "gpuscaler.metrics.scrape" -}}
{{- if and .Values.serviceMonitor.enabled .Values.metrics.enabled -}}
{{- if .Values.metrics.tls.caBundle }}token{{ else if and .Values.networkPolicy.enabled .Values.networkPolicy.apiServers }}network{{ end -}}
{{- end -}}
{{- end }}

{{- define "gpuscaler.metrics.check" -}}
{{- with .Values.metrics -}}
{{- if and (not .prometheusUrl) (eq .source "prometheus") }}{{ fail "metrics.prometheusUrl: saw none, expected the URL of the cluster's Prometheus, such as http://prometheus.monitoring.svc:9090, or metrics.source exporters" }}{{ end -}}
{{- if and .prometheusUrl (eq .source "exporters") }}{{ fail "metrics.prometheusUrl: saw one with metrics.source exporters, expected none: Prometheus is not queried" }}{{ end -}}
{{- if and (eq .source "exporters") (not (or $.Values.exporter.enabled (.settings.exporters | default dict).namespace)) }}{{ fail "metrics.settings.exporters.namespace: saw none with metrics.source exporters, expected the namespace of the exporters' DaemonSet, or exporter.enabled: pods in other namespaces could report false values for any GPU" }}{{ end -}}
{{- if not (include "gpuscaler.metrics.served" $ | fromYamlArray) }}{{ fail "metrics.apis: saw neither of the two, expected at least one; set metrics.enabled to false for none" }}{{ end -}}
{{- if and .tls.caBundle (not .tls.secretName) }}{{ fail "metrics.tls.caBundle: saw one without metrics.tls.secretName, expected both or neither: the server publishes the authority of a self-made certificate itself" }}{{ end -}}
{{- end -}}
{{- end }}
