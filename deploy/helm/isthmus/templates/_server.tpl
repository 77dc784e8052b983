{{/* The server: its arguments, files, containers and pods. */}}

{{/* Whether it asks the Kubernetes API: a text, empty for no. */}}
{{- define "isthmus.server.needsApi" -}}
{{- if or .Values.server.leases.enabled (eq .Values.auth.mode "token") }}yes{{ end -}}
{{- end -}}

{{/* Whether it does so by a kubeconfig, and not as the pods' account. */}}
{{- define "isthmus.server.kubeconfig" -}}
{{- $server := .Values.server -}}
{{- if and (include "isthmus.server.needsApi" .) (or $server.kubeconfig.secret (eq $server.kind "staticPod")) }}yes{{ end -}}
{{- end -}}

{{- define "isthmus.server.usesAccount" -}}
{{- if and (include "isthmus.server.needsApi" .) (not (include "isthmus.server.kubeconfig" .)) }}yes{{ end -}}
{{- end -}}

{{/* Whether it has authorities for clients alone, and whether those for agents. */}}
{{- define "isthmus.server.clientCa" -}}
{{- if and (eq .Values.server.kind "deployment") .Values.certificates.clientCaConfigMap }}yes{{ end -}}
{{- end -}}

{{- define "isthmus.server.ca" -}}
{{- if or (eq .Values.auth.mode "certificate") (and (eq .Values.server.kind "deployment") (not .Values.certificates.clientCaConfigMap)) }}yes{{ end -}}
{{- end -}}

{{- define "isthmus.server.checks" -}}
{{- $server := .Values.server -}}
{{- if and (eq $server.kind "sidecar") (include "isthmus.server.needsApi" .) (not $server.kubeconfig.secret) -}}
{{- fail "server.kind sidecar has no account of its own in kube-apiserver's pod: set server.kubeconfig.secret, or auth.mode certificate and server.leases.enabled false" -}}
{{- end -}}
{{- if and (eq $server.kind "staticPod") $server.kubeconfig.secret -}}
{{- fail "server.kubeconfig.secret is not for server.kind staticPod, which has its kubeconfig from its node, /etc/isthmus/kube/kubeconfig" -}}
{{- end -}}
{{- if and (eq $server.kind "staticPod") $server.extraSecret.name -}}
{{- fail "server.extraSecret.name is not for server.kind staticPod, which has its files from its node, in /etc/isthmus" -}}
{{- end -}}
{{- end -}}

