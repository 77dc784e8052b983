{{/* What both programs share. Everything here is held against `isthmus manifest all` by tests. */}}

{{- define "isthmus.image" -}}
{{- $image := .Values.image -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{/* By what pods are found, and what belongs to them: (name) */}}
{{- define "isthmus.selector" -}}
k8s-app: {{ . }}
{{- end -}}

{{- define "isthmus.podLabels" -}}
app.kubernetes.io/name: {{ . }}
k8s-app: {{ . }}
{{- end -}}

{{/* The metadata of an object: (root, owner, name, namespace); no namespace for cluster objects. */}}
{{- define "isthmus.metadata" -}}
name: {{ default .owner .name }}
{{- if not .cluster }}
namespace: {{ default .root.Release.Namespace .namespace }}
{{- end }}
labels:
  {{- include "isthmus.podLabels" .owner | nindent 2 }}
  helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/managed-by: {{ .root.Release.Service }}
  app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{/* Labels and annotations of pods: (owner, values) */}}
{{- define "isthmus.podMetadata" -}}
labels:
  {{- with omit .values.podLabels "app.kubernetes.io/name" "k8s-app" }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- include "isthmus.podLabels" .owner | nindent 2 }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "isthmus.unprivileged" -}}
runAsNonRoot: true
runAsUser: {{ .Values.runAs | int64 }}
runAsGroup: {{ .Values.runAs | int64 }}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Fields of the pod that arguments refer to, as variables: (arguments as text) */}}
{{- define "isthmus.references" -}}
{{- $fields := list
  (list "NODE_NAME" "spec.nodeName") (list "NODE_IP" "status.hostIP")
  (list "POD_NAME" "metadata.name") (list "POD_IP" "status.podIP") -}}
{{- $text := . -}}
{{- range $fields }}
{{- if contains (printf "$(%s)" (first .)) $text }}
- name: {{ first . }}
  valueFrom:
    fieldRef:
      fieldPath: {{ last . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Liveness and readiness: (port, liveness, readiness) */}}
{{- define "isthmus.probes" -}}
livenessProbe:
  httpGet:
    path: {{ .liveness }}
    port: {{ .port }}
  initialDelaySeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet:
    path: {{ .readiness }}
    port: {{ .port }}
  timeoutSeconds: 5
{{- end -}}

{{/* What a small container takes. */}}
{{- define "isthmus.smallResources" -}}
requests:
  cpu: 50m
  memory: 64Mi
limits:
  memory: 512Mi
{{- end -}}

{{/* Where pods run: (root, values, kind, priority, nodes, taints); values replace what is usual. */}}
{{- define "isthmus.placement" -}}
priorityClassName: {{ default .priority .values.priorityClassName }}
nodeSelector:
  {{- toYaml (default .nodes .values.nodeSelector) | nindent 2 }}
{{- with (default .taints .values.tolerations) }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if eq .kind "deployment" }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "isthmus.selector" .values.name | nindent 8 }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* A volume and its mount of files that values name: (values) */}}
{{- define "isthmus.extraVolume" -}}
{{- with .extraSecret }}{{ if .name }}
- name: extra-files
  secret:
    secretName: {{ .name }}
    defaultMode: 416
{{- end }}{{ end }}
{{- end -}}
{{- define "isthmus.extraMount" -}}
{{- with .extraSecret }}{{ if .name }}
- name: extra-files
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}{{ end }}
{{- end -}}

{{/* A Role or ClusterRole and who has it: (metadata, cluster, rule, subject) */}}
{{- define "isthmus.rights" -}}
{{- $kind := ternary "ClusterRole" "Role" .cluster -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}
metadata:
  {{- include "isthmus.metadata" .metadata | nindent 2 }}
rules:
  - {{- toYaml .rule | nindent 4 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  {{- include "isthmus.metadata" .metadata | nindent 2 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $kind }}
  name: {{ .metadata.name }}
subjects:
  - {{- toYaml .subject | nindent 4 }}
{{- end -}}

{{- define "isthmus.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "isthmus.metadata" (dict "root" .root "owner" .owner) | nindent 2 }}
spec:
  maxUnavailable: 1
  # Else a node whose pod never gets ready could not be drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "isthmus.selector" .owner | nindent 6 }}
{{- end -}}

{{/* Where Leases are: only where it was said beside those of others. */}}
{{- define "isthmus.leaseNamespace" -}}
{{- $shared := or (eq "default" .Release.Namespace) (hasPrefix "kube-" .Release.Namespace) -}}
{{- $own := ternary "isthmus-leases" .Release.Namespace $shared -}}
{{- default $own .Values.server.leases.namespace -}}
{{- end -}}

{{/* Peers of a rule: (list of networks) */}}
{{- define "isthmus.blocks" -}}
{{- range . }}
- ipBlock:
    cidr: {{ . }}
{{- end }}
{{- end -}}
