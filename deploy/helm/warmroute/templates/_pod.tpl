{{/*
The gateway's container. Everything that a pod has to say for all its containers is said here for this
one, because a sidecar's pod is somebody else's.
*/}}
{{- define "warmroute.container" -}}
name: warmroute
image: {{ include "warmroute.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- with .Values.extraArgs }}
# Added to the image's `warmroute serve --config /etc/warmroute/gateway.yaml`.
args: {{- toYaml . | nindent 2 }}
{{- end }}
env:
  - name: HF_HOME
    value: /var/cache/huggingface
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - name: warmroute
    containerPort: {{ include "warmroute.publicPort" . }}
  {{- if include "warmroute.adminHost" . }}
  - name: warmroute-admin
    containerPort: {{ include "warmroute.adminPort" . }}
  {{- end }}
# Imports take seconds on a busy node. Tokenizers load behind a gateway that lives and is not ready.
startupProbe:
  {{- include "warmroute.probe" (list . "/livez") | nindent 2 }}
  {{- toYaml .Values.probes.startup | nindent 2 }}
livenessProbe:
  {{- include "warmroute.probe" (list . "/livez") | nindent 2 }}
  {{- toYaml .Values.probes.liveness | nindent 2 }}
readinessProbe:
  {{- include "warmroute.probe" (list . "/readyz") | nindent 2 }}
  {{- toYaml .Values.probes.readiness | nindent 2 }}
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: warmroute-config
    readOnly: true
    {{- if .Values.liveReload }}
    # The folder, not the file: only so does a changed ConfigMap reach a running pod.
    mountPath: /etc/warmroute
    {{- else }}
    # By subPath the file stays as it was when the pod started; the checksum rolls the pods instead.
    mountPath: /etc/warmroute/gateway.yaml
    subPath: gateway.yaml
    {{- end }}
  - name: warmroute-tmp
    mountPath: /tmp
  - name: warmroute-hub
    mountPath: /var/cache/huggingface
  {{- with .Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/*
How a probe asks. Takes (list ROOT PATH). The kubelet asks from outside the pod, so a listener on
loopback is asked from inside.
*/}}
{{- define "warmroute.probe" -}}
{{- $root := index . 0 -}}
{{- if include "warmroute.publicHost" $root -}}
httpGet:
  path: {{ index . 1 }}
  port: {{ include "warmroute.publicPort" $root }}
  scheme: {{ include "warmroute.publicScheme" $root }}
{{- else -}}
{{- $host := (include "warmroute.config" $root | fromJson).listen.host -}}
{{- $url := printf "%s://%s:%s%s" (include "warmroute.publicScheme" $root | lower) (ternary "[::1]" $host (eq $host "::1")) (include "warmroute.publicPort" $root) (index . 1) -}}
exec:
  # Whether the certificate names a loopback address is not what is asked here.
  command:
    - python
    - -c
    - import ssl, urllib.request as u; u.urlopen('{{ $url }}', timeout=2, context=ssl._create_unverified_context())
{{- end -}}
{{- end }}

{{/* The volumes of that container. */}}
{{- define "warmroute.volumes" -}}
- name: warmroute-config
  configMap:
    name: {{ include "warmroute.fullname" . }}
- name: warmroute-tmp
  emptyDir:
    sizeLimit: {{ .Values.tmp.sizeLimit }}
- name: warmroute-hub
  {{- if .Values.hubCache.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.hubCache.existingClaim }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.hubCache.sizeLimit }}
  {{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Rolls the pods with the configuration, where a running gateway is not to take it over by itself. */}}
{{- define "warmroute.podAnnotations" -}}
{{- $own := dict -}}
{{- if not .Values.liveReload -}}
{{- $_ := set $own "checksum/warmroute-config" (include "warmroute.configText" . | sha256sum) -}}
{{- end -}}
{{- with merge $own .Values.podAnnotations -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}
