{{- /* Written by isthmus.manifests.chart, not by hand. */}}
{{- define "isthmus.egressSelector" -}}
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
    {{- if eq $.Values.server.kind "deployment" }}
    connection:
      proxyProtocol: HTTPConnect
      transport:
        tcp:
          url: {{ printf "https://%v-frontend.%v.svc:%v" $.Values.server.name $.Release.Namespace (int64 $.Values.server.frontend.port) | quote }}
          tlsConfig:
            caBundle: /etc/kubernetes/certs/konnectivity-ca/ca.crt
            clientCert: /etc/kubernetes/certs/konnectivity-client/tls.crt
            clientKey: /etc/kubernetes/certs/konnectivity-client/tls.key
    {{- else }}
    connection:
      proxyProtocol: GRPC
      transport:
        uds:
          udsName: {{ $.Values.server.frontend.socket | quote }}
    {{- end }}
{{- end -}}
{{- define "isthmus.needed" -}}
{{- if and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod")) }}
  Secret {{ $.Values.server.secret }} (tls.crt, tls.key){{ if and $.Values.agent.enabled (not $.Values.agent.servers.hosts) }}: the certificate has the name {{ $.Values.server.name }}.{{ $.Release.Namespace }}.svc{{ end }}
{{- end }}
{{- if and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) (eq $.Values.server.kind "deployment") }}
  Secret {{ $.Values.server.frontend.secret }} (tls.crt, tls.key)
{{- end }}
{{- if and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) $.Values.server.kubeconfig.secret }}
  Secret {{ $.Values.server.kubeconfig.secret }} (kubeconfig)
{{- end }}
{{- if and (and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) $.Values.server.healthSecret) (not $.Values.monitoring.podMonitor.enabled) }}
  Secret {{ $.Values.server.healthSecret }} (tls.crt, tls.key)
{{- end }}
{{- if and (and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) $.Values.server.healthSecret) $.Values.monitoring.podMonitor.enabled }}
  Secret {{ $.Values.server.healthSecret }} (tls.crt, tls.key, ca.crt)
{{- end }}
{{- if and $.Values.agent.enabled (eq $.Values.auth.mode "certificate") }}
  Secret {{ $.Values.agent.secret }} (tls.crt, tls.key)
{{- end }}
{{- if and (and $.Values.agent.enabled $.Values.agent.healthSecret) (not $.Values.monitoring.podMonitor.enabled) }}
  Secret {{ $.Values.agent.healthSecret }} (tls.crt, tls.key)
{{- end }}
{{- if and (and $.Values.agent.enabled $.Values.agent.healthSecret) $.Values.monitoring.podMonitor.enabled }}
  Secret {{ $.Values.agent.healthSecret }} (tls.crt, tls.key, ca.crt)
{{- end }}
{{- if $.Values.sniRouter.enabled }}
  ConfigMap {{ $.Values.sniRouter.configMap }} (routes.yaml)
{{- end }}
{{- if and (and $.Values.sniRouter.enabled $.Values.sniRouter.healthSecret) (not $.Values.monitoring.podMonitor.enabled) }}
  Secret {{ $.Values.sniRouter.healthSecret }} (tls.crt, tls.key)
{{- end }}
{{- if and (and $.Values.sniRouter.enabled $.Values.sniRouter.healthSecret) $.Values.monitoring.podMonitor.enabled }}
  Secret {{ $.Values.sniRouter.healthSecret }} (tls.crt, tls.key, ca.crt)
{{- end }}
{{- if or $.Values.agent.enabled (and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) (or (eq $.Values.auth.mode "certificate") (and (eq $.Values.server.kind "deployment") (not $.Values.certificates.clientCaConfigMap)))) }}
  ConfigMap {{ $.Values.certificates.caConfigMap }} (ca.crt)
{{- end }}
{{- if and (and (and $.Values.server.enabled (not (eq $.Values.server.kind "staticPod"))) (eq $.Values.server.kind "deployment")) $.Values.certificates.clientCaConfigMap }}
  ConfigMap {{ $.Values.certificates.clientCaConfigMap }} (ca.crt)
{{- end }}
{{- end -}}
