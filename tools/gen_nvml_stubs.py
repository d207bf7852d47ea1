#!/usr/bin/env python3
"""Makes the exported functions of the virtual NVML: gen_nvml_stubs.py nvml.h OUT.S SOURCE.cpp...

Every function of nvml.h becomes an exported symbol that jumps through tonnage_nvml_table: to its entry point, if a source has
NVML_ENTRY(function), else to tonnage_nvml_not_supported. src/nvml/state.cpp points the table at a real NVML where the
session passes through. Fails if a source has an entry point that nvml.h does not know, or none has nvmlInit_v2.
"""
import re
import sys

HEADER = """// Made by tools/gen_nvml_stubs.py.
#if defined(__x86_64__)
.macro EXPORT name, offset
  .globl \\name
  .type \\name, @function
  .p2align 4
\\name:
  endbr64
  movq tonnage_nvml_table+\\offset(%rip), %r11
  jmp *%r11
  .size \\name, .-\\name
.endm
#elif defined(__aarch64__)
.macro EXPORT name, offset
  .globl \\name
  .type \\name, %function
  .p2align 4
\\name:
  adrp x16, tonnage_nvml_table+\\offset
  ldr x16, [x16, :lo12:tonnage_nvml_table+\\offset]
  br x16
  .size \\name, .-\\name
.endm
#else
#error "the virtual NVML is written for x86-64 and aarch64"
#endif
"""


def functions_of(header):
    text = open(header, encoding="utf-8").read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    names = re.findall(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(", text)
    return sorted(set(names))


def entries_of(sources):
    entries = set()
    for path in sources:
        entries.update(re.findall(r"^NVML(?:_TEXT)?_ENTRY\((nvml\w+)\)", open(path, encoding="utf-8").read(), flags=re.M))
    return entries


def main():
    header, out, sources = sys.argv[1], sys.argv[2], sys.argv[3:]
    functions, entries = functions_of(header), entries_of(sources)
    unknown = sorted(entries - set(functions))
    if unknown:
        sys.exit("not in %s: %s" % (header, ", ".join(unknown)))
    if "nvmlInit_v2" not in entries or len(functions) < 100:
        sys.exit("%s or the sources are not what they should be" % header)
    lines = [HEADER, "  .text"]
    lines += ["  EXPORT %s, %d" % (name, 8 * i) for i, name in enumerate(functions)]
    lines += ["", '  .section .data.rel.local, "aw"', "  .p2align 3", "  .globl tonnage_nvml_table", "  .hidden tonnage_nvml_table", "tonnage_nvml_table:"]
    lines += ["  .quad %s" % ("tonnage_" + name if name in entries else "tonnage_nvml_not_supported") for name in functions]
    lines += ["", '  .section .data.rel.ro.local, "aw"', "  .p2align 3", "  .globl tonnage_nvml_names", "  .hidden tonnage_nvml_names", "tonnage_nvml_names:"]
    lines += ["  .quad .Lname%d" % i for i in range(len(functions))]
    lines += ["", "  .section .rodata", "  .p2align 2", "  .globl tonnage_nvml_count", "  .hidden tonnage_nvml_count", "tonnage_nvml_count:",
              "  .long %d" % len(functions)]
    lines += ['.Lname%d: .asciz "%s"' % (i, name) for i, name in enumerate(functions)]
    lines += ['  .section .note.GNU-stack, "", %progbits', ""]
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))


main()
