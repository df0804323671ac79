"""How exceptions of tasks are pickled and sent, and those for keys that are lost, cancelled or not served.

What users catch is in ``treadle`` itself.
"""
