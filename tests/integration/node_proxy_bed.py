"""A node and a Service with one endpoint on it, as manifests for ``isthmus node-proxy``."""

from __future__ import annotations

NODE = """\
apiVersion: v1
kind: Node
metadata: {name: here}
spec: {podCIDRs: [10.1.0.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.7], nodeName: here}]
"""
