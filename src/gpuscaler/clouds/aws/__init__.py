"""Auto Scaling groups of AWS as pools.

Pure functions interpret the replies (``groups``, ``ownership``, ``hints``, ``launches``, ``instance_types``, ``prices``, ``pools``);
``calls`` makes the calls, and ``discovery`` combines the two.
"""
