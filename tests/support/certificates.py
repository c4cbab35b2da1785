"""Certificates made for one test, and replicas that speak TLS with them."""

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.support.api_replicas import ApiReplica


@dataclass
class Authority:
    """A private certificate authority, with its files in a folder of the test."""

    folder: Path
    name: str = "ca"

    def __post_init__(self):
        self.ca = trustme.CA()
        self.ca_file = str(self.folder / f"{self.name}.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)

    def issue(self, *identities: str, name: str) -> dict[str, str]:
        """Return the files of a new certificate, by the configuration's keys."""
        leaf = self.ca.issue_cert(*identities)
        files = {
            "cert_file": str(self.folder / f"{name}.cert.pem"),
            "key_file": str(self.folder / f"{name}.key.pem"),
        }
        for number, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(files["cert_file"], append=number > 0)
        leaf.private_key_pem.write_to_path(files["key_file"])
        return files

    def server(self, *identities: str, clients_of: "Authority | None" = None) -> ssl.SSLContext:
        """Return how a server with these names speaks TLS; `clients_of` makes it mTLS."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca.issue_cert(*identities).configure_cert(context)
        if clients_of is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            clients_of.ca.configure_trust(context)
        return context

    def trust(self) -> ssl.SSLContext:
        """Return how a client that trusts this authority, and no other, speaks TLS."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        return context


@dataclass
class TlsReplica(ApiReplica):
    """A scripted replica with an https address."""

    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"

    async def start(self, port: int = 0):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def stop(self):
        # A probe that is cancelled within a handshake leaves asyncio's side of it waiting for
        # good (seen with Python 3.11.7), as a task of the loop and not of the server.
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "__name__", "") == "_accept_connection2":
                task.cancel()
        await super().stop()

    async def _serve(self, reader, writer):
        try:
            await super()._serve(reader, writer)
        finally:
            writer.transport.abort()  # a close would wait for the other side's, beyond the test

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"
