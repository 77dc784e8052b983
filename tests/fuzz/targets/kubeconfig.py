"""A kubeconfig: access or one ConfigError; no secret of it in the message."""

import tempfile
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.kube.kubeconfig import read_config

_FILE = Path(tempfile.gettempdir()) / f"isthmus-fuzz-{id(object())}.kubeconfig"
SECRET = "s3cr3t-t0ken-of-somebody"


def check(data: bytes) -> None:
    """Read any file."""
    _FILE.write_bytes(data)
    try:
        read_config(str(_FILE))
    except ConfigError as error:
        assert SECRET not in str(error), "a secret in a message"
    finally:
        _FILE.unlink()
