"""Warp: a kernel over particles, in a loop, with its gradient."""
import warp

warp.config.quiet = True


@warp.kernel
def move(x: warp.array(dtype=warp.vec3), v: warp.array(dtype=warp.vec3), out: warp.array(dtype=warp.vec3)):
    i = warp.tid()
    out[i] = x[i] + v[i] * 0.01


n = 1 << 20
x = warp.zeros(n, dtype=warp.vec3, device="cuda", requires_grad=True)  # 12 MiB, and as much for its gradient
v = warp.zeros(n, dtype=warp.vec3, device="cuda", requires_grad=True)
out = warp.zeros(n, dtype=warp.vec3, device="cuda", requires_grad=True)
with warp.Tape() as tape:
    warp.launch(move, dim=n, inputs=[x, v], outputs=[out], device="cuda")
tape.backward(grads={out: warp.ones_like(out)})
warp.synchronize()
print("POOL", warp.get_mempool_used_mem_current("cuda:0"))
