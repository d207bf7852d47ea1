# What the binary says of itself, as files: man pages, completions for shells, schemas of its JSON
# (src/cli/reference_commands.cpp).
set(reference ${CMAKE_BINARY_DIR}/share)
set(make_reference
  COMMAND ${CMAKE_COMMAND} -E make_directory ${reference}/man ${reference}/schema
  COMMAND ${CMAKE_COMMAND} -E make_directory ${reference}/bash ${reference}/zsh ${reference}/fish
  COMMAND tonnage man --folder ${reference}/man
  COMMAND tonnage completion bash > ${reference}/bash/tonnage
  COMMAND tonnage completion zsh > ${reference}/zsh/_tonnage
  COMMAND tonnage completion fish > ${reference}/fish/tonnage.fish)
foreach(name report explain diff check gpus doctor)
  set(file ${reference}/schema/${name}.schema.json)
  list(APPEND make_reference COMMAND tonnage schema ${name} > ${file})
endforeach()
add_custom_command(OUTPUT ${reference}/.made ${make_reference}
  COMMAND ${CMAKE_COMMAND} -E touch ${reference}/.made
  DEPENDS tonnage VERBATIM)
add_custom_target(reference ALL DEPENDS ${reference}/.made)
add_dependencies(product reference)

set(data ${CMAKE_INSTALL_DATADIR})
install(DIRECTORY ${reference}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${reference}/bash/tonnage DESTINATION ${data}/bash-completion/completions)
install(FILES ${reference}/zsh/_tonnage DESTINATION ${data}/zsh/site-functions)
install(FILES ${reference}/fish/tonnage.fish DESTINATION ${data}/fish/vendor_completions.d)
install(DIRECTORY ${reference}/schema DESTINATION ${data}/tonnage)
