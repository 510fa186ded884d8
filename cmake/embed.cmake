# Text files as a C++ source: gem_embed(TARGET FOLDER) adds to TARGET a generated file that defines
# gem::server::embedded_files() over all files of FOLDER (server/page/embedded.h). It is made anew when one changes.
#
# The same file is the script that makes it: cmake -DFOLDER=… -DOUTPUT=… -P embed.cmake
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(GEM_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
  function(gem_embed target folder)
    file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*)
    set(output ${CMAKE_BINARY_DIR}/generated/${target}_embedded.cpp)
    add_custom_command(OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_SOURCE_DIR}/${folder} -DOUTPUT=${output} -P ${GEM_EMBED_SCRIPT}
      DEPENDS ${files} ${GEM_EMBED_SCRIPT}
      COMMENT "Embedding ${folder}"
      VERBATIM)
    target_sources(${target} PRIVATE ${output})
  endfunction()
  return()
endif()

file(GLOB files ${FOLDER}/*)
list(SORT files)
set(entries "")
foreach(path IN LISTS files)
  get_filename_component(name "${path}" NAME)
  file(SHA256 "${path}" hash)
  string(SUBSTRING "${hash}" 0 32 tag)
  file(READ "${path}" content)
  # A raw string ends at the delimiter alone; the delimiter holds the content's own hash, so no file can hold it.
  string(SUBSTRING "${hash}" 0 12 delimiter)
  string(APPEND entries "    {\"${name}\", \"${tag}\",\n     R\"${delimiter}(${content})${delimiter}\"},\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/embed.cmake; do not edit.
#include \"server/page/embedded.h\"

namespace gem::server {
namespace {

constexpr EmbeddedFile kFiles[] = {
${entries}};

}  // namespace

std::span<const EmbeddedFile> embedded_files() {
  return kFiles;
}

}  // namespace gem::server
")
