# Settings and helper functions that every folder of the project shares.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

if(WEFT_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "WEFT_CUDA=ON: wanted nvcc, found none. Put the CUDA toolkit's bin folder on PATH, or leave WEFT_CUDA off.")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${WEFT_CUDA_ARCHITECTURES})
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know the option of nvcc 13 for C++20, which it takes over from C++.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(simdjson REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(zstd QUIET)
if(WEFT_GRPC)
  find_package(Protobuf REQUIRED)
  find_package(gRPC CONFIG REQUIRED)
  find_package(tomlplusplus CONFIG REQUIRED)
  find_library(WEFT_ISAL isal REQUIRED)
  find_library(WEFT_LZ4 lz4 REQUIRED)
endif()

if(WEFT_SERVER)
  find_package(Boost 1.81 REQUIRED)
endif()
if(WEFT_GRPC OR WEFT_SERVER)
  find_package(prometheus-cpp CONFIG REQUIRED)
endif()

add_library(weft_options INTERFACE)
target_include_directories(weft_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
# The bit promise (ARCHITECTURE.md) forbids contraction of a*b+c into an fma where the source does not say so.
target_compile_options(weft_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wnon-virtual-dtor;-Woverloaded-virtual>"
  "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-Xcompiler=-Wall;-Xcompiler=-Wextra>")
# fmt 9 thinks that nvcc lacks constexpr, and then contradicts itself.
target_compile_definitions(weft_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>")
if(WEFT_CUDA)
  # `./dev gpu` puts libraries that the GPU machine lacks beside the programs; the old form of the tag counts for their needs too.
  # cuBLASLt is the GPU machine's own. The programs travel: what they do not call is left out.
  set(CMAKE_BUILD_RPATH "$ORIGIN/lib;/usr/local/cuda/lib64")
  target_compile_options(weft_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections;-fdata-sections>" "$<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>")
  target_link_options(weft_options INTERFACE -Wl,--disable-new-dtags -Wl,--as-needed -Wl,--gc-sections)
endif()
if(WEFT_WERROR)
  target_compile_options(weft_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>" "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
if(WEFT_SANITIZE)
  # -pthread: gRPC asks for it, and compiled headers are shared with sources that do not use gRPC.
  target_compile_options(weft_options INTERFACE -pthread -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(weft_options INTERFACE -fsanitize=${WEFT_SANITIZE})
endif()
target_compile_definitions(weft_options INTERFACE SPDLOG_FMT_EXTERNAL)

# weft_precompile(TARGET [headers...] | TARGET REUSE_FROM OTHER): reading headers is most of the time that a source takes to compile with a
# sanitizer. Other builds read them anew: compiled headers differ from clone to clone, which would part their compiler caches.
set(WEFT_STANDARD_HEADERS <algorithm> <array> <charconv> <chrono> <filesystem> <fstream> <functional> <future> <map> <memory> <mutex>
    <optional> <random> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <variant> <vector>
    <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp>)
function(weft_precompile target)
  if(NOT WEFT_SANITIZE OR WEFT_FUZZ)
    return()
  endif()
  if("${ARGV1}" STREQUAL "REUSE_FROM")
    target_precompile_headers(${target} REUSE_FROM ${ARGV2})
  else()
    target_precompile_headers(${target} PRIVATE ${WEFT_STANDARD_HEADERS} ${ARGN})
  endif()
endfunction()

# weft_library(NAME FOLDERS... LINK libs...): a static library of all sources below src/FOLDER. With CUDA, *.cu take the place of
# *stub.cc.
function(weft_library name)
  cmake_parse_arguments(arg "" "" "FOLDERS;LINK" ${ARGN})
  set(sources "")
  foreach(folder IN LISTS arg_FOLDERS)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${folder}/*.cc")
    if(WEFT_CUDA)
      list(FILTER found EXCLUDE REGEX "stub\\.cc$")
    endif()
    # What needs gRPC, or stands in for it.
    if(WEFT_GRPC)
      list(FILTER found EXCLUDE REGEX "remote_off\\.cc$")
    else()
      list(FILTER found EXCLUDE REGEX "/(pipeline|engine)/(wire|remote)/")
    endif()
    list(APPEND sources ${found})
    if(WEFT_CUDA)
      file(GLOB_RECURSE found CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/src/${folder}/*.cu")
      list(APPEND sources ${found})
    endif()
  endforeach()
  if(NOT sources)
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE weft_options ${arg_LINK})
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC weft_options ${arg_LINK})
endfunction()
