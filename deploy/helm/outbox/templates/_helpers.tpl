{{- define "outbox.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "outbox.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: relay
{{- end }}

{{- define "outbox.metadata" -}}
name: {{ include "outbox.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "outbox.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion }}
{{- end }}

{{- define "outbox.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "outbox.scheme" -}}
{{ if dig "http" "tls" "cert_file" "" .Values.config }}https{{ else }}http{{ end }}
{{- end }}

{{- /* Nothing is allowed that the image does not need. */}}
{{- define "outbox.podSecurity" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532 # reads the secrets
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "outbox.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}
