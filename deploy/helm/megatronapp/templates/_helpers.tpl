{{/* Names. */}}
{{- define "megatronapp.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "megatronapp.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "megatronapp.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Labels; the argument is (list root component). */}}
{{- define "megatronapp.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "megatronapp.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "megatronapp.labels" -}}
{{- $root := index . 0 -}}
{{ include "megatronapp.selector" . }}
app.kubernetes.io/part-of: megatronapp
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Head of an object of a component: (list root component). */}}
{{- define "megatronapp.metadata" -}}
{{- $root := index . 0 -}}
name: {{ include "megatronapp.fullname" $root }}-{{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels:
  {{- include "megatronapp.labels" . | nindent 2 }}
{{- end }}

{{- define "megatronapp.serviceAccountName" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- default (printf "%s-%s" (include "megatronapp.fullname" $root) $component) (index $root.Values $component).serviceAccount.name -}}
{{- end }}

{{/*
An image's full name: (list root imageValues). A released chart has files/images.json, which names the registry of its
images and their digests (scripts/package_chart.py); a tag, a digest or a registry of the values wins.
*/}}
{{- define "megatronapp.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- $released := $root.Files.Get "files/images.json" | default "{}" | fromJson -}}
{{- $digest := get ($released.digests | default dict) $image.repository -}}
{{- $published := ternary $released.registry "docker.io" (ne $digest "") -}}
{{- $name := printf "%s/%s" (default $published $root.Values.global.imageRegistry) $image.repository -}}
{{- if or $image.digest (and $digest (not $image.tag)) -}}
{{- printf "%s@%s" $name (default $digest $image.digest) -}}
{{- else -}}
{{- printf "%s:%s" $name (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end }}

{{/* Secrets. */}}
{{- define "megatronapp.authSecret" -}}
{{- default (printf "%s-auth" (include "megatronapp.fullname" .)) .Values.auth.existingSecret -}}
{{- end }}

{{- define "megatronapp.redisSecret" -}}
{{- default (printf "%s-redis" (include "megatronapp.fullname" .)) .Values.redis.existingSecret -}}
{{- end }}

{{/* An environment variable out of a Secret: (list name secret key). */}}
{{- define "megatronapp.secretEnv" -}}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ index . 1 }}
      key: {{ index . 2 }}
      {{- if gt (len .) 3 }}
      optional: true
      {{- end }}
{{- end }}

{{/* The bus's address as MEGATRONAPP_<SERVICE>_REDIS_URL: (list root service). */}}
{{- define "megatronapp.redisEnv" -}}
{{- $root := index . 0 -}}{{- $name := printf "MEGATRONAPP_%s_REDIS_URL" (index . 1) -}}
{{- if $root.Values.redis.enabled -}}
{{ include "megatronapp.secretEnv" (list "REDIS_PASSWORD" (include "megatronapp.redisSecret" $root) "redis-password") }}
- name: {{ $name }}
  value: redis://:$(REDIS_PASSWORD)@{{ include "megatronapp.fullname" $root }}-redis.{{ $root.Release.Namespace }}.svc:6379/0
{{- else if $root.Values.externalRedis.existingSecret -}}
{{ include "megatronapp.secretEnv" (list $name $root.Values.externalRedis.existingSecret "url") }}
{{- else -}}
- name: {{ $name }}
  value: {{ required "externalRedis.url or externalRedis.existingSecret is needed when redis.enabled is false" $root.Values.externalRedis.url | quote }}
{{- end -}}
{{- end }}

{{/* What every service is told: (list root service). */}}
{{- define "megatronapp.serviceEnv" -}}
{{- $root := index . 0 -}}{{- $prefix := printf "MEGATRONAPP_%s" (index . 1) -}}
- name: {{ $prefix }}_HOST
  value: 0.0.0.0
- name: {{ $prefix }}_HTTP_PORT
  value: "9090"
- name: {{ $prefix }}_LOG_LEVEL
  value: {{ $root.Values.logging.level }}
- name: {{ $prefix }}_LOG_FORMAT
  value: json
{{- end }}

{{/* host:port of a collector shard: (list root number). */}}
{{- define "megatronapp.collectorAddress" -}}
{{- $root := index . 0 -}}{{- $name := printf "%s-collector" (include "megatronapp.fullname" $root) -}}
{{- printf "%s-%v.%s.%s.svc:7601" $name (index . 1) $name $root.Release.Namespace -}}
{{- end }}

{{/* All collector shards as a JSON list. */}}
{{- define "megatronapp.collectorAddresses" -}}
{{- $addresses := list -}}
{{- range $shard := until (int .Values.collector.replicas) -}}
{{- $addresses = append $addresses (include "megatronapp.collectorAddress" (list $ $shard)) -}}
{{- end -}}
{{- $addresses | toJson -}}
{{- end }}

{{- define "megatronapp.gatewayHost" -}}
{{- printf "%s-gateway.%s.svc" (include "megatronapp.fullname" .) .Release.Namespace -}}
{{- end }}
