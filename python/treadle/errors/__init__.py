"""Exceptions: of tasks as they travel, of keys without a value, of what is not served."""
