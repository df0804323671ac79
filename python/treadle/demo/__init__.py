"""The demo: a year of New York flights with Dask on Treadle, checked against pandas.

Modules, in the order in which a run uses them: ``cli`` (the command), ``data`` (the files),
``analysis`` (the Dask program), ``run`` (the measured run on Treadle), ``cluster`` (the same on worker
processes, one of which is killed), ``check`` (the same in pandas,
and the comparison), ``views`` (what is shown of each result), and the two ways in which it is shown:
``terminal``, and ``report`` with ``charts`` and ``report.html``.
"""
