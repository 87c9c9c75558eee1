# CPU kernels. A file *_simd.c is compiled once for each instruction set, through a wrapper that defines
# SPW_ISA; a file *_amx.c is for AMX alone. Which set runs is chosen at run time, so only these files may use more
# than the baseline. SPW_SOURCES gets the wrappers in place of the files.

set(avx2 -mavx2 -mfma -mf16c)
set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
set(SPW_FLAGS_portable)
set(SPW_FLAGS_avx2 ${avx2})
set(SPW_FLAGS_avx2vnni ${avx2} -mavxvnni)
set(SPW_FLAGS_avx512 ${avx512} -mprefer-vector-width=512)
set(SPW_FLAGS_avx512vnni ${SPW_FLAGS_avx512} -mavx512vnni)
# For units of 256 bits: registers of 256 bits.
set(SPW_FLAGS_avx512half ${avx512} -mavx512vnni -DSIMD_HALF)
set(SPW_FLAGS_avx512bf16 ${SPW_FLAGS_avx512vnni} -mavx512bf16)
# For Intel's units, which take longer for a dot product of bf16 than for two multiply-adds of f32.
set(SPW_FLAGS_avx512intel ${SPW_FLAGS_avx512bf16} -DAS_DOT_BF16=1)
set(SPW_FLAGS_amx ${SPW_FLAGS_avx512bf16} -mamx-tile -mamx-bf16 -mamx-int8)

# What /proc/cpuinfo calls the newest part of each set. No test can run the kernels of a set that this processor
# does not have. CI still compiles them, with less optimization, in half of the time.
set(cpuinfo_avx2 avx2)
set(cpuinfo_avx2vnni avx_vnni)
set(cpuinfo_avx512 avx512dq)
set(cpuinfo_avx512vnni avx512_vnni)
set(cpuinfo_avx512bf16 avx512_bf16)
set(cpuinfo_avx512half avx512_bf16)
set(cpuinfo_avx512intel avx512_bf16)
set(cpuinfo_amx amx_bf16)
if(SPW_UNTESTED_KERNELS_QUICKLY AND EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo cpuinfo REGEX "^flags" LIMIT_COUNT 1)
  foreach(isa avx2 avx2vnni avx512 avx512vnni avx512bf16 avx512half avx512intel amx)
    if(NOT cpuinfo MATCHES " ${cpuinfo_${isa}}( |$)")
      list(APPEND SPW_FLAGS_${isa} -O1)
    endif()
  endforeach()
endif()

set(isas_linear_half_simd "")
set(isas_linear_few_simd "")
# Under a sanitizer the portable kernels do all the work. The compiler must vectorize their loops, or tests
# of whole models take minutes. UndefinedBehaviorSanitizer prevents that, AddressSanitizer and
# ThreadSanitizer do not. UndefinedBehaviorSanitizer checks these files in tools/test.sh --full.
if(SPW_PORTABLE_KERNELS)
  set(isas portable)
  set(SPW_FLAGS_portable -O3 -fno-sanitize=undefined)
  # With AddressSanitizer the products and the recurrence take the compiler longer than all other kernels. Their tests put the
  # weights before a page that must not be touched; tools/test.sh --full has AddressSanitizer, too.
  set(more_linear_simd -fno-sanitize=address)
  set(more_linear_codes_simd -fno-sanitize=address)
  set(more_recur_simd -fno-sanitize=address)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(isas portable avx2 avx512 avx512bf16)
  set(SPW_FLAGS_amx_emulated ${SPW_FLAGS_avx512vnni})
  # VNNI makes products of codes faster, and bf16 does nothing for them.
  set(isas_linear_codes_simd portable avx2 avx2vnni avx512 avx512vnni)
  set(isas_linear_half_simd avx512half)
  set(isas_linear_few_simd avx512 avx512vnni)
  set(isas_attention_simd ${isas} avx512intel)
  set(isas_logits_row_simd portable avx2 avx512)
else()
  set(isas portable)
endif()

set(SPW_KERNEL_SOURCES)
foreach(source ${SPW_SOURCES})
  if(source MATCHES "_simd\\.c$")
    list(REMOVE_ITEM SPW_SOURCES ${source})
    get_filename_component(name ${source} NAME_WE)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${source})
    if(NOT DEFINED isas_${name})
      set(isas_${name} ${isas})
    endif()
    foreach(isa ${isas_${name}})
      set(wrapper ${CMAKE_BINARY_DIR}/kernels/${name}_${isa}.c)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#define SPW_ISA ${isa}\n#include \"${path}\"\n")
      set_source_files_properties(${wrapper} PROPERTIES COMPILE_OPTIONS "${SPW_FLAGS_${isa}};${more_${name}}")
      list(APPEND SPW_KERNEL_SOURCES ${wrapper})
    endforeach()
  elseif(source MATCHES "_amx\\.c$" AND isas STREQUAL "portable")
    list(REMOVE_ITEM SPW_SOURCES ${source})
  elseif(source MATCHES "_amx\\.c$")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${SPW_FLAGS_amx}")
  endif()
endforeach()
list(APPEND SPW_SOURCES ${SPW_KERNEL_SOURCES})
