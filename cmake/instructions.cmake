# The texts in tools/command/job/summarize/instructions as arrays of the program.

file(GLOB texts CONFIGURE_DEPENDS tools/command/job/summarize/instructions/*.txt)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${texts})
set(rows "")
foreach(text ${texts})
  get_filename_component(name ${text} NAME)
  file(READ ${text} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND rows "    {\"${name}\", (const char[]){${bytes}0}},\n")
endforeach()
set(folder ${CMAKE_BINARY_DIR}/generated/tools/command/job)
file(CONFIGURE OUTPUT ${folder}/instructions_texts.h @ONLY CONTENT "/* Made by cmake/instructions.cmake. */
static const struct {
    const char *name, *text;
} instructions_texts[] = {
@rows@};
")
target_include_directories(spillway_tools PRIVATE ${CMAKE_BINARY_DIR}/generated)
