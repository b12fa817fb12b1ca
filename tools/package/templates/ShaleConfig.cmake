# Defines the target Shale::shale: the library and the folder of its headers. The prefix may be moved.
if(NOT TARGET Shale::shale)
  get_filename_component(_shale_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  add_library(Shale::shale SHARED IMPORTED)
  set_target_properties(Shale::shale PROPERTIES
    IMPORTED_LOCATION "${_shale_prefix}/lib/@SONAME@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_shale_prefix}/include")
  unset(_shale_prefix)
endif()
