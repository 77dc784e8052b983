{{/* kube-apiserver's file: through the server to the cluster, directly to everything else. */}}
{{- define "isthmus.egressSelector" -}}
{{- $server := .Values.server -}}
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
  - name: controlplane
    connection:
      proxyProtocol: Direct
  - name: etcd
    connection:
      proxyProtocol: Direct
  - name: cluster
    connection:
{{- if eq $server.kind "deployment" }}
      proxyProtocol: HTTPConnect
      transport:
        tcp:
          url: https://{{ $server.name }}-frontend.{{ .Release.Namespace }}.svc:{{ $server.frontend.port | int }}
          tlsConfig:
            caBundle: /etc/kubernetes/certs/konnectivity-ca/ca.crt
            clientKey: /etc/kubernetes/certs/konnectivity-client/tls.key
            clientCert: /etc/kubernetes/certs/konnectivity-client/tls.crt
{{- else }}
      proxyProtocol: GRPC
      transport:
        uds:
          udsName: {{ $server.frontend.socket }}
{{- end }}
{{- end -}}

{{/* A strategic merge patch of kube-apiserver's Deployment. */}}
{{- define "isthmus.server.patch" -}}
{{- $server := .Values.server -}}
{{- $usual := dict "requests" (dict "cpu" "10m" "memory" "64Mi") -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $server.sidecar.workload }}
  namespace: {{ .Release.Namespace }}
spec:
  template:
    spec:
      terminationGracePeriodSeconds: {{ add $server.gracefulShutdownSeconds 70 }}
      securityContext:
        fsGroup: {{ .Values.runAs | int64 }}
      containers:
        - name: {{ $server.sidecar.container }}
          volumeMounts:
            - name: egress-selector-config
              mountPath: /etc/kubernetes/egress-selector
              readOnly: true
            - name: konnectivity-uds-1
              mountPath: {{ dir $server.frontend.socket }}
        - {{- include "isthmus.server.container" (dict "root" . "name" "konnectivity-server" "health" "konn-health" "liveness" "/healthz" "resources" $usual) | nindent 10 }}
          lifecycle:
            preStop:
              sleep:
                seconds: 70
      volumes:
        {{- include "isthmus.server.volumes" . | indent 8 }}
        - name: egress-selector-config
          configMap:
            name: {{ $server.name }}-egress
{{- end -}}
