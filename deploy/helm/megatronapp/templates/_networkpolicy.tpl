{{/* A policy of one component: (dict root component ingress egress), rules as YAML text. Without rules nothing may pass. */}}
{{- define "megatronapp.networkPolicy" -}}
{{- if .root.Values.networkPolicy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "megatronapp.metadata" (list .root .component) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "megatronapp.selector" (list .root .component) | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- .ingress | nindent 4 }}
  egress:
    {{- include "megatronapp.toDns" .root | nindent 4 }}
    {{- with .egress }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}
{{- end }}

{{/* Rules. Components of the release: (list root port component…), from or to them. */}}
{{- define "megatronapp.fromComponents" -}}
- from:
    {{- include "megatronapp.componentPeers" . | nindent 4 }}
  ports: [{port: {{ index . 1 }}, protocol: TCP}]
{{- end }}

{{- define "megatronapp.toComponent" -}}
- to:
    {{- include "megatronapp.componentPeers" . | nindent 4 }}
  ports: [{port: {{ index . 1 }}, protocol: TCP}]
{{- end }}

{{- define "megatronapp.componentPeers" -}}
{{- $root := index . 0 -}}
{{- range $component := slice . 2 }}
{{- if or (ne $component "test") $root.Values.tests.enabled }}
- podSelector:
    matchLabels:
      {{- include "megatronapp.selector" (list $root $component) | nindent 6 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Ranks of any TrainingJob in any namespace: (list root port). */}}
{{- define "megatronapp.fromTrainingPods" -}}
- from:
    - namespaceSelector: {}
      podSelector:
        matchExpressions:
          - {key: megatronapp.io/training-job, operator: Exists}
  ports: [{port: {{ index . 1 }}, protocol: TCP}]
{{- end }}

{{- define "megatronapp.fromPrometheus" -}}
{{- $peer := .Values.networkPolicy.prometheus -}}
- from:
    - namespaceSelector: {{ toJson $peer.namespaceSelector }}
      podSelector: {{ toJson $peer.podSelector }}
    {{- include "megatronapp.componentPeers" (list . 9090 "test") | nindent 4 }}
  ports: [{port: 9090, protocol: TCP}]
{{- end }}

{{/* NodeLocal DNSCache is no pod of the network: it answers at a link-local address of each node. */}}
{{- define "megatronapp.toDns" -}}
- to:
    - namespaceSelector: {}
    {{- range .Values.networkPolicy.dns.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{- define "megatronapp.toApiServer" -}}
{{ include "megatronapp.toCidrs" .Values.networkPolicy.apiServer }}
{{- end }}

{{/* Addresses outside the cluster's pods: a dict of cidrs and ports. */}}
{{- define "megatronapp.toCidrs" -}}
- to:
    {{- range .cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range .ports }}
    - {port: {{ int . }}, protocol: TCP}
    {{- end }}
{{- end }}

{{- define "megatronapp.toRedis" -}}
{{- if .Values.redis.enabled -}}
{{ include "megatronapp.toComponent" (list . 6379 "redis") }}
{{- else -}}
- ports: [{port: {{ .Values.externalRedis.port }}, protocol: TCP}]
{{- end -}}
{{- end }}
