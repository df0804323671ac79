"""``treadle.trace``: recordings of this process and of clusters, in the Chrome trace format."""
