# The CUDA side of `spillway`, where the toolkit is found, and `spillway_emulated`: the same library
# with every .cu file compiled by the host compiler against tests/cuda/simt_emulator.h.

# AUTO takes minutes of nvcc only where something can run the code: for the one GPU that is here. ON compiles for all of
# SPILLWAY_CUDA_ARCHITECTURES, for other machines.
set(SPW_HAVE_CUDA OFF)
set(left_out "SPILLWAY_CUDA=${SPILLWAY_CUDA}")
set(architectures ${SPILLWAY_CUDA_ARCHITECTURES})
if(architectures STREQUAL "default")
  set(architectures 75-real 80-real 86-real 89-real 90)
endif()
if(SPILLWAY_CUDA STREQUAL AUTO)
  set(architectures native)
  execute_process(COMMAND nvidia-smi -L RESULT_VARIABLE no_gpu OUTPUT_QUIET ERROR_QUIET)
  set(left_out "found a GPU, but no CUDA compiler: put nvcc on the PATH")
endif()
if(no_gpu)
  set(left_out "found no GPU; docs/install.md says how to build for other machines")
elseif(NOT SPILLWAY_CUDA STREQUAL OFF)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${architectures})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(SPW_HAVE_CUDA ON)
    if(CUDAToolkit_VERSION VERSION_LESS 11.8)
      message(FATAL_ERROR "nvcc is of CUDA ${CUDAToolkit_VERSION}; expected 11.8 or newer, the first that knows sm_89 "
        "and sm_90. Put a newer nvcc on the PATH, or build with SPILLWAY_CUDA=OFF")
    endif()
    # A card without code of its own runs PTX, which the driver compiles at the first start, in silence, for about
    # a minute. The PTX of 90 stays for cards between those of 100 and of 120.
    if(SPILLWAY_CUDA_ARCHITECTURES STREQUAL "default" AND NOT SPILLWAY_CUDA STREQUAL AUTO)
      if(CUDAToolkit_VERSION VERSION_LESS 12.8)
        message(STATUS "CUDA: ${CUDAToolkit_VERSION} has no code for the RTX 50 series and B200: their driver compiles "
          "the kernels at the first start, for about a minute. CUDA 12.8 and newer have it")
      else()
        list(APPEND architectures 100-real 120)
      endif()
    endif()
  elseif(SPILLWAY_CUDA STREQUAL ON)
    message(FATAL_ERROR "SPILLWAY_CUDA=ON, but there is no CUDA compiler: put nvcc on the PATH or "
      "set CUDACXX")
  endif()
endif()

# PTX is there for GPUs newer than all code. Of an older architecture than the newest code it would run
# on them without what spw_cuda_code_overlaps() (quant/cuda.cuh) takes for granted.
set(newest 0)
set(newest_ptx 0)
foreach(architecture ${architectures})
  string(REGEX MATCH "^[0-9]+" number "${architecture}")
  if(number AND number GREATER newest)
    set(newest ${number})
  endif()
  if(number AND number GREATER newest_ptx AND NOT architecture MATCHES "-real$")
    set(newest_ptx ${number})
  endif()
endforeach()
if(SPW_HAVE_CUDA AND newest_ptx GREATER 0 AND newest_ptx LESS newest)
  message(FATAL_ERROR "SPILLWAY_CUDA_ARCHITECTURES=${SPILLWAY_CUDA_ARCHITECTURES}: PTX for ${newest_ptx} "
    "beside code for ${newest}; write ${newest} without -real, or ${newest_ptx}-real")
endif()

if(SPW_HAVE_CUDA)
  message(STATUS "CUDA: built by CUDA ${CUDAToolkit_VERSION} for ${architectures}")
  target_sources(spillway PRIVATE ${SPW_CUDA_SOURCES})
  target_compile_definitions(spillway PRIVATE SPW_CUDA $<$<BOOL:${SPILLWAY_CUDA_LATE}>:SPW_CUDA_LATE>)
  # -fmad=false: sums and products are fused only where fmaf says so, in every kernel alike. The code
  # of seven architectures with its lines is a fifth of the size when it is compressed.
  function(spw_compile_cuda target)
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++17;-fmad=false;\
-lineinfo;-Xfatbin=-compress-all;-Xcompiler=-Wall,-Wextra,-Wshadow,-Werror,-fvisibility=hidden>")
  endfunction()
  spw_compile_cuda(spillway)
  target_link_libraries(spillway PUBLIC CUDA::cudart_static)
else()
  message(STATUS "CUDA: left out, ${left_out}")
endif()

if(BUILD_TESTING)
  # A .cu file is a source of the real library, in CUDA; a one-line wrapper makes it C++ here. Always
  # optimized, for fibers and tensor products are slow enough. threadIdx is unsigned, what it is
  # compared with mostly not.
  enable_language(CXX)
  set(SPW_EMULATED_OPTIONS -std=c++17 -O2 -Wall -Wextra -Wshadow -Werror -Wno-unknown-pragmas -Wno-sign-compare
    -fno-exceptions -ffp-contract=off -fno-math-errno -fvisibility=hidden
    -include ${CMAKE_SOURCE_DIR}/tests/cuda/simt_emulator.h)
  if(SPW_PORTABLE_KERNELS) # a quarter of their compiler's time; tools/test.sh --full has it
    list(APPEND SPW_EMULATED_OPTIONS -O1 -fno-sanitize=undefined)
  endif()
  set(alignment) # a GPU refuses what this processor allows: a word at an odd address
  if(NOT SPW_SANITIZE_THREAD)
    set(alignment -fsanitize=alignment)
    list(APPEND SPW_EMULATED_OPTIONS ${alignment} -fno-sanitize-recover=alignment)
  endif()
  if(SPW_SANITIZE_THREAD) # its tests run the streams, and hardly any kernel
    list(APPEND SPW_EMULATED_OPTIONS -O0)
  endif()
  set(SPW_EMULATED_SOURCES tests/cuda/simt_emulator.cc tests/cuda/simt_runtime.cc
    tests/cuda/simt_streams.cc)
  foreach(source ${SPW_CUDA_SOURCES})
    get_filename_component(name ${source} NAME_WE)
    set(wrapper ${CMAKE_BINARY_DIR}/emulated/${name}.cc)
    file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${source}\"\n")
    list(APPEND SPW_EMULATED_SOURCES ${wrapper})
  endforeach()
  set_source_files_properties(${SPW_EMULATED_SOURCES} PROPERTIES COMPILE_OPTIONS
    "${SPW_EMULATED_OPTIONS}")
  set_property(SOURCE tests/cuda/simt_emulator.cc APPEND PROPERTY COMPILE_OPTIONS -O3)
  add_library(spillway_emulated STATIC ${SPW_CUDA_ROW} ${SPW_EMULATED_SOURCES})
  target_compile_definitions(spillway_emulated PRIVATE SPW_CUDA SPW_SIMT_EMULATOR)
  target_link_libraries(spillway_emulated PUBLIC spillway_core)
  target_link_options(spillway_emulated PUBLIC ${alignment})
  target_sources(spillway_emulated PRIVATE $<TARGET_OBJECTS:spillway_core>)
endif()
