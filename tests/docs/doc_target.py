"""What is there to be reached on the machine ``tunnel``: 10.0.0.5, HTTP on 80, HTTPS on 443."""

from __future__ import annotations

import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Hello(BaseHTTPRequestHandler):
    """Answers every GET."""

    def do_GET(self) -> None:
        """Say hello."""
        body = b"hello from 10.0.0.5\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    Thread(target=ThreadingHTTPServer(("10.0.0.5", 80), Hello).serve_forever).start()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("pki/server.crt", "pki/server.key")
    secure = ThreadingHTTPServer(("10.0.0.5", 443), Hello)
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    secure.serve_forever()
