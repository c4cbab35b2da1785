{{/*
For a pod of another chart, which has this one as a dependency with `mode: sidecar`. Each takes
.Subcharts.warmroute; deploy/helm/examples/app-with-sidecar shows them in place.

  warmroute.sidecar.container    one item of the pod's initContainers
  warmroute.sidecar.volumes      items of the pod's volumes
  warmroute.podAnnotations       of the pod; empty with liveReload
*/}}
{{- define "warmroute.sidecar.container" -}}
{{ include "warmroute.container" . }}
# An init container that stays: it is ready before the application starts and gets its stop signal only
# after the application has ended, so neither the first nor the last request meets a closed port.
restartPolicy: Always
{{- end }}

{{- define "warmroute.sidecar.volumes" -}}
{{ include "warmroute.volumes" . }}
{{- end }}

{{/* All of it as a strategic merge patch of a Deployment, for pods that no chart of ours renders. */}}
{{- define "warmroute.sidecar.patch" -}}
spec:
  template:
    {{- with include "warmroute.podAnnotations" . }}
    metadata:
      annotations: {{- . | nindent 8 }}
    {{- end }}
    spec:
      initContainers:
        - {{ include "warmroute.sidecar.container" . | nindent 10 | trim }}
      volumes:
        {{- include "warmroute.sidecar.volumes" . | nindent 8 }}
{{- end }}
