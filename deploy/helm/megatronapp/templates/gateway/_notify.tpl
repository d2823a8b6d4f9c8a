{{/* What the gateway is told of notifications; each receiver that is on takes its keys from one Secret. */}}
{{- define "megatronapp.notifyEnv" -}}
{{- $notify := .Values.notifications -}}
- name: MEGATRONAPP_GATEWAY_NOTIFY_REPEAT_SECONDS
  value: {{ $notify.repeatSeconds | int64 | quote }}
- name: MEGATRONAPP_GATEWAY_NOTIFY_FLAP_SECONDS
  value: {{ $notify.flapSeconds | int64 | quote }}
{{- with $notify.pageUrl }}
- name: MEGATRONAPP_GATEWAY_PAGE_URL
  value: {{ quote . }}
{{- end }}
{{- with $notify.report.weekday }}
- name: MEGATRONAPP_GATEWAY_REPORT_WEEKDAY
  value: {{ . }}
- name: MEGATRONAPP_GATEWAY_REPORT_HOUR
  value: {{ $notify.report.hour | quote }}
{{- end }}
{{- $keys := dict "feishu" (list "feishu-url" "feishu-secret") "slack" (list "slack-url") "webhook" (list "webhook-url" "webhook-bearer") "phone" (list "phone-url" "phone-bearer") }}
{{- range $receiver := list "feishu" "slack" "webhook" "phone" }}
{{- $values := index $notify $receiver }}
{{- if $values.enabled }}
- name: MEGATRONAPP_GATEWAY_{{ upper $receiver }}_LEVEL
  value: {{ $values.level }}
{{- range $key := index $keys $receiver }}
- name: MEGATRONAPP_GATEWAY_{{ $key | replace "-" "_" | upper }}
  valueFrom:
    secretKeyRef:
      name: {{ required "notifications.existingSecret is needed when a receiver is enabled" $notify.existingSecret }}
      key: {{ $key }}
      {{- if not (hasSuffix "url" $key) }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" when a receiver is on. */}}
{{- define "megatronapp.notifies" -}}
{{- range $receiver := list "feishu" "slack" "webhook" "phone" -}}
{{- if (index $.Values.notifications $receiver).enabled -}}true{{- end -}}
{{- end -}}
{{- end }}
