{{/* The gateway's file, as it goes into the ConfigMap. */}}
{{- define "warmroute.configText" -}}
{{- if and .Values.config .Values.configText -}}
{{- fail "give either config or configText, not both" -}}
{{- else if .Values.configText -}}
{{- .Values.configText -}}
{{- else if .Values.config -}}
{{- toYaml .Values.config -}}
{{- else -}}
{{- fail "config: required, the gateway's configuration with at least one model" -}}
{{- end -}}
{{- end }}

{{/* The same as JSON, for `fromJson`: what the templates derive from it must follow the file. */}}
{{- define "warmroute.config" -}}
{{- $config := include "warmroute.configText" . | fromYaml -}}
{{- if hasKey $config "Error" -}}
{{- fail (printf "configText: %s" (get $config "Error")) -}}
{{- end -}}
{{- toJson $config -}}
{{- end }}

{{/*
A number of the configuration, which must be known when the chart is rendered.
Takes (list ROOT SECTION KEY DEFAULT); the default is the gateway's own (docs/configuration.md).
*/}}
{{- define "warmroute.number" -}}
{{- $config := include "warmroute.config" (index . 0) | fromJson -}}
{{- $value := get (get $config (index . 1) | default dict) (index . 2) -}}
{{- if kindIs "invalid" $value -}}{{- $value = "" -}}{{- end -}}
{{- if kindIs "string" $value -}}
{{- if $value -}}
{{- fail (printf "config.%s.%s: must be a number here, as ports, probes and grace follow it; got %q" (index . 1) (index . 2) $value) -}}
{{- end -}}
{{- $value = index . 3 -}}
{{- end -}}
{{- $value -}}
{{- end }}

{{/* A listener's port. Takes (list ROOT SECTION DEFAULT). */}}
{{- define "warmroute.port" -}}
{{- $port := include "warmroute.number" (list (index . 0) (index . 1) "port" (index . 2)) | float64 | int -}}
{{- if not $port -}}
{{- fail (printf "config.%s.port: 0 lets the system choose, and then no Service or probe finds it; give a port" (index . 1)) -}}
{{- end -}}
{{- $port -}}
{{- end }}

{{- define "warmroute.publicPort" -}}{{ include "warmroute.port" (list . "listen" 8080) }}{{- end }}
{{- define "warmroute.adminPort" -}}{{ include "warmroute.port" (list . "admin" 9090) }}{{- end }}

{{/* Host that a listener binds, "" where it is only reached from inside its pod. Takes (list ROOT SECTION DEFAULT). */}}
{{- define "warmroute.openHost" -}}
{{- $config := include "warmroute.config" (index . 0) | fromJson -}}
{{- $host := get (get $config (index . 1) | default dict) "host" | default (index . 2) -}}
{{- if not (or (has $host (list "::1" "localhost")) (hasPrefix "127." $host)) -}}{{ $host }}{{- end -}}
{{- end }}

{{- define "warmroute.publicHost" -}}{{ include "warmroute.openHost" (list . "listen" "0.0.0.0") }}{{- end }}
{{- define "warmroute.adminHost" -}}{{ include "warmroute.openHost" (list . "admin" "127.0.0.1") }}{{- end }}

{{- define "warmroute.publicScheme" -}}
{{- $config := include "warmroute.config" . | fromJson -}}
{{- if get (get $config "listen" | default dict) "tls" -}}HTTPS{{- else -}}HTTP{{- end -}}
{{- end }}

{{/* Seconds from the stop of a pod to its kill: endpoints spread, streams end, and some to spare. */}}
{{- define "warmroute.graceSeconds" -}}
{{- $drain := include "warmroute.number" (list . "timeouts" "drain_s" 30) | float64 | ceil | int -}}
{{- add .Values.termination.preStopSeconds $drain .Values.termination.marginSeconds -}}
{{- end }}

{{/*
What kubernetes discovery reads, as JSON: resource -> true, by namespace. Sections with a kubeconfig
bring credentials of their own.
*/}}
{{- define "warmroute.discoveryByNamespace" -}}
{{- $root := . -}}
{{- $config := include "warmroute.config" . | fromJson -}}
{{- $byNamespace := dict -}}
{{- range $model := $config.models -}}
{{- range $section := $model.discovery -}}
{{- if and (eq $section.kind "kubernetes") (not $section.kubeconfig) -}}
{{- $namespace := $section.namespace | default $root.Release.Namespace -}}
{{- $resources := get $byNamespace $namespace | default dict -}}
{{- $_ := set $resources (ternary "endpointslices" "pods" (hasKey $section "service")) true -}}
{{- $_ := set $byNamespace $namespace $resources -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $byNamespace -}}
{{- end }}
