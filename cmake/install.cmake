# `cmake --install`: the command with its manual page and its completions for shells, the library, static and
# shared, the public headers, and `pkg-config spillway`, which names everything to link
# with.

include(GNUInstallDirs)

# The static library's objects once more. It exports what the public headers declare (visibility "default" there).
file(WRITE ${CMAKE_BINARY_DIR}/shared.c "typedef int spw_no_source_of_its_own;\n")
add_library(spillway_shared SHARED ${CMAKE_BINARY_DIR}/shared.c)
target_link_libraries(spillway_shared PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,spillway>")
target_link_options(spillway_shared PRIVATE -Wl,-Bsymbolic)
set_target_properties(spillway_shared PROPERTIES OUTPUT_NAME spillway LINKER_LANGUAGE C
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})

set(installed spillway_command spillway spillway_shared)
install(TARGETS spillway spillway_shared ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY tools/command/job/summarize/instructions DESTINATION ${CMAKE_INSTALL_DATADIR}/spillway)
install(TARGETS spillway_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
foreach(header
    runtime/spillway.h runtime/events.h runtime/plan_query.h runtime/saved.h runtime/sampler.h runtime/measure.h
    runtime/experts.h
    base/types.h base/dtype.h base/token_rules.h base/base.h runtime/engine/cache_policy.h
    model/audio/audio.h model/config/config.h model/fingerprint.h model/kinds.h model/quantize.h model/config/rope.h model/source/source.h model/source/tensors.h
    model/text/answer_parts.h model/text/chat_template.h model/text/grammar/grammar.h model/text/reasoning.h model/text/tokenizer/tokenizer.h
    offload/store/store_info.h
    quant/layer_kind.h quant/types.h)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/spillway/${folder})
endforeach()

set(SPW_PC_CUDA_LIBS "")
if(SPW_HAVE_CUDA) # kernels are C++ to their compiler
  set(SPW_PC_CUDA_LIBS "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lstdc++")
endif()
set(SPW_PC_FOLDER ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH SPW_PREFIX_FROM_PC /prefix/${SPW_PC_FOLDER} /prefix) # a tree that was moved works
configure_file(cmake/spillway.pc.in spillway.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/spillway.pc DESTINATION ${SPW_PC_FOLDER})

# The command writes its own manual page and completions, from its table of options. A program with a
# sanitizer is not for installing.
if(NOT SPW_SANITIZE_ADDRESS AND NOT SPW_SANITIZE_THREAD AND NOT SPW_COVERAGE AND NOT CMAKE_CROSSCOMPILING)
  set(pages ${CMAKE_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  add_custom_command(OUTPUT ${pages}/spillway.1 ${pages}/spillway ${pages}/_spillway ${pages}/spillway.fish
    COMMAND spillway_command --man > ${pages}/spillway.1
    COMMAND spillway_command completion bash > ${pages}/spillway
    COMMAND spillway_command completion zsh > ${pages}/_spillway
    COMMAND spillway_command completion fish > ${pages}/spillway.fish
    DEPENDS spillway_command VERBATIM)
  add_custom_target(spillway_pages ALL DEPENDS ${pages}/spillway.1)
  list(APPEND installed spillway_pages)
  install(FILES ${pages}/spillway.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${pages}/spillway DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${pages}/_spillway DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${pages}/spillway.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
# What `cmake --install` copies, without the tests: tools/demo.sh builds this.
add_custom_target(installed DEPENDS ${installed})
