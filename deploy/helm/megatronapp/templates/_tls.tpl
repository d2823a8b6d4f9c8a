{{/* TLS on the gRPC of collector and gateway: a Secret with ca.crt, tls.crt and tls.key, as cert-manager writes it. */}}
{{- define "megatronapp.tlsFolder" -}}
/etc/megatronapp/tls
{{- end }}

{{- define "megatronapp.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- default (printf "%s-collector-tls" (include "megatronapp.fullname" .)) .Values.tls.secretName -}}
{{- else -}}
{{- required "tls.secretName is needed when tls.enabled is true and tls.certManager.enabled is false" .Values.tls.secretName -}}
{{- end -}}
{{- end }}

{{- define "megatronapp.tlsMounts" -}}
{{- if .Values.tls.enabled }}
- {name: tls, mountPath: {{ include "megatronapp.tlsFolder" . }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "megatronapp.tlsVolumes" -}}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "megatronapp.tlsSecret" . }}
{{- end }}
{{- end }}

{{- define "megatronapp.tlsCollectorEnv" -}}
{{- $folder := include "megatronapp.tlsFolder" . -}}
{{- if .Values.tls.enabled }}
- name: MEGATRONAPP_COLLECTOR_TLS_CERTIFICATE_FILE
  value: {{ $folder }}/tls.crt
- name: MEGATRONAPP_COLLECTOR_TLS_KEY_FILE
  value: {{ $folder }}/tls.key
{{- if .Values.tls.mutual }}
- name: MEGATRONAPP_COLLECTOR_TLS_CLIENT_CA_FILE
  value: {{ $folder }}/ca.crt
{{- end }}
{{- end }}
{{- end }}

{{- define "megatronapp.tlsGatewayEnv" -}}
{{- $folder := include "megatronapp.tlsFolder" . -}}
{{- if .Values.tls.enabled }}
- name: MEGATRONAPP_GATEWAY_TLS_CERTIFICATE_FILE
  value: {{ $folder }}/tls.crt
- name: MEGATRONAPP_GATEWAY_TLS_KEY_FILE
  value: {{ $folder }}/tls.key
- name: MEGATRONAPP_GATEWAY_COLLECTOR_CA_FILE
  value: {{ $folder }}/ca.crt
{{- if .Values.tls.mutual }}
- name: MEGATRONAPP_GATEWAY_TLS_CLIENT_CA_FILE
  value: {{ $folder }}/ca.crt
- name: MEGATRONAPP_GATEWAY_COLLECTOR_CLIENT_CERTIFICATE_FILE
  value: {{ $folder }}/tls.crt
- name: MEGATRONAPP_GATEWAY_COLLECTOR_CLIENT_KEY_FILE
  value: {{ $folder }}/tls.key
{{- end }}
{{- end }}
{{- end }}

{{- define "megatronapp.tlsOperatorEnv" -}}
{{- if .Values.tls.enabled }}
- name: MEGATRONAPP_OPERATOR_COLLECTOR_TLS_SECRET
  value: {{ .Values.tls.jobSecretName }}
- name: MEGATRONAPP_OPERATOR_COLLECTOR_MUTUAL_TLS
  value: {{ .Values.tls.mutual | quote }}
{{- end }}
{{- end }}
