# What the binary says of itself, as files: man pages, completions for shells, schemas of its JSON (src/cli/reference_commands.cpp).
set(reference ${CMAKE_BINARY_DIR}/share)
set(reference_commands
  COMMAND ${CMAKE_COMMAND} -E make_directory ${reference}/man ${reference}/bash ${reference}/zsh ${reference}/fish ${reference}/schema
  COMMAND tonnage man --folder ${reference}/man
  COMMAND tonnage completion bash > ${reference}/bash/tonnage
  COMMAND tonnage completion zsh > ${reference}/zsh/_tonnage
  COMMAND tonnage completion fish > ${reference}/fish/tonnage.fish)
foreach(name report explain diff check gpus doctor)
  list(APPEND reference_commands COMMAND tonnage schema ${name} > ${reference}/schema/${name}.schema.json)
endforeach()
add_custom_command(OUTPUT ${reference}/.made ${reference_commands} COMMAND ${CMAKE_COMMAND} -E touch ${reference}/.made DEPENDS tonnage VERBATIM)
add_custom_target(reference ALL DEPENDS ${reference}/.made)
add_dependencies(product reference)

install(DIRECTORY ${reference}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${reference}/bash/tonnage DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${reference}/zsh/_tonnage DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${reference}/fish/tonnage.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
install(DIRECTORY ${reference}/schema DESTINATION ${CMAKE_INSTALL_DATADIR}/tonnage)
