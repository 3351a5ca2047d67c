{{/*
A policy for writes of a component's account (the controller's unless given), and its binding. It calls no webhook, so nothing is denied
because of an outage.
*/}}
{{- define "gpuscaler.admission" -}}
{{- $component := default "controller" .component -}}
{{- $self := dict "root" .root "component" $component -}}
{{- $name := printf "%s-%s-%s.%s" (include "gpuscaler.fullname" .root) $component .of .root.Release.Namespace }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}
  labels:
    {{- include "gpuscaler.labels" $self | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      {{- toYaml (ternary .rule (list .rule) (kindIs "slice" .rule)) | nindent 6 }}
  matchConditions:
    - name: account
      expression: request.userInfo.username == 'system:serviceaccount:{{ .root.Release.Namespace }}:{{ include "gpuscaler.account" $self }}'
  {{- with .variables }}
  variables:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  validations:
    {{- range .validations }}
    - {{ merge . (dict "reason" "Forbidden") | toYaml | nindent 6 | trim }}
    {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "gpuscaler.labels" $self | nindent 4 }}
spec:
  policyName: {{ $name }}
  validationActions: [Deny]
{{ end }}

{{/* An expression: only the listed parts of metadata have changed, apart from those that the API server maintains. */}}
{{- define "gpuscaler.admission.metadata" -}}
{{- $free := concat . (list "managedFields" "resourceVersion" "generation") -}}
{{- $own := printf "k in ['%s']" (join "', '" $free) -}}
dyn(object.metadata).all(k, {{ $own }} || (k in dyn(oldObject.metadata) && dyn(oldObject.metadata)[k] == dyn(object.metadata)[k])) && dyn(oldObject.metadata).all(k, {{ $own }} || k in dyn(object.metadata))
{{- end }}

{{/* Not empty if the exporter's account can be restricted to its own node: the API server has such policies, and knows a token's node. */}}
{{- define "gpuscaler.exporter.notes" -}}
{{- if semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version }}yes{{ end -}}
{{- end }}
