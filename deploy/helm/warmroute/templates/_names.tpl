{{/* Name of all objects: the release's, with the chart's name in it once. */}}
{{- define "warmroute.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Labels by which the pods are found. They can never change in an upgrade. */}}
{{- define "warmroute.selectorLabels" -}}
app.kubernetes.io/name: warmroute
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmroute.labels" -}}
{{ include "warmroute.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end }}

{{- define "warmroute.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Service account of the pod that the gateway runs in; of a sidecar's pod only its owner knows it. */}}
{{- define "warmroute.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else if eq .Values.mode "sidecar" -}}
{{- fail "serviceAccount.name: in sidecar mode name the service account of the pod that takes the sidecar, for kubernetes discovery" -}}
{{- else if .Values.serviceAccount.create -}}
{{- include "warmroute.fullname" . -}}
{{- else -}}
default
{{- end -}}
{{- end }}
