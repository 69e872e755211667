# cmake -DDEMO=... -DREPORT=... -P demo.cmake
# A short run without a terminal: it exits with 0, every check of its result passes, and the output
# is plain text.

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${DEMO} --seconds 5 --report ${REPORT} OUTPUT_VARIABLE output
                ERROR_VARIABLE errors RESULT_VARIABLE result)
message(STATUS "${output}${errors}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the demo exited with ${result}")
endif()

foreach(line
        "\n *[0-9.]+ s   [0-9]+ of [0-9]+ answered, [0-9]+ members"
        "\n *[0-9.]+ s   prefill-1 is killed .SIGKILL. in layer [0-9] of request [0-9]+\n"
        "\n *[0-9.]+ s   request [0-9]+ is sent again to prefill-"
        "\n *[0-9.]+ s   prefill-3 joins the directory\n"
        "\n *[0-9.]+ s   prefill-2 is stopped .SIGSTOP. in layer [0-9] of request [0-9]+\n"
        "\n *[0-9.]+ s   prefill-2 continues .SIGCONT.\n"
        "\n *[0-9.]+ s   decode-2 has left\n"
        "\nprefill-1 +[0-9]+ killed "
        "\n.ok. tokens: [0-9,]+ of [0-9,]+ requests answered with the [0-9,]+ tokens of the one-p"
        "\n.ok. sent again: [0-9,]+ requests?, [0-9,]+ attempts? failed: .*; 0 not answered\n"
        "\n.ok. killed: prefill-1. [0-9]+ attempts? failed after [0-9]+ ms, all requests answere"
        "\n.ok. killed: prefill-1. pages proved quiet after [0-9]+ ms\n"
        "\n.ok. paused: prefill-2 for "
        "\n.ok. joined: prefill-3 "
        "\n.ok. drained: decode-2 "
        "\n.ok. pages: [0-9,]+ total, 0 lost\n"
        "\n.ok. canary: 0 freed pages touched\n"
        "\n.ok. overlap: "
        "\n.ok. cleanup: all processes exited. 0 new files in /dev/shm\n"
        "\n.ok. report: "
        "\nresult: all checks passed\n$")
  if(NOT output MATCHES "${line}")
    message(FATAL_ERROR "no such line: ${line}")
  endif()
endforeach()

# The numbers behind the line: every request was answered with the right tokens.
string(REGEX MATCH "tokens: ([0-9,]+) of ([0-9,]+) requests" all "${output}")
if(NOT CMAKE_MATCH_1 STREQUAL CMAKE_MATCH_2 OR CMAKE_MATCH_1 LESS 20)
  message(FATAL_ERROR "too few answers: ${all}")
endif()

string(ASCII 27 escape)
if(output MATCHES "${escape}")
  message(FATAL_ERROR "terminal escape codes without a terminal")
endif()
string(REPLACE ";" "," lines "${output}")
string(REPLACE "\n" ";" lines "${lines}")
foreach(line IN LISTS lines)
  string(LENGTH "${line}" columns)
  if(columns GREATER 100 AND NOT line MATCHES "report: ")
    message(FATAL_ERROR "more than 100 columns: ${line}")
  endif()
endforeach()
if(NOT errors STREQUAL "")
  message(FATAL_ERROR "something on standard error")
endif()
