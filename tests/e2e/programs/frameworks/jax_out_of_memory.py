"""JAX: more than the card has."""
import jax.numpy as jnp

kept = []
try:
    for _ in range(64):
        kept.append(jnp.zeros((1 << 30,), dtype=jnp.uint8).block_until_ready())
except Exception as error:
    print("REFUSED", len(kept), type(error).__name__, str(error).splitlines()[0])
