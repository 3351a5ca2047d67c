"""Steering: the pods that a machine was bought for are bound to it before it opens to others."""
