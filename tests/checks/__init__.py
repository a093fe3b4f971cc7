"""What is graded: one module a notebook, one short function a property of an answer."""

# The library is the answer key. Not "attention" itself: many call a helper so.
LIBRARY = ("attention.in_numpy", "attention.in_torch", "attention.pretrained")
