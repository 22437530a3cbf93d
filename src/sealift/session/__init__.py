"""Attested sessions: handshake, sealed messages, and the relay that carries them.

::

    relay = RelayClient.dial(("127.0.0.1", 7410), "hospital-a")
    circuit = relay.open("accelerator-0", wait_s=8)
    with connect(circuit, endpoint, policy) as session:
        session.send_message(request)
        answer = session.receive_message(Answer, timeout_s=10)
"""
