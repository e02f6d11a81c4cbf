# find_package(rankfold 0.1 REQUIRED), then link what you need, in any order:
#   rankfold::rankfold      core, tuner, backends (libc only)
#   rankfold::db            the tactic database (SQLite)
#   rankfold::<sku>         the kernels of a SKU: @PACKS@
get_filename_component(_rankfold_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

function(_rankfold_archive name file)
  if(TARGET rankfold::${name})
    return()
  endif()
  if(NOT EXISTS "${_rankfold_prefix}/lib/${file}")
    message(FATAL_ERROR "rankfold: ${_rankfold_prefix}/lib/${file} is missing")
  endif()
  add_library(rankfold::${name} STATIC IMPORTED)
  set_target_properties(rankfold::${name} PROPERTIES
    IMPORTED_LOCATION "${_rankfold_prefix}/lib/${file}"
    IMPORTED_LINK_INTERFACE_LANGUAGES C
    INTERFACE_INCLUDE_DIRECTORIES "${_rankfold_prefix}/include"
    INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()

_rankfold_archive(rankfold librankfold.a dl pthread m)
_rankfold_archive(db librankfold_db.a rankfold::rankfold sqlite3)
foreach(_rankfold_pack @PACKS@)
  _rankfold_archive(${_rankfold_pack} librankfold_${_rankfold_pack}.a rankfold::rankfold)
endforeach()

unset(_rankfold_pack)
unset(_rankfold_prefix)
