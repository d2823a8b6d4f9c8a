{{/*
The pod template of every component. Argument: a dict of
root, component; env, ports, probes, mounts, volumes (YAML text); command (optional, YAML text);
token: whether the pod may speak to the API server; checksums: a map of annotation to text whose change restarts it.
*/}}
{{- define "megatronapp.pod" -}}
{{- $root := .root -}}{{- $values := index $root.Values .component -}}
metadata:
  labels:
    {{- include "megatronapp.labels" (list $root .component) | nindent 4 }}
    {{- with $values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or $values.podAnnotations .checksums }}
  annotations:
    {{- range $name, $text := .checksums }}
    checksum/{{ $name }}: {{ sha256sum $text }}
    {{- end }}
    {{- with $values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  serviceAccountName: {{ include "megatronapp.serviceAccountName" (list $root .component) }}
  automountServiceAccountToken: {{ .token }}
  enableServiceLinks: false
  {{- with $root.Values.global.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  securityContext:
    {{- include "megatronapp.podSecurity" . | nindent 4 }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- with $values.topologySpreadConstraints }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "megatronapp.selector" (list $root .component) | nindent 10 }}
    {{- end }}
  containers:
    - name: {{ .component }}
      image: {{ include "megatronapp.image" (list $root $values.image) }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      {{- with .command }}
      command:
        {{- . | nindent 8 }}
      {{- end }}
      env:
        {{- .env | nindent 8 }}
        {{- with $values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        {{- .ports | nindent 8 }}
      {{- .probes | nindent 6 }}
      resources:
        {{- toYaml $values.resources | nindent 8 }}
      securityContext:
        {{- include "megatronapp.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- with .mounts }}
        {{- . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Pod Security "restricted". */}}
{{- define "megatronapp.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "megatronapp.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Probes of a service's health server. A service has five minutes to start: a collector replays its journal first. */}}
{{- define "megatronapp.httpProbes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{/* Service account of a component: (list root component). */}}
{{- define "megatronapp.serviceAccount" -}}
{{- $root := index . 0 -}}{{- $values := index $root.Values (index . 1) -}}
{{- if not $values.serviceAccount.name -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "megatronapp.metadata" . | nindent 2 }}
  {{- with $values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
{{- end }}

{{/* Disruption budget of a component with several replicas: (list root component replicas). */}}
{{- define "megatronapp.podDisruptionBudget" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}
{{- $budget := (index $root.Values $component).podDisruptionBudget -}}
{{- if and $budget (gt (int (index . 2)) 1) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "megatronapp.metadata" (list $root $component) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "megatronapp.selector" (list $root $component) | nindent 6 }}
  {{- toYaml $budget | nindent 2 }}
{{- end -}}
{{- end }}
