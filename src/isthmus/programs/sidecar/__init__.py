"""The sidecars: SOCKS5 and HTTP proxies whose connections leave by the tunnel."""
