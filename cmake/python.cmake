# The Python package, where an interpreter with nanobind is found: that of the virtual environment
# which scripts/python-venv makes, or the one that pip builds with. AUTO: not with sanitizers, which
# an interpreter without them cannot load.

set(FABRIC_HAS_PYTHON FALSE)
set(FABRIC_PYTHON_VENV ${PROJECT_SOURCE_DIR}/build/python/venv CACHE PATH
    "The virtual environment of scripts/python-venv")
if(FABRIC_PYTHON STREQUAL "ON")
  set(FABRIC_HAS_PYTHON TRUE)
elseif(FABRIC_PYTHON AND FABRIC_SANITIZE STREQUAL ""
       AND EXISTS ${FABRIC_PYTHON_VENV}/bin/python AND EXISTS ${FABRIC_PYTHON_VENV}/complete)
  set(Python_EXECUTABLE ${FABRIC_PYTHON_VENV}/bin/python)
  set(FABRIC_HAS_PYTHON TRUE)
endif()
if(FABRIC_HAS_PYTHON)
  add_subdirectory(python)
endif()
