{{/* A policy for what the controller's account writes, and its binding. It asks nobody: nothing is refused because something is away. */}}
{{- define "gpuscaler.admission" -}}
{{- $self := dict "root" .root "component" "controller" -}}
{{- $name := printf "%s-controller-%s.%s" (include "gpuscaler.fullname" .root) .of .root.Release.Namespace }}
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

{{/* That of metadata only the parts of a list have changed, beside what the API server itself keeps. */}}
{{- define "gpuscaler.admission.metadata" -}}
{{- $free := concat . (list "managedFields" "resourceVersion" "generation") -}}
{{- $own := printf "k in ['%s']" (join "', '" $free) -}}
dyn(object.metadata).all(k, {{ $own }} || (k in dyn(oldObject.metadata) && dyn(oldObject.metadata)[k] == dyn(object.metadata)[k])) && dyn(oldObject.metadata).all(k, {{ $own }} || k in dyn(object.metadata))
{{- end }}
