"""Writes freelog.S: every function of cuda.h as an entry that goes through freelog.cpp to the real driver and back.

usage: gen_stubs.py CUDA_INCLUDE_FOLDER OUT.S
"""
import re
import sys

include, out = sys.argv[1:]
text = open(f"{include}/cuda.h").read()
names = set(re.findall(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
names |= set(re.findall(r"#define\s+cu[A-Z]\w+\s+(?:__CUDA_API_\w+\()?(cu[A-Z]\w+)", text))
names |= {"cuProfilerStart", "cuProfilerStop"}  # cudaProfiler.h does not come with PyTorch's packages
names |= {n + s for n in list(names) for s in ("_ptsz", "_ptds")}
names = sorted(names)
with open(out, "w") as f:
    for i, n in enumerate(names):
        f.write(f".globl {n}\n.type {n},@function\n{n}:\n pushq ${i}\n jmp freelog_enter\n")
    # At entry: (%rsp) is the function's number, 8(%rsp) the caller. The argument registers are kept, and handed to
    # freelog_before, which puts freelog_leave in the caller's place and answers with the real function.
    f.write("""
.type freelog_enter,@function
freelog_enter:
 pushq %rdi
 pushq %rsi
 pushq %rdx
 pushq %rcx
 pushq %r8
 pushq %r9
 pushq %rax
 subq $136, %rsp
 movups %xmm0, (%rsp)
 movups %xmm1, 16(%rsp)
 movups %xmm2, 32(%rsp)
 movq 192(%rsp), %rdi
 leaq 200(%rsp), %rsi
 leaq 136(%rsp), %rdx
 call freelog_before
 movq %rax, %r11
 movups (%rsp), %xmm0
 movups 16(%rsp), %xmm1
 movups 32(%rsp), %xmm2
 addq $136, %rsp
 popq %rax
 popq %r9
 popq %r8
 popq %rcx
 popq %rdx
 popq %rsi
 popq %rdi
 addq $8, %rsp
 jmp *%r11
.globl freelog_leave
.hidden freelog_leave
.type freelog_leave,@function
freelog_leave:
 subq $8, %rsp
 pushq %rax
 movq %rax, %rdi
 call freelog_after
 movq %rax, 8(%rsp)
 popq %rax
 ret
""")
    f.write(f".bss\n.globl freelog_real\n.hidden freelog_real\nfreelog_real: .skip {8 * (len(names) + 1)}\n")
    f.write(".section .data.rel.ro,\"aw\"\n.globl freelog_names\n.hidden freelog_names\nfreelog_names:\n")
    f.write("".join(f" .quad .Ln{i}\n" for i in range(len(names))) + " .quad 0\n.section .rodata\n")
    f.write("".join(f'.Ln{i}: .asciz "{n}"\n' for i, n in enumerate(names)) + '.section .note.GNU-stack,"",@progbits\n')
print(len(names), "functions")
