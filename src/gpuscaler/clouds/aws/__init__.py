"""Auto Scaling groups of AWS as pools.

What replies mean is told by pure functions (``groups``, ``ownership``, ``hints``, ``launches``, ``instance_types``, ``prices``, ``pools``);
``calls`` makes the calls and ``discovery`` puts the two together.
"""
