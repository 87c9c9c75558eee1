# `cmake --install`: the command, the library, the headers that runtime/spillway.h needs, and
# `pkg-config spillway`, which says all there is to link with: the library is static.

include(GNUInstallDirs)
install(TARGETS spillway ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS spillway_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
foreach(header
    runtime/spillway.h base/base.h runtime/engine/cache_policy.h
    model/text/chat_template.h model/config.h model/ops.h model/rope.h model/safetensors.h
    model/text/tokenizer/tokenizer.h
    offload/io/io_kind.h offload/store/store_info.h offload/device/topology_info.h
    quant/codec.h quant/qtile.h quant/tile.h)
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
