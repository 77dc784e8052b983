{{/* The agents: their arguments, files and containers. */}}

{{- define "isthmus.agent.args" -}}
{{- $agent := .Values.agent -}}
{{- $server := .Values.server -}}
{{- if and $agent.noProxy (not $agent.httpsProxy) }}
{{- fail "agent.noProxy needs agent.httpsProxy as well" }}
{{- end -}}
- agent
{{- if $agent.servers.hosts }}
{{- range $agent.servers.hosts }}
- {{ printf "--proxy-server-host=%s" . | quote }}
{{- end }}
- --proxy-server-port={{ $agent.servers.port | int }}
{{- else if $server.enabled }}
- --proxy-server-host={{ $server.name }}.{{ .Release.Namespace }}.svc
- --proxy-server-port={{ $server.agentPort | int }}
{{- else }}
{{- fail "agent.servers.hosts is empty, and there is no server here that agents could connect to" }}
{{- end }}
{{- with $agent.servers.name }}
- {{ printf "--proxy-server-name=%s" . | quote }}
{{- end }}
- --ca-cert=/etc/isthmus/ca/ca.crt
{{- if eq .Values.auth.mode "certificate" }}
- --agent-cert=/etc/isthmus/agent/tls.crt
- --agent-key=/etc/isthmus/agent/tls.key
{{- end }}
{{- with $agent.identifiers }}
- {{ printf "--agent-identifiers=%s" . | quote }}
{{- end }}
{{- if eq .Values.auth.mode "token" }}
- --service-account-token-path=/var/run/secrets/isthmus/token
{{- end }}
- --health-server-port={{ $agent.healthPort | int }}
- --admin-server-port={{ $agent.adminPort | int }}
- --graceful-shutdown-timeout={{ $agent.gracefulShutdownSeconds | int }}s
{{- if $agent.countServerLeases }}
- --count-server-leases=true
- --lease-namespace={{ include "isthmus.leaseNamespace" . }}
- {{ printf "--lease-label-selector=%s" $server.leases.label | quote }}
{{- end }}
{{- range $agent.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "isthmus.agent.pod" -}}
{{- $agent := .Values.agent -}}
{{- $args := include "isthmus.agent.args" . -}}
terminationGracePeriodSeconds: {{ add $agent.gracefulShutdownSeconds 5 }}
containers:
  - name: agent
    image: {{ include "isthmus.image" . | quote }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    command: [isthmus]
    args:
      {{- $args | nindent 6 }}
    env:
      {{- include "isthmus.references" $args | indent 6 }}
      # Every agent needs an id of its own, and the name of a pod is one.
      - name: PROXY_AGENT_ID
        valueFrom:
          fieldRef:
            fieldPath: metadata.name
      {{- with $agent.httpsProxy }}
      - name: HTTPS_PROXY
        value: {{ . | quote }}
      {{- end }}
      {{- with $agent.noProxy }}
      - name: NO_PROXY
        value: {{ join "," . | quote }}
      {{- end }}
    ports:
      - name: health
        containerPort: {{ $agent.healthPort | int }}
    {{- include "isthmus.probes" (dict "port" ($agent.healthPort | int) "liveness" "/livez" "readiness" "/readyz") | nindent 4 }}
    resources:
      {{- if $agent.resources }}
      {{- toYaml $agent.resources | nindent 6 }}
      {{- else }}
      {{- include "isthmus.smallResources" . | nindent 6 }}
      {{- end }}
    securityContext:
      {{- include "isthmus.unprivileged" . | nindent 6 }}
    volumeMounts:
      - name: ca
        mountPath: /etc/isthmus/ca
        readOnly: true
      {{- if eq .Values.auth.mode "token" }}
      - name: token
        mountPath: /var/run/secrets/isthmus
        readOnly: true
      {{- else }}
      - name: files
        mountPath: /etc/isthmus/agent
        readOnly: true
      {{- end }}
      {{- include "isthmus.extraMount" $agent | indent 6 }}
volumes:
  - name: ca
    configMap:
      name: {{ .Values.certificates.caConfigMap }}
  {{- if eq .Values.auth.mode "token" }}
  - name: token
    projected:
      defaultMode: 288
      sources:
        - serviceAccountToken:
            path: token
            audience: {{ .Values.auth.audience | quote }}
            expirationSeconds: 3600
  {{- else }}
  - name: files
    secret:
      secretName: {{ $agent.secret }}
      defaultMode: 288
      items:
        - key: tls.crt
          path: tls.crt
        - key: tls.key
          path: tls.key
  {{- end }}
  {{- include "isthmus.extraVolume" $agent | indent 2 }}
{{- end -}}
