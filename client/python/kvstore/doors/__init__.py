"""What the connectors of all engines ("doors") share. A door moves blocks between an engine and the store, and an engine never fails for it.

In reading order: door.py (the client, its gates, counters and end), options.py (from the engine's configuration), gates.py (a silent store
is left alone for a while), results.py (which blocks are right), placement.py (NUMA), rows.py (lent memory), groups.py (blocks that a token
needs), names.py (of blocks), outputs.py (encoders' outputs), identity.py and tensors.py (what the engine has loaded, by content). Imports no
engine.
"""
