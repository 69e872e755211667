# cmake -DTOOL=... -DVERSION=... -P info.cmake
# `fabric info`: every network of the build is there, usable or with its reason, in both forms.

cmake_minimum_required(VERSION 3.25)

function(run result)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ${ARGN} OUTPUT_VARIABLE output
                  COMMAND_ERROR_IS_FATAL ANY)
  message(STATUS "${output}")
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

function(expect what value expected)
  if(NOT value STREQUAL expected)
    message(FATAL_ERROR "${what} is ${value}, not ${expected}")
  endif()
endfunction()

run(text ${TOOL} info)
foreach(line
        "^fabric-lib ${VERSION}\n"
        "\n  sim +not usable: InvalidArgument .sim: open the engine by"
        "\n  self +usable\n    rail 0 self .up.\n"
        "\n  open files +[0-9a-z]+\n")
  if(NOT text MATCHES "${line}")
    message(FATAL_ERROR "no such line: ${line}")
  endif()
endforeach()

# FABRICLIB_NETWORKS does not hide networks; an unknown variable is named.
foreach(variable FABRICLIB_NETWORKS=sim FABRICLIB_NONSENSE=1)
  run(json ${variable} ${TOOL} info --json)
  string(JSON version GET "${json}" version)
  expect(version "${version}" "${VERSION}")
  string(JSON count LENGTH "${json}" networks)
  math(EXPR last "${count} - 1")
  string(JSON name GET "${json}" networks ${last} name)
  string(JSON usable GET "${json}" networks ${last} usable)
  expect("the last network" "${name}" self)
  if(variable MATCHES NONSENSE)
    string(JSON why GET "${json}" networks 0 why what)
    expect("the reason" "${why}" FABRICLIB_NONSENSE)
    expect("self usable" "${usable}" OFF)
  else()
    string(JSON fence GET "${json}" networks ${last} rails 0 caps fence)
    expect("self usable" "${usable}" ON)
    expect("the fence of self" "${fence}" Local)
  endif()
endforeach()
