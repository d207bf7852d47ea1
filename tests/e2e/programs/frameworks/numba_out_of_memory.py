"""Numba: more than the card has."""
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

kept = []
try:
    for _ in range(64):
        kept.append(cuda.device_array(1 << 30, dtype=numpy.uint8))
except CudaAPIError as error:
    print("REFUSED", len(kept), error)
