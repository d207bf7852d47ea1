"""JAX: an array spread over two cards."""
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

mesh = jax.make_mesh((2,), ("cards",))
x = jax.device_put(jnp.ones((2048, 1024)), NamedSharding(mesh, PartitionSpec("cards")))
total = jax.jit(lambda a: a.sum())(x).block_until_ready()
print("CARDS", jax.device_count(), len(x.addressable_shards))
