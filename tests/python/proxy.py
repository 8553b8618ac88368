"""A proxy between a program and its cloud that can be cut, as a network is: connections end, and new
ones are refused or hang."""

import socket
import threading


class Proxy:
    """Passes bytes both ways until `cut()`; `mend()` lets new connections through again."""

    def __init__(self, target_port):
        self.target_port = target_port
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.up = threading.Event()
        self.up.set()
        self.lock = threading.Lock()
        self.open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if not self.up.is_set():
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port), timeout=10)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            with self.lock:
                self.open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source, sink):
        try:
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        except OSError:
            pass
        self._end(source, sink)

    def _end(self, *ends):
        with self.lock:
            self.open -= set(ends)
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def cut(self):
        self.up.clear()
        with self.lock:
            ends = list(self.open)
        self._end(*ends)

    def mend(self):
        self.up.set()

    def close(self):
        self.listener.close()
        self.cut()