{{- define "isthmus.server.args" -}}
{{- $server := .Values.server -}}
{{- $pair := ternary "/etc/isthmus/server" "/etc/isthmus/server/tls" (eq $server.kind "staticPod") -}}
{{- $ca := ternary "/etc/isthmus/ca.crt" "/etc/isthmus/ca/ca.crt" (eq $server.kind "staticPod") -}}
- server
{{- if eq $server.kind "deployment" }}
- --mode=http-connect
- --server-port={{ $server.frontend.port | int }}
- --server-cert=/etc/isthmus/frontend/tls.crt
- --server-key=/etc/isthmus/frontend/tls.key
- --server-ca-cert={{ ternary "/etc/isthmus/client-ca/ca.crt" $ca (ne .Values.certificates.clientCaConfigMap "") }}
{{- else }}
- --mode=grpc
- --uds-name={{ $server.frontend.socket }}
{{- end }}
- --agent-port={{ $server.agentPort | int }}
- --cluster-cert={{ $pair }}.crt
- --cluster-key={{ $pair }}.key
{{- if eq .Values.auth.mode "certificate" }}
- --cluster-ca-cert={{ $ca }}
{{- end }}
- --proxy-strategies={{ join "," $server.strategies }}
- --health-port={{ $server.healthPort | int }}
- --admin-port={{ $server.adminPort | int }}
- --graceful-shutdown-timeout={{ $server.gracefulShutdownSeconds | int }}s
{{- if $server.count }}
- --server-count={{ $server.count | int }}
{{- end }}
{{- with $server.leases }}{{ if .enabled }}
{{- with .advertise }}
- --advertise-agent-address={{ ternary "[$(POD_IP)]" "$(POD_IP)" (eq . "ipv6") }}:{{ $server.agentPort | int }}
{{- end }}
- --enable-lease-controller=true
- --lease-namespace={{ include "isthmus.leaseNamespace" $ }}
- {{ printf "--lease-label=%s" .label | quote }}
{{- end }}{{ end }}
{{- if eq .Values.auth.mode "token" }}
- --agent-namespace={{ default .Release.Namespace .Values.auth.agentNamespace }}
- --agent-service-account={{ .Values.agent.name }}
- {{ printf "--authentication-audience=%s" .Values.auth.audience | quote }}
{{- end }}
{{- if include "isthmus.server.kubeconfig" . }}
- --kubeconfig=/etc/isthmus/kube/kubeconfig
{{- end }}
{{- range $server.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Volumes, and where they are mounted in the server's container. */}}
{{- define "isthmus.server.volumes" -}}
{{- $server := .Values.server -}}
{{- if eq $server.kind "staticPod" }}
- name: files-1
  hostPath:
    path: /etc/isthmus
    type: Directory
{{- else }}
{{- if eq $server.kind "deployment" }}
- name: server-certs
  secret:
    secretName: {{ $server.frontend.secret }}
    defaultMode: 416
{{- end }}
- name: cluster-certs
  secret:
    secretName: {{ $server.secret }}
    defaultMode: 416
{{- if include "isthmus.server.clientCa" . }}
- name: konnectivity-client-ca
  configMap:
    name: {{ .Values.certificates.clientCaConfigMap }}
{{- end }}
{{- if include "isthmus.server.ca" . }}
- name: konnectivity-ca
  configMap:
    name: {{ .Values.certificates.caConfigMap }}
{{- end }}
{{- if include "isthmus.server.kubeconfig" . }}
- name: konnectivity-files
  secret:
    secretName: {{ $server.kubeconfig.secret }}
    defaultMode: 288
    items:
      - key: kubeconfig
        path: kubeconfig
{{- end }}
{{- end }}
{{- if ne $server.kind "deployment" }}
- name: konnectivity-uds-1
{{- if eq $server.kind "sidecar" }}
  emptyDir:
    medium: Memory
{{- else }}
  hostPath:
    path: {{ dir $server.frontend.socket }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}
{{- if include "isthmus.server.kubeconfig" . }}
- name: konnectivity-tmp
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
{{- include "isthmus.extraVolume" $server }}
{{- end -}}

{{- define "isthmus.server.mounts" -}}
{{- $server := .Values.server -}}
{{- if eq $server.kind "staticPod" }}
- name: files-1
  mountPath: /etc/isthmus
  readOnly: true
{{- else }}
{{- if eq $server.kind "deployment" }}
- name: server-certs
  mountPath: /etc/isthmus/frontend
  readOnly: true
{{- end }}
- name: cluster-certs
  mountPath: /etc/isthmus/server
  readOnly: true
{{- if include "isthmus.server.clientCa" . }}
- name: konnectivity-client-ca
  mountPath: /etc/isthmus/client-ca
  readOnly: true
{{- end }}
{{- if include "isthmus.server.ca" . }}
- name: konnectivity-ca
  mountPath: /etc/isthmus/ca
  readOnly: true
{{- end }}
{{- if include "isthmus.server.kubeconfig" . }}
- name: konnectivity-files
  mountPath: /etc/isthmus/kube
  readOnly: true
{{- end }}
{{- end }}
{{- if ne $server.kind "deployment" }}
- name: konnectivity-uds-1
  mountPath: {{ dir $server.frontend.socket }}
{{- end }}
{{- if include "isthmus.server.kubeconfig" . }}
- name: konnectivity-tmp
  mountPath: /tmp
{{- end }}
{{- include "isthmus.extraMount" $server }}
{{- end -}}

{{/* The container: (root, name, health: the name of its port, liveness, resources) */}}
{{- define "isthmus.server.container" -}}
{{- $root := .root -}}
{{- $server := $root.Values.server -}}
{{- $args := include "isthmus.server.args" $root -}}
name: {{ .name }}
image: {{ include "isthmus.image" $root | quote }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [isthmus]
args:
  {{- $args | nindent 2 }}
env:
  {{- include "isthmus.references" $args | indent 2 }}
  # Every server needs an id of its own, and the name of a pod is one.
  - name: PROXY_SERVER_ID
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
ports:
  {{- if eq $server.kind "deployment" }}
  - name: http-connect
    containerPort: {{ $server.frontend.port | int }}
  {{- end }}
  - name: agents
    containerPort: {{ $server.agentPort | int }}
  - name: {{ .health }}
    containerPort: {{ $server.healthPort | int }}
{{ include "isthmus.probes" (dict "port" ($server.healthPort | int) "liveness" .liveness "readiness" $server.readiness) }}
{{- if eq $server.kind "deployment" }}
# Until nobody is sent here any more: a server that drains accepts nothing.
lifecycle:
  preStop:
    sleep:
      seconds: 5
{{- end }}
resources:
  {{- toYaml (default .resources $server.resources) | nindent 2 }}
securityContext:
  {{- include "isthmus.unprivileged" $root | nindent 2 }}
volumeMounts:
  {{- include "isthmus.server.mounts" $root | indent 2 }}
{{- end -}}

{{/* The containers and volumes of a pod of its own. */}}
{{- define "isthmus.server.pod" -}}
{{- $server := .Values.server -}}
{{- $usual := dict "requests" (dict "cpu" "100m" "memory" "128Mi") "limits" (dict "memory" "2Gi") -}}
terminationGracePeriodSeconds: {{ add $server.gracefulShutdownSeconds (ternary 10 5 (eq $server.kind "deployment")) }}
{{- if ne $server.kind "deployment" }}
initContainers:
  # The kubelet makes the directory of the socket as root's; this gives it to the server's user.
  - name: setup-socket
    image: {{ include "isthmus.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [isthmus]
    args:
      - server
      - setup-socket
      - --uds-name={{ $server.frontend.socket }}
      - --owner={{ .Values.runAs | int64 }}
    resources:
      {{- include "isthmus.smallResources" . | nindent 6 }}
    securityContext:
      runAsNonRoot: false
      runAsUser: 0
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities:
        drop: [ALL]
        add: [CHOWN]
      seccompProfile:
        type: RuntimeDefault
    volumeMounts:
      - name: konnectivity-uds-1
        mountPath: {{ dir $server.frontend.socket }}
{{- end }}
containers:
  - {{- include "isthmus.server.container" (dict "root" . "name" "server" "health" "health" "liveness" "/livez" "resources" $usual) | nindent 4 }}
volumes:
  {{- include "isthmus.server.volumes" . | indent 2 }}
{{- end -}}
