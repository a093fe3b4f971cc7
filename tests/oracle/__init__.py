"""The definitions, slow and plainly right: one module a chapter, NumPy loops, no torch."""
