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
{{- with $notify.silentSeconds }}
- name: MEGATRONAPP_GATEWAY_SILENT_SECONDS
  value: {{ . | int64 | quote }}
{{- end }}
{{- if $notify.heartbeat.enabled }}
- name: MEGATRONAPP_GATEWAY_HEARTBEAT_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "notifications.existingSecret is needed when the heartbeat is enabled" $notify.existingSecret }}
      key: heartbeat-url
{{- end }}
{{- with $notify.mail }}
{{- if .enabled }}
- name: MEGATRONAPP_GATEWAY_MAIL_HOST
  value: {{ required "notifications.mail.host is needed when mail is enabled" .host | quote }}
- name: MEGATRONAPP_GATEWAY_MAIL_PORT
  value: {{ .port | quote }}
- name: MEGATRONAPP_GATEWAY_MAIL_TLS
  value: {{ .tls }}
- name: MEGATRONAPP_GATEWAY_MAIL_USER
  value: {{ .user | quote }}
- name: MEGATRONAPP_GATEWAY_MAIL_FROM
  value: {{ .from | quote }}
- name: MEGATRONAPP_GATEWAY_MAIL_TO
  value: {{ join "," .to | quote }}
{{- end }}
{{- end }}
{{- with $notify.feishuSheet }}
{{- if .enabled }}
- name: MEGATRONAPP_GATEWAY_FEISHU_SHEET_APP_ID
  value: {{ .appId | quote }}
- name: MEGATRONAPP_GATEWAY_FEISHU_SHEET_ID
  value: {{ .sheetId | quote }}
- name: MEGATRONAPP_GATEWAY_FEISHU_SHEET_API
  value: {{ .api | quote }}
{{- end }}
{{- end }}
{{- $keys := dict "mail" (list "mail-password") "feishuSheet" (list "feishu-sheet-app-secret" "feishu-sheet-token") "feishu" (list "feishu-url" "feishu-secret") "slack" (list "slack-url") "webhook" (list "webhook-url" "webhook-bearer") "phone" (list "phone-url" "phone-bearer") }}
{{- range $receiver := list "feishu" "slack" "webhook" "phone" "mail" "feishuSheet" }}
{{- $values := index $notify $receiver }}
{{- if $values.enabled }}
- name: MEGATRONAPP_GATEWAY_{{ snakecase $receiver | upper }}_LEVEL
  value: {{ $values.level }}
{{- range $key := index $keys $receiver }}
- name: MEGATRONAPP_GATEWAY_{{ $key | replace "-" "_" | upper }}
  valueFrom:
    secretKeyRef:
      name: {{ required "notifications.existingSecret is needed when a receiver is enabled" $notify.existingSecret }}
      key: {{ $key }}
      {{- if or (hasSuffix "bearer" $key) (eq "feishu-secret" $key) (eq "mail-password" $key) }}
      optional: true
      {{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" when a receiver is on. */}}
{{- define "megatronapp.notifies" -}}
{{- range $receiver := list "feishu" "slack" "webhook" "phone" "mail" "feishuSheet" -}}
{{- if (index $.Values.notifications $receiver).enabled -}}true{{- end -}}
{{- end -}}
{{- end }}
