"""Parts of the schedulers in this process (``treadle.threaded``, ``sync``, ``processes``), and ``treadle.install``."""
