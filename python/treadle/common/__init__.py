"""What several packages of ``treadle`` share, and that needs none of them but ``errors`` and ``pickling``.

Calls between processes (``_ask``, ``_calls``, ``_channel``), what connections are to be (``_security``, ``_secret``,
``_addresses``, ``_demands``), values of options, logs, event loops.
"""
