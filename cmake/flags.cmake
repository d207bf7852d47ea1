# Warnings, sanitizers and coverage, for all that is compiled here.
add_compile_options(-Wall -Wextra)
if(TONNAGE_WERROR)
  add_compile_options(-Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # GCC 12 warns about "text" + std::string without a reason (GCC's bug 105651).
    add_compile_options(-Wno-restrict)
    # Its optimiser's warnings are often wrong about library code: shown, but no errors.
    add_compile_options(-Wno-error=array-bounds -Wno-error=stringop-overflow -Wno-error=maybe-uninitialized)
  endif()
endif()

if(TONNAGE_SANITIZE)
  add_compile_options(-fsanitize=${TONNAGE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TONNAGE_SANITIZE})
endif()
if(TONNAGE_COVERAGE)
  # Counters are atomic: the driver's tests count from several threads.
  add_compile_options(--coverage -fprofile-update=atomic -O0)
  add_link_options(--coverage)
endif()
