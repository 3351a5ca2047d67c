"""What could not be understood, and why. One odd object never affects another."""

from msgspec import Struct


class SetAside(Struct, frozen=True, gc=False):
    """``object`` names it as ``Kind namespace/name`` (as much of it as could be read); ``reason`` says what was seen and expected."""

    object: str
    reason: str
