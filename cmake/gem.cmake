# Warnings, sanitizers and the layer targets.

function(gem_compile_options target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC 12 reports std::vector and std::string moves as maybe-uninitialized or overlapping at -O2 and up.
    target_compile_options(${target} PRIVATE -Wno-error=maybe-uninitialized -Wno-error=restrict
      -Wno-error=stringop-overflow -Wno-error=array-bounds)
  endif()
  # No contraction: a*b+c rounds twice unless the code says fma, so that every path rounds as written.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  if(GEM_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GEM_SANITIZE} -fno-omit-frame-pointer -g1
      $<$<CXX_COMPILER_ID:GNU>:-fno-var-tracking>)  # lines for the traces; where variables are takes a fifth of the time
    if(GEM_SANITIZE MATCHES undefined)
      target_compile_options(${target} PRIVATE -fno-sanitize-recover=undefined)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${GEM_SANITIZE})
  endif()
  if(GEM_FUZZ)  # coverage, by which libFuzzer steers
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# gem_layer(NAME DEPENDS layer...): src/NAME/**.cpp as the object library gem_NAME, linkable with what it needs.
function(gem_layer name)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS src/${name}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/backend/(cuda/|no_cuda\\.cpp)")  # gem_cuda()
  add_library(gem_${name} OBJECT ${sources})
  gem_compile_options(gem_${name})
  target_include_directories(gem_${name} PUBLIC src)
  target_link_libraries(gem_${name} PUBLIC Threads::Threads nlohmann_json::nlohmann_json fmt::fmt)
  foreach(source ${sources})
    if(GEM_SANITIZE MATCHES undefined AND CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND source MATCHES "/server/http/(connection|http_server)")
      # clang 14 cannot emit that check for a coroutine ("Cannot represent a difference across sections").
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=function")
    endif()
    # One translation unit per instruction set: FILE_avx2.cpp is built for that set and chosen at run time.
    if(source MATCHES "_avx2\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    elseif(source MATCHES "_avx512\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni")
    elseif(source MATCHES "_amx\\.cpp$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx2;-mfma;-mf16c;-mavx512f;-mavx512bw;-mavx512vl;-mavx512vnni;-mavx512vbmi;-mamx-tile;-mamx-int8")
    elseif(source MATCHES "_neon\\.cpp$" AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-march=armv8.2-a+dotprod")
    endif()
  endforeach()
  set_property(TARGET gem_${name} PROPERTY GEM_DEPENDS "${arg_DEPENDS}")
endfunction()

# gem_test(NAME): tests/NAME/*.cpp as the program test_NAME. It links the layer and those below only, so an
# arrow that points up fails to link.
function(gem_test name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${name}/*.cpp)
  if(NOT GEM_WITH_CUDA)  # tests of the kernels' own parts
    list(FILTER sources EXCLUDE REGEX "/tests/(backend/cuda_|engine/cuda_draw)")
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  gem_compile_options(test_${name})
  get_property(depends TARGET gem_${name} PROPERTY GEM_DEPENDS)
  target_link_libraries(test_${name} PRIVATE gem_${name} ${ARGN} GTest::gtest GTest::gtest_main)
  foreach(layer ${depends})
    target_link_libraries(test_${name} PRIVATE gem_${layer})
  endforeach()
  if("${name}" STREQUAL "backend" OR "backend" IN_LIST depends)
    target_link_libraries(test_${name} PRIVATE gem_cuda)
    if(GEM_WITH_CUDA)
      target_link_libraries(test_${name} PRIVATE gem_cuda_kernels)
    endif()
  endif()
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_options(test_${name} PRIVATE -O1)  # the tests' own code: compiling it is what takes time
  target_precompile_headers(test_${name} PRIVATE <gtest/gtest.h> <string> <vector>)
  if("${name}" STREQUAL "server")
    target_precompile_headers(test_${name} PRIVATE <nlohmann/json.hpp>)
  endif()
  target_compile_definitions(test_${name} PRIVATE GEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  # Those that need a device say so by their name: 'ctest -L gpu' runs them alone.
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." TEST_FILTER "-*Cuda*" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 600 SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  gtest_discover_tests(test_${name} TEST_PREFIX "${name}." TEST_FILTER "*Cuda*" TEST_LIST test_${name}_gpu DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS gpu TIMEOUT 600 SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()

# gem_cuda(): the CUDA backend as the object libraries gem_cuda (what the host compiler builds; all there is without
# CUDA is a file that says so) and gem_cuda_kernels. The device compiler knows neither the warnings nor the sanitizers of
# the rest.
function(gem_cuda)
  if(NOT GEM_WITH_CUDA)
    add_library(gem_cuda OBJECT src/backend/no_cuda.cpp)
  else()
    file(GLOB sources CONFIGURE_DEPENDS src/backend/cuda/*.cpp)
    add_library(gem_cuda OBJECT ${sources})
    string(REPLACE ";" "," archs "${GEM_CUDA_ARCHS}")
    target_link_libraries(gem_cuda PUBLIC CUDA::cudart_static)
    # cuBLASLt is loaded at run time, from the loader's places or from here.
    target_compile_definitions(gem_cuda PRIVATE GEM_CUDA_LIBRARY_DIR="${CUDAToolkit_LIBRARY_DIR}" GEM_CUDA_ARCHS="${archs}")
    file(GLOB kernels CONFIGURE_DEPENDS src/backend/cuda/*.cu)
    add_library(gem_cuda_kernels OBJECT ${kernels})
    set_target_properties(gem_cuda_kernels PROPERTIES CUDA_ARCHITECTURES "${GEM_CUDA_ARCHS}" CUDA_STANDARD 20)
    target_include_directories(gem_cuda_kernels PUBLIC src)
    target_compile_options(gem_cuda_kernels PRIVATE -O3 --expt-relaxed-constexpr -lineinfo)
  endif()
  gem_compile_options(gem_cuda)
  target_include_directories(gem_cuda PUBLIC src)
  target_link_libraries(gem_cuda PUBLIC Threads::Threads fmt::fmt)
endfunction()

# gem_test_emulated_cuda(NAME ARCH SHARED_KB FILTER SOURCES...): the CUDA backend's tests as the program NAME, on a device
# in software (tests/emulation/cuda) instead of a real one: of that architecture, with so much shared memory for a block.
# FILTER: of these tests, what such a device runs in a minute or two.
function(gem_test_emulated_cuda name arch shared_kb filter)
  set(device gem_cuda_of_${name})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cpp ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
  list(FILTER sources EXCLUDE REGEX "/gemm\\.cpp$")
  file(GLOB kernels CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/cuda/*.cu)
  add_library(${device} OBJECT ${sources} ${CMAKE_SOURCE_DIR}/tests/emulation/cuda/device.cpp)
  set_source_files_properties(${kernels} TARGET_DIRECTORY ${device} PROPERTIES LANGUAGE CXX)
  gem_compile_options(${device})
  # The device compiler lets a register be looked at as another type, and as a float4 where it is four floats.
  target_compile_options(${device} PRIVATE -fno-strict-aliasing -x c++ -w)
  target_compile_definitions(${device} PRIVATE GEM_CUDA_ARCHS="${arch}" __CUDA_ARCH__=${arch}0)
  target_compile_definitions(${device} PUBLIC GEM_CUDA_EMULATED GEM_EMULATED_SHARED_KB=${shared_kb})
  target_include_directories(${device} BEFORE PUBLIC ${CMAKE_SOURCE_DIR}/tests/emulation/cuda)
  target_include_directories(${device} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${device} PUBLIC Threads::Threads fmt::fmt)

  add_executable(${name} ${ARGN})
  gem_compile_options(${name})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${device} gem_engine gem_text gem_model gem_formats gem_backend gem_base
    GTest::gtest GTest::gtest_main)
  target_compile_options(${name} PRIVATE -O1)
  target_compile_definitions(${name} PRIVATE GEM_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  string(REPLACE "test_cuda" "emulated" prefix ${name})
  # A device's threads are fibers, each of which would get a stack of its own for what was returned from: seven times the time.
  gtest_discover_tests(${name} TEST_PREFIX "${prefix}." TEST_FILTER "${filter}" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 600 ENVIRONMENT "ASAN_OPTIONS=detect_stack_use_after_return=0" SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()
