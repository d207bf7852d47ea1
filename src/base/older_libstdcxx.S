// A recorder that goes into a package runs with the libstdc++ of GCC 10 too (glibc 2.31's time). C++20
// gave std::stringbuf::str() another name in GCC 11; the function behind the older name is the same.
#if defined(__x86_64__)
  .text
  .globl _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv
  .hidden _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv
  .type _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv, @function
_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv:
  jmp _ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv@PLT
#endif
  .section .note.GNU-stack, "", @progbits
