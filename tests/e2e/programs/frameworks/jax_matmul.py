"""JAX: finds the card, and computes on it."""
import jax
import jax.numpy as jnp

x = jnp.ones((1024, 1024))  # 4 MiB
y = (x @ x).block_until_ready()
print("DEVICES", [d.device_kind for d in jax.devices()], jax.devices()[0].memory_stats()["peak_bytes_in_use"])
