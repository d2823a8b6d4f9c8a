{{/* Exactly what the operator uses; the audit log of the end-to-end test is compared with it. */}}
{{- define "megatronapp.operatorRules" -}}
- {apiGroups: [megatronapp.io], resources: [trainingjobs], verbs: [list, watch]}
- {apiGroups: [megatronapp.io], resources: [trainingjobs/status], verbs: [update]}
- {apiGroups: [batch], resources: [jobs], verbs: [list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [services], verbs: [list, watch, create, delete]}
{{- if .Values.networkPolicy.enabled }}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [list, create, delete]}
{{- end }}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [list, create]}
{{- with .Values.operator.backends }}
{{- if .jobset }}
- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [list, create, delete]}
{{- end }}
{{- if .coscheduling }}
- {apiGroups: [scheduling.x-k8s.io], resources: [podgroups], verbs: [list, create]}
{{- end }}
{{- if .volcano }}
- {apiGroups: [scheduling.volcano.sh], resources: [podgroups], verbs: [list, create]}
{{- end }}
{{- end }}
{{- end }}

{{/* Nodes belong to no namespace. */}}
{{- define "megatronapp.operatorNodeRules" -}}
- {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
{{- if eq .Values.operator.remediation.limit "Taint" }}
- {apiGroups: [""], resources: [nodes], verbs: [patch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
{{- end }}
{{- end }}

{{/* CEL: whether a text is one of these names, or begins as one that ends with `*`: (list variable names). */}}
{{- define "megatronapp.celMatches" -}}
{{- $variable := index . 0 -}}
(false
{{- range index . 1 }}
{{- if hasSuffix "*" . }} || {{ $variable }}.startsWith({{ trimSuffix "*" . | quote }})
{{- else }} || {{ $variable }} == {{ quote . }}
{{- end }}
{{- end -}}
)
{{- end }}
