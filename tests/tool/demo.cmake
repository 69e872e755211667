# cmake -DDEMO=... -P demo.cmake
# A short run without a terminal: it exits with 0, every check of its report passes, and the output
# is plain text.

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${DEMO} --seconds 5 OUTPUT_VARIABLE output ERROR_VARIABLE errors
                RESULT_VARIABLE result)
message(STATUS "${output}${errors}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the demo exited with ${result}")
endif()

foreach(line
        "\n *[0-9.]+ s   decode-1 [0-9.]+ GB/s p99 [0-9.]+ ms"
        "\n *[0-9.]+ s   decode-2 is killed"
        "\n *[0-9.]+ s   decode-3 joins"
        "\ndecode-2 +[0-9]+ lost "
        "\n.ok. bytes: [0-9.]+ GB in [0-9,]+ prompts, every byte checked, 0 wrong pages\n"
        "\n.ok. counts: [0-9,]+ expected, [0-9,]+ counted, 0 too many\n"
        "\n.ok. completions: [0-9,]+ of [0-9,]+ operations completed, [0-9,]+ successfully"
        " successfully. decode-2: [0-9]+ PeerLost"
        "\n.ok. killed: decode-2 lost "
        "\n.ok. joined: decode-3 "
        "\n.ok. stopped: decode-1 stalled [0-9.]+ s after SIGSTOP"
        "\n.ok. full speed: "
        "\n.ok. cleanup: all processes exited. 0 new files in /dev/shm\n"
        "\nresult: all checks passed\n$")
  if(NOT output MATCHES "${line}")
    message(FATAL_ERROR "no such line: ${line}")
  endif()
endforeach()

string(ASCII 27 escape)
if(output MATCHES "${escape}")
  message(FATAL_ERROR "terminal escape codes without a terminal")
endif()
string(REPLACE ";" "," lines "${output}")
string(REPLACE "\n" ";" lines "${lines}")
foreach(line IN LISTS lines)
  string(LENGTH "${line}" columns)
  if(columns GREATER 100)
    message(FATAL_ERROR "more than 100 columns: ${line}")
  endif()
endforeach()
if(NOT errors STREQUAL "")
  message(FATAL_ERROR "something on standard error")
endif()
