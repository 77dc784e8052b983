"""Settings in, text out: Kubernetes manifests, systemd units, kubeconfigs. Nothing is read or sent.

volumes.py and objects.py know where files come from, containers.py what a container may do, pods.py
and patches.py what goes around containers, systemd.py and ignition.py how a node is told. agent.py,
sidecar.py, server.py and apiserver_proxy.py put programs together from them; apiserver.py,
egress.py and kubeconfig.py write what kube-apiserver and a node need to find each other.
"""
