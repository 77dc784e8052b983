"""Opens the Kubernetes API.

Importing this module is cheap. ``open_kube`` imports lightkube and the modules that use it
(client.py, resources.py), so programs without Leases and token reviews do not pay for them.
"""

from __future__ import annotations

from isthmus.kube.api import Kube


def open_kube(kubeconfig: str, *, qps: float = 0.0, burst: int = 0, server: str = "") -> Kube:
    """Read the configuration and prepare a client; nothing is sent yet.

    An empty ``kubeconfig`` means the pod's own service account. ``qps`` 0 sets no limit on our
    side: the API has its own fair queues, and with Go's default of 5 per second five thousand
    agents would wait a quarter of an hour for their token reviews. ``burst`` 0 means 10, as in Go.
    ``server`` is a URL to use instead of the kubeconfig's, which may then be empty.

    Raises:
        ConfigError: the configuration cannot be read or used; the message names --kubeconfig.
    """
    from isthmus.kube.client import KubeClient
    from isthmus.kube.resources import LightKube

    return LightKube(KubeClient(kubeconfig, qps=qps, burst=burst, server=server))
