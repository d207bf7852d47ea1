# The card catalogue (data/cards/*.json), built into tonnage_cards.
file(GLOB card_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/data/cards/*.json)
set(cards_cpp ${CMAKE_BINARY_DIR}/generated/cards/embedded_cards.cpp)
add_custom_command(
  OUTPUT ${cards_cpp}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/embed_cards.py ${cards_cpp} ${card_files}
  DEPENDS ${card_files} ${CMAKE_SOURCE_DIR}/tools/embed_cards.py
  VERBATIM)
target_sources(tonnage_cards PRIVATE ${cards_cpp})
