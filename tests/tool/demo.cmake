# cmake -DDEMO=... -P demo.cmake
# A short show, without a terminal: it ends with 0, every line of its verdict holds, and what it
# prints can be read in a log.

cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${DEMO} --seconds 5 OUTPUT_VARIABLE output ERROR_VARIABLE errors
                RESULT_VARIABLE result)
message(STATUS "${output}${errors}")
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the demo ended with ${result}")
endif()

foreach(line
        "\n *[0-9.]+ s   decode-1 [0-9.]+ GB/s p99 [0-9.]+ ms"
        "\n *[0-9.]+ s   decode-2 is killed"
        "\n *[0-9.]+ s   decode-3 joins"
        "\ndecode-2 +[0-9]+ lost "
        "\n.ok. bytes    [0-9.]+ GB in [0-9]+ prompts, every byte looked at, 0 pages wrong\n"
        "\n.ok. counts   [0-9]+ expected, [0-9]+ seen, 0 too many\n"
        "\n.ok. ends     [0-9]+ of [0-9]+ operations, [0-9]+ well; decode-2: [0-9]+ PeerLost"
        "\n.ok. killed   decode-2: lost "
        "\n.ok. joined   decode-3: "
        "\n.ok. stopped  decode-1 [0-9.]+ s: stalled after "
        "\n.ok. flat out "
        "\n.ok. after    every process has ended; 0 new files in /dev/shm\n"
        "\nverdict: everything holds\n$")
  if(NOT output MATCHES "${line}")
    message(FATAL_ERROR "no such line: ${line}")
  endif()
endforeach()

string(ASCII 27 escape)
if(output MATCHES "${escape}")
  message(FATAL_ERROR "codes of a terminal where there is none")
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
