"""CuPy: more than the card has; the error is CuPy's own."""
import cupy

kept = []
try:
    for _ in range(64):
        kept.append(cupy.empty(1 << 30, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError as error:
    print("REFUSED", len(kept), error)
