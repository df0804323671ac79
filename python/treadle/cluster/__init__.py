"""``LocalCluster``, and worker processes from outside: started, watched, started again, forked from a template.

``treadle worker`` and ``treadle.hosting`` use them, too.
"""
