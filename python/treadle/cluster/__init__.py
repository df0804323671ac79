"""``LocalCluster``: a scheduler in this process and workers of this machine, and worker processes that are looked after."""
