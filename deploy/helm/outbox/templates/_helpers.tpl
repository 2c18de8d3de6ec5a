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
{{ include "outbox.labelled" . }}
{{- end }}

{{- define "outbox.labelled" -}}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "outbox.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion }}
{{- end }}

{{- define "outbox.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "outbox.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* Not empty where the configuration has a list of databases, or discovers them: the relay then refuses the address of
a single one. */}}
{{- define "outbox.several" -}}
{{- $config := .Values.config }}
{{- if or .Values.databases .Values.discoverSecret $config.databases $config.databases_dir $config.discover (not .Values.database.secret) }}yes{{ end }}
{{- end }}

{{- /* Not empty where relays of a fleet know by numbers who they are, because they have no home. */}}
{{- define "outbox.ordinals" -}}
{{- if and .Values.fleet.enabled (not .Values.fleet.home.secret) }}yes{{ end }}
{{- end }}

{{- /* The configuration, in which each of databases has the file that is mounted for it. */}}
{{- define "outbox.config" -}}
{{- $config := deepCopy .Values.config }}
{{- $list := list }}
{{- $mounted := list }}
{{- range $db := .Values.databases }}
  {{- $mounted = append $mounted $db.name }}
  {{- $entry := dict "name" $db.name }}
  {{- range $config.databases }}{{ if eq .name $db.name }}{{ $entry = . }}{{ end }}{{ end }}
  {{- $database := $entry.database | default dict }}
  {{- if not (or $database.url $database.url_file) }}
    {{- $_ := set $database "url_file" (printf "/run/secrets/databases/%s" $db.name) }}
  {{- end }}
  {{- $list = append $list (set $entry "database" $database) }}
{{- end }}
{{- range $config.databases }}{{ if not (has .name $mounted) }}{{ $list = append $list . }}{{ end }}{{ end }}
{{- if $list }}{{ $_ := set $config "databases" $list }}{{ end }}
{{- if .Values.discoverSecret }}
  {{- $folder := dict "name" "secret" "folder" (dict "path" "/run/secrets/discovered") }}
  {{- $_ := set $config "discover" (append ($config.discover | default list) $folder) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- /* The shard groups of all destinations, of all databases: each has one relay. */}}
{{- define "outbox.groups" -}}
{{- $config := include "outbox.config" . | fromYaml }}
{{- $general := $config.destinations | default list }}
{{- $groups := 0 }}
{{- range $config.databases | default (list dict) }}
  {{- range $destination := .destinations | default $general }}
    {{- $own := $destination.shard_groups }}
    {{- range $general }}{{ if eq .name $destination.name }}{{ $own = $own | default .shard_groups }}{{ end }}{{ end }}
    {{- $groups = add $groups ($own | default 1) }}
  {{- end }}
{{- end }}
{{- $groups }}
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

{{- /* What both steps of a migration have, given the root and the key of the URL. */}}
{{- define "outbox.migrateContainer" -}}
{{- $ := index . 0 -}}
image: {{ include "outbox.image" $ }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
env:
  - {name: OUTBOX_DATABASE_URL_FILE, value: /run/secrets/database/{{ index . 1 }}}
  {{- with $.Values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with $.Values.extraEnvFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
{{ include "outbox.containerSecurity" $ }}
resources:
  {{- toYaml $.Values.resources | nindent 2 }}
volumeMounts:
  - {name: database, mountPath: /run/secrets/database, readOnly: true}
  {{- with $.Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
