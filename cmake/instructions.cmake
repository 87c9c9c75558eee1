# Files of the sources as arrays of the program: the texts in tools/command/job/summarize/instructions, and the
# server's page.

# spw_embed(HEADER NAME FILE...): HEADER has NAME[], a row for each file; texts are ASCII.
function(spw_embed header array)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(rows "")
  foreach(text ${ARGN})
    get_filename_component(name ${text} NAME)
    file(READ ${text} bytes HEX)
    string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
    string(APPEND rows "    {\"${name}\", (const char[]){${bytes}0}},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/${header} @ONLY CONTENT "/* Made by cmake/instructions.cmake. */
static const struct {
    const char *name, *text;
} @array@[] = {
@rows@};
")
endfunction()

file(GLOB texts CONFIGURE_DEPENDS tools/command/job/summarize/instructions/*.txt)
spw_embed(tools/command/job/instructions_texts.h instructions_texts ${texts})
spw_embed(tools/command/serve/page_texts.h page_texts ${CMAKE_SOURCE_DIR}/tools/command/serve/page/index.html)
target_include_directories(spillway_tools PRIVATE ${CMAKE_BINARY_DIR}/generated)
