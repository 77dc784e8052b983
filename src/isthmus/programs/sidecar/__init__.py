"""The sidecars: SOCKS5 and HTTP proxies that connect through the tunnel."""
