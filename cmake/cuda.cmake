# The CUDA side of `spillway`, where the toolkit is found, and `spillway_emulated`: the same library
# with every .cu file compiled by the host compiler against tests/simt_emulator.h.

set(SPW_HAVE_CUDA OFF)
if(NOT SPILLWAY_CUDA STREQUAL OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${SPILLWAY_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(SPW_HAVE_CUDA ON)
  elseif(SPILLWAY_CUDA STREQUAL ON)
    message(FATAL_ERROR "SPILLWAY_CUDA=ON, but there is no CUDA compiler: put nvcc on the PATH or "
      "set CUDACXX")
  endif()
endif()

if(SPW_HAVE_CUDA)
  message(STATUS "CUDA ${CUDAToolkit_VERSION}: the CUDA backend is built")
  target_sources(spillway PRIVATE ${SPW_CUDA_SOURCES})
  set_target_properties(spillway PROPERTIES CUDA_ARCHITECTURES "${SPILLWAY_CUDA_ARCHITECTURES}")
  target_compile_definitions(spillway PRIVATE SPW_CUDA)
  # -fmad=false: sums and products are fused only where fmaf says so, in every kernel alike.
  target_compile_options(spillway PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++17;-fmad=false;\
-lineinfo;-Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-fvisibility=hidden>")
  target_link_libraries(spillway PUBLIC CUDA::cudart_static)
else()
  message(STATUS "CUDA: no toolkit found, the CUDA backend is left out (SPILLWAY_CUDA=${SPILLWAY_CUDA})")
endif()
