"""Knob lists, routes and expressions. Pure."""
