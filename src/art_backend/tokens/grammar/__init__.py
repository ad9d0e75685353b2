"""Structured output: which tokens may come next, so that a completion has the requested form.

``notation`` turns a structure into ``llguidance``'s own notation, ``check`` tries it in a process that may die of it, and
``vocabulary`` compiles it for a model's tokens and walks it.
"""
