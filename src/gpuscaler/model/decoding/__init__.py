"""Decoding of Kubernetes JSON and YAML into the types of the model, one object at a time."""

from gpuscaler.model.decoding.errors import InputError
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.decoding.text.streaming import read_items

__all__ = ["InputError", "Interner", "decode_object", "read_items"]
