"""Opens the Kubernetes API.

Importing this module is cheap. ``open_kube`` imports lightkube and what is below it (client.py,
resources.py), so a program that counts no Leases and reviews no tokens never pays for them.
"""

from __future__ import annotations

from isthmus.kube.api import Kube


def open_kube(kubeconfig: str, *, qps: float = 0.0, burst: int = 0, server: str = "") -> Kube:
    """Read the configuration and get ready to ask; nothing is sent yet.

    An empty ``kubeconfig`` means the pod's own service account. ``qps`` 0 sets no limit of our
    own: the API has its own fair queues, and Go's default of 5 per second makes five thousand
    agents wait a quarter of an hour for their token reviews. ``burst`` 0 means 10, as in Go.
    ``server`` is a URL to use instead of the kubeconfig's, which may then be empty.

    Raises:
        ConfigError: the configuration cannot be read or used; the sentence names --kubeconfig.
    """
    from isthmus.kube.client import KubeClient
    from isthmus.kube.resources import LightKube

    return LightKube(KubeClient(kubeconfig, qps=qps, burst=burst, server=server))
