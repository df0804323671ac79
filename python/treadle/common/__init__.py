"""What several rooms need: calls, limits, names, connections, logs, loops."""
