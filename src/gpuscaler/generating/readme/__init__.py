"""The README of the folder: what a person knows first, fills in, applies, tries and removes."""
