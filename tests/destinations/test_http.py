"""The connection that the destinations over HTTP share; what they make of its answers is tested with each of them."""

from __future__ import annotations

import select

import pytest

from ferryman.net.http import Http, NotSent
from tests.destinations.conftest import TlsServer
from tests.support.receiver import Receiver

TIMEOUT_S = 20.0


def test_what_tls_sends_after_its_handshake_is_no_end_of_the_connection(tls_server: TlsServer) -> None:
    with Receiver(tls=tls_server.context) as receiver:
        http = Http(receiver.url, shown="the receiver", ca=str(tls_server.ca))
        http.connect(TIMEOUT_S)
        assert select.select([http._connection.sock], [], [], TIMEOUT_S)[0], "TLS 1.3 sends session tickets"
        for _ in range(2):
            assert http.request("POST", http.path, b"{}", timeout_s=TIMEOUT_S).is_success
        assert http.connections == 1
        http.close()


def test_a_connection_that_the_server_has_closed_is_made_anew(tls_server: TlsServer) -> None:
    with Receiver(tls=tls_server.context) as receiver:
        http = Http(receiver.url, shown="the receiver", ca=str(tls_server.ca))
        assert http.request("POST", http.path, b"{}", timeout_s=TIMEOUT_S).is_success
        receiver.stop()
        receiver.start()
        assert http.request("POST", http.path, b"{}", timeout_s=TIMEOUT_S).is_success
        assert http.connections == 2
        http.close()


@pytest.mark.parametrize("value", ["s3cr3t\r\nx: 1", "s3cr3t€"])
def test_what_fails_before_the_first_byte_was_not_sent(value: str) -> None:
    """It is certain that nothing took effect; what cannot be sent is not shown. The next request goes out."""
    with Receiver() as receiver:
        http = Http(receiver.url, shown="the receiver")
        for _ in range(2):
            with pytest.raises(NotSent) as caught:
                http.request("POST", http.path, b"{}", timeout_s=TIMEOUT_S, headers={"x-token": value})
            assert caught.value.permanent
            assert "s3cr3t" not in f"{caught.value} {caught.value.__cause__}"
        assert http.request("POST", http.path, b"{}", timeout_s=TIMEOUT_S).is_success
        assert len(receiver.requests) == 1
        http.close()
