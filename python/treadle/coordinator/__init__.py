"""The coordinator: which jobs come onto the shuffle service, how they are watched, and how they are tuned.

Decisions are made by modules without input and output (``_rules``, ``_admission``, ``_watching``, ``_statistics``,
``_tuning``, ``_diagnosis``). ``_store`` keeps what they need, ``_service`` brings both together, ``_app`` serves HTTP.
Programs that ask a coordinator need ``_asking`` alone, which imports nothing but the standard library.
"""
